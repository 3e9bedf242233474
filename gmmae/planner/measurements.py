"""The stored measurements of a plan, each with what it depends on, so that the order of calls changes no answer.

A training run at one batch is kept whole, and read up to the epoch at which it stops under the present rules. All other
measurements are named parts of `measured.json`. With the configuration and the data, the name determines the value.
"""

import json
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from gmmae.config.schema import Config, StopConfig, changed
from gmmae.data.extraction.tasks import sha256
from gmmae.multihost import agreement
from gmmae.planner import trials
from gmmae.planner.learning_rate import last_third
from gmmae.planner.trials import Trial
from gmmae.scaling.cost import StepTimes
from gmmae.scaling.identity import run_id
from gmmae.sweep import throughput
from gmmae.sweep.grid import TimingConfig
from gmmae.sweep.throughput import Timing, Timings
from gmmae.system import json_files, stop_reasons
from gmmae.system.errors import InputError
from gmmae.system.files import write_text
from gmmae.training import compilation, loop, noise_scale, stopping
from gmmae.training.checkpoint import newest
from gmmae.training.noise_scale import Norms
from gmmae.training.records import Epoch, Record
from gmmae.training.terminal import Display
from gmmae.training.workdir import WorkDir, alone, writable
from gmmae.workloads import registry

T = TypeVar("T")

VERSION = 2
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


class SharedFacts(NamedTuple):
    """Properties that all measurements in one work directory share."""

    samples: int  # training samples
    validation: int  # validation samples
    device_kind: str
    data: dict[str, str]  # hashes of the samples
    source: str  # hash of the workload's own file; empty where it is no file


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
      facts: properties of the work directory.
      seconds: seconds that each measurement took, by its name.
    """

    def __init__(self, config: Config, folder: PlanDir, display: Callable[[], Display]):
        self.config, self.folder, self.display = config, folder, display
        setup = compilation.prepare(config)
        data = agreement.data(setup.data.train, setup.data.validation)
        source = sha256(Path(config.workload)) if registry.is_file(config.workload) else ""
        self.facts = SharedFacts(setup.train_plan.samples, setup.eval_plan.samples, setup.devices.kind, data, source)
        self._kept = _read(folder.measured, run_id(config), self.facts)
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
        record = loop.run(config, workdir.root, self.display())
        if record.stop_reason in stop_reasons.INTERRUPTED:
            raise PlanInterruptedError(record.stop_reason)
        return record

    def trial(self, factor: float) -> Trial:
        """Returns the first steps at the base batch, at a multiple of the learning rate."""
        return Trial(*self._part(f"{factor:g} times the learning rate", lambda: self._attempt(factor)))

    @cached_property
    def _attempt(self) -> Callable[[float], Trial]:
        """The compiled trial of all multiples of the learning rate."""
        return trials.learning_rate_trials(self.config)

    def first_steps(self, scaling: str, devices: int) -> Trial:
        """Returns the first steps of a strategy on some devices, simulated on one device."""
        config = changed(self.config, scaling=scaling, parallel__simulate_devices=devices)
        return Trial(*self._part(f"first steps of {scaling} on {devices}", lambda: trials.learning_rate_trials(config)(1.0)))

    def late_losses(self, devices: int, factors: Sequence[float], steps: int) -> tuple[dict[float, float], float]:
        """Returns training losses of weak scaling by factor of the learning rate, and the seconds that they took.

        Each loss is the mean over the last third of the steps.
        """
        config = changed(self.config, scaling="weak", parallel__simulate_devices=devices)
        attempts: list[Callable[[float], Trial]] = []

        def make(factor: float) -> float:
            attempts[:] = attempts or [trials.learning_rate_trials(config, steps)]
            losses = attempts[0](factor).losses
            return float(np.mean(losses[last_third(losses)]))

        names = {factor: f"{factor:g} times the learning rate in {steps} steps of weak on {devices}" for factor in factors}
        losses = {factor: float(self._part(name, partial(make, factor))) for factor, name in names.items()}
        return losses, sum(self.seconds[name] for name in names.values())

    def norms(self, curve: TargetRun) -> Norms:
        """Returns the norms of gradients at the end of a run, for the noise scale."""
        epoch = len(curve.rows)
        return Norms(*self._part(f"noise of the gradient after epoch {epoch}", lambda: self._norms(curve.batch, epoch)))

    def _norms(self, batch: int, epoch: int) -> Norms:
        """Measures the norms after an epoch.

        If the newest checkpoint is of a later epoch, the run is trained again up to this one, in a folder of its own.
        """
        config = changed(self.config, optim__batch_size=batch)
        setup, workdir = compilation.prepare(config), self.folder.run(batch)
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
        kept = throughput.read(self.folder.step_times)
        if kept is not None and _timed_steps(kept.timing) < _timed_steps(throughput.settings(timing)):
            kept = None
        have, done = ({row.samples for row in rows} for rows in ((kept.train, kept.validation) if kept else ((), ())))
        new_batches, new_counts = sorted(set(batches) - have), sorted(set(validation) - done)
        if kept is None or new_batches or new_counts:
            config = changed(self.config, seed=0)  # the seed is in the program and not in its time: no second compilation
            began = time.perf_counter()
            timings = throughput.measure(config, new_batches, new_counts, timing)
            kept = throughput.merged(kept, timings)
            throughput.write(self.folder.step_times, kept)
            self._note("step times", self.seconds.get("step times", 0.0) + time.perf_counter() - began)
        return kept._replace(
            train=[row for row in kept.train if row.samples in batches],
            validation=[row for row in kept.validation if row.samples in validation],
        )

    def _part(self, name: str, make: Callable[[], T]) -> T:
        """Returns a stored value, or makes and stores it."""
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


def step_table(rows: Sequence[Timing]) -> StepTimes:
    """Returns the median seconds by number of samples."""
    ordered = sorted(rows)
    return StepTimes(tuple(row.samples for row in ordered), tuple(row.median_s for row in ordered))


def _timed_steps(timing: dict[str, int]) -> int:
    return timing["steps"] * timing["blocks"]


def _kept(data: dict[str, Any]) -> dict[str, Any]:
    parts = {"facts": {}, "parts": {}, "seconds": {}}
    for name in parts.keys() & data.keys():
        if not isinstance(data[name], dict):
            raise ValueError(f"{name} = {data[name]!r}, which is no object")
    return parts | data


def _read(path: Path, run: str, facts: SharedFacts) -> dict[str, Any]:
    """Reads the stored measurements.

    Raises:
      InputError: the file belongs to another plan, other data, another device or version, or cannot be read.
    """
    own = {"version": VERSION, "run_id": run, "facts": facts._asdict()}
    try:
        stored = json_files.read(path, "be what a plan has measured", "delete it, and it is measured again", _kept)
    except FileNotFoundError:
        return {**own, "parts": {}, "seconds": {}}
    names = {"version": "version of gmmae", "run_id": "configuration"}
    differing = [words for key, words in names.items() if stored.get(key) != own[key]]
    if not differing:
        words = {"samples": "data", "validation": "data", "data": "data", "device_kind": "device", "source": "workload"}
        differing = [word for key, word in words.items() if stored["facts"].get(key) != own["facts"][key]]
    if differing:
        raise InputError(
            f"workdir must be that of a plan of the same {differing[0]}; got {path.parent}, of another: give another --workdir"
        )
    return stored
