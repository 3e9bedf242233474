"""The stored measurements of a plan, each with what it depends on, so that the order of calls changes no answer.

A training run at one batch is kept whole, and read up to the epoch at which it stops under the present rules. All other
measurements are named parts of `measured.json`. With the configuration and the data, the name determines the value.
"""

import json
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from gmmae.config.schema import Config, StopConfig, changed
from gmmae.config.toml import differences
from gmmae.data.extraction.tasks import sha256
from gmmae.multihost import agreement
from gmmae.scaling.identity import identity_fields
from gmmae.sweep import step_times, throughput
from gmmae.sweep.grid import TimingConfig
from gmmae.sweep.step_times import Timings
from gmmae.system import json_files, stop_reasons
from gmmae.system.errors import InputError
from gmmae.system.files import write_text
from gmmae.training import compilation, loop, noise_scale, stopping
from gmmae.training.checkpoint import newest
from gmmae.training.noise_scale import Norms
from gmmae.training.records import Epoch, Record
from gmmae.training.run_cache import RunCache
from gmmae.training.terminal import Display
from gmmae.training.workdir import WorkDir, alone, writable
from gmmae.workloads import registry

T = TypeVar("T")

VERSION = 3
"""Version of the format of `measured.json`."""


class PlanInterruptedError(Exception):
    """A signal stopped a run, which the same command resumes. The argument is the stop reason."""


class PlanDir:
    """Paths below `root`."""

    def __init__(self, root: Path):
        self.root = root
        self.measured = root / "measured.json"
        self.step_times = root / "step_times.json"
        self.lock = root / ".lock"

    def run(self, batch: int, last_epoch: int = 0) -> WorkDir:
        """Returns the work directory of the run at a batch, or of its copy that ends after an epoch."""
        return WorkDir(self.root / "runs" / (f"batch_{batch}" + f"_epoch_{last_epoch}" * bool(last_epoch)))


@contextmanager
def claimed(root: Path) -> Iterator[PlanDir]:
    """Makes the work directory of a plan, and keeps other processes from writing in it.

    Raises:
      InputError: the folder cannot be written, or another process works in it.
    """
    folder = PlanDir(root)
    with writable(root):
        root.mkdir(parents=True, exist_ok=True)
        with alone(folder.lock, "plan"):
            yield folder


class TargetRun(NamedTuple):
    """A run at one batch, up to the epoch at which it stops."""

    batch: int
    rows: list[Epoch]
    reason: str  # why it stops there
    record: Record  # of the whole run, which may have gone further under other rules

    @property
    def reached(self) -> bool:
        """Whether the run reaches the target."""
        return self.reason == stop_reasons.TARGET_REACHED

    @property
    def step_s(self) -> float:
        """Seconds of a training step: the median over epochs, without the first of several."""
        seconds, steps = (np.diff([0, *(getattr(row, name) for row in self.rows)]) for name in ("train_s", "steps"))
        return float(np.median((seconds / steps)[min(1, len(self.rows) - 1) :]))


