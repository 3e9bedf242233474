"""Tables of results as CSV."""

import csv
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def number(value: float, digits: int = 4) -> str:
    """A number for a cell, which is empty where there is none.

    >>> number(0.5), number(float("nan"))
    ('0.5000', '')
    """
    return f"{value:.{digits}f}" if math.isfinite(value) else ""


def write(path: Path, table: Sequence[Mapping[str, Any]]) -> None:
    """The rows, which have the columns of the first, below a head; the folder is made where it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(table[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(table)


def read(path: Path) -> list[dict[str, Any]]:
    """The rows of a table, all values as text."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
