"""The measurements of `gmmae plan`, on one device and in one process: runs to the target, step times, and trials.

The call's arguments and the measured values decide what is measured and what it costs. The contents of the work directory do
not. So a plan that continues an earlier one says the same as a fresh one.
"""

import math
from collections.abc import Callable, Collection
from functools import lru_cache, partial
from typing import NamedTuple, TypeVar

from gmmae.config.schema import Config, changed
from gmmae.planner import stability, step_ratios, trials
from gmmae.planner.measurements import Measurements, PlanDir, TargetRun
from gmmae.planner.prediction import Measured, runnable
from gmmae.planner.step_ratios import LEVEL_SHARE, LINEAR_RUN, MAX_COSTS, WEAK_RUN, Ratios
from gmmae.planner.steps import steps_to_target
from gmmae.planner.trials import Trial
from gmmae.scaling import strategies
from gmmae.scaling.cost import as_in_runs
from gmmae.sweep import step_times
from gmmae.sweep.display import duration
from gmmae.sweep.grid import TimingConfig
from gmmae.sweep.report.projection import step_table
from gmmae.sweep.step_times import Timings
from gmmae.system.errors import InputError
from gmmae.training.terminal import Display

T = TypeVar("T")

MIN_BASE_EPOCHS = 2
"""Epochs of a base run below which the zoo says nothing of the steps."""

FIRST_STEPS_DEVICES = (2, 4)
"""Numbers of devices whose first steps under the linear rule are tried. More devices cost more epochs and show the same."""

CPU_TIMING = TimingConfig(warmup_steps=2, steps=2, blocks=5)
GPU_TIMING = TimingConfig(warmup_steps=20, steps=20, blocks=7)
"""The timing of steps. On a CPU a step takes long beside a dispatch, on a GPU it does not."""


class PlanMeasurements(NamedTuple):
    """The measurements of a plan."""

    measured: Measured
    device_kind: str
    target: float
    metric: str
    epochs: dict[str, float]  # epochs that each group of measurements took
    seconds: dict[str, float]  # elapsed seconds that each group took, compilation included
    base_epochs: int  # epochs of the base run to the target
    base_s: float  # training and validation seconds of the base run
    curves: dict[int, list[float]]  # metric after each epoch, by batch
    notes: list[str]  # sentences on measurements that failed or were left out
    step_spread: float = 0.0  # largest relative distance of a quartile of a step's seconds from their median


class PlanRequest(NamedTuple):
    """The choice of measurements for a plan."""

    devices: Collection[int]  # numbers of devices to predict for
    reference_batches: Collection[int] = ()  # batches of the clusters, whose steps are timed too


def measure(config: Config, folder: PlanDir, display: Callable[[], Display], request: PlanRequest) -> PlanMeasurements:
    """Makes the measurements that are missing.

    Args:
      config: configuration of the runs. Its strategy and devices are ignored.
      folder: work directory, from `gmmae.planner.measurements.claimed`.
      display: makes a display of one run's progress.
      request: what to measure.

    Raises:
      InputError: there is no target, or the base run does not reach it. Or the batch has more samples than the training set, or
        no number of devices has a sample for each device. Or the work directory belongs to another plan.
      PlanInterruptedError: a signal stopped a run.
    """
    if config.stop.target is None:
        raise InputError("stop.target must be given for a plan; got none: set --stop.target")
    config = changed(config, scaling="strong", parallel__devices=1, parallel__simulate_devices=None)
    return _Measuring(config, Measurements(config, folder, display), request).all()


