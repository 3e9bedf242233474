"""Real nodules in three parts by patient, for training, tuning and one final test."""

import csv
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gmmae.data.extraction import prepare
from gmmae.data.settings import DataConfig
from gmmae.data.splits import Split, split
from gmmae.data.volumes import Nodules
from gmmae.system.errors import InputError

WINDOW = DataConfig.window
"""Window of HU in which nodules are read and compared."""
SHARES = {"tune": 0.25, "test": 0.25}
SEED = 0
"""Seed of the division. All seeds of a study share it, so that there is one test set."""
DIVISIONS = (1, 2)
"""Divisions of the same nodules. The second one tests on half of the training patients of the first."""


class Cohorts(NamedTuple):
    """The parts."""

    train: Nodules
    tune: Nodules
    test: Nodules


def read(root: Path, division: int = DIVISIONS[0]) -> Cohorts:
    """Returns the divided nodules of a folder of cubes, cropped as `configs/luna16_nodules.toml` does.

    Args:
      root: folder of cubes with a CSV file.
      division: one of `DIVISIONS`. The first one's test set has been measured several times. The patients that the second
        one tests on were never used to choose or to measure anything in the first.

    Raises:
      InputError: as `gmmae.data.extraction.prepare.load`.
    """
    nodules = prepare.load(DataConfig(source="cubes", root=str(root), padding="replicate"))
    rest, test = _without_test(nodules, division)
    development = nodules.take(rest)
    count = round(SHARES["tune"] * len(nodules.names))
    train, tune = split(development.groups, development.categories, count, SEED)
    return Cohorts(development.take(train), development.take(tune), nodules.take(test))


def _without_test(nodules: Nodules, division: int) -> Split:
    """Divides the nodules into those for development and those for the test."""
    first = split(nodules.groups, nodules.categories, SHARES["test"], SEED)
    if division == DIVISIONS[0]:
        return first
    development = nodules.take(first.train)
    used = split(development.groups, development.categories, round(SHARES["tune"] * len(nodules.names)), SEED)
    unused = development.take(used.train)
    _, test = split(unused.groups, unused.categories, round(SHARES["test"] * len(nodules.names)), SEED)
    index = first.train[used.train][test]
    return Split(np.setdiff1d(np.arange(len(nodules.names)), index), index)


def write_development(cohorts: Cohorts, root: Path, out: Path) -> str:
    """Writes a CSV file of all nodules without the test set, and returns the options of `gmmae train` for the first part.

    The options divide the nodules as `read` does.
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
    """Checks that a run has seen no patients of the other parts.

    Raises:
      InputError: it has seen some.
    """
    seen = set(trained_on.groups) & {*cohorts.tune.groups, *cohorts.test.groups}
    if seen:
        raise InputError(
            f"a run of the study must be trained on its training patients only; {run} has seen {len(seen)} others, such as "
            f"{min(seen)}: train it with the options that `--parts split` prints"
        )
