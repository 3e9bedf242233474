"""Statistics of times to a target loss over seeds: medians, intervals, efficiencies and paired comparisons.

A run that missed the target has an infinite time. It counts in every median and every interval.

The interval of a median is exact. It goes from the k-th smallest to the k-th largest value. By the binomial distribution k is
the largest number with which it holds the true median with a probability of 95 % at least. The whole range of m independent
runs holds it with a probability of 1 - 2 · 2^-m. So fewer than 6 runs cannot give 95 %, and their interval is their range. Six
to eight runs give their range too. Bounds are infinite where enough runs missed. A text that shows an interval states its
number of runs.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from gmmae.system.errors import InputError

MIN_RUNS = 3
"""Minimum number of runs for an interval. From three on the median can differ from the mean and from both ends."""

INTERVAL_LEVEL = 0.95
"""The probability with which an interval holds the median, of 6 runs or more."""


class Interval(NamedTuple):
    """An interval. A bound may be infinite."""

    low: float
    high: float


class TimeSummary(NamedTuple):
    """The times of one configuration over its seeds."""

    median: float  # seconds; infinite if half of the runs or more missed the target
    interval: Interval | None  # of the median; None with fewer than `MIN_RUNS` runs
    reached: int
    runs: int


class Efficiency(NamedTuple):
    """The efficiency of n devices, over the seeds with runs on both one and n."""

    percent: float  # NaN if the median run on one or on n devices missed the target
    interval: Interval | None  # None with fewer than `MIN_RUNS` seeds, or if the median run on one device missed
    reached: int  # of the runs on n devices
    runs: int


class PairedComparison(NamedTuple):
    """Another strategy compared with the base strategy, seed by seed."""

    pairs: int
    faster: int  # seeds in which the other strategy took less time than the base
    slower: int
    ties: int  # seeds in which both took the same time
    misses: int  # seeds in which both missed the target, which tell nothing of the ratio
    ratio: float  # median over the other seeds of other time / base time; below 1 the other is faster; NaN if all missed
    interval: Interval | None  # of the ratio; None with fewer than `MIN_RUNS` ratios
    p_value: float | None  # two-sided exact sign test; None when all pairs are ties or misses


def median(times: Collection[float]) -> float:
    """Returns the median. Infinite times count, and the result is never NaN.

    Raises:
      InputError: there is no time, or one is NaN or not positive.

    >>> median([10.0, math.inf, 20.0]), median([10.0, math.inf])
    (20.0, inf)
    """
    return float(np.median(_checked(times)))


def summary(times: Sequence[float]) -> TimeSummary:
    """Returns the median time, its interval, and the number of runs that reached the target.

    Args:
      times: the seconds of each run, infinite where the target was missed.

    Raises:
      InputError: as for `median`.
    """
    runs = _checked(times)
    return TimeSummary(float(np.median(runs)), median_interval(runs), int(np.isfinite(runs).sum()), len(runs))


def median_interval(values: Float[np.ndarray, " runs"]) -> Interval | None:
    """Returns the exact interval of a median, the whole range of fewer than 6 values, or None for fewer than `MIN_RUNS`."""
    if len(values) < MIN_RUNS:
        return None
    ordered, runs = np.sort(values), len(values)
    place = max(1, next(k for k in range(runs) if _share_up_to(k, runs) >= (1 - INTERVAL_LEVEL) / 2))
    return Interval(float(ordered[place - 1]), float(ordered[-place]))


def time_to_loss(t1: Mapping[int, float], tn: Mapping[int, float], devices: int) -> Efficiency:
    """Returns the paper's efficiency (section VII), with medians over seeds: median(T1) / (n · median(Tn)) · 100 %.

    Only common seeds count. The interval is that of the median of the seeds' own efficiencies. That of a seed is 0 if only its
    Tn is infinite, and infinite if only its T1 is. A seed that missed on both has none. If the median T1 of all seeds is
    infinite, there is no interval.

    Args:
      t1: seconds to the target on one device by seed, infinite where it was missed.
      tn: the same on n devices.
      devices: n.

    Raises:
      InputError: there is no common seed, or as for `median`.

    >>> time_to_loss({0: 100.0}, {0: 40.0}, devices=2).percent
    125.0
    """
    base, other = _pairs(t1, tn)
    first, nth = float(np.median(base)), float(np.median(other))
    percent = 100 * first / (devices * nth) if math.isfinite(first) and math.isfinite(nth) else math.nan
    interval = median_interval(100 * _ratios(other, base) / devices)
    return Efficiency(percent, interval if math.isfinite(first) else None, int(np.isfinite(other).sum()), len(base))


def strong_percent(t1_s: float, tn_s: float, devices: int) -> float:
    """Returns the efficiency of strong scaling in throughput, t1 / (N · tN) · 100 %, for the same work on 1 and N devices.

    Source: Serebryakov, "Scaling deep learning workloads" (2017).

    Raises:
      InputError: a time is not positive and finite, or `devices` is below 1.

    >>> strong_percent(100.0, 20.0, devices=8)
    62.5
    """
    if devices < 1:
        raise InputError(f"devices must be at least 1; got {devices!r}")
    return weak_percent(t1_s, tn_s) / devices


def weak_percent(t1_s: float, tn_s: float) -> float:
    """Returns the efficiency of weak scaling in throughput, t1 / tN · 100 %, for N times the work on N devices.

    Source and errors are those of `strong_percent`.

    >>> weak_percent(100.0, 125.0)
    80.0
    """
    for time_s in (t1_s, tn_s):
        if not 0 < time_s < math.inf:
            raise InputError(f"a measured time must be positive and finite; got {time_s!r} s: measure at least one step")
    return 100 * t1_s / tn_s


def paired(base: Mapping[int, float], other: Mapping[int, float]) -> PairedComparison:
    """Compares two strategies on the same number of devices over their common seeds.

    Equal times are ties with ratio 1. Two missed targets are counted apart and have no ratio. The sign test leaves both out. It
    gives the probability of a split at least as uneven if both strategies were equally likely to be faster. With 5 pairs or
    fewer p is above 0.05.

    Args:
      base: seconds to the target by seed, infinite where it was missed.
      other: the same for the other strategy.

    Raises:
      InputError: there is no common seed, or as for `median`.
    """
    base_times, other_times = _pairs(base, other)
    faster, slower = int((other_times < base_times).sum()), int((other_times > base_times).sum())
    ratios = _ratios(base_times, other_times)
    return PairedComparison(
        pairs=len(base_times),
        faster=faster,
        slower=slower,
        ties=len(ratios) - faster - slower,
        misses=len(base_times) - len(ratios),
        ratio=float(np.median(ratios)) if len(ratios) else math.nan,
        interval=median_interval(ratios),
        p_value=min(1.0, 2 * _share_up_to(min(faster, slower), faster + slower)) if faster + slower else None,
    )


def holm(p_values: Sequence[float]) -> list[float]:
    """Returns p-values corrected for their number (Holm 1979).

    >>> holm([0.25, 0.0625, 0.5])
    [0.5, 0.1875, 0.5]
    """
    order, count = np.argsort(p_values), len(p_values)
    corrected = np.maximum.accumulate(np.array(p_values)[order] * (count - np.arange(count)))
    return np.minimum(corrected, 1.0)[np.argsort(order)].tolist()


def _share_up_to(count: int, runs: int) -> float:
    """Returns the probability of at most `count` heads in `runs` throws of a coin."""
    return sum(math.comb(runs, heads) for heads in range(count + 1)) / 2**runs


def _ratios(base: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Returns other over base without the pairs that both missed, whose ratio is unknown."""
    known = np.isfinite(base) | np.isfinite(other)
    return other[known] / base[known]


def _pairs(base: Mapping[int, float], other: Mapping[int, float]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the times of the common seeds."""
    _checked(base.values())
    _checked(other.values())
    common = [(base[seed], other[seed]) for seed in base.keys() & other.keys()]
    if not common:
        raise InputError(
            f"two sets of runs must have a common seed; got {sorted(base)} and {sorted(other)}: run both with the same seeds"
        )
    pairs = np.asarray(common, float)
    return pairs[:, 0], pairs[:, 1]


def _checked(times: Collection[float]) -> np.ndarray:
    if not times:
        raise InputError("a median needs at least one time; got none: pass the time of every run, infinite for a miss")
    for time in times:
        if not time > 0:
            raise InputError(f"a time to target must be positive seconds, infinite where it was missed; got {time!r}")
    return np.asarray(list(times), float)
