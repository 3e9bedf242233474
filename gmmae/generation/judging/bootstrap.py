"""Bootstrap intervals by patient: the nodules of a patient resemble each other, so they are resampled together."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

RESAMPLES = 500
CONFIDENCE_LEVEL = 0.95
MIN_GROUPS = 2
"""Minimum number of groups for an interval. All resamples of a single group are equal."""
FEW_GROUPS = 10
"""Number of groups below which an interval is too narrow.

In 3,000 trials with normal data it contained the true mean in 52 % for 2 groups, 83 % for 5, 89 % for 10, and 94 % for 100."""


class Estimate(NamedTuple):
    """A value and its percentile interval; the bounds are NaN without an interval."""

    value: float
    low: float = float("nan")
    high: float = float("nan")


def weights(
    groups: Sequence[str] | np.ndarray, seed: int, resamples: int = RESAMPLES
) -> Float[np.ndarray, "resamples samples"]:
    """Draws the number of occurrences of each sample in each resample of the groups, with replacement.

    All are NaN for fewer than `MIN_GROUPS` groups, which gives no interval.

    >>> np.unique(weights(["a", "a", "b"], seed=0), axis=0).tolist()
    [[0.0, 0.0, 2.0], [1.0, 1.0, 1.0], [2.0, 2.0, 0.0]]
    >>> weights(["a", "a"], seed=0, resamples=1).tolist()
    [[nan, nan]]
    """
    names, of = np.unique(np.asarray(groups), return_inverse=True)
    if len(names) < MIN_GROUPS:
        return np.full((resamples, len(of)), np.nan)
    drawn = np.random.default_rng(seed).multinomial(len(names), np.full(len(names), 1 / len(names)), resamples)
    return drawn[:, of].astype(np.float64)


def estimate(value: float, resampled: Float[np.ndarray, " resamples"]) -> Estimate:
    """Returns the value with the percentile interval of its resamples.

    Resamples of NaN are left out. If all are NaN, there is no interval.
    """
    known = resampled[~np.isnan(resampled)]
    if not len(known):
        return Estimate(float(value))
    low, high = np.percentile(known, [50 * (1 - CONFIDENCE_LEVEL), 50 * (1 + CONFIDENCE_LEVEL)])
    return Estimate(float(value), float(low), float(high))


def mean(values: Float[np.ndarray, " samples"], groups: Sequence[str] | np.ndarray, seed: int) -> Estimate:
    """Returns the mean over the samples, with its interval by groups.

    >>> mean(np.array([1.0, 1.0, 4.0]), ["a", "a", "b"], seed=0)
    Estimate(value=2.0, low=1.0, high=4.0)
    >>> mean(np.array([1.0, 2.0]), ["a", "a"], seed=0)
    Estimate(value=1.5, low=nan, high=nan)
    """
    if not np.isfinite(values).all():
        return Estimate(float(values.mean()))
    drawn = weights(groups, seed)
    return estimate(float(values.mean()), drawn @ values / drawn.sum(1))


def weighted_median(
    values: Float[np.ndarray, " samples"], weight: Float[np.ndarray, "resamples samples"]
) -> Float[np.ndarray, " resamples"]:
    """Returns the median of each resample; NaN weights give NaN.

    >>> weighted_median(np.array([1.0, 5.0, 3.0]), np.array([[1.0, 1.0, 1.0], [0.0, 3.0, 1.0]])).tolist()
    [3.0, 5.0]
    """
    order = np.argsort(values)
    reached = np.cumsum(weight[:, order], axis=1)
    middle = values[order][np.argmax(reached >= reached[:, -1:] / 2, axis=1)]
    return np.where(np.isnan(reached[:, -1]), np.nan, middle)