class _Measuring:
    """The choice of a plan's measurements, and the epochs that they have taken."""

    def __init__(self, config: Config, parts: Measurements, request: PlanRequest):
        if config.optim.batch_size > parts.samples:
            raise InputError(
                f"optim.batch_size must be at most the {parts.samples} training samples; got {config.optim.batch_size}: set "
                "a smaller --optim.batch-size"
            )
        self.config, self.parts, self.request = config, parts, request
        self.max_devices = runnable(parts.samples, request.devices)[-1]
        self.say = parts.display().say
        self.compiled_trials = lru_cache(maxsize=1)(trials.learning_rate_trials)  # successive trials share a program
        self.notes: list[str] = []
        self.epochs: dict[str, float] = {}
        self.seconds: dict[str, float] = {}
        self.epoch_s = 0.0

    def all(self) -> PlanMeasurements:
        timing = self._timing()
        base = self._base_run()
        times = self._step_times(timing)
        stop, steps = self.config.stop, self._steps(base)
        if len(base.epochs) < MIN_BASE_EPOCHS:
            few = (
                f"the base run takes {len(base.epochs)} epoch, fewer than the {MIN_BASE_EPOCHS} of the runs that set the "
                f"constants: the steps are less sure than their intervals say. Set a harder --stop.target"
            )
            self.say(few)
            self.notes.append(few)
        self.notes += base.record.seen_notes
        runs = self._short_runs(base, steps)
        ratios = self._ratios(base, steps, *runs)
        progress, active_unit_fractions = self._tried(base) if step_ratios.is_doubtful(ratios) else ({1.0: 1.0}, {})
        curves = [base, *(run for run in runs if run)]
        measured = Measured(
            samples=self.parts.samples,
            validation=self.parts.validation,
            optim=self.config.optim,
            max_epochs=stop.max_epochs,
            steps={base.record.global_batch: steps},
            ratios=ratios,
            train=as_in_runs(step_table(times.train), {curve.record.global_batch: curve.step_s for curve in curves}),
            passes=step_table(times.validation),
            gradient_bytes=float(base.record.parameters * (8 if self.config.precision == "float64" else 4)),
            progress=progress,
            active_unit_fractions=active_unit_fractions,
        )
        assert stop.target is not None
        return PlanMeasurements(
            measured=measured,
            device_kind=self.parts.device_kind,
            target=stop.target,
            metric=stop.monitor,
            epochs=self.epochs,
            seconds=self.seconds,
            base_epochs=len(base.epochs),
            base_s=base.rows[-1].train_s + base.rows[-1].eval_s,
            curves={base.record.global_batch: [row.value(stop.monitor) for row in base.epochs]},
            notes=self.notes,
            step_spread=step_times.spread(times.train),
        )

    def _part(self, group: str, epochs: float, name: str, make: Callable[[], T]) -> T:
        """Returns a stored part, or announces and makes it. Its epochs and seconds count for a group of parts."""
        if name not in self.parts.seconds:
            self.say(f"measuring {name}" + (f", about {_whole_seconds(epochs * self.epoch_s)}" if self.epoch_s else ""))
        value = self.parts.part(name, make)
        self.epochs[group] = self.epochs.get(group, 0.0) + epochs
        self.seconds[group] = self.seconds.get(group, 0.0) + self.parts.seconds[name]
        return value

    def _run(self, batch: int, most_epochs: float, rate: float = 1.0, target: float | None = None) -> TargetRun:
        """Runs the training at a batch, and counts its epochs."""
        most = int(min(self.config.stop.max_epochs, most_epochs))
        run = self.parts.target_run(batch, most, rate, target)
        name = f"batch {run.record.global_batch}" + f", {rate:g} times the learning rate" * (rate != 1)
        self.epochs[name], self.seconds[name] = len(run.epochs), run.rows[-1].total_s
        return run

    def _timing(self) -> TimingConfig:
        """Returns the timing of steps, and counts its epochs."""
        timing = CPU_TIMING if self.parts.device_kind == "cpu" else GPU_TIMING
        steps = max(timing.warmup_steps, timing.steps) + timing.steps * timing.blocks
        self.epochs["step times"] = sum(self._batches) * steps / self.parts.samples
        return timing

    @property
    def _batches(self) -> list[int]:
        """Batches whose steps are timed: fractions of the base batch, and the clusters' reference batches.

        The runs themselves tell the time of larger ones.
        """
        batch = self.config.optim.batch_size
        shares = {math.ceil(batch / 4**i) for i in range(batch.bit_length())}  # the rest is interpolated
        return sorted({*shares, *self.request.reference_batches})

    def _step_times(self, timing: TimingConfig) -> Timings:
        """Measures the times of training steps and of the shares of the validation."""
        validation = {math.ceil(self.parts.validation / n) for n in (1, self.max_devices)}
        if "step times" not in self.parts.seconds:
            self.say("measuring step times")
        times = self.parts.step_times(self._batches, validation, timing)
        if not times.train or not times.validation:
            raise InputError(
                f"{self.parts.folder.step_times} must hold step times; got none: "
                f"{'; '.join(times.failed.values()) or 'delete it'}"
            )
        self.seconds["step times"] = self.parts.seconds.get("step times", 0.0)
        return times

    def _base_run(self) -> TargetRun:
        batch, stop = self.config.optim.batch_size, self.config.stop
        self.say(f"training to the target at the base batch, {batch}")
        base = self._run(batch, stop.max_epochs)
        self.epoch_s = (base.rows[-1].train_s + base.rows[-1].eval_s) / len(base.epochs)
        if not base.reached:
            values = [value for row in base.epochs if math.isfinite(value := row.value(stop.monitor))]
            best = f"{min(values, key=stop.cost):g}" if values else "no finite value"
            raise InputError(
                f"the base run must reach stop.target, {stop.monitor} {stop.target:g}; got {best} at best in "
                f"{len(base.epochs)} epochs ({base.reason}): set an easier --stop.target, another "
                "--optim.learning-rate, more epochs (--stop.max-epochs), or more time (--stop.time-limit-s)"
            )
        return base

    def _steps(self, base: TargetRun) -> float:
        """Returns the base run's steps to the target: by its epochs, or by a validation inside the last one."""
        steps = steps_to_target(base.epochs, self.config.stop)
        return steps if math.isfinite(steps) else steps_to_target(base.rows, self.config.stop)

    def _short_runs(self, base: TargetRun, steps: float) -> list[TargetRun | None]:
        """Returns the two short runs; None where there are too few samples for one.

        With fewer samples than the second run's batch, all samples are its batch, and its learning rate is that of the linear
        rule.
        """
        stop, runs = self.config.stop, []
        level = stop.cost(base.curve(stop).lowest_by(LEVEL_SHARE * steps))
        for (factor, rate), most in zip((WEAK_RUN, LINEAR_RUN), MAX_COSTS, strict=True):
            batch = int(factor * base.record.global_batch)
            if rate > 1 and WEAK_RUN[0] * base.record.global_batch <= self.parts.samples < batch:
                batch = self.parts.samples
                rate = batch / base.record.global_batch
            epochs = max(1, math.floor(most * len(base.epochs)))
            words = f"batch {batch}" + f" and {rate:g} times the learning rate" * (rate != 1)
            if batch > self.parts.samples:
                self.notes.append(f"no short run at {words}: there are {self.parts.samples} training samples")
                runs.append(None)
                continue
            self.say(f"training most of the way at {words}, at most {_whole_seconds(epochs * self.epoch_s)}")
            runs.append(self._run(batch, epochs, rate, level))
        return runs

    def _ratios(self, base: TargetRun, steps: float, first: TargetRun | None, second: TargetRun | None) -> Ratios:
        """Returns the numbers that the runs give."""
        stop, weak, exponent = self.config.stop, None, None
        assert stop.target is not None
        if first and (found := step_ratios.steps_at_equal_loss(base.curve(stop), steps, first.curve(stop))):
            weak = step_ratios.weak_ratio(*found)
        if second:
            found = step_ratios.steps_at_equal_loss(base.curve(stop), steps, second.curve(stop))
            factor = second.record.global_batch / base.record.global_batch
            exponent = step_ratios.rate_exponent(found, weak, (factor, factor))
        return Ratios(weak, exponent, steps, step_ratios.flatness(base.curve(stop), steps, stop.cost(stop.target)))

    def _tried(self, base: TargetRun) -> tuple[dict[float, float], dict[float, float]]:
        """Returns the progress of trials, and the active-unit fractions, by factor of the learning rate."""
        final_loss = base.rows[-1].train_loss
        assert final_loss is not None  # the last row ends an epoch
        of_factors = self._trials(base, final_loss)
        first = of_factors[1.0]
        progress = {factor: trials.progress(first, trial, final_loss) for factor, trial in of_factors.items()}
        wide = self._wide_trials(base, stability.max_stable_factor(progress))
        return progress, {factor: trials.active_unit_fraction(first, trial) for factor, trial in wide.items()}

    def _trials(self, base: TargetRun, final_loss: float) -> dict[float, Trial]:
        """Runs trials at 1, 2, 4, … times the learning rate, until one fails."""
        samples, batch = base.record.train_samples, base.record.global_batch
        epochs = trials.count_epochs(self.config, samples, batch)
        trials_of: dict[float, Trial] = {}
        factor = 1
        while factor < 2 * min(self.max_devices, samples / batch):
            make = partial(self._trial, self.config, factor)
            trial = Trial(*self._part("multiples of the rate", epochs, f"{factor:g} times the learning rate", make))
            trials_of[float(factor)] = trial
            if not trials.progress(trials_of[1.0], trial, final_loss) >= stability.MIN_PROGRESS:
                break
            factor *= 2
        return trials_of

    def _trial(self, config: Config, factor: float) -> Trial:
        return self.compiled_trials(config)(factor)

    def _wide_trials(self, base: TargetRun, stable: float) -> dict[float, Trial]:
        """Tries the linear rule's first steps on few devices, unless its learning rate is known to fail."""
        optim, samples = self.config.optim, base.record.train_samples
        trials_of: dict[float, Trial] = {}
        for n in (n for n in FIRST_STEPS_DEVICES if n <= self.max_devices):
            path = strategies.resolve("linear", optim, n, samples).stages[0]
            factor = path.learning_rate / optim.learning_rate
            if not 1 < factor < stable:
                continue
            epochs = trials.count_epochs(self.config, samples, path.batch)
            config = changed(self.config, scaling="linear", parallel__simulate_devices=n)
            name = f"first steps of linear on {n}"
            trials_of[factor] = Trial(*self._part(name, epochs, name, partial(self._trial, config, 1.0)))
        return trials_of


def _whole_seconds(seconds: float) -> str:
    """Returns a duration as text, of 1 second at least.

    >>> _whole_seconds(0.2), _whole_seconds(59.4)
    ('1 s', '59 s')
    """
    return duration(max(seconds, 1.0))
