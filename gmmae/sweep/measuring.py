"""What `gmmae plan` measures, on one device and in one process: two runs to the target, step times, and trials of the rate.

The runs are ordinary ones in folders of their own, so they are resumed as any run is. Everything else is short; each part is
kept in `measured.json` when it is done, and what is there is not measured again.
"""

import json
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gmmae.analysis import failure, pace
from gmmae.analysis.plan import Measured, as_in_runs
from gmmae.analysis.scaling import StepTimes
from gmmae.analysis.steps import seed_sigma, to_target
from gmmae.base import arms, stopping
from gmmae.base.config import Config, changed, run_id
from gmmae.base.errors import InputError
from gmmae.base.records import Record, write_text
from gmmae.base.workdir import WorkDir, alone, writable
from gmmae.sweep import throughput
from gmmae.sweep.display import duration
from gmmae.sweep.grid import TimingConfig
from gmmae.sweep.throughput import Timing, Timings
from gmmae.training import loop, probes, programs
from gmmae.training.checkpoint import newest
from gmmae.training.probes import Trial
from gmmae.training.terminal import Display

SMALLER = (4, 2)
"""The second run's batch is the base batch divided by the first of these, far enough away to tell the law's two numbers apart;
where it does not arrive, by the second."""

MOST_OF_BASE = 1.5
"""Epochs that the second run may take, of the base run's. By the law it takes fewer; one that takes more does not follow it."""

TUNED, TUNING_SHARE = 6, 0.3
"""Rates that are tried at each batch, from a half of the base rate to twice the linear rule's; and for how much of the way."""

WIDE = (2, 4)
"""Devices of the linear rule whose first steps are tried; more cost as many epochs as they are, and show the same."""

ON_CPU, ELSEWHERE = TimingConfig(warmup_steps=2, steps=2, blocks=5), TimingConfig(warmup_steps=20, steps=20, blocks=7)
"""On a CPU a step takes long beside a dispatch, on a GPU it does not."""


class Interrupted(Exception):
    """A run was stopped from outside; the same command goes on. Its argument is the stop reason."""


class Found(NamedTuple):
    """What was measured.

    Attributes:
      measured: for `gmmae.analysis.plan`.
      device_kind: on which.
      target, metric: that the runs were to reach.
      epochs, seconds: that each part took; the seconds are those of the clock, compiling among them.
      base_epochs, base_s: of the base run to the target, training and validation.
      curves: the metric after each epoch, by batch.
      notes: what did not go as it should, in words.
      tuned_factors: of the rate, the best at 1, 2, 4, … base batches; none unless asked for.
    """

    measured: Measured
    device_kind: str
    target: float
    metric: str
    epochs: dict[str, float]
    seconds: dict[str, float]
    base_epochs: int
    base_s: float
    curves: dict[int, list[float]]
    notes: list[str]
    tuned_factors: tuple[float, ...] = ()


class PlanDir:
    """Paths below `root`."""

    def __init__(self, root: Path):
        self.root = root
        self.measured = root / "measured.json"
        self.step_times = root / "step_times.json"
        self.lock = root / ".lock"

    def run(self, batch: int) -> WorkDir:
        """The work directory of the run at a batch."""
        return WorkDir(self.root / "runs" / f"batch_{batch}")


def measure(
    config: Config,
    root: Path,
    display: Callable[[], Display],
    *,
    devices: Collection[int],
    reference_batches: Collection[int] = (),
    budget_epochs: int = 0,
    tune: bool = False,
) -> Found:
    """Measures what is missing.

    Args:
      config: of the runs; arm and devices are the plan's to choose.
      root: the work directory.
      display: makes what shows one run's course.
      devices: numbers that will be asked about.
      reference_batches: of the clusters; their steps are timed too.
      budget_epochs: that the runs and trials may take; 0: as many as they need.
      tune: look for the best rate at 1, 2, 4, … base batches too; the budget is not asked.

    Raises:
      InputError: there is no target, the base run does not reach it, or the work directory is another plan's.
      Interrupted: by a signal.
    """
    if not config.stop.target:
        raise InputError("stop.target must be given, because a plan is one of reaching it; got 0: give --stop.target")
    with _claimed(root) as folder:
        config = changed(config, arm="strong", parallel__devices=1, parallel__virtual=0)
        measuring = _Measuring(config, folder, display, sorted(devices), reference_batches, budget_epochs or math.inf)
        found = measuring.all()
        return found._replace(tuned_factors=measuring.tuned(found.measured)) if tune else found


