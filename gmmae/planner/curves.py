"""A plan from the loss curves of runs that were made elsewhere: steps against batch, and times where step times are known.

All curves have one learning rate. The step at which each curve reaches the target gives the law of `gmmae.planner.steps`. The
curves tell nothing about other learning rates. So only strategies at the base rate are predicted.

A step on n devices takes the measured time of the device's share of the batch, plus the all-reduce of the cluster.
"""

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from statistics import harmonic_mean
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from gmmae.config.schema import StopConfig
from gmmae.planner import steps as steps_law
from gmmae.planner.curve_files import Curve
from gmmae.planner.prediction import BEST_BATCH, DRAWS, INTERVAL_LEVEL, MAX_TIME_RATIO, NUM_CANDIDATES, TIME_SIGMA
from gmmae.planner.steps import StepsLaw
from gmmae.scaling import cost
from gmmae.scaling.cost import Cluster, StepTimes
from gmmae.system.errors import InputError
from gmmae.training.stopping import crossing

TARGET_DIGITS = 4
"""Significant digits of a target that the curves decide. It is rounded to the easier side."""

MARGIN = 0.01
"""Share of a curve's fall by which it passes a target that the curves decide, as in the zoo (`experiments.zoo.runs.levels`)."""

MIN_VALIDATIONS = 5
"""The number of validations up to the target below which a curve is said to be coarse."""

MAX_BATCH_RATIO = 16
"""The largest batch of the strategy best-batch, over the largest batch of the curves. The law was not tested further away."""

QUANTILES = ((1 - INTERVAL_LEVEL) / 2, 0.5, (1 + INTERVAL_LEVEL) / 2)


class Interval(NamedTuple):
    """A median with the interval of `INTERVAL_LEVEL`."""

    low: float
    median: float
    high: float


class Reached(NamedTuple):
    """A curve and its way to the target."""

    curve: Curve
    smoothed: tuple[float, ...]  # values, by `running_median`
    steps: float  # to the target, interpolated between validations
    validations: int  # before the target


class Evidence(NamedTuple):
    """All that the curves tell."""

    target: float
    target_given: bool  # whether the user chose it; otherwise it is the hardest level that all curves pass by a margin
    reached: list[Reached]
    points: dict[int, float]  # steps by batch: the geometric mean over the curves of one batch
    seeds: dict[int, int]  # number of curves by batch
    seed_sigma: float  # standard deviation over seeds of the logarithm of the steps
    law: StepsLaw
    residual: float  # of the law's least-squares fit, a root mean square of logarithms
    base_batch: int


class Machine(NamedTuple):
    """The devices, their step times and the links between them."""

    step_times: StepTimes | None  # of one device, None if they are not known
    cluster: Cluster | None = None  # None: the all-reduce takes no time
    gradient_bytes: float = 0.0
    compute_scale: float = 1.0  # seconds on the cluster's device for one second of `step_times`

    def all_reduce_s(self, devices: int) -> float:
        """Returns c(n), the seconds of the all-reduce."""
        return cost.all_reduce_s(self.cluster, devices, self.gradient_bytes) if self.cluster else 0.0

    def step_s(self, batch: Float[np.ndarray, "*batches"] | float, devices: int) -> np.ndarray:
        """Returns the seconds of a step of a global batch. It needs step times."""
        assert self.step_times is not None
        share = np.ceil(np.asarray(batch) / devices)
        return self.compute_scale * cost.seconds_at(self.step_times, share) + self.all_reduce_s(devices)

    def overhead(self, batch: int, devices: int) -> float:
        """Returns (a + c(n)) / (b B), infinite if samples take no time. It needs step times."""
        assert self.step_times is not None
        a, b = (self.compute_scale * part for part in cost.affine(self.step_times))
        return (a + self.all_reduce_s(devices)) / (b * batch) if b else math.inf


