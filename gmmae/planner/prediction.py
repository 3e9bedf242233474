"""Predictions for each strategy on n devices of a cluster, from measurements on one device.

Steps to the target and failures follow the law of `gmmae.planner.step_ratios`. A step takes a + b · (device batch) on one
device, plus the cluster's all-reduce c(n) (`gmmae.scaling.cost`). Growing the batch n-fold at the base rate is faster than
dividing it exactly if (a + c(n)) / (b B) > B / Bn.
"""

import itertools
import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from gmmae.config.schema import OptimConfig
from gmmae.planner import step_ratios
from gmmae.planner.step_ratios import CONSTANTS, INTERVAL_NORMAL, Ratios
from gmmae.scaling import cost, strategies
from gmmae.scaling.cost import Cluster, StepTimes
from gmmae.scaling.strategies import Stage
from gmmae.system.errors import InputError

DRAWS = 4000

INTERVAL_LEVEL = 0.8

TIME_SIGMA = 0.08
"""Of the logarithm of a projected time."""

FAILED_TRIAL = 0.56
"""Chance of a failure after a trial that failed: that of 54 in 96 runs of the zoo."""

BEYOND = 0.3
"""Standard deviation of the logarithm of the steps for each doubling beyond the batches of several curves, over how far that
logarithm falls with a doubling between them; from the zoo."""

NUM_CANDIDATES = 100

MAX_TIME_RATIO = 1.1
"""The fewest devices are chosen whose expected time is within this factor of the least."""

BEST_BATCH = "best-batch"
"""The strategy at the base rate with the batch that takes the least time."""


def planned_strategies() -> list[str]:
    """The strategies with one batch and one optimiser, which the law describes."""
    return [
        name
        for name, strategy in strategies.STRATEGIES.items()
        if not (strategy.doubles_after or strategy.local) and strategy.optimizer is strategies.as_configured
    ]


class Measured(NamedTuple):
    """The measurements of a workload on one device."""

    samples: int  # for training
    validation: int  # likewise
    optim: OptimConfig  # base batch, base rate, and the strategies' other settings
    max_epochs: int  # after which a run has missed the target
    steps: Mapping[int, float]  # to the target at the base rate, by batch
    ratios: Ratios
    train: StepTimes | None  # seconds of a training step by its samples; None: only steps are predicted
    passes: StepTimes | None  # seconds of a validation pass by its samples; None: none is counted
    gradient_bytes: float  # that an all-reduce adds up
    failed_trials: tuple[tuple[int, float, bool], ...] = ()  # `Prediction.attempt` of each
    whole_epochs: bool = True  # whether a run ends with an epoch; otherwise an epoch is a step here
    tested_batches: tuple[float, float] = (1, math.inf)  # beyond which no batch but the base batch is proposed
    validate_every_steps: int | None = None

    def epoch_steps(self, batch: float | np.ndarray) -> np.ndarray:
        """The steps of an epoch at a global batch."""
        return np.ceil(self.samples / batch) if self.whole_epochs else np.ones_like(batch, float)


class BatchRule(NamedTuple):
    """The numbers that decide between dividing the batch and growing it."""

    smin: float  # the fewest steps
    bn: float  # the batch at which there are twice as many
    overhead_s: float  # a: seconds of a step without samples
    sample_s: float  # b: seconds that each sample adds


class Prediction(NamedTuple):
    """A strategy's predictions on a number of devices.

    Intervals are of runs that reach the target. Times are of training and validation.
    """

    scaling: str  # the strategy
    devices: int  # their number
    batch: int  # global batch
    learning_rate: float  # at its peak
    steps: float  # median to the target
    steps_low: float  # lower bound of the 80 % interval
    steps_high: float  # upper bound
    seconds: float  # median to the target
    seconds_low: float  # lower bound of the 80 % interval
    seconds_high: float  # upper bound
    probability_of_failure: float  # share of runs that miss the target
    warmup: bool  # whether a warmup leads up to the learning rate
    failed_trial: bool  # whether a trial of it has failed, or of one with a smaller batch and learning rate
    expected_s: float  # with a strong-scaling run after a failure
    speedup: float  # over one device
    efficiency: float  # speed-up over the number of devices

    @property
    def attempt(self) -> tuple[int, float, bool]:
        """What a trial tries."""
        return self.batch, self.learning_rate, self.warmup


