"""The stored measurements of a plan, each with what it depends on, so that the order of calls changes no answer.

A training run at one batch is kept whole, and read up to the epoch at which it stops under the present rules. All other
measurements are named parts of `measured.json`. With the configuration and the data, the name determines the value.
"""

import json
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from gmmae.config.schema import Config, StopConfig, changed
from gmmae.config.toml import differences
from gmmae.planner.step_ratios import MetricCurve, smooth
from gmmae.scaling.identity import identity_fields
from gmmae.sweep import step_times, throughput
from gmmae.sweep.grid import TimingConfig
from gmmae.sweep.step_times import Timings
from gmmae.system import json_files, stop_reasons
from gmmae.system.errors import InputError
from gmmae.system.files import write_text
from gmmae.training import compilation, loop, stopping
from gmmae.training.compilation import RunCache
from gmmae.training.records import Epoch, Record, epoch_ends
from gmmae.training.terminal import Display
from gmmae.training.workdir import WorkDir, alone, writable

T = TypeVar("T")

VERSION = 6
"""Version of the format of `measured.json`."""


VALIDATIONS_AN_EPOCH = 4
"""Validations of an epoch in the runs of a plan, so that short runs tell enough."""


class PlanInterruptedError(Exception):
    """A signal stopped a run, which the same command resumes. The argument is the stop reason."""


@contextmanager
def claimed(root: Path) -> Iterator[None]:
    """Makes the work directory of a plan, and keeps other processes from writing in it.

    Raises:
      InputError: the folder cannot be written, or another process works in it.
    """
    with writable(root):
        root.mkdir(parents=True, exist_ok=True)
        with alone(root / ".lock", "plan"):
            yield


class TargetRun(NamedTuple):
    """A run at one batch, up to the epoch at which it stops."""

    rows: list[Epoch]
    reason: str  # why it stops there
    record: Record  # of the whole run, which may have gone further under other rules

    @property
    def reached(self) -> bool:
        """Whether the run reaches the target."""
        return self.reason == stop_reasons.TARGET_REACHED

    @property
    def epochs(self) -> list[Epoch]:
        """The rows at the ends of epochs."""
        return epoch_ends(self.rows)

    def curve(self, stop: StopConfig) -> MetricCurve:
        """Returns the monitored metric by steps, from all validations: means of three neighbours, because it may be noisy.

        The first value stands for the beginning too.
        """
        costs = [stop.cost(row.value(stop.monitor)) for row in self.rows]
        return MetricCurve(np.array([0.0, *(row.steps for row in self.rows)]), smooth(np.array([costs[0], *costs])))

    @property
    def step_s(self) -> float:
        """Seconds of a training step: the median over epochs, without the first of several."""
        seconds, steps = (np.diff([0, *(getattr(row, name) for row in self.epochs)]) for name in ("train_s", "steps"))
        return float(np.median((seconds / steps)[min(1, len(seconds) - 1) :]))


