"""Steps to a target at other batches and learning rates, relative to a base run, from two short runs beside it.

The first run has twice the base batch, the second four times the batch and the learning rate, as the linear rule on four
devices. Steps at equal loss give the weak ratio w, the logarithm of the first run's steps over the base run's, and the exponent
γ, the change of that logarithm for each e-fold of the learning rate (−1 is ideal). For a batch of k and a learning rate of m
times the base, with x = log2 k and y = ln m,

    log S(k, m) / S(1, 1) = s(x) (a0 + a1 w + a2 w²) + y (b0 + b1 γ + (b2 + b3 γ) (y / ln 4 − 1) + (b4 + b5 γ) (x / 2 − 1)).

The shape s(x) = (1 − ρ^x) / (1 − ρ) is 1 at twice the batch and bounded for large ones.

The deviation of the logarithm over seeds is exp(d0 + d1 max(x, 0) + d2 max(-x, 0) + d3 ln f + d4 ln S), where S are the base
run's steps and the remaining fall f is the share of the loss's whole fall that is left after half of them. The chance of a
failure is that at the base rate with its logit raised by c √y (γ + 1.25), so it never falls as y grows.

The constants were fitted to the zoo of small workloads (`experiments/zoo`), and judged with the workload left out.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from gmmae.training.stopping import crossing

WEAK_RUN, LINEAR_RUN = (2.0, 1.0), (4.0, 4.0)
"""Batch and learning rate of the two short runs, over the base run's."""

LEVEL_SHARE, MIN_LEVEL_SHARE = 0.75, 0.1
"""Shares of the base run's steps whose loss both runs are to reach, and at whose loss steps are compared at least."""

MAX_COSTS = (0.75, 0.75)
"""Largest cost of each run, in base runs by samples."""

RHO = 0.7

INTERVAL_NORMAL = 1.2816
"""Half the width of an 80 % interval, in standard deviations."""

MEAN_WEAK_RATIO, MEAN_RATE_EXPONENT, MEAN_STEPS, MEAN_REMAINING_FALL = -0.2, -0.7, 200.0, 0.2
"""What stands for a number that was not measured, about the middle of the zoo."""

MIN_RATE_EXPONENT, MAX_WEAK_RATIO, MIN_REMAINING_FALL = -1.25, 0.05, 1e-3
"""The limits of what is believed: a γ little beyond the ideal, and for a larger batch few more steps, by chance."""

FAILED_EXPONENT = 0.5
"""The γ of a second run that did not come far, and the largest one that is believed."""

FAILURE_AT_BASE_LEARNING_RATE = 0.01
"""The probability that a run at the base rate misses the target."""

RATIO_DEVIATION = 0.05
"""Standard deviation of the log ratio of the steps of two runs with one seed, for the base batch and each doubling of it. 80 %
intervals then hold 80 % of the zoo's ratios at 2 to 16 times the batch, each workload left out."""

SEED_NOISE = 0.1
"""Of the logarithm of steps by one or some seeds. Between 0.05 and 0.2 the zoo does not tell."""

WEAK_SPREAD, EXPONENT_SPREAD = 0.27, 0.41
"""Standard deviations in the zoo."""


class Ratios(NamedTuple):
    """The measured numbers of a workload."""

    weak: float | None  # w; None where the first run did not give it
    rate_exponent: float | None  # γ; None without a second run
    steps: float = MEAN_STEPS  # S
    remaining_fall: float = MEAN_REMAINING_FALL  # f


class Constants(NamedTuple):
    """The constants of the law."""

    batch: tuple[float, ...]  # a
    rate: tuple[float, ...]  # b
    deviation: tuple[float, ...]  # d
    failure: float  # c


CONSTANTS = Constants(
    batch=(-0.0285, 1.0448, 0.3324),
    rate=(-0.2022, 0.7485, 0.1894, 0.0991, -0.0847, -0.0522),
    deviation=(-0.5766, 0.0533, 0.1841, -0.2053, -0.1648),
    failure=1.9665,
)
"""By `python -m experiments.zoo.judge`, results/zoo/constants.json."""


def shape(x: float, rho: float = RHO) -> float:
    """The shape s(x) of the law.

    >>> shape(0.0), shape(1.0), round(shape(4.0), 2), round(shape(-2.0), 2)
    (0.0, 1.0, 2.53, -3.47)
    """
    return (1 - rho**x) / (1 - rho)


