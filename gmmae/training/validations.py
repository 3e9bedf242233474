"""The validations of a run, inside its epochs and at their ends: their file, and the step at which a metric is reached."""

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from gmmae.config.schema import LOSS
from gmmae.system.files import csv_text, write_text
from gmmae.training.records import Epoch

COLUMNS = ("step", "epoch")
"""The first columns of `validations.csv`. Those of the loss and of the metrics follow, as `val_NAME`."""


class Validation(NamedTuple):
    """One validation.

    Attributes:
      step: the number of steps before it since the beginning of the run.
      epoch: the epoch that its last step belongs to, from 1.
      values: the loss, which is the first, and the metrics by name.
    """

    step: int
    epoch: int
    values: Mapping[str, float]

    def value(self, metric: str) -> float:
        """Returns the loss or a metric by name; NaN where the validation has none of that name."""
        return self.values.get(metric, math.nan)


def at_end_of(row: Epoch) -> Validation:
    """Returns the validation at the end of an epoch."""
    return Validation(row.steps, row.epoch, row.validation)


def in_order(history: Iterable[Epoch], inside: Iterable[Validation]) -> list[Validation]:
    """Returns all validations of some epochs, by step.

    Args:
      history: the epochs.
      inside: validations inside epochs. Those of other epochs are left out.
    """
    ends = {row.epoch: at_end_of(row) for row in history}
    return sorted([*ends.values(), *(one for one in inside if one.epoch in ends)], key=lambda one: one.step)


def crossing(steps: Sequence[float], costs: Sequence[float], level: float) -> float:
    """Returns the step at which a curve first falls to a level, linear between two validations; infinite if it does not.

    Args:
      steps: the step of each validation; the first one comes before the first step.
      costs: the metric there, with its sign chosen so that less is better.
      level: the level of the metric.

    >>> crossing((0, 10, 20), (5.0, 3.0, 2.0), 2.5), crossing((0, 10), (5.0, 3.0), 1.0)
    (15.0, inf)
    """
    below = [place for place, cost in enumerate(costs) if cost <= level]
    if not below:
        return math.inf
    after = below[0]
    if after == 0:
        return float(steps[0])
    drop = costs[after - 1] - costs[after]
    share = (costs[after - 1] - level) / drop if math.isfinite(drop) else 1.0
    return float(steps[after - 1] + share * (steps[after] - steps[after - 1]))


def write_validations(path: Path, validations: Iterable[Validation], metrics: Iterable[str]) -> None:
    """Writes the whole `validations.csv`, as after a resume, with a column for each metric; the run then appends to it."""
    head = csv_text((), [*COLUMNS, *(f"val_{name}" for name in (LOSS, *metrics))])
    write_text(path, head + "".join(f"{validation_line(one)}\n" for one in validations))


def validation_line(validation: Validation) -> str:
    """Returns one row, every float to the last digit.

    >>> validation_line(Validation(12, 2, {"loss": 0.5, "dice": 0.25}))
    '12,2,0.5,0.25'
    """
    return ",".join(map(repr, (validation.step, validation.epoch, *validation.values.values())))


def read_validations(path: Path) -> list[Validation]:
    """Returns the rows of a `validations.csv`.

    Raises:
      OSError: the file cannot be read.
      ValueError, TypeError, KeyError: it has another form.
    """
    with path.open(encoding="utf-8", newline="") as file:
        return [_validation(row) for row in csv.DictReader(file)]


def _validation(row: dict[str, str]) -> Validation:
    values = {key.removeprefix("val_"): float(value) for key, value in row.items() if key not in COLUMNS}
    return Validation(int(row["step"]), int(row["epoch"]), {LOSS: values[LOSS], **values})
