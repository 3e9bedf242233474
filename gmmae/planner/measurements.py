"""The stored measurements of a plan, of which the order of calls changes no answer.

A training run is kept whole, and read up to the epoch at which it stops under the present rules. `measured.json` says what
all measurements depend on.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gmmae.config.schema import StopConfig
from gmmae.config.toml import differences
from gmmae.planner.step_ratios import MetricCurve, smooth
from gmmae.system import json_files
from gmmae.system.errors import InputError
from gmmae.system.files import remove_empty
from gmmae.training.records import Epoch, Record, epoch_ends
from gmmae.training.workdir import alone, os_errors_as_input_errors

VERSION = 7
"""Of the format of `measured.json`."""

VALIDATIONS_AN_EPOCH = 4
"""In the runs of a plan, so that short runs tell enough."""


class PlanInterruptedError(Exception):
    """A signal stopped a run; the argument is the stop reason."""


@contextmanager
def claimed(root: Path) -> Iterator[None]:
    """Makes and locks the work directory of a plan. A refused plan leaves no new folder."""
    lock, new = root / ".lock", [path for path in (root, *root.parents) if not path.exists()]
    with ExitStack() as held, os_errors_as_input_errors(root):
        held.callback(remove_empty, new)
        root.mkdir(parents=True, exist_ok=True)
        held.enter_context(alone(lock, "plan"))
        try:
            yield
        finally:
            if all(path.name.startswith(lock.name) for path in root.glob("*")):
                lock.unlink(missing_ok=True)  # while it is held


class TargetRun(NamedTuple):
    """A run up to the epoch at which it stops."""

    rows: list[Epoch]
    reason: str
    record: Record  # of the whole run, which may have gone further under other rules

    @property
    def epochs(self) -> list[Epoch]:
        """The rows at the ends of epochs."""
        return epoch_ends(self.rows)

    def curve(self, stop: StopConfig) -> MetricCurve:
        """The monitored metric of all validations, smoothed because it may be noisy. Its first value stands for step 0 too."""
        costs = [stop.cost(row.value(stop.monitor)) for row in self.rows]
        return MetricCurve(np.array([0.0, *(row.steps for row in self.rows)]), smooth(np.array([costs[0], *costs])))

    @property
    def step_s(self) -> float:
        """The median over epochs, without the first of several, which compiles."""
        seconds, steps = (np.diff([0, *(getattr(row, name) for row in self.epochs)]) for name in ("train_s", "steps"))
        return float(np.median((seconds / steps)[min(1, len(seconds) - 1) :]))


def validation_spacing(samples: int, batch: int) -> int:
    """The steps between validations.

    >>> validation_spacing(574, 32), validation_spacing(100, 64)
    (4, 1)
    """
    return max(1, round(samples / (VALIDATIONS_AN_EPOCH * batch)))


def read_kept(path: Path, shared: dict[str, Any]) -> dict[str, Any]:
    """Reads the stored measurements. `shared` is what all of them depend on, by name."""
    new = {"shared": shared, "seconds": {}}

    def checked(data: dict[str, Any]) -> dict[str, Any]:
        data = {"shared": {}, "seconds": {}} | data
        if bad := [name for name in new if not isinstance(data[name], dict)]:
            raise ValueError(f"{bad[0]}, which is no object")
        return data

    try:
        kept = json_files.read(path, "be what a plan has measured", "delete it, and it is measured again", checked)
    except FileNotFoundError:
        return new
    for name, value in shared.items():
        saved = kept["shared"].get(name)
        if saved != value:
            both = isinstance(saved, dict) and isinstance(value, dict)
            where = f" where {differences(saved, value)}" if both else ", of another"
            raise InputError(
                f"workdir must be that of a plan of the same {name}; got {path.parent}{where}: give another --workdir"
            )
    return kept