class MetricCurve(NamedTuple):
    """A validation metric by steps, with its sign such that less is better."""

    steps: Float[np.ndarray, " validations"]
    costs: Float[np.ndarray, " validations"]

    def reaches(self, level: float) -> float:
        """The step at which the curve first falls to a level, linear between validations; infinite if it does not."""
        return crossing(self.steps.tolist(), self.costs.tolist(), level)

    def lowest_by(self, step: float) -> float:
        """The least cost up to a step, linear between validations."""
        return float(np.interp(step, self.steps, np.minimum.accumulate(self.costs)))


def smooth(costs: Float[np.ndarray, "*runs validations"]) -> Float[np.ndarray, "*runs validations"]:
    """Means of each value and its two neighbours along the last axis, where the last value counts twice.

    A value that is not finite counts as the largest finite one, so that it does not hide its neighbours.

    >>> smooth(np.array([3.0, 0.0, 3.0])).tolist(), smooth(np.array([1.0, 1.0, np.nan, 4.0])).tolist()
    ([2.0, 2.0, 2.0], [1.0, 2.0, 3.0, 4.0])
    """
    known = np.isfinite(costs)
    finite = np.where(known, costs, np.max(costs, initial=-np.inf, where=known)) if known.any() else costs
    padded = np.concatenate([finite[..., :1], finite, finite[..., -1:]], -1)
    return (padded[..., :-2] + padded[..., 1:-1] + padded[..., 2:]) / 3


def steps_at_equal_loss(base: MetricCurve, base_steps: float, run: MetricCurve) -> tuple[float, float] | None:
    """The steps of a run and of the base run of the same seed to one loss, or None where the run did not come far enough.

    The loss is that of the base run at `LEVEL_SHARE` of its steps, or the lowest one of a run that ended before.
    """
    level = max(base.lowest_by(LEVEL_SHARE * base_steps), float(run.costs.min()))
    of_base, of_run = base.reaches(level), run.reaches(level)
    return (max(of_run, 0.5), max(of_base, 0.5)) if MIN_LEVEL_SHARE * base_steps <= of_base < math.inf else None


def weak_ratio(steps: float, base_steps: float, batch: float = WEAK_RUN[0]) -> float:
    """The weak ratio from steps at equal loss.

    >>> round(weak_ratio(50, 100), 3), weak_ratio(200, 100)
    (-0.693, 0.05)
    """
    return min(math.log(steps / base_steps) / shape(math.log2(batch)), MAX_WEAK_RATIO)


def known_weak(ratios: Ratios) -> float:
    """The measured weak ratio, or the mean."""
    return MEAN_WEAK_RATIO if ratios.weak is None else ratios.weak


def known_exponent(ratios: Ratios) -> float:
    """The measured exponent γ, or the mean."""
    return MEAN_RATE_EXPONENT if ratios.rate_exponent is None else ratios.rate_exponent


def remaining_fall(base: MetricCurve, base_steps: float, target: float) -> float:
    """The share of a curve's whole fall to the target that is left after half of the steps.

    >>> remaining_fall(MetricCurve(np.array([0.0, 10.0, 20.0]), np.array([5.0, 2.0, 1.0])), 20, 1.0)
    0.25
    """
    fall = float(base.costs[0]) - target
    left = base.lowest_by(0.5 * base_steps) - target
    return max(left / fall, MIN_REMAINING_FALL) if fall > 0 else MEAN_REMAINING_FALL


def deviation_features(batch: float, ratios: Ratios) -> list[float]:
    """The factors of `Constants.deviation`."""
    x = math.log2(batch)
    return [1.0, max(x, 0.0), max(-x, 0.0), math.log(ratios.remaining_fall), math.log(ratios.steps)]


def deviation(batch: float, rate: float, ratios: Ratios, constants: Constants) -> float:
    """The standard deviation of the logarithm of the steps; a number that was not measured adds its spread in the zoo."""
    of_seeds = math.exp(_sum(deviation_features(batch, ratios), constants.deviation))
    return math.hypot(of_seeds, *_unknown(batch, rate, ratios, constants))