class RunPrediction(NamedTuple):
    """A strategy's prediction on a number of devices."""

    scaling: str  # the strategy
    devices: int  # number of devices
    batch: int  # global batch
    steps: Interval  # steps to the target
    epochs: Interval | None  # None if the number of samples is not known
    seconds: Interval | None  # of training steps; None if step times are not known
    expected_s: float  # mean of the seconds, infinite if step times are not known
    extrapolated: bool  # whether the batch is below the smallest or above the largest of the curves


def running_median(values: Sequence[float], width: int) -> tuple[float, ...]:
    """Returns the median of each value and its neighbours, `width` values together. Near the ends there are fewer.

    The neighbours on both sides are equally many, so a curve that only falls stays as it is.

    >>> running_median((5.0, 9.0, 3.0, 2.0, 1.0), 3)
    (5.0, 5.0, 3.0, 2.0, 1.0)
    """
    half, last = width // 2, len(values) - 1
    sides = (min(half, place, last - place) for place in range(len(values)))
    return tuple(float(np.median(values[place - side : place + side + 1])) for place, side in enumerate(sides))


def hardest_level(curves: Sequence[Sequence[float]], stop: StopConfig) -> float:
    """Returns the hardest value of a metric that all curves pass by a margin, rounded to the easier side.

    At a curve's own best value its noise would set the steps.

    >>> hardest_level([(2.0, 1.0), (1.0, 0.9)], StopConfig())
    1.01
    """
    costs = [[stop.cost(value) for value in values] for values in curves]
    cost_of = max(min(of) + MARGIN * (of[0] - min(of)) for of in costs)
    if not cost_of:
        return 0.0
    unit = 10.0 ** (math.floor(math.log10(abs(cost_of))) - TARGET_DIGITS + 1)
    rounded = float(f"{math.ceil(cost_of / unit - 1e-9) * unit:.{TARGET_DIGITS}g}")
    return stop.cost(max(rounded, cost_of))


def read_evidence(
    curves: Sequence[Curve], stop: StopConfig, smooth: int, base_batch: int | None, rng: np.random.Generator
) -> Evidence:
    """Fits the law to the steps at which curves reach a target.

    Args:
      curves: curves of two batches or more.
      stop: the target and the side from which it is reached. A target of None is chosen by `hardest_level`.
      smooth: number of validations of the running median.
      base_batch: the batch of strong scaling; None takes the smallest one.
      rng: random generator of the law's draws.

    Raises:
      InputError: the curves are of one batch, or one does not reach the target after its first validation.
    """
    batches = sorted({curve.batch for curve in curves})
    if len(batches) < 2:
        ways = "add a run at another batch, such as a quarter or four times of it"
        raise InputError(f"--curves must be of two batches or more; got {len(curves)} of batch {batches[0]}: {ways}")
    smoothed = [running_median(curve.values, smooth) for curve in curves]
    target = hardest_level(smoothed, stop) if stop.target is None else stop.target
    reached = [_reach(curve, values, target, stop) for curve, values in zip(curves, smoothed, strict=True)]
    _require_reached(reached, smoothed, target, stop)
    logs: dict[int, list[float]] = defaultdict(list)
    for run in reached:
        logs[run.curve.batch].append(math.log(run.steps))
    points = {batch: math.exp(float(np.mean(logs[batch]))) for batch in batches}
    seeds = {batch: len(logs[batch]) for batch in batches}
    base_batch = base_batch or batches[0]
    sigma = _seed_sigma(reached, list(logs.values()), stop)
    mean_sigma = sigma / math.sqrt(harmonic_mean(seeds.values()))
    law = steps_law.posterior(points, base_batch, DRAWS, rng, mean_sigma)
    residual = steps_law.residual(points)
    return Evidence(target, stop.target is not None, reached, points, seeds, sigma, law, residual, base_batch)


def _reach(curve: Curve, smoothed: Sequence[float], target: float, stop: StopConfig) -> Reached:
    costs, level = [stop.cost(value) for value in smoothed], stop.cost(target)
    steps = crossing(curve.steps, costs, level)
    return Reached(curve, tuple(smoothed), steps, sum(step < steps for step in curve.steps))


