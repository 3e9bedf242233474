"""Probability that a strategy that scales the learning rate misses the target, from short trials.

A trial trains for an epoch at the base batch with m times the base rate. Its progress is 1 if its loss equals that of the base
rate, and far below 1 if training diverges. The factor at which the progress falls to a half is the largest stable factor.

A smaller learning rate may still stop units of the model for good: their gradient becomes zero. Ten steps of the linear rule at
its own batch show this. The active-unit fraction is the share of units that still learn, relative to that at the base rate, in
the layer with the smallest share. A warmup protects the units. It does not help beyond the largest stable factor.
"""

import itertools
import math
from collections.abc import Mapping

MIN_PROGRESS = 0.5
"""The progress below which a trial has failed."""

HALF_FAILING_ACTIVE_FRACTION = 0.18
"""The active-unit fraction at which half of the runs miss the target."""

LOGISTIC_SLOPE = 2.0
"""The slope of the logistic curves, for each doubling of the learning rate and each halving of the active-unit fraction."""

BASE_RATE_FAILURE = 0.01
"""The probability that a strategy at the base rate misses the target."""

MIN_FACTOR = 2.0
"""The smallest factor of the learning rate that is tried."""


def max_stable_factor(progress: Mapping[float, float]) -> float:
    """Returns the factor of the learning rate at which the progress falls to a half.

    The logarithms of the factors are interpolated. If no trial failed, it is twice the largest factor. NaN and negative values
    count as a progress of 0.

    Args:
      progress: progress by factor. Factor 1 has progress 1 and may be missing.

    >>> round(max_stable_factor({2: 1.0, 4: 1.0, 8: 0.0}), 2), max_stable_factor({2: 0.9, 4: 0.8})
    (5.66, 8)
    """
    before, last = 1.0, 1.0
    for factor in sorted(factor for factor in progress if factor > 1):
        value = min(1.0, max(0.0, progress[factor])) if math.isfinite(progress[factor]) else 0.0
        if value < MIN_PROGRESS:
            return before * (factor / before) ** ((last - MIN_PROGRESS) / (last - value))
        before, last = factor, value
    return 2 * before


def is_tested(
    factor: float, warmup: bool, progress: Mapping[float, float], active_unit_fractions: Mapping[float, float]
) -> bool:
    """Returns whether trials cover a factor of the learning rate. Otherwise `failure_probability` is a guess.

    They do if a trial had at least that factor, or if a smaller factor failed. Without a warmup, the first steps of the linear
    rule must have been tried too, unless the smallest factor already fails.

    >>> [is_tested(k, True, {1: 1.0, 2: 1.0}, {}) for k in (1, 2, 4)], is_tested(4, True, {2: 0.0}, {})
    ([True, True, False], True)
    >>> is_tested(2, False, {2: 1.0}, {}), is_tested(2, False, {2: 1.0}, {2: 0.6})
    (False, True)
    """
    if factor <= 1:
        return True
    largest = max(progress, default=1.0)
    known = factor <= largest or max_stable_factor(progress) <= largest
    return known and (warmup or bool(active_unit_fractions) or max_stable_factor(progress) <= MIN_FACTOR)


def failure_probability(
    factor: float, warmup: bool, progress: Mapping[float, float], active_unit_fractions: Mapping[float, float]
) -> float:
    """Returns the probability that a run with a scaled learning rate misses the target.

    Args:
      factor: the learning rate over the base rate.
      warmup: whether a warmup leads up to the learning rate.
      progress: progress of the trials at the base batch, by factor.
      active_unit_fractions: active-unit fractions after the first steps of the linear rule, by factor.

    >>> tried = {2: 1.0, 4: 1.0, 8: 0.0}, {2: 0.5, 4: 0.1}
    >>> [round(failure_probability(k, False, *tried), 2) for k in (1, 2, 4, 8)], round(failure_probability(4, True, *tried), 2)
    ([0.01, 0.06, 0.85, 1.0], 0.28)
    """
    if factor <= 1:
        return BASE_RATE_FAILURE
    doublings = math.log2(factor / max_stable_factor(progress))
    if not warmup:
        doublings = max(doublings, math.log2(HALF_FAILING_ACTIVE_FRACTION / interpolate(factor, active_unit_fractions)))
    return BASE_RATE_FAILURE + (1 - BASE_RATE_FAILURE) / (1 + math.exp(-LOGISTIC_SLOPE * doublings))


def interpolate(factor: float, values: Mapping[float, float], least: float = 1e-3) -> float:
    """Interpolates a quantity that is 1 at the base rate, linearly between logarithms.

    Beyond the largest tried factor the last slope continues.

    >>> [round(interpolate(k, {2: 0.5, 4: 0.125}), 3) for k in (1, 2, 2 * 2**0.5, 4, 8)], interpolate(8, {})
    ([1.0, 0.5, 0.25, 0.125, 0.031], 1.0)
    """
    points = [(math.log2(k), math.log2(max(of, least))) for k, of in sorted({1.0: 1.0, **values}.items())]
    pairs = list(itertools.pairwise(points))
    if not pairs:
        return 1.0
    (low, at_low), (high, at_high) = next((pair for pair in pairs if math.log2(factor) <= pair[1][0]), pairs[-1])
    return 2 ** (at_low + (at_high - at_low) / (high - low) * (math.log2(factor) - low))