def ratio_deviation(batch: float, rate: float, ratios: Ratios) -> float:
    """The same of the ratio of the steps to the base run's with the same seed, which is far smaller."""
    of_law = RATIO_DEVIATION * (1 + abs(math.log2(batch))) if batch != 1 else 0.0
    return math.hypot(of_law, *_unknown(batch, rate, ratios, CONSTANTS))


def _unknown(batch: float, rate: float, ratios: Ratios, constants: Constants) -> tuple[float, float]:
    of_batch = WEAK_SPREAD * abs(shape(math.log2(batch))) if ratios.weak is None else 0.0
    return of_batch, EXPONENT_SPREAD * constants.rate[1] * math.log(rate) if ratios.rate_exponent is None else 0.0


def failure_feature(rate: float, ratios: Ratios) -> float:
    """The factor of `Constants.failure`, which is 0 up to the base rate."""
    return math.sqrt(math.log(max(rate, 1.0))) * max(known_exponent(ratios) - MIN_RATE_EXPONENT, 0.0)


def failure_probability(rate: float, ratios: Ratios, constants: Constants) -> float:
    """The probability that a run with a learning rate over the base rate misses the target.

    >>> [round(failure_probability(rate, Ratios(-0.5, -0.5), CONSTANTS), 2) for rate in (0.5, 1, 4, 16)]
    [0.01, 0.01, 0.05, 0.11]
    """
    odds = math.exp(constants.failure * failure_feature(rate, ratios)) / (1 / FAILURE_AT_BASE_LEARNING_RATE - 1)
    return odds / (1 + odds)


def rate_exponent(found: tuple[float, float] | None, weak: float | None, run: tuple[float, float] = LINEAR_RUN) -> float:
    """The exponent γ, without the part of the batch and within its limits, from `steps_at_equal_loss` of the second run.

    >>> round(rate_exponent((25, 100), 0.0), 6), rate_exponent((100, 100), 0.0), rate_exponent(None, 0.0)
    (-1.0, 0.0, 0.5)
    """
    if found is None:
        return FAILED_EXPONENT
    steps, base_steps = found
    batch, rate = run
    weak = MEAN_WEAK_RATIO if weak is None else weak
    exponent = (math.log(steps / base_steps) - weak * shape(math.log2(batch))) / math.log(rate)
    return min(max(exponent, MIN_RATE_EXPONENT), FAILED_EXPONENT)


def batch_features(batch: float, weak: float) -> list[float]:
    """The factors of `Constants.batch`."""
    at = shape(math.log2(batch))
    return [at, at * weak, at * weak**2]


def rate_features(batch: float, rate: float, exponent: float) -> list[float]:
    """The factors of `Constants.rate`."""
    y = math.log(rate)
    beyond = y / math.log(LINEAR_RUN[1]) - 1, math.log2(batch) / math.log2(LINEAR_RUN[0]) - 1
    return [y, y * exponent, *(y * excess * factor for excess in beyond for factor in (1.0, exponent))]


def log_ratio(batch: float, rate: float, ratios: Ratios, constants: Constants) -> float:
    """The logarithm of the steps over the base run's, at multiples of its batch and learning rate."""
    return _sum(batch_features(batch, known_weak(ratios)), constants.batch) + _sum(
        rate_features(batch, rate, known_exponent(ratios)), constants.rate
    )


def steps_at(
    batch: float, rate: float, base: int, measured: Mapping[int, float], ratios: Ratios, constants: Constants
) -> float:
    """The steps at a batch and a learning rate over the base rate, by the law and by those measured at some batches.

    The law's misfits at these batches are added, interpolated between them. A misfit of `SEED_NOISE` counts half, and a larger
    one more.
    """
    level = math.log(ratios.steps)
    misfits = [math.log(measured[at]) - level - log_ratio(at / base, 1.0, ratios, constants) for at in sorted(measured)]
    trusted = [misfit**3 / (misfit**2 + SEED_NOISE**2) for misfit in misfits]
    misfit = float(np.interp(math.log(batch), np.log(sorted(measured)), trusted))
    return math.exp(level + misfit + log_ratio(batch / base, rate, ratios, constants))


def _sum(features: Sequence[float], constants: Sequence[float]) -> float:
    return sum(one * constant for one, constant in zip(features, constants, strict=True))