class Forecast(NamedTuple):
    """All predictions for one cluster."""

    cluster: Cluster
    cells: list[Prediction]
    best: Prediction | None  # the recommended one; None without step times
    best_batches: dict[int, int]  # of the strategy `BEST_BATCH` by number of devices, derived from `listed`
    listed: tuple[int, ...]  # the values of `optim.best_batches`, on 1, 2, 4, … devices
    compute_scale: float  # seconds of computation on the cluster's device for one second measured
    scale_given: bool  # by the user; otherwise it is the cluster's


def batch_rule(measured: Measured) -> BatchRule:
    """The hyperbola through the base batch and twice that, or the largest measured one, and a step's time as a line."""
    batch = measured.optim.batch_size
    steps = measured.steps[batch]
    larger = max(2 * batch, *measured.steps)
    few, times = median_steps(measured, larger), larger / batch
    smin = max((times * few - steps) / (times - 1), 1e-3 * steps)
    bn = max(larger * (steps - few) / (times - 1) / smin, 1e-3 * batch)
    return BatchRule(smin, bn, *(cost.affine(measured.train) if measured.train else (math.nan, math.nan)))


class DeviceGroup(NamedTuple):
    """A number of devices of a cluster."""

    measured: Measured
    scale: float  # of all computation
    reduce_s: float
    devices: int

    def epoch_range_s(self, batch: int | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The least and the most seconds of an epoch with validation, which differ where a step was not measured."""
        m = self.measured
        steps_s = cost.seconds_range(m.train, np.ceil(batch / self.devices)) if m.train else (math.nan, math.nan)
        passes_s = cost.seconds_range(m.passes, math.ceil(m.validation / self.devices)) if m.passes else (0.0, 0.0)
        steps = m.epoch_steps(batch)
        validations = np.ceil(steps / m.validate_every_steps) if m.validate_every_steps else 1
        least, most = (
            steps * (self.scale * step_s + self.reduce_s) + validations * self.scale * pass_s
            for step_s, pass_s in zip(steps_s, passes_s, strict=True)
        )
        return least, most

    def epoch_s(self, batch: int | np.ndarray) -> np.ndarray:
        """The middle of the range by logarithms."""
        least, most = self.epoch_range_s(batch)
        return np.sqrt(least * most)


def device_group(measured: Measured, cluster: Cluster, devices: int, compute_scale: float | None = None) -> DeviceGroup:
    """A `compute_scale` of None takes the cluster's `reference_step_s`."""
    reduce_s = cost.all_reduce_s(cluster, devices, measured.gradient_bytes)
    scale = compute_scale or (cost.scale(cluster, measured.train) if measured.train else 1.0)
    return DeviceGroup(measured, scale, reduce_s, devices)


def median_steps(measured: Measured, batch: float, rate: float = 1.0) -> float:
    """The predicted steps at a batch and a learning rate over the base rate. They agree with those that were measured."""
    return step_ratios.steps_at(batch, rate, measured.optim.batch_size, measured.steps, measured.ratios, CONSTANTS)


def deviation(measured: Measured, batch: float, rate: float = 1.0) -> float:
    """The standard deviation of the logarithm of these steps."""
    of_law = step_ratios.deviation(batch / measured.optim.batch_size, rate, measured.ratios, CONSTANTS)
    return math.hypot(of_law, _deviation_beyond(measured, batch))


def _deviation_beyond(measured: Measured, batch: float) -> float:
    (least, few), (most, many) = (choose(measured.steps.items()) for choose in (min, max))
    fall = math.log(few / many) / math.log2(most / least) if most > least else 0.0
    return BEYOND * max(fall, 0.0) * abs(math.log2(batch / min(max(batch, least), most)))


class RunDraws(NamedTuple):
    """The draws of a strategy, which do not depend on the cluster."""

    epochs: Float[np.ndarray, " draws"]  # of the runs that reach the target within `max_epochs`
    steps: Float[np.ndarray, " draws"]
    failure: float  # by divergence or by `max_epochs`
    late: float  # the part of it by `max_epochs`
    failed_trial: bool


def warmed_up_epochs(epochs: float, speedup: float, warmup_epochs: int) -> float:
    """The epochs that a run takes with a speed-up that rises linearly from 1 during the warmup. `epochs` are those without.

    >>> warmed_up_epochs(12.0, 4.0, 0), warmed_up_epochs(2.0, 1.0, 0)
    (3.0, 2.0)
    >>> round(warmed_up_epochs(20.0, 4.0, 5), 2), round(warmed_up_epochs(5.5, 4.0, 5), 2)  # 12.5 are done when it ends
    (6.88, 2.93)
    """
    done = warmup_epochs * (1 + speedup) / 2
    if epochs > done:
        return warmup_epochs + (epochs - done) / speedup
    slope = (speedup - 1) / warmup_epochs
    return (math.sqrt(max(0.0, 1 + 2 * slope * epochs)) - 1) / slope if slope > 1e-9 else epochs


def draw_run(measured: Measured, path: Stage) -> RunDraws:
    """Draws whole epochs, of which more than `max_epochs` miss the target."""
    an_epoch, warmup = float(measured.epoch_steps(path.batch)), path.scaling_warmup_epochs > 0
    factor = path.learning_rate / measured.optim.learning_rate
    unscaled, scaled = (median_steps(measured, path.batch, rate) for rate in (1.0, factor))
    rng = np.random.default_rng([path.batch, int(1000 * factor)])
    scatter = np.exp(deviation(measured, path.batch, factor) * rng.normal(size=DRAWS))
    epochs = np.ceil(warmed_up_epochs(unscaled / an_epoch, unscaled / scaled, path.scaling_warmup_epochs) * scatter)
    failed_trial = (path.batch, path.learning_rate, warmup) in measured.failed_trials or any(
        path.batch >= batch and path.learning_rate >= rate > measured.optim.learning_rate and warmup <= warm
        for batch, rate, warm in measured.failed_trials
    )
    failed = step_ratios.failure_probability(factor, measured.ratios, CONSTANTS)
    failed = max(failed, FAILED_TRIAL) if failed_trial else failed
    in_time = epochs <= measured.max_epochs
    late = (1 - failed) * float(1 - in_time.mean())
    epochs = epochs[in_time] if in_time.any() else np.array([float(measured.max_epochs)])
    return RunDraws(epochs, epochs * an_epoch, failed + late, late, failed_trial)


def runnable(samples: int, devices: Collection[int]) -> list[int]:
    """The numbers of devices with a training sample for each device, increasing."""
    counts = sorted(n for n in devices if n <= samples)
    if not counts:
        raise InputError(
            f"devices must be at most the {samples} training samples, one for each device; got "
            f"{', '.join(map(str, sorted(devices)))}: give fewer with --devices"
        )
    return counts


def forecast(
    measured: Measured, cluster: Cluster, names: Collection[str], devices: Collection[int], compute_scale: float | None = None
) -> Forecast:
    """Predicts every strategy on every number of devices that its batch has samples for; best is one without a failed trial."""
    devices = runnable(measured.samples, devices)
    machines = {n: device_group(measured, cluster, n, compute_scale) for n in sorted({1, *devices})}
    powers = [2**i for i in range(devices[-1].bit_length())] if measured.train else []
    listed = tuple(best_batch(measured, device_group(measured, cluster, n, compute_scale)) for n in powers)
    optim = replace(measured.optim, best_batches=listed)

    def stage(name: str, n: int) -> Stage:
        return strategies.resolve(name, optim, n, measured.samples).stages[0]

    base, batches = stage("strong", 1), {n: batch for n in devices if listed and (batch := stage(BEST_BATCH, n).batch) >= n}
    draw = cache(lambda path: draw_run(measured, path))
    strong = {n: _times(machine, draw(base), base) for n, machine in machines.items() if n <= base.batch}
    alone_s, quantiles = float(np.median(strong[1])), ((1 - INTERVAL_LEVEL) / 2, 0.5, (1 + INTERVAL_LEVEL) / 2)
    cells: list[Prediction] = []
    for n, name in itertools.product(devices, names):
        path = stage(name, n)
        if path.batch < n:
            continue
        run, times = draw(path), _times(machines[n], draw(path), path)
        few, half, many = np.quantile(run.steps, quantiles).tolist()
        low, middle, high = np.quantile(times, quantiles).tolist()
        # A late run takes `max_epochs`, one that diverges the time of nine in ten; then a run with strong scaling follows.
        late_s = run.late * measured.max_epochs * float(machines[n].epoch_s(path.batch))
        failed_s = (run.failure - run.late) * high + late_s
        follows_s = min(float(seconds.mean()) for k, seconds in strong.items() if k <= n)
        cell = Prediction(
            scaling=name,
            devices=n,
            batch=path.batch,
            learning_rate=path.learning_rate,
            steps=half,
            steps_low=few,
            steps_high=many,
            seconds=middle,
            seconds_low=low,
            seconds_high=high,
            probability_of_failure=run.failure,
            warmup=path.scaling_warmup_epochs > 0,
            failed_trial=run.failed_trial,
            expected_s=float((1 - run.failure) * times.mean() + failed_s + run.failure * follows_s),
            speedup=alone_s / middle,
            efficiency=alone_s / middle / n,
        )
        cells.append(cell)
    best, sound = None, [cell for cell in cells if not cell.failed_trial]
    if measured.train:
        least, most = measured.tested_batches
        sound = [cell for cell in sound if least <= cell.batch <= most or cell.scaling == "strong"] or sound
        if not sound:
            raise InputError("a strategy must pass its trial; got none on these devices: give fewer or other --devices")
        near_s = MAX_TIME_RATIO * min(cell.expected_s for cell in sound)
        best = min((cell for cell in sound if cell.expected_s <= near_s), key=lambda cell: (cell.devices, cell.expected_s))
    return Forecast(cluster, cells, best, batches, listed, machines[1].scale, compute_scale is not None)


def _times(group: DeviceGroup, draws: RunDraws, path: Stage) -> Float[np.ndarray, " draws"]:
    rng, (least, most) = np.random.default_rng([group.devices, path.batch]), group.epoch_range_s(path.batch)
    times = draws.epochs * float(group.epoch_s(path.batch)) * np.exp(TIME_SIGMA * rng.normal(size=len(draws.epochs)))
    return times * (most / least) ** rng.uniform(-0.5, 0.5, len(times))


def time_ratio(measured: Measured, forecast: Forecast, one: Prediction, strong: Prediction) -> tuple[float, float, float]:
    """The time of a run over that of strong scaling with the same seed and devices: median and 80 % interval.

    Without step times it is the ratio of the steps.
    """
    rate, grown = one.learning_rate / measured.optim.learning_rate, one.batch / measured.optim.batch_size
    deviations = step_ratios.ratio_deviation(grown, rate, measured.ratios), _deviation_beyond(measured, one.batch)
    parts = [INTERVAL_NORMAL * one for one in deviations]
    middle = one.steps / strong.steps
    if measured.train:
        group = device_group(measured, forecast.cluster, one.devices, forecast.compute_scale)
        middle = one.seconds / strong.seconds
        for cell in (one, strong):
            least, most = group.epoch_range_s(cell.batch)
            parts += [INTERVAL_NORMAL * TIME_SIGMA, INTERVAL_LEVEL / 2 * math.log(most / least)]
    half = math.exp(math.hypot(*parts))
    return middle, middle / half, middle * half


def best_batch(measured: Measured, group: DeviceGroup) -> int:
    """The batch, a multiple of the devices, with the least expected time at the base rate; the largest where that is less."""
    least, most = measured.tested_batches
    most = min(measured.samples, most)
    if most < group.devices:
        return int(most)
    most //= group.devices
    least = min(math.ceil(least / group.devices), most)
    candidates = group.devices * np.unique(np.geomspace(least, most, NUM_CANDIDATES).round().astype(int))
    steps_an_epoch = measured.epoch_steps(candidates)
    steps_to_target = np.array([median_steps(measured, batch) for batch in candidates])
    sigmas = np.array([deviation(measured, batch) for batch in candidates])
    scatter = np.exp(np.outer(sigmas, np.random.default_rng(0).normal(size=DRAWS)))
    epochs = np.ceil((steps_to_target / steps_an_epoch)[:, None] * scatter).mean(1)
    return int(candidates[np.argmin(epochs * group.epoch_s(candidates))])
