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
from gmmae.planner.measurements import Curve, Measurements, PlanDir, step_table
from gmmae.planner.prediction import Measured, runnable
from gmmae.planner.steps import seed_sigma, to_target
from gmmae.planner.trials import Trial
from gmmae.scaling import strategies
from gmmae.scaling.cost import as_in_runs
from gmmae.sweep.display import duration
from gmmae.sweep.grid import TimingConfig
from gmmae.sweep.throughput import Timings
from gmmae.system.errors import InputError
from gmmae.training.noise_scale import NORM_STEPS, Norms, noise_of
from gmmae.training.terminal import Display

SMALLER = (4, 2)
"""Divisors of the base batch for the second run. The first one lies far enough away to tell the law's two numbers apart.
The second one is tried if the first run misses the target.
"""

MOST_OF_BASE = 1.5
"""Maximum epochs of the second run over those of the base run. By the law it takes fewer."""

TUNED, TUNING_SHARE = 6, 0.3
"""Number of learning rates that are tried at each batch, from half the base rate to twice that of the linear rule; and the
share of the steps to the target that each trial takes.
"""

WIDE = (2, 4)
"""Numbers of devices whose first steps under the linear rule are tried. More devices cost more epochs and show the same."""

ON_CPU = ((2, 2, 5), (2, 2, 2), (1, 1, 1))
ELSEWHERE = ((20, 20, 7), (20, 10, 3), (2, 2, 2), (1, 1, 1))
"""Warm-up steps, steps of a block, and blocks, from the most careful timing to the quickest. On a CPU a step takes long beside
a dispatch, on a GPU it does not."""

TIMING_SHARE = 0.25
"""Maximum share of a budget that step times take, if a quicker timing takes less."""


class Found(NamedTuple):
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


def measure(
    config: Config,
    folder: PlanDir,
    display: Callable[[], Display],
    *,
    devices: Collection[int],
    reference_batches: Collection[int] = (),
    budget_epochs: int = 0,
    tune: bool = False,
    noise_scale: bool = False,
) -> Found:
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
    if not config.stop.target:
        raise InputError("stop.target must be given, because a plan is one of reaching it; got 0: give --stop.target")
    config = changed(config, scaling="strong", parallel__devices=1, parallel__simulate_devices=0)
    parts = Measurements(config, folder, display)
    most_devices = runnable(parts.facts.samples, devices)[-1]
    measuring = _Measuring(config, parts, display, most_devices, reference_batches, budget_epochs or math.inf)
    return measuring.all(tune, noise_scale)


