"""The measurements of `gmmae plan`, on one device and in one process: runs to the target, step times, and trials.

The call's arguments and the measured values decide what is measured and what it costs. The contents of the work directory do
not. So a plan that continues an earlier one says the same as a fresh one.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from gmmae.config.schema import Config, changed
from gmmae.planner import learning_rate, stability, trials
from gmmae.planner.measurements import Measurements, PlanDir, TargetRun, step_table
from gmmae.planner.prediction import Measured, runnable
from gmmae.planner.steps import seed_sigma, steps_to_target
from gmmae.planner.trials import Trial
from gmmae.scaling import strategies
from gmmae.scaling.cost import as_in_runs
from gmmae.sweep.display import duration
from gmmae.sweep.grid import TimingConfig
from gmmae.sweep.throughput import Timings
from gmmae.system.errors import InputError
from gmmae.training.noise_scale import NORM_STEPS, Norms, noise_of
from gmmae.training.terminal import Display

SECOND_RUN_DIVISORS = (4, 2)
"""Divisors of the base batch for the second run. The first one lies far enough away to tell the law's two numbers apart.
The second one is tried if the first run misses the target.
"""

MAX_SECOND_RUN_RATIO = 1.5
"""Maximum epochs of the second run over those of the base run. By the law it takes fewer."""

NUM_TUNED_RATES = 6
"""Number of learning rates that are tried at each batch, from half the base rate to twice that of the linear rule."""

TUNING_SHARE = 0.3
"""Share of the steps to the target that each tuning trial takes."""

FIRST_STEPS_DEVICES = (2, 4)
"""Numbers of devices whose first steps under the linear rule are tried. More devices cost more epochs and show the same."""

CPU_TIMINGS = ((2, 2, 5), (2, 2, 2), (1, 1, 1))
GPU_TIMINGS = ((20, 20, 7), (20, 10, 3), (2, 2, 2), (1, 1, 1))
"""Warm-up steps, steps of a block, and blocks, from the most careful timing to the quickest. On a CPU a step takes long beside
a dispatch, on a GPU it does not."""

MAX_TIMING_SHARE = 0.25
"""Maximum share of a budget that step times take, if a quicker timing takes less."""


class PlanMeasurements(NamedTuple):
    """The measurements of a plan.

    Attributes:
      measured: measurements for `gmmae.planner.prediction`.
      device_kind: name of the device.
      target, metric: target of the runs, and its metric.
      epochs: epochs that each part took.
      seconds: elapsed seconds that each part took, compilation included.
      base_epochs: epochs of the base run to the target.
      base_s: training and validation seconds of the base run.
      curves: metric after each epoch, by batch.
      notes: sentences on measurements that failed or were left out.
      tuned_factors: best factors of the learning rate at 1, 2, 4, … base batches; empty unless tuned.
      norms: norms of gradients at the end of the base run, for the noise scale; None unless measured.
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
    norms: Norms | None = None


class PlanRequest(NamedTuple):
    """The choice of measurements for a plan.

    Attributes:
      devices: numbers of devices to predict for.
      reference_batches: batches of the clusters, whose steps are timed too.
      budget_epochs: maximum epochs of the training set for all measurements; None sets no limit.
      tune: whether to look for the best learning rate at 1, 2, 4, … base batches.
      noise_scale: whether to measure the gradient's noise scale at the target. Nothing in a plan depends on it.
    """

    devices: Collection[int]
    reference_batches: Collection[int] = ()
    budget_epochs: int | None = None
    tune: bool = False
    noise_scale: bool = False


