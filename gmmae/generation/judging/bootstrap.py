"""Intervals by resampling patients: nodules of one patient resemble each other, so they are drawn together or not at all."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

RESAMPLES = 500
LEVEL = 0.95
LEAST_GROUPS = 2
"""The least number of groups for an interval: resamples of one group are all alike, and say nothing of another patient."""
FEW_GROUPS = 10
"""The number of groups below which an interval is called too narrow.

Of normal data it held the true mean in 52 % of 3,000 trials with 2 groups, in 83 % with 5, 89 % with 10 and 94 % with 100."""


class Estimate(NamedTuple):
    """A figure and its percentile interval; the bounds are NaN where there is none."""

    value: float
    low: float = float("nan")
    high: float = float("nan")


def weights(
    groups: Sequence[str] | np.ndarray, seed: int, resamples: int = RESAMPLES
) -> Float[np.ndarray, "resamples samples"]:
    """How often each sample is in each resample: as many groups are drawn, with replacement, as there are.

    All are NaN where there are fewer than `LEAST_GROUPS` groups, so that no interval comes of them.

    >>> np.unique(weights(["a", "a", "b"], seed=0), axis=0).tolist()
    [[0.0, 0.0, 2.0], [1.0, 1.0, 1.0], [2.0, 2.0, 0.0]]
    >>> weights(["a", "a"], seed=0, resamples=1).tolist()
    [[nan, nan]]
    """
    names, of = np.unique(np.asarray(groups), return_inverse=True)
    if len(names) < LEAST_GROUPS:
        return np.full((resamples, len(of)), np.nan)
    drawn = np.random.default_rng(seed).multinomial(len(names), np.full(len(names), 1 / len(names)), resamples)
    return drawn[:, of].astype(np.float64)


def estimate(value: float, resampled: Float[np.ndarray, " resamples"]) -> Estimate:
    """The value with the percentile interval of its resamples.

    Resamples that are NaN, because they were one-sided, are left out. Where all are, there is no interval.
    """
    known = resampled[~np.isnan(resampled)]
    if not len(known):
        return Estimate(float(value))
    low, high = np.percentile(known, [50 * (1 - LEVEL), 50 * (1 + LEVEL)])
    return Estimate(float(value), float(low), float(high))


def mean(values: Float[np.ndarray, " samples"], groups: Sequence[str] | np.ndarray, seed: int) -> Estimate:
    """The mean over the samples, with its interval by groups.

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
    """The median of the samples of each resample; NaN where the weights are.

    >>> weighted_median(np.array([1.0, 5.0, 3.0]), np.array([[1.0, 1.0, 1.0], [0.0, 3.0, 1.0]])).tolist()
    [3.0, 5.0]
    """
    order = np.argsort(values)
    reached = np.cumsum(weight[:, order], axis=1)
    middle = values[order][np.argmax(reached >= reached[:, -1:] / 2, axis=1)]
    return np.where(np.isnan(reached[:, -1]), np.nan, middle)
