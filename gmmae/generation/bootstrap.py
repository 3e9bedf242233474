"""Intervals by resampling patients: nodules of one patient resemble each other, so they are drawn together or not at all."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

RESAMPLES = 500
LEVEL = 0.95


class Estimate(NamedTuple):
    """A figure and its percentile interval; the bounds are NaN where none was computed."""

    value: float
    low: float = float("nan")
    high: float = float("nan")


def weights(
    groups: Sequence[str] | np.ndarray, seed: int, resamples: int = RESAMPLES
) -> Float[np.ndarray, "resamples samples"]:
    """How often each sample is in each resample: as many groups are drawn, with replacement, as there are.

    >>> np.unique(weights(["a", "a", "b"], seed=0), axis=0).tolist()
    [[0.0, 0.0, 2.0], [1.0, 1.0, 1.0], [2.0, 2.0, 0.0]]
    """
    names, of = np.unique(np.asarray(groups), return_inverse=True)
    drawn = np.random.default_rng(seed).multinomial(len(names), np.full(len(names), 1 / len(names)), resamples)
    return drawn[:, of].astype(np.float64)


def estimate(value: float, resampled: Float[np.ndarray, " resamples"]) -> Estimate:
    """The value with the percentile interval of its resamples; those that are NaN, because a resample was one-sided, are left
    out.
    """
    low, high = np.nanpercentile(resampled, [50 * (1 - LEVEL), 50 * (1 + LEVEL)])
    return Estimate(float(value), float(low), float(high))


def mean(values: Float[np.ndarray, " samples"], groups: Sequence[str] | np.ndarray, seed: int) -> Estimate:
    """The mean over the samples, with its interval by groups.

    >>> mean(np.array([1.0, 1.0, 4.0]), ["a", "a", "b"], seed=0)
    Estimate(value=2.0, low=1.0, high=4.0)
    """
    drawn = weights(groups, seed)
    return estimate(float(values.mean()), drawn @ values / drawn.sum(1))


def weighted_median(
    values: Float[np.ndarray, " samples"], weight: Float[np.ndarray, "resamples samples"]
) -> Float[np.ndarray, " resamples"]:
    """The median of the samples of each resample.

    >>> weighted_median(np.array([1.0, 5.0, 3.0]), np.array([[1.0, 1.0, 1.0], [0.0, 3.0, 1.0]])).tolist()
    [3.0, 5.0]
    """
    order = np.argsort(values)
    reached = np.cumsum(weight[:, order], axis=1)
    return values[order][np.argmax(reached >= reached[:, -1:] / 2, axis=1)]