def measure(config: Config, folder: PlanDir, display: Callable[[], Display], request: PlanRequest) -> PlanMeasurements:
    """Makes the measurements that are missing.

    Args:
      config: configuration of the runs. Its strategy and devices are ignored.
      folder: work directory, from `gmmae.planner.measurements.claimed`.
      display: makes a display of one run's progress.
      request: what to measure.

    Raises:
      InputError: there is no target, or the base run does not reach it within the budget. Or no number of devices has a sample
        for
        each device. Or the work directory belongs to another plan.
      PlanInterruptedError: a signal stopped a run.
    """
    if config.stop.target is None:
        raise InputError("stop.target must be given for a plan; got none: set --stop.target")
    config = changed(config, scaling="strong", parallel__devices=1, parallel__simulate_devices=None)
    return _Measuring(config, Measurements(config, folder, display), request).all()


class _Measuring:
    """The choice of a plan's measurements, and the epochs that they have taken."""

    def __init__(self, config: Config, parts: Measurements, request: PlanRequest):
        self.config, self.parts, self.request = config, parts, request
        self.max_devices = runnable(parts.facts.samples, request.devices)[-1]
        self.budget = math.inf if request.budget_epochs is None else request.budget_epochs
        self.say = parts.display().say
        self.notes: list[str] = []
        self.epochs: dict[str, float] = {}
        self.seconds: dict[str, float] = {}
        self.epoch_s = 0.0

    def all(self) -> PlanMeasurements:
        timing = self._timing()
        base = self._base_run()
        times = self._step_times(timing)
        base_trials = self._trials(base)
        base_trial, final_loss = base_trials.get(1.0), base.rows[-1].train_loss
        progress = {1.0: 1.0} | {
            m: trials.progress(base_trial, trial, final_loss) for m, trial in base_trials.items() if base_trial
        }
        wide = self._wide_trials(base, stability.max_stable_factor(progress)) if base_trial else {}
        second = self._second_run(base)
        curves = [base, *second]
        stop, samples = self.config.stop, self.parts.facts.samples
        steps = {curve.record.global_batch: steps_to_target(curve.rows, stop) for curve in curves}
        factors = self._tuned(min(steps.values())) if self.request.tune else ()
        norms = self._noise(base) if self.request.noise_scale else None
        measured = Measured(
            samples=samples,
            validation=self.parts.facts.validation,
            optim=self.config.optim,
            max_epochs=stop.max_epochs,
            steps=steps,
            seed_sigma=seed_sigma([row.steps for row in base.rows], [stop.cost(row.value(stop.monitor)) for row in base.rows]),
            noise_scale=norms and noise_of(norms),
            train=as_in_runs(step_table(times.train), {curve.record.global_batch: curve.step_s for curve in curves}),
            passes=step_table(times.validation),
            gradient_bytes=float(base.record.parameters * (8 if self.config.precision == "float64" else 4)),
            progress=progress,
            active_unit_fractions={
                m: trials.active_unit_fraction(base_trial, trial) for m, trial in wide.items() if base_trial
            },
            speedups=learning_rate.combine_speedups(*(_speedups(base, base_trial, some) for some in (base_trials, wide)))
            if base_trial
            else {},
        )
        assert stop.target is not None
        return PlanMeasurements(
            measured=measured,
            device_kind=self.parts.facts.device_kind,
            target=stop.target,
            metric=stop.monitor,
            epochs=self.epochs,
            seconds=self.seconds,
            base_epochs=len(base.rows),
            base_s=base.rows[-1].train_s + base.rows[-1].eval_s,
            curves={curve.record.global_batch: [row.value(stop.monitor) for row in curve.rows] for curve in curves},
            notes=self.notes,
            tuned_factors=factors,
            norms=norms,
        )

    @property
    def _left(self) -> float:
        """Epochs of the budget that are left."""
        return self.budget - sum(self.epochs.values())

    def _spend(self, name: str, epochs: float, part: str) -> None:
        """Takes the epochs of a measurement from the budget, and announces it unless it is stored."""
        self.epochs[name] = self.epochs.get(name, 0.0) + epochs
        if part not in self.parts.seconds:
            self.say(f"measuring {part}" + (f", about {duration(epochs * self.epoch_s)}" if self.epoch_s else ""))

    def _curve(self, batch: int, most_epochs: float) -> TargetRun:
        """Runs the training at a batch, and takes its epochs from the budget."""
        most = int(min(self.config.stop.max_epochs, most_epochs))
        curve = self.parts.curve(batch, most)
        name = f"batch {curve.record.global_batch}"
        self.epochs[name], self.seconds[name] = len(curve.rows), curve.rows[-1].total_s
        return curve

    def _timing(self) -> TimingConfig:
        """Chooses the most careful timing of steps that leaves most of the budget, and takes its epochs.

        Raises:
          InputError: the budget is too small for the quickest timing.
        """
        configs = [TimingConfig(warmup_steps=w, steps=s, blocks=b) for w, s, b in self._timings]
        samples = sum(self._batches)
        costs = [
            samples * (max(one.warmup_steps, one.steps) + one.steps * one.blocks) / self.parts.facts.samples for one in configs
        ]
        fitting = (place for place, cost in enumerate(costs) if cost <= MAX_TIMING_SHARE * self.budget)
        place = next(fitting, len(costs) - 1)
        if costs[place] + 1 > self.budget:
            raise InputError(
                f"--budget-epochs must be at least {math.ceil(costs[place] + 1)}, because timing {samples} samples takes "
                f"{costs[place]:.1f} epochs of {self.parts.facts.samples}; got {self.budget:g}: set a larger one, or none"
            )
        self.epochs["step times"] = costs[place]
        return configs[place]

    @property
    def _timings(self) -> Sequence[tuple[int, int, int]]:
        return CPU_TIMINGS if self.parts.facts.device_kind == "cpu" else GPU_TIMINGS

    @property
    def _batches(self) -> list[int]:
        """Batches whose steps are timed: fractions and multiples of the base batch, and the clusters' reference batches."""
        batch, samples = self.config.optim.batch_size, self.parts.facts.samples
        shares = {math.ceil(batch / 4**i) for i in range(batch.bit_length())}  # the rest is interpolated
        return sorted({*shares, min(4 * batch, samples), *self.request.reference_batches})

    def _step_times(self, timing: TimingConfig) -> Timings:
        """Measures the times of training steps and of the shares of the validation."""
        validation = {math.ceil(self.parts.facts.validation / n) for n in (1, self.max_devices)}
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
        base = self._curve(batch, self._left)
        self.epoch_s = (base.rows[-1].train_s + base.rows[-1].eval_s) / len(base.rows)
        if not base.reached:
            values = [value for row in base.rows if math.isfinite(value := row.value(stop.monitor))]
            best = f"{min(values, key=stop.cost):g}" if values else "no finite value"
            raise InputError(
                f"the base run must reach stop.target, {stop.monitor} {stop.target:g}; got {best} at best in "
                f"{len(base.rows)} epochs ({base.reason}): set an easier --stop.target, another "
                "--optim.learning-rate, or more epochs (--stop.max-epochs, --budget-epochs)"
            )
        return base

    def _second_run(self, base: TargetRun) -> list[TargetRun]:
        """Returns a run at a smaller batch that reaches the target, if there is one."""
        batches = dict.fromkeys(max(1, base.record.global_batch // divisor) for divisor in SECOND_RUN_DIVISORS)
        for batch in batches:
            most = min(math.ceil(MAX_SECOND_RUN_RATIO * len(base.rows)), self._left)
            if batch == base.record.global_batch or most < 1:
                continue
            self.say(f"training to the target at batch {batch}, about {duration(len(base.rows) * self.epoch_s)}")
            curve = self._curve(batch, most)
            if curve.reached:
                return [curve]
            self.notes.append(f"batch {batch} did not reach the target in {len(curve.rows)} epochs ({curve.reason})")
        self.notes.append("no run at a second batch reached the target: Bn is uncertain")
        return []

    def _trials(self, base: TargetRun) -> dict[float, Trial]:
        """Runs trials at 1, 2, 4, … times the learning rate, until one fails."""
        record, name = base.record, "multiples of the rate"
        epochs = trials.count_epochs(self.config, record.train_samples, record.global_batch)
        most = min(self.max_devices, record.train_samples / record.global_batch)
        trials_of: dict[float, Trial] = {}
        factor = 1
        while factor < 2 * most:
            if epochs > self._left:
                self.notes.append(f"no trial of {factor} times the learning rate or more: the budget is spent")
                break
            self._spend(name, epochs, f"{factor:g} times the learning rate")
            trials_of[float(factor)] = trial = self.parts.trial(factor)
            self.seconds[name] = self.seconds.get(name, 0.0) + self.parts.seconds[f"{factor:g} times the learning rate"]
            if not trials.progress(trials_of[1.0], trial, base.rows[-1].train_loss) >= stability.MIN_PROGRESS:
                break
            factor *= 2
        return trials_of

    def _wide_trials(self, base: TargetRun, stable: float) -> dict[float, Trial]:
        """Tries the linear rule's first steps on few devices, unless its learning rate is known to fail."""
        optim, samples = self.config.optim, base.record.train_samples
        trials_of: dict[float, Trial] = {}
        for n in (n for n in FIRST_STEPS_DEVICES if n <= self.max_devices):
            path = strategies.resolve("linear", optim, n, samples).optimization
            factor, batch = path.learning_rate.peak / optim.learning_rate, path.global_batch
            if not 1 < factor < stable:
                continue
            epochs, name = trials.count_epochs(self.config, samples, batch), f"first steps of linear on {n}"
            if epochs > self._left:
                self.notes.append(f"no trial of the linear rule's first steps on {n} devices: the budget is spent")
                break
            self._spend(name, epochs, name)
            trials_of[factor] = self.parts.first_steps("linear", n)
            self.seconds[name] = self.parts.seconds[name]
        return trials_of

    def _tuned(self, steps: float) -> tuple[float, ...]:
        """Returns the factor of the learning rate with the lowest training loss, at 1, 2, 4, … base batches."""
        base, samples, best = self.config.optim.batch_size, self.parts.facts.samples, []
        way = math.ceil(TUNING_SHARE * steps)
        for n in (2**i for i in range(self.max_devices.bit_length())):
            batch = min(n * base, samples)
            epochs = NUM_TUNED_RATES * trials.count_epochs(self.config, samples, batch, way)
            if epochs > self._left:
                self.notes.append(f"no learning rate was tuned from batch {batch} on: the budget is spent")
                break
            name = f"rates at batch {batch}"
            self._spend(name, epochs, name)
            factors = sorted({float(f"{factor:.3g}") for factor in np.geomspace(0.5, 2 * n, NUM_TUNED_RATES)})
            losses, self.seconds[name] = self.parts.late_losses(n, factors, way)
            losses = {factor: loss for factor, loss in losses.items() if math.isfinite(loss)}
            best.append(min(losses, key=lambda factor: losses[factor], default=1.0))
        return tuple(best)

    def _noise(self, base: TargetRun) -> Norms | None:
        """Measures the norms of the gradients where the base run reaches the target."""
        record, name = base.record, "noise of the gradient"
        epochs = 2 * min(1.0, NORM_STEPS * record.global_batch / record.train_samples)
        if epochs > self._left:
            self.notes.append("the gradient's noise scale was not measured: the budget is spent")
            return None
        self._spend(name, epochs, f"{name} after epoch {len(base.rows)}")
        norms = self.parts.norms(base)
        self.seconds[name] = self.parts.seconds[f"{name} after epoch {len(base.rows)}"]
        return norms


def _speedups(base: TargetRun, base_trial: Trial, trials: Mapping[float, Trial]) -> dict[float, float]:
    losses, steps = [row.train_loss for row in base.rows], base.record.steps_per_epoch
    finite = {m: trial.losses for m, trial in trials.items() if m > 1 and np.isfinite(trial.losses).all()}
    return {m: learning_rate.learning_rate_speedup(base_trial.losses, losses, steps, of) for m, of in finite.items()}
