"""Statistics over the seeds of a sweep: medians with exact intervals, and comparisons of pairs.

The interval of a median is exact: from the k-th smallest to the k-th largest value, with a probability of 95 % at least. The
range of m runs, which is the interval of up to 8, has 1 - 2 · 2^-m, so fewer than 6 runs cannot give 95 %.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import scipy  # its `stats` is imported where it is first used, which takes most of a second

from gmmae.data.grouped import Estimate

LEVEL, MIN_RUNS, EXACT_RUNS = 0.95, 3, 6
"""The probability of an interval, and the fewest runs for an interval at all and for one of that probability."""


class Pairs(NamedTuple):
    """Another strategy compared with a base strategy, seed by seed."""

    seeds: int  # that both have
    slower: int  # in which the other one took longer
    ratio: Estimate  # the other's time over the base's, without the seeds in which both missed the target
    p: float  # two-sided sign test; NaN where no seed tells one from the other


def estimate(values: Sequence[float]) -> Estimate:
    """The median and its interval, both unknown if one value is."""
    if not len(values) or np.isnan(values).any():
        return Estimate()
    low, high = math.nan, math.nan
    if len(values) >= EXACT_RUNS:
        low, high = scipy.stats.quantile_test(values).confidence_interval(LEVEL)
    elif len(values) >= MIN_RUNS:
        low, high = min(values), max(values)
    return Estimate(float(np.median(values)), float(low), float(high))


def paired(base: Mapping[int, float], other: Mapping[int, float]) -> Pairs:
    """Compares times by seed, if all are known. The test leaves out ties and seeds in which both missed."""
    both = np.array([(base[seed], other[seed]) for seed in base if seed in other]).reshape(-1, 2)
    both = both[: 0 if np.isnan(both).any() else None]
    first, second = both[np.isfinite(both).any(axis=1)].T
    slower, different = int((second > first).sum()), int((second != first).sum())
    p = scipy.stats.binomtest(slower, different).pvalue if different else math.nan
    return Pairs(len(both), slower, estimate(second / first), float(p))


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values corrected for their number (Holm 1979). NaN stands for no test."""
    order = sorted((p, place) for place, p in enumerate(p_values) if not math.isnan(p))
    corrected, largest = [math.nan] * len(p_values), 0.0
    for rank, (p, place) in enumerate(order):
        corrected[place] = largest = max(largest, min(1.0, p * (len(order) - rank)))
    return corrected
