"""How likely a strategy that scales the learning rate is to miss the target, from short trials of the rate.

A trial trains for an epoch at the base batch with m times the base rate. Its progress is 1 where its loss is that of the base
rate, and far below where training has run away. Where it falls to a half is the edge of what works at all.

A rate within the edge may still stop units of the model for good: they no longer depend on their input, and have no gradient.
That shows after ten steps of the linear rule at its own batch, as vitality: the share of units that still learn, in the layer
where it is least, relative to the base rate's. A warmup spares the units, but not what lies beyond the edge.
"""

import math
from collections.abc import Mapping

from gmmae.planner.learning_rate import at_factor

FAILED = 0.5
"""A progress below this is a failed trial."""

LOST = 0.05
"""With a vitality below this there is no doubt."""

VITAL = 0.18
"""The vitality with which half of the runs miss the target."""

SLOPE = 2.0
"""Of the logistic curves, for each doubling of the rate, and for each halving of the vitality."""

UNSCALED = 0.01
"""The probability of a strategy that keeps the base rate."""

FIRST = 2.0
"""The smallest factor that trials try."""


def edge(progress: Mapping[float, float]) -> float:
    """The factor of the rate at which the progress falls to a half, by interpolation between the trials' logarithms.

    Where no trial has failed it is twice the largest factor. NaN is a progress of 0, and so is a negative one.

    Args:
      progress: by factor; that of 1 is 1 and need not be there.

    >>> round(edge({2: 1.0, 4: 1.0, 8: 0.0}), 2), edge({2: 0.9, 4: 0.8})
    (5.66, 8)
    """
    before, last = 1.0, 1.0
    for factor in sorted(factor for factor in progress if factor > 1):
        found = min(1.0, max(0.0, progress[factor])) if math.isfinite(progress[factor]) else 0.0
        if found < FAILED:
            return before * (factor / before) ** ((last - FAILED) / (last - found))
        before, last = factor, found
    return 2 * before


def tested(factor: float, warmup: bool, progress: Mapping[float, float], vitality: Mapping[float, float]) -> bool:
    """Whether the trials say anything about a factor of the learning rate; `probability` is a mere guess where they do not.

    They do where one with as large a factor was made, or where a smaller factor failed. Without a warmup the linear rule's
    first steps must have been tried too, unless the smallest factor already fails.

    >>> [tested(k, True, {1: 1.0, 2: 1.0}, {}) for k in (1, 2, 4)], tested(4, True, {2: 0.0}, {})
    ([True, True, False], True)
    >>> tested(2, False, {2: 1.0}, {}), tested(2, False, {2: 1.0}, {2: 0.6})
    (False, True)
    """
    if factor <= 1:
        return True
    largest = max(progress, default=1.0)
    known = factor <= largest or edge(progress) <= largest
    return known and (warmup or bool(vitality) or edge(progress) <= FIRST)


def probability(factor: float, warmup: bool, progress: Mapping[float, float], vitality: Mapping[float, float]) -> float:
    """The probability that a run with so many times the base rate misses the target.

    Args:
      factor: of the rate.
      warmup: whether it is come to slowly.
      progress: of trials at the base batch, by factor.
      vitality: after the linear rule's first steps, by factor.

    >>> tried = {2: 1.0, 4: 1.0, 8: 0.0}, {2: 0.5, 4: 0.1}
    >>> [round(probability(k, False, *tried), 2) for k in (1, 2, 4, 8)], round(probability(4, True, *tried), 2)
    ([0.01, 0.06, 0.85, 1.0], 0.28)
    """
    if factor <= 1:
        return UNSCALED
    doublings = math.log2(factor / edge(progress))
    if not warmup:
        doublings = max(doublings, math.log2(VITAL / at_factor(factor, vitality)))
    return UNSCALED + (1 - UNSCALED) / (1 + math.exp(-SLOPE * doublings))