def _require_reached(reached: Sequence[Reached], smoothed: Sequence[Sequence[float]], target: float, stop: StopConfig) -> None:
    missed = [run.curve.name for run in reached if math.isinf(run.steps)]
    if missed:
        hardest = hardest_level(smoothed, stop)
        raise InputError(
            f"--target must be reached by every curve; got {target:g}, which {', '.join(missed)} "
            f"{'misses' if len(missed) == 1 else 'miss'}: give at {'most' if stop.mode == 'max' else 'least'} {hardest:g}, or "
            "leave it out"
        )
    if early := [run for run in reached if not run.validations]:
        first, name = early[0].smoothed[0], early[0].curve.name
        mode, better = ("min", "lower") if stop.mode == "max" else ("max", "higher")
        raise InputError(
            f"--target must be reached after the first validation of each curve; got {target:g}, and {name} begins at "
            f"{first:g}: set a harder --target, validate more often, or set --mode {mode} where {better} values are "
            "better"
        )


def _seed_sigma(reached: Sequence[Reached], logs: Sequence[Sequence[float]], stop: StopConfig) -> float:
    """Returns the standard deviation over seeds of the logarithm of the steps.

    The scatter of the curves about smooth ones predicts it (`gmmae.planner.steps.seed_sigma`), with the weight of one degree of
    freedom. Several curves of one batch measure it, with a degree of freedom for each curve after the first one.
    """
    squares = [_curve_sigma(run, stop) ** 2 for run in reached]
    of_batches = [np.asarray(of_batch) for of_batch in logs]
    measured = sum(float(((of_batch - of_batch.mean()) ** 2).sum()) for of_batch in of_batches)
    freedom = sum(len(of_batch) - 1 for of_batch in of_batches)
    return math.sqrt((float(np.mean(squares)) + measured) / (1 + freedom))


def _curve_sigma(run: Reached, stop: StopConfig) -> float:
    """Returns the prediction from a curve up to its first validation at the target."""
    end = run.validations + 1
    rows = [(step, stop.cost(value)) for step, value in zip(run.curve.steps[:end], run.smoothed, strict=False) if step > 0]
    return steps_law.seed_sigma(*zip(*rows, strict=True))


def interval(draws: Float[np.ndarray, " draws"]) -> Interval:
    """Returns the quantiles of draws."""
    return Interval(*(float(quantile) for quantile in np.quantile(draws, QUANTILES)))


def draw_steps(evidence: Evidence, batch: int) -> Float[np.ndarray, " draws"]:
    """Draws the steps to the target of a new run at a batch. At a batch of the curves their mean replaces the law."""
    normal = np.random.default_rng(batch).normal(size=len(evidence.law.smin))
    if batch in evidence.points:
        sigma = evidence.seed_sigma * math.sqrt(1 + 1 / evidence.seeds[batch])
        return evidence.points[batch] * np.exp(sigma * normal)
    sigma = math.hypot(evidence.seed_sigma, steps_law.MODEL_SIGMA, evidence.residual)
    return evidence.law.at(batch) * np.exp(sigma * normal)


def epoch_steps(evidence: Evidence, samples: int, batch: int) -> int | None:
    """Returns the steps of an epoch if all curves were validated after whole epochs, otherwise None.

    A last batch that is not full counts as a step or is dropped, as the steps of the curves say.

    Args:
      evidence: the curves.
      samples: number of training samples.
      batch: the batch of a new run.
    """
    for whole in (math.ceil, math.floor):
        lengths = {of: whole(samples / of) for of in evidence.points}
        runs = [run.curve for run in evidence.reached]
        if all(lengths.values()) and all(step % lengths[run.batch] == 0 for run in runs for step in run.steps):
            return max(1, whole(samples / batch))
    return None


