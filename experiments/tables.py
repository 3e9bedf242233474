"""Writes and reads tables of results as CSV."""

import csv
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gmmae.system.files import csv_text, write_text


def number(value: float) -> str:
    """Returns a number for a cell, or "" for NaN.

    >>> number(0.5), number(float("nan"))
    ('0.5000', '')
    """
    return f"{value:.4f}" if math.isfinite(value) else ""


def write(path: Path, table: Sequence[Mapping[str, Any]]) -> None:
    """Writes rows with the columns of the first one, and makes the folder if it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, csv_text(table, table[0]))


def read(path: Path) -> list[dict[str, Any]]:
    """Returns the rows of a table, with all values as text."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