class Measurements:
    """Measurements of one configuration and its data, read from the work directory or made on demand.

    Attributes:
      samples, validation: numbers of training and validation samples.
      device_kind: name of the device.
      seconds: seconds that each measurement took, by its name.
    """

    def __init__(self, config: Config, folder: PlanDir, display: Callable[[], Display]):
        self.config, self.folder, self.display = config, folder, display
        self._cache = RunCache()
        setup = compilation.prepare(config, cache=self._cache)
        self.samples, self.validation = setup.train_plan.samples, setup.eval_plan.samples
        self.device_kind = setup.devices.kind
        shared = {
            "version of gmmae": VERSION,
            "configuration": json.loads(json.dumps(identity_fields(config))),
            "data": agreement.data(setup.data.train, setup.data.validation),
            "device": setup.devices.kind,
            "workload": sha256(Path(config.workload)) if registry.is_file(config.workload) else "",
        }
        self._kept = _read(folder.measured, shared)
        self.seconds: dict[str, float] = self._kept["seconds"]

    def curve(self, batch: int, max_epochs: int) -> TargetRun:
        """Trains at a batch as far as is needed, and returns the run.

        Raises:
          PlanInterruptedError: a signal stopped it.
          InputError: as `loop.run`.
        """
        config = changed(self.config, optim__batch_size=batch, stop__max_epochs=max_epochs)
        workdir = self.folder.run(batch)
        record = workdir.read_record()
        rows, reason = until_stop(workdir.read_rows() if record and record.stop_reason else [], config.stop)
        if record is None or reason is None:
            record = self._train(config, workdir)
            rows, reason = until_stop(workdir.read_rows(), config.stop)
        return TargetRun(batch, rows, reason or record.stop_reason or stop_reasons.MAX_EPOCHS, record)

    def _train(self, config: Config, workdir: WorkDir) -> Record:
        record = loop.run(config, workdir.root, self.display(), cache=self._cache)
        if record.stop_reason in stop_reasons.INTERRUPTED:
            raise PlanInterruptedError(record.stop_reason)
        return record

    def norms(self, batch: int, epoch: int) -> Norms:
        """Measures the norms of gradients after an epoch of the run at a batch, for the noise scale.

        If the newest checkpoint is of a later epoch, the run is trained again up to this one, in a folder of its own.
        """
        config = changed(self.config, optim__batch_size=batch)
        setup, workdir = compilation.prepare(config, cache=self._cache), self.folder.run(batch)
        like = compilation.initial_state(setup)
        checkpoint = newest(workdir.checkpoints, like)
        if checkpoint is None or len(checkpoint.progress.history) != epoch:
            workdir = self.folder.run(batch, epoch)
            self._train(changed(config, stop__target=None, stop__max_epochs=epoch), workdir)
            checkpoint = newest(workdir.checkpoints, like)
        if checkpoint is None:
            raise InputError(f"{workdir.checkpoints} must hold the state after epoch {epoch}; got none: delete {workdir.root}")
        with compilation.precision_context(config):
            return noise_scale.gradient_norms(setup, like)(checkpoint.state)

    def step_times(self, batches: Collection[int], validation: Collection[int], timing: TimingConfig) -> Timings:
        """Times training steps and validation passes, unless stored times are as careful."""
        kept = step_times.read(self.folder.step_times)
        if kept is not None and _timed_steps(kept.timing) < _timed_steps(step_times.settings(timing)):
            kept = None
        have, done = ({row.samples for row in rows} for rows in ((kept.train, kept.validation) if kept else ((), ())))
        new_batches, new_counts = sorted(set(batches) - have), sorted(set(validation) - done)
        if kept is None or new_batches or new_counts:
            config = changed(self.config, seed=0)  # the seed is in the program and not in its time: no second compilation
            began = time.perf_counter()
            timings = throughput.measure(config, new_batches, new_counts, timing)
            kept = step_times.merged(kept, timings)
            step_times.write(self.folder.step_times, kept)
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
        write_text(self.folder.measured, json.dumps(self._kept, indent=1) + "\n")


def until_stop(rows: Sequence[Epoch], stop: StopConfig) -> tuple[list[Epoch], str | None]:
    """Returns the rows up to the epoch at which a run stops under these rules, with the reason; None if it goes on."""
    monitor = stopping.StopMonitor(stop)
    for row in rows:
        monitor.add(row)
        if reason := monitor.reason():
            return monitor.rows, reason
    return monitor.rows, None


def _timed_steps(timing: dict[str, int]) -> int:
    return timing["steps"] * timing["blocks"]


def _checked(data: dict[str, Any]) -> dict[str, Any]:
    kept = {"shared": {}, "parts": {}, "seconds": {}} | data
    for name in ("shared", "parts", "seconds"):
        if not isinstance(kept[name], dict):
            raise ValueError(f"{name} = {kept[name]!r}, which is no object")
    return kept


def _read(path: Path, shared: dict[str, Any]) -> dict[str, Any]:
    """Reads the stored measurements.

    Args:
      path: the file.
      shared: what all measurements of a plan depend on, by its name.

    Raises:
      InputError: the file belongs to another plan, other data, another device or version, or cannot be read.
    """
    try:
        kept = json_files.read(path, "be what a plan has measured", "delete it, and it is measured again", _checked)
    except FileNotFoundError:
        return {"shared": shared, "parts": {}, "seconds": {}}
    for name, value in shared.items():
        saved = kept["shared"].get(name)
        if saved != value:
            both = isinstance(saved, dict) and isinstance(value, dict)
            where = f" where {differences(saved, value)}" if both else ", of another"
            raise InputError(
                f"workdir must be that of a plan of the same {name}; got {path.parent}{where}: give another --workdir"
            )
    return kept