class _Measuring:
    def __init__(
        self,
        config: Config,
        folder: PlanDir,
        display: Callable[[], Display],
        devices: Sequence[int],
        reference_batches: Collection[int],
        budget: float,
    ):
        self.config, self.folder, self.display = config, folder, display
        self.devices, self.references, self.budget = devices, reference_batches, budget
        self.say = display().say
        self.notes: list[str] = []
        self.kept = _read(folder.measured, run_id(config))

    def all(self) -> Found:
        base = self._base_run()
        trials = {float(m): trial for m, trial in self._trials(base).items()}
        usual, final_loss = trials[1.0], base.final_train_loss or 0.0
        progress = {m: probes.progress(usual, trial, final_loss) for m, trial in trials.items()}
        wide = self._wide_trials(base, failure.edge(progress))
        scale = self._noise(base)
        times = self._step_times(base)
        steps = {base.global_batch: self._steps(base), **self._second_run(base)}
        measured = Measured(
            samples=base.train_samples,
            validation=base.validation_samples,
            optim=self.config.optim,
            max_epochs=self.config.stop.max_epochs,
            steps=steps,
            seed_sigma=self._seed_sigma(base),
            noise_scale=scale,
            train=as_in_runs(_table(times.train), {batch: self._step_s(batch) for batch in steps}),
            passes=_table(times.validation),
            gradient_bytes=float(base.parameters * (8 if self.config.precision == "float64" else 4)),
            progress=progress,
            vitality={m: probes.vitality(usual, trial) for m, trial in wide.items()},
            pace=pace.together(*(self._paces(base, usual, some) for some in (trials, wide))),
        )
        return Found(
            measured=measured,
            device_kind=base.device_kind,
            target=self.config.stop.target,
            metric=self.config.stop.metric,
            epochs=self.kept["epochs"],
            seconds=self.kept["seconds"],
            base_epochs=base.epochs,
            base_s=base.time_to_target_s or math.nan,
            curves={
                batch: [row.value(self.config.stop.metric) for row in self.folder.run(batch).read_rows()] for batch in steps
            },
            notes=self.notes,
        )

    def _part(self, name: str, epochs: float, make: Callable[[], Any]) -> Any:
        """What a part has measured, now or before; what it took is noted."""
        if name in self.kept["parts"]:
            return self.kept["parts"][name]
        epoch_s = self.kept["epoch_s"]
        self.say(f"measuring {name}" + (f", about {duration(epochs * epoch_s)}" if epoch_s else ""))
        began = time.perf_counter()
        self.kept["parts"][name] = made = make()
        self._note(name, epochs, time.perf_counter() - began)
        return made

    def _note(self, name: str, epochs: float, seconds: float) -> None:
        self.kept["epochs"][name], self.kept["seconds"][name] = epochs, seconds
        write_text(self.folder.measured, json.dumps(self.kept, indent=1) + "\n")

    @property
    def _left(self) -> float:
        """Epochs of the budget that are not spent."""
        return self.budget - sum(self.kept["epochs"].values())

    def _run(self, batch: int, most_epochs: float) -> Record:
        """A run at the base rate, or its record where it has ended."""
        config = changed(self.config, optim__base_batch=batch)
        most = int(min(config.stop.max_epochs, max(1, most_epochs)))
        record = loop.run(changed(config, stop__max_epochs=most), self.folder.run(batch).root, self.display())
        if record.stop_reason in stopping.INTERRUPTED:
            raise Interrupted(record.stop_reason)
        self._note(f"batch {record.global_batch}", record.epochs, record.clocks["total_s"])
        return record

    def _base_run(self) -> Record:
        batch = self.config.optim.base_batch
        self.say(f"measuring the way to the target at the base batch, {batch}")
        record = self._run(batch, self.budget)
        clocks = record.clocks
        self.kept["epoch_s"] = (clocks["train_s"] + clocks["eval_s"]) / max(1, record.epochs)
        if record.stop_reason != stopping.TARGET_REACHED:
            stop = self.config.stop
            best = f"{record.best_value:g}" if record.best_epoch else "no finite value"
            raise InputError(
                f"the base run of a plan must reach stop.target, {stop.metric} {stop.target:g}; got {best} at best in "
                f"{record.epochs} epochs ({record.stop_reason}): give an easier --stop.target, another "
                "--optim.learning-rate, or more epochs (--stop.max-epochs, --budget-epochs)"
            )
        return record

    def _second_run(self, base: Record) -> dict[int, float]:
        """Steps at a smaller batch, if a run there arrives."""
        for divisor in SMALLER:
            batch = max(1, base.global_batch // divisor)
            most = min(math.ceil(MOST_OF_BASE * base.epochs), self._left + self.kept["epochs"].get(f"batch {batch}", 0))
            if batch == base.global_batch or most < 1:
                continue
            self.say(f"measuring the way to the target at batch {batch}, about {duration(base.epochs * self.kept['epoch_s'])}")
            record = self._run(batch, most)
            if record.stop_reason == stopping.TARGET_REACHED:
                return {batch: self._steps(record)}
            self.notes.append(f"batch {batch} did not reach the target in {record.epochs} epochs ({record.stop_reason})")
        self.notes.append("no second batch was run to the target: Bn is hardly known")
        return {}

    def _steps(self, record: Record) -> float:
        """Steps to the target, by interpolation between the last two validations."""
        return to_target(self.folder.run(record.global_batch).read_rows(), self.config.stop)

    def _step_s(self, batch: int) -> float:
        """Seconds of a training step of a run, the median over its epochs; the first one only where it is the only one."""
        rows = self.folder.run(batch).read_rows()
        seconds, steps = (np.diff([0, *(getattr(row, name) for row in rows)]) for name in ("train_s", "steps"))
        return float(np.median((seconds / steps)[min(1, len(rows) - 1) :]))

    def _seed_sigma(self, base: Record) -> float:
        stop, rows = self.config.stop, self.folder.run(base.global_batch).read_rows()
        return seed_sigma([row.steps for row in rows], [stop.cost(row.value(stop.metric)) for row in rows])

    def _trials(self, base: Record) -> dict[str, Trial]:
        """Trials at multiples of the rate, from 1 on by doubling, until one fails."""
        epochs = probes.epochs(self.config, base.train_samples, base.global_batch)
        most = min(self.devices[-1], base.train_samples / base.global_batch)

        def make() -> dict[str, Trial]:
            attempt = probes.trials(self.config)
            found, factor = {"1": attempt(1.0)}, 2
            while factor < 2 * most and epochs <= self._left - epochs * len(found):
                found[str(factor)] = attempt(float(factor))
                if not probes.progress(found["1"], found[str(factor)], base.final_train_loss or 0.0) >= failure.FAILED:
                    break
                factor *= 2
            return found

        found = self._part("multiples of the rate", epochs * 5, make)
        self.kept["epochs"]["multiples of the rate"] = epochs * len(found)
        return {factor: Trial(*trial) for factor, trial in found.items()}

    def _wide_trials(self, base: Record, edge: float) -> dict[float, Trial]:
        """The linear rule's first steps on few devices, by the factor of its rate, unless that is known to fail."""
        optim, found = self.config.optim, {}
        for n in (n for n in WIDE if n <= self.devices[-1]):
            path = arms.follow("linear", optim, n, base.train_samples).path
            factor, batch = path.rates.peak / optim.learning_rate, path.global_batch
            epochs = probes.epochs(self.config, base.train_samples, batch)
            if 1 < factor < edge and epochs <= self._left:
                config = changed(self.config, arm="linear", parallel__virtual=n)
                found[factor] = Trial(*self._part(f"first steps at batch {batch}", epochs, partial(_first_steps, config)))
        return found

    def _paces(self, base: Record, usual: Trial, trials: Mapping[float, Trial]) -> dict[float, float]:
        losses = [row.train_loss for row in self.folder.run(base.global_batch).read_rows()]
        finite = {m: trial.losses for m, trial in trials.items() if m > 1 and np.isfinite(trial.losses).all()}
        return {m: pace.pace(usual.losses, losses, base.steps_per_epoch, of) for m, of in finite.items()}

    def _noise(self, base: Record) -> float | None:
        """The gradient's noise scale where the base run has reached the target."""

        def make() -> probes.Norms:
            setup, folder = programs.prepare(self.config), self.folder.run(base.global_batch)
            like = programs.initial_state(setup)
            found = newest(folder.checkpoints, like)
            if found is None:
                raise InputError(f"{folder.checkpoints} must hold the base run's last state; got none: delete {folder.root}")
            with programs.arithmetic(self.config):
                return probes.gradient_norms(setup, like)(found.state)

        epochs = 2 * min(1.0, probes.NORM_STEPS * base.global_batch / base.train_samples)
        return probes.noise_of(probes.Norms(*self._part("noise of the gradient", epochs, make)))

    def _step_times(self, base: Record) -> Timings:
        """Of the batches that a device may get, and of the validation's shares."""
        timing = ON_CPU if base.device_kind == "cpu" else ELSEWHERE
        batch = self.config.optim.base_batch
        shares = {math.ceil(batch / 4**i) for i in range(batch.bit_length())}  # down to 1; the rest is interpolated
        batches = sorted({*shares, min(4 * batch, base.train_samples), *self.references})
        validation = sorted({math.ceil(base.validation_samples / n) for n in (1, self.devices[-1])})
        epochs = sum(batches) * timing.steps * (timing.blocks + 1) / base.train_samples

        def make() -> str:
            config = changed(self.config, seed=0)  # it is in the program, not in the time: other seeds need not compile again
            times = throughput.measure(config, batches, validation, timing)
            throughput.write(self.folder.step_times, times)
            return self.folder.step_times.name

        self._part("step times", epochs, make)
        times = throughput.read(self.folder.step_times)
        if times is None or not times.train:
            raise InputError(f"{self.folder.step_times} must hold step times; got none: delete {self.folder.measured}")
        return times

    def tuned(self, measured: Measured) -> tuple[float, ...]:
        """The best of some factors of the rate at 1, 2, 4, … base batches: the lowest training loss after a part of the way."""
        base, best = self.config.optim.base_batch, []
        for doublings in range(self.devices[-1].bit_length()):
            n = min(2**doublings, self.devices[-1])
            batch = min(n * base, measured.samples)
            way = math.ceil(TUNING_SHARE * min(measured.steps.values()))
            epochs = TUNED * probes.epochs(self.config, measured.samples, batch, way)
            config = changed(self.config, arm="weak", parallel__virtual=n)
            part = self._part(f"rates at batch {batch}", epochs, partial(_late_losses, config, n, way))
            finite = {float(factor): loss for factor, loss in part.items() if math.isfinite(loss)}
            best.append(min(finite, key=lambda factor: finite[factor], default=1.0))
        return tuple(best)


def _late_losses(config: Config, n: int, steps: int) -> dict[str, float]:
    """The mean training loss over the last third of some steps, by the factor of the rate."""
    attempt = probes.trials(config, steps)
    factors = sorted({float(f"{factor:.3g}") for factor in np.geomspace(0.5, 2 * n, TUNED)})
    losses = {factor: attempt(factor).losses for factor in factors}
    return {str(factor): float(np.mean(of[pace.late(of)])) for factor, of in losses.items()}


def _first_steps(config: Config) -> Trial:
    return probes.trials(config)(1.0)


def _table(rows: Sequence[Timing]) -> StepTimes:
    ordered = sorted(rows)
    return StepTimes(tuple(row.samples for row in ordered), tuple(row.median_s for row in ordered))


def _read(path: Path, run: str) -> dict[str, Any]:
    """What an earlier process has measured of the same runs.

    Raises:
      InputError: it is another plan's, or cannot be read.
    """
    blank = {"run_id": run, "epoch_s": 0.0, "parts": {}, "epochs": {}, "seconds": {}}
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return blank
    except (OSError, ValueError) as error:
        raise InputError(
            f"{path} must be what a plan has measured; got {error}: delete it, and it is measured again"
        ) from error
    if not isinstance(kept, dict) or kept.keys() != blank.keys() or kept["run_id"] != run:
        raise InputError(f"workdir must be that of a plan of the same configuration; got {path.parent}: give another --workdir")
    return kept


@contextmanager
def _claimed(root: Path) -> Iterator[PlanDir]:
    """The work directory, written to by no other process in the meantime."""
    folder = PlanDir(root)
    with writable(root):
        root.mkdir(parents=True, exist_ok=True)
        with alone(folder.lock, "plan"):
            yield folder
