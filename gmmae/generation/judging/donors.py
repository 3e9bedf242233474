"""The names of the real nodules behind a folder of generated ones.

A judgement must compare with other real nodules.
"""

import csv
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from gmmae.system.errors import InputError

TABLE = "nodules.csv"
COLUMNS = ("nearest", "shape_donors", "texture_donors")
"""Columns of that table with names of training nodules, separated by spaces, by `gmmae generate`."""


class Origin(NamedTuple):
    """The recorded origin of a folder's nodules; both fields are empty without a record.

    Attributes:
      runs: ids of the runs that trained the models.
      cells: cells of the columns with names of training nodules.
    """

    runs: frozenset[str] = frozenset()
    cells: frozenset[str] = frozenset()


def read(folder: Path) -> Origin:
    """Reads the origin of the nodules in a folder. A single file of arrays has no record.

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
    """Returns the names that the folder records as training nodules, in their order.

    >>> origin = Origin(cells=frozenset({"a.nii b c.nii", "d.nii"}))
    >>> named(origin, ["a.nii", "b c.nii", "b", "e.nii", "d.nii"])
    ['a.nii', 'b c.nii', 'b', 'd.nii']
    """
    words = {word for cell in origin.cells for word in cell.split(" ")}
    spaced = [f" {cell} " for cell in origin.cells if " " in cell]
    return [name for name in names if name in words or (" " in name and any(f" {name} " in cell for cell in spaced))]