class Measurements:
    """Measurements of one configuration and its data, read from the work directory or made on demand.

    Attributes:
      samples, validation: numbers of training and validation samples.
      device_kind: name of the device.
      seconds: seconds that each measurement took, by its name.
    """

    def __init__(self, config: Config, root: Path, display: Callable[[], Display]):
        self.config, self.root, self.display = config, root, display
        self._cache = RunCache()
        setup = compilation.prepare(config, cache=self._cache)
        self.samples, self.validation = setup.train_plan.samples, setup.eval_plan.samples
        self.device_kind = setup.devices.kind
        shared = {
            "version of gmmae": VERSION,
            "configuration": json.loads(json.dumps(identity_fields(config))),
            "data": setup.fingerprint.digests,
            "device": setup.devices.kind,
        }
        self._kept = _read(root / "measured.json", shared)
        self.seconds: dict[str, float] = self._kept["seconds"]

    def target_run(self, batch: int, max_epochs: int, rate: float = 1.0, target: float | None = None) -> TargetRun:
        """Trains at a batch as far as is needed, and returns the run.

        Args:
          batch: the global batch.
          max_epochs: epochs after which the run ends without the target.
          rate: the learning rate over that of the configuration.
          target: another target than that of the configuration.

        Raises:
          PlanInterruptedError: a signal stopped it.
          InputError: as `loop.run`.
        """
        stop = self.config.stop
        config = changed(
            self.config,
            optim__batch_size=batch,
            optim__learning_rate=rate * self.config.optim.learning_rate,
            stop__max_epochs=max_epochs,
            stop__target=stop.target if target is None else target,
            stop__validate_every_steps=stop.validate_every_steps or validation_spacing(self.samples, batch),
        )
        workdir = WorkDir(self.root / "runs" / (f"batch_{batch}" + f"_rate_{rate:g}" * (rate != 1)))
        record = workdir.read_record()
        rows, reason = until_stop(workdir if record and record.stop_reason else None, config.stop)
        if record is None or reason is None:
            record = loop.run(config, workdir.root, self.display(), cache=self._cache)
            if record.stop_reason in stop_reasons.INTERRUPTED:
                raise PlanInterruptedError(record.stop_reason)
            rows, reason = until_stop(workdir, config.stop)
        return TargetRun(rows, reason or record.stop_reason or stop_reasons.MAX_EPOCHS, record)

    def step_times(self, batches: Collection[int], validation: Collection[int], timing: TimingConfig) -> Timings:
        """Times training steps and validation passes, unless stored times are as careful."""
        file = self.root / "step_times.json"
        kept = step_times.read(file)
        if kept is not None and kept.timing["steps"] * kept.timing["blocks"] < timing.steps * timing.blocks:
            kept = None
        have, done = ({row.samples for row in rows} for rows in ((kept.train, kept.validation) if kept else ((), ())))
        new_batches, new_counts = sorted(set(batches) - have), sorted(set(validation) - done)
        if kept is None or new_batches or new_counts:
            config = changed(self.config, seed=0)  # the seed is in the program and not in its time: no second compilation
            began = time.perf_counter()
            timings = throughput.measure(config, new_batches, new_counts, timing)
            kept = step_times.merged(kept, timings)
            step_times.write(file, kept)
            self._note("step times", self.seconds.get("step times", 0.0) + time.perf_counter() - began)
        return kept._replace(
            train=[row for row in kept.train if row.samples in batches],
            validation=[row for row in kept.validation if row.samples in validation],
        )

    def part(self, name: str, make: Callable[[], T]) -> T:
        """Returns the stored value of a name, or makes and stores it. A stored tuple is a list."""
        if name not in self._kept["parts"]:
            began = time.perf_counter()
            self._kept["parts"][name] = make()
            self._note(name, time.perf_counter() - began)
        return self._kept["parts"][name]

    def _note(self, name: str, seconds: float) -> None:
        self.seconds[name] = seconds
        write_text(self.root / "measured.json", json.dumps(self._kept, indent=1) + "\n")


def validation_spacing(samples: int, batch: int) -> int:
    """Returns the steps between validations of a plan's run, `VALIDATIONS_AN_EPOCH` an epoch.

    >>> validation_spacing(574, 32), validation_spacing(100, 64)
    (4, 1)
    """
    return max(1, round(samples / (VALIDATIONS_AN_EPOCH * batch)))


def until_stop(workdir: WorkDir | None, stop: StopConfig) -> tuple[list[Epoch], str | None]:
    """Returns the rows of a run up to the end of the epoch at which it stops under these rules, and the reason.

    The reason is None if it goes on.
    """
    monitor = stopping.StopMonitor(stop)
    for row in workdir.read_rows() if workdir else []:
        monitor.add(row)
        if reason := monitor.reason():
            return monitor.rows, reason
    return monitor.rows, None


def _read(path: Path, shared: dict[str, Any]) -> dict[str, Any]:
    """Reads the stored measurements.

    Args:
      path: the file.
      shared: what all measurements of a plan depend on, by its name.

    Raises:
      InputError: the file belongs to another plan, other data, another device or version, or cannot be read.
    """
    new = {"shared": shared, "parts": {}, "seconds": {}}

    def checked(data: dict[str, Any]) -> dict[str, Any]:
        data = {"shared": {}, "parts": {}, "seconds": {}} | data
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
