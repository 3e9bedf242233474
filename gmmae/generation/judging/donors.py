"""The names of the real nodules behind a folder of generated ones.

A judgement must compare with other real nodules.
"""

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from gmmae.data.volumes import Nodules
from gmmae.system.errors import InputError
from gmmae.training.workdir import WorkDir

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


def require_run(origin: Origin, config: Path) -> None:
    """Refuses the `config.toml` of another run than the one that made the nodules; another file is of no run."""
    workdir = WorkDir(config.parent)
    record = workdir.read_record() if config.name == workdir.config.name else None
    if record is not None and origin.runs and origin.runs != {record.run_id}:
        raise InputError(
            f"--config must be of the run that made GENERATED, {_some(sorted(origin.runs))} in its nodules.csv; got {config}, "
            f"of the run {record.run_id}: name the config.toml of the other"
        )


def require_new(origin: Origin, real: Nodules, generated: Nodules, training: Nodules | None, by_split: bool) -> None:
    """Checks by names and records that real and generated nodules are new to each other; `judge` compares voxels.

    Args:
      origin: of the generated nodules.
      real: held-out nodules.
      generated: generated nodules.
      training: those that the generator was fitted to, if they are known.
      by_split: whether `real` and `training` are parts of one folder.

    Raises:
      InputError: the origin names real nodules, or real nodules are among the generated ones.
    """
    known = set() if training is None or by_split else set(training.names)  # a name may be in two folders
    if seen := [name for name in named(origin, real.names) if name not in known]:
        remedy = "leave them out of REAL, or name the training set with --train, or use --split validation with --config"
        if by_split:
            run = f"the run {_some(sorted(origin.runs))}" if origin.runs else "the run that made them"
            remedy = f"divide REAL as {run} did, with its --data.validation and --data.seed, or --config RUN/config.toml"
        raise InputError(
            f"REAL's {'held-out ' * by_split}nodules must be new to the generator; GENERATED's nodules.csv names {len(seen)} "
            f"of the {len(real.names)} as its sources, such as {_some(seen)}: {remedy}"
        )
    if shared := sorted(set(real.names) & set(generated.names)):
        raise InputError(
            f"GENERATED must hold new nodules; {len(shared)} of its {len(generated.names)} have names of REAL's, such as "
            f"{_some(shared)}: take them out, or rename what is new"
        )


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + " …" * (len(names) > 3)
