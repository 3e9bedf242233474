"""Reads from a folder of generated nodules the names of the real ones that they were made from.

Real nodules to judge by must be others.
"""

import csv
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from gmmae.system.errors import InputError

TABLE = "nodules.csv"
COLUMNS = ("nearest", "shape_donors", "texture_donors")
"""Columns of that table that name training nodules, as `gmmae generate` writes them; several names are apart by a space."""


class Origin(NamedTuple):
    """What a folder says of its nodules' origin; all is empty where it says nothing.

    Attributes:
      runs: ids of the runs whose models made them.
      cells: of the columns that name training nodules.
    """

    runs: frozenset[str] = frozenset()
    cells: frozenset[str] = frozenset()


def read(folder: Path) -> Origin:
    """The origin of the nodules in a folder; one file of arrays says nothing of it.

    Raises:
      InputError: the folder's table cannot be read.
    """
    path = folder / TABLE
    if not path.is_file():
        return Origin()
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file))
    except (OSError, csv.Error, UnicodeDecodeError) as error:
        raise InputError(f"{path}: must be a CSV in UTF-8; {error}") from error
    runs = frozenset(row["run"] for row in rows if row.get("run"))
    return Origin(runs, frozenset(row[column] for row in rows for column in COLUMNS if row.get(column)))


def named(origin: Origin, names: Iterable[str]) -> list[str]:
    """Those of the names that the folder gives as training nodules, in their order.

    >>> origin = Origin(cells=frozenset({"a.nii b c.nii", "d.nii"}))
    >>> named(origin, ["a.nii", "b c.nii", "b", "e.nii", "d.nii"])
    ['a.nii', 'b c.nii', 'b', 'd.nii']
    """
    words = {word for cell in origin.cells for word in cell.split(" ")}
    spaced = [f" {cell} " for cell in origin.cells if " " in cell]
    return [name for name in names if name in words or (" " in name and _within(name, spaced))]


def _within(name: str, cells: Iterable[str]) -> bool:
    return any(f" {name} " in cell for cell in cells)