def predict(
    evidence: Evidence, machine: Machine, devices: Collection[int], samples: int | None, names: Collection[str]
) -> list[RunPrediction]:
    """Predicts the strategies at the base learning rate, as far as the samples allow a batch.

    Args:
      evidence: what the curves tell.
      machine: the devices.
      devices: numbers of devices.
      samples: number of training samples, or None.
      names: strategies: strong, weak, and with step times best-batch.
    """
    cells = []
    for n in sorted(devices):
        for name in names:
            batch = _batch(name, evidence, machine, n, samples)
            if batch >= n:
                cells.append(_predict_one(name, evidence, machine, n, batch, samples))
    return cells


def _batch(name: str, evidence: Evidence, machine: Machine, devices: int, samples: int | None) -> int:
    most = samples or math.inf
    if name == BEST_BATCH:
        return best_batch(evidence, machine, devices, samples)
    return int(min(most, evidence.base_batch * (devices if name == "weak" else 1)))


def _predict_one(
    name: str, evidence: Evidence, machine: Machine, devices: int, batch: int, samples: int | None
) -> RunPrediction:
    steps = draw_steps(evidence, batch)
    if samples and (an_epoch := epoch_steps(evidence, samples, batch)):
        steps = np.ceil(steps / an_epoch) * an_epoch
    seconds = None
    if machine.step_times:
        normal = np.random.default_rng([devices, batch]).normal(size=len(steps))
        seconds = steps * float(machine.step_s(batch, devices)) * np.exp(TIME_SIGMA * normal)
    return RunPrediction(
        scaling=name,
        devices=devices,
        batch=batch,
        steps=interval(steps),
        epochs=interval(steps * batch / samples) if samples else None,
        seconds=None if seconds is None else interval(seconds),
        expected_s=math.inf if seconds is None else float(seconds.mean()),
        extrapolated=not min(evidence.points) <= batch <= max(evidence.points),
    )


def best_batch(evidence: Evidence, machine: Machine, devices: int, samples: int | None) -> int:
    """Returns the batch, a multiple of the devices, with the least expected time of the steps.

    It is at most `MAX_BATCH_RATIO` times the largest batch of the curves, and at most the samples. With fewer samples than
    devices it is the number of samples, which these devices cannot share.
    """
    most = int(min(samples or math.inf, MAX_BATCH_RATIO * max(evidence.points))) // devices
    if not most:
        return samples or devices
    candidates = devices * np.unique(np.geomspace(1, most, NUM_CANDIDATES).round().astype(int))
    expected = np.array([evidence.law.at(batch).mean() for batch in candidates]) * machine.step_s(candidates, devices)
    return int(candidates[np.argmin(expected)])


def recommended(cells: Sequence[RunPrediction]) -> RunPrediction | None:
    """Returns the prediction on the fewest devices within `MAX_TIME_RATIO` of the least expected time; None without times."""
    least = min((cell.expected_s for cell in cells), default=math.inf)
    if math.isinf(least):
        return None
    near = [cell for cell in cells if cell.expected_s <= MAX_TIME_RATIO * least]
    return min(near, key=lambda cell: (cell.devices, cell.expected_s))


def growing_wins(evidence: Evidence, machine: Machine, devices: int) -> float:
    """Returns the share of the law's draws by which growing the batch n-fold at the base rate beats dividing it.

    By the law with p = 1 this is the share with (a + c(n)) / (b B) > B / Bn, for any n above 1.
    """
    assert machine.step_times is not None
    a, b = (machine.compute_scale * part for part in cost.affine(machine.step_times))
    fixed_s, samples_s = a + machine.all_reduce_s(devices), b * evidence.base_batch
    divided = evidence.law.at(evidence.base_batch) * (fixed_s + samples_s / devices)
    grown = evidence.law.at(devices * evidence.base_batch) * (fixed_s + samples_s)
    return float((grown < divided).mean())


def speedups(evidence: Evidence, factors: Sequence[int]) -> Mapping[int, Interval]:
    """Returns the ratio of the steps at the base batch to those at multiples of it, by the law."""
    base = evidence.law.at(evidence.base_batch)
    return {k: interval(base / evidence.law.at(k * evidence.base_batch)) for k in factors}