class _Measuring:
    """The choice of a plan's measurements, and the epochs that they have taken."""

    def __init__(
        self,
        config: Config,
        parts: Measurements,
        display: Callable[[], Display],
        most_devices: int,
        references: Collection[int],
        budget: float,
    ):
        self.config, self.parts, self.most_devices, self.references = config, parts, most_devices, references
        self.budget = budget
        self.say = display().say
        self.notes: list[str] = []
        self.epochs: dict[str, float] = {}
        self.seconds: dict[str, float] = {}
        self.epoch_s = 0.0

    def all(self, tune: bool, noise_scale: bool) -> Found:
        timing = self._timing()
        base = self._base_run()
        times = self._step_times(timing)
        tried = self._trials(base)
        usual, final_loss = tried.get(1.0), base.rows[-1].train_loss
        progress = {1.0: 1.0} | {m: trials.progress(usual, trial, final_loss) for m, trial in tried.items() if usual}
        wide = self._wide_trials(base, stability.edge(progress)) if usual else {}
        second = self._second_run(base)
        curves = [base, *second]
        stop, samples = self.config.stop, self.parts.facts.samples
        steps = {curve.record.global_batch: to_target(curve.rows, stop) for curve in curves}
        factors = self._tuned(min(steps.values())) if tune else ()
        norms = self._noise(base) if noise_scale else None
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
            vitality={m: trials.vitality(usual, trial) for m, trial in wide.items() if usual},
            pace=learning_rate.together(*(_paces(base, usual, some) for some in (tried, wide))) if usual else {},
        )
        return Found(
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

    def _curve(self, batch: int, most_epochs: float) -> Curve:
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
        fitting = (place for place, cost in enumerate(costs) if cost <= TIMING_SHARE * self.budget)
        place = next(fitting, len(costs) - 1)
        if costs[place] + 1 > self.budget:
            raise InputError(
                f"budget_epochs must be at least {math.ceil(costs[place] + 1)}, since timing {samples} samples' steps takes "
                f"{costs[place]:.1f} epochs of {self.parts.facts.samples}; got {self.budget:g}: give more, or 0 for no limit"
            )
        self.epochs["step times"] = costs[place]
        return configs[place]

    @property
    def _timings(self) -> Sequence[tuple[int, int, int]]:
        return ON_CPU if self.parts.facts.device_kind == "cpu" else ELSEWHERE

    @property
    def _batches(self) -> list[int]:
        """Batches whose steps are timed: shares of the base batch down to 1, up to four base batches, and the clusters'
        reference batches.
        """
        batch, samples = self.config.optim.batch_size, self.parts.facts.samples
        shares = {math.ceil(batch / 4**i) for i in range(batch.bit_length())}  # the rest is interpolated
        return sorted({*shares, min(4 * batch, samples), *self.references})

    def _step_times(self, timing: TimingConfig) -> Timings:
        """Measures the times of training steps and of the shares of the validation."""
        validation = {math.ceil(self.parts.facts.validation / n) for n in (1, self.most_devices)}
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

    def _base_run(self) -> Curve:
        batch, stop = self.config.optim.batch_size, self.config.stop
        self.say(f"measuring the way to the target at the base batch, {batch}")
        base = self._curve(batch, self._left)
        self.epoch_s = (base.rows[-1].train_s + base.rows[-1].eval_s) / len(base.rows)
        if not base.reached:
            values = [value for row in base.rows if math.isfinite(value := row.value(stop.monitor))]
            best = f"{min(values, key=stop.cost):g}" if values else "no finite value"
            raise InputError(
                f"the base run of a plan must reach stop.target, {stop.monitor} {stop.target:g}; got {best} at best in "
                f"{len(base.rows)} epochs ({base.reason}): give an easier --stop.target, another "
                "--optim.learning-rate, or more epochs (--stop.max-epochs, --budget-epochs)"
            )
        return base

    def _second_run(self, base: Curve) -> list[Curve]:
        """Returns a run at a smaller batch that reaches the target, if there is one."""
        batches = dict.fromkeys(max(1, base.record.global_batch // divisor) for divisor in SMALLER)
        for batch in batches:
            most = min(math.ceil(MOST_OF_BASE * len(base.rows)), self._left)
            if batch == base.record.global_batch or most < 1:
                continue
            self.say(f"measuring the way to the target at batch {batch}, about {duration(len(base.rows) * self.epoch_s)}")
            curve = self._curve(batch, most)
            if curve.reached:
                return [curve]
            self.notes.append(f"batch {batch} did not reach the target in {len(curve.rows)} epochs ({curve.reason})")
        self.notes.append("no second batch was run to the target: Bn is hardly known")
        return []

    def _trials(self, base: Curve) -> dict[float, Trial]:
        """Runs trials at 1, 2, 4, … times the learning rate, until one fails."""
        record, name = base.record, "multiples of the rate"
        epochs = trials.epochs(self.config, record.train_samples, record.global_batch)
        most = min(self.most_devices, record.train_samples / record.global_batch)
        found: dict[float, Trial] = {}
        factor = 1
        while factor < 2 * most:
            if epochs > self._left:
                self.notes.append(f"the budget left no trial of {factor} times the learning rate, or of more: untested")
                break
            self._spend(name, epochs, f"{factor:g} times the learning rate")
            found[float(factor)] = trial = self.parts.trial(factor)
            self.seconds[name] = self.seconds.get(name, 0.0) + self.parts.seconds[f"{factor:g} times the learning rate"]
            if not trials.progress(found[1.0], trial, base.rows[-1].train_loss) >= stability.FAILED:
                break
            factor *= 2
        return found

    def _wide_trials(self, base: Curve, edge: float) -> dict[float, Trial]:
        """Tries the linear rule's first steps on few devices, unless its learning rate is known to fail."""
        optim, samples = self.config.optim, base.record.train_samples
        found: dict[float, Trial] = {}
        for n in (n for n in WIDE if n <= self.most_devices):
            path = strategies.resolve("linear", optim, n, samples).optimization
            factor, batch = path.learning_rate.peak / optim.learning_rate, path.global_batch
            if not 1 < factor < edge:
                continue
            epochs, name = trials.epochs(self.config, samples, batch), f"first steps of linear on {n}"
            if epochs > self._left:
                self.notes.append(f"the budget left no trial of the linear rule's first steps on {n} devices: untested")
                break
            self._spend(name, epochs, name)
            found[factor] = self.parts.first_steps("linear", n)
            self.seconds[name] = self.parts.seconds[name]
        return found

    def _tuned(self, steps: float) -> tuple[float, ...]:
        """Returns the factor of the learning rate with the lowest training loss, at 1, 2, 4, … base batches."""
        base, samples, best = self.config.optim.batch_size, self.parts.facts.samples, []
        way = math.ceil(TUNING_SHARE * steps)
        for n in (2**i for i in range(self.most_devices.bit_length())):
            batch = min(n * base, samples)
            epochs = TUNED * trials.epochs(self.config, samples, batch, way)
            if epochs > self._left:
                self.notes.append(f"the budget left no rates to be tuned from batch {batch} on")
                break
            name = f"rates at batch {batch}"
            self._spend(name, epochs, name)
            factors = sorted({float(f"{factor:.3g}") for factor in np.geomspace(0.5, 2 * n, TUNED)})
            losses, self.seconds[name] = self.parts.late_losses(n, factors, way)
            losses = {factor: loss for factor, loss in losses.items() if math.isfinite(loss)}
            best.append(min(losses, key=lambda factor: losses[factor], default=1.0))
        return tuple(best)

    def _noise(self, base: Curve) -> Norms | None:
        """Measures the norms of the gradients where the base run reaches the target."""
        record, name = base.record, "noise of the gradient"
        epochs = 2 * min(1.0, NORM_STEPS * record.global_batch / record.train_samples)
        if epochs > self._left:
            self.notes.append("the budget left no epochs for the gradient's noise scale")
            return None
        self._spend(name, epochs, f"{name} after epoch {len(base.rows)}")
        norms = self.parts.norms(base)
        self.seconds[name] = self.parts.seconds[f"{name} after epoch {len(base.rows)}"]
        return norms


def _paces(base: Curve, usual: Trial, trials: Mapping[float, Trial]) -> dict[float, float]:
    losses, steps = [row.train_loss for row in base.rows], base.record.steps_per_epoch
    finite = {m: trial.losses for m, trial in trials.items() if m > 1 and np.isfinite(trial.losses).all()}
    return {m: learning_rate.pace(usual.losses, losses, steps, of) for m, of in finite.items()}
