"""The real nodules in three parts by patient: to train on, to tune by, and to test with once."""

import csv
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gmmae.data.extraction import prepare
from gmmae.data.settings import DataConfig
from gmmae.data.splits import split
from gmmae.data.volumes import Nodules
from gmmae.system.errors import InputError

WINDOW = DataConfig.window
"""HU that are compared; the nodules are read with it."""
SHARES = {"tune": 0.25, "test": 0.25}
SEED = 0
"""Of the division; all seeds of a study share it, so that the test set is one."""


class Cohorts(NamedTuple):
    """The parts, and what the CSV says of each nodule, by its name."""

    train: Nodules
    tune: Nodules
    test: Nodules
    rows: dict[str, dict[str, str]]

    def column(self, nodules: Nodules, name: str) -> np.ndarray:
        """A column of numbers."""
        return np.array([float(self.rows[nodule][name]) for nodule in nodules.names])


def read(root: Path) -> Cohorts:
    """The nodules of a folder of cubes, divided; as `configs/luna16_nodules.toml` cuts them out.

    Raises:
      InputError: as `gmmae.data.extraction.prepare.load`, or no CSV.
    """
    nodules = prepare.load(DataConfig(source="cubes", root=str(root), padding="replicate"))
    with (root / "nodules.csv").open(newline="", encoding="utf-8") as file:
        rows = {row["file"]: row for row in csv.DictReader(file)}
    rest, test = split(nodules.groups, nodules.categories, SHARES["test"], SEED)
    development = nodules.take(rest)
    count = round(SHARES["tune"] * len(nodules.names))
    train, tune = split(development.groups, development.categories, count, SEED)
    return Cohorts(development.take(train), development.take(tune), nodules.take(test), rows)


def write_development(cohorts: Cohorts, root: Path, out: Path) -> str:
    """Writes a CSV of all nodules but the test set, and returns the options of `gmmae train` that train on the first part of
    them.

    They divide the nodules as `read` does.
    """
    kept = {*cohorts.train.names, *cohorts.tune.names}
    with (root / "nodules.csv").open(newline="", encoding="utf-8") as file:
        head, *lines = csv.reader(file)
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([head, *(line for line in lines if line[head.index("file")] in kept)])
    count = len(cohorts.tune.names)
    return f"--data.root {root.resolve()} --data.csv {out.resolve()} --data.validation {count} --data.seed {SEED}"


def check_held_out(cohorts: Cohorts, trained_on: Nodules, run: Path) -> None:
    """Refuses a run that has seen patients of the other parts.

    Raises:
      InputError: it has.
    """
    seen = set(trained_on.groups) & {*cohorts.tune.groups, *cohorts.test.groups}
    if seen:
        raise InputError(
            f"a run of the study must be trained on its training patients only; {run} has seen {len(seen)} others, such as "
            f"{min(seen)}: train it with the options that `--parts split` prints"
        )
