"""Statistics of times to a target loss over seeds: medians, bootstrap intervals, efficiencies and paired comparisons.

A run that missed the target has an infinite time. It counts in every median and every resample.

The intervals are percentile bootstraps (Efron 1979) without interpolation. A bound is therefore the value of some resample, and
infinite where enough runs missed. Few runs limit the coverage: the whole range of m independent runs holds the true median with
a probability of 1 - 2 · 2^-m, and fewer than 6 runs cannot give 95 %. A text that shows an interval states its number of runs.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from gmmae.system.errors import InputError

MIN_RUNS = 3
"""Minimum number of runs for an interval. From three on the median can differ from the mean and from both ends."""

INTERVAL_LEVEL = 0.95
"""The share of the bootstrap's resamples between the bounds of an interval."""

RESAMPLES = 10_000
"""Number of bootstrap resamples. The share of resamples below a bound of an interval has a standard error of 0.16 %."""

PAPER_TABLE_I: dict[int, float] = {1: 100.00, 2: 105.17, 4: 86.81, 8: 90.09, 16: 58.08, 32: 46.25}
"""Table I of the paper: the efficiency of strong scaling in percent, by number of GPUs."""

PAPER_TABLE_II: dict[str, dict[int, float]] = {
    "weak": {1: 100.00, 2: 96.96, 4: 63.86, 8: 42.32, 16: 19.65, 32: 9.45},
    "linear-warmup": {1: 100.00, 2: 84.95, 4: 75.49, 8: math.nan, 16: math.nan, 32: math.nan},
    "linear": {1: 100.0, 2: math.nan, 4: math.nan, 8: math.nan, 16: math.nan, 32: math.nan},
}
"""Table II of the paper: the efficiencies of its other strategies. NaN: the target of 0.0016384 was not reached."""


class Interval(NamedTuple):
    """A bootstrap interval. A bound may be infinite."""

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
    ties: int
    ratio: float  # median over seeds of other time / base time; below 1 the other strategy is faster
    interval: Interval | None  # of the ratio; None with fewer than `MIN_RUNS` pairs
    p_value: float | None  # two-sided exact sign test; None when all pairs are ties


def median(times: Collection[float]) -> float:
    """Returns the median. Infinite times count, and the result is never NaN.

    Raises:
      InputError: there is no time, or one is NaN or not positive.

    >>> median([10.0, math.inf, 20.0]), median([10.0, math.inf])
    (20.0, inf)
    """
    return float(_medians(_checked(times)))


def summary(times: Sequence[float]) -> TimeSummary:
    """Returns the median time, its interval, and the number of runs that reached the target.

    Args:
      times: the seconds of each run, infinite where the target was missed.

    Raises:
      InputError: as for `median`.
    """
    runs = np.sort(_checked(times))
    interval = _bootstrap(lambda index: _medians(runs[index]), len(runs))
    return TimeSummary(float(_medians(runs)), interval, int(np.isfinite(runs).sum()), len(runs))


def time_to_loss(t1: Mapping[int, float], tn: Mapping[int, float], devices: int) -> Efficiency:
    """Returns the paper's efficiency (section VII), with medians over seeds: median(T1) / (n · median(Tn)) · 100 %.

    Only common seeds count. The bootstrap draws seeds, each with both its times. A resample has efficiency 0 if its median Tn
    is infinite, and infinite efficiency if only its median T1 is. Both count. If the median T1 of all seeds is infinite, there
    is no interval.

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

    def percents(index: np.ndarray) -> np.ndarray:
        first, nth = _medians(base[index]), _medians(other[index])
        return 100 * np.where(np.isinf(nth), 0.0, first) / (devices * nth)

    first, nth = float(_medians(base)), float(_medians(other))
    percent = 100 * first / (devices * nth) if math.isfinite(first) and math.isfinite(nth) else math.nan
    interval = _bootstrap(percents, len(base))
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

    Equal times and two missed targets are ties with ratio 1. The sign test gives the probability of a split at least as uneven
    if both strategies were equally likely to be faster. With 5 pairs or fewer p is above 0.05.

    Args:
      base: seconds to the target by seed, infinite where it was missed.
      other: the same for the other strategy.

    Raises:
      InputError: there is no common seed, or as for `median`.
    """
    base_times, other_times = _pairs(base, other)
    faster, slower = int((other_times < base_times).sum()), int((other_times > base_times).sum())
    ties = len(base_times) - faster - slower
    # Ties are 1 without division, because the quotient of two infinities is NaN.
    ratios = np.sort([1.0 if a == b else b / a for a, b in zip(base_times.tolist(), other_times.tolist(), strict=True)])
    return PairedComparison(
        pairs=len(ratios),
        faster=faster,
        slower=slower,
        ties=ties,
        ratio=float(_medians(ratios)),
        interval=_bootstrap(lambda index: _medians(ratios[index]), len(ratios)),
        p_value=sign_test(faster, slower) if faster + slower else None,
    )


def sign_test(faster: int, slower: int) -> float:
    """Returns the p-value of the two-sided exact sign test, of one pair at least.

    >>> sign_test(6, 0), sign_test(2, 2)
    (0.03125, 1.0)
    """
    pairs = faster + slower
    tail = sum(math.comb(pairs, count) for count in range(min(faster, slower) + 1))
    return min(1.0, 2 * tail / 2**pairs)


def _medians(runs: np.ndarray) -> np.ndarray:
    """Medians along the last axis. A sum of times is infinite, never NaN, since no time is -infinity."""
    ordered, count = np.sort(runs, axis=-1), runs.shape[-1]
    return (ordered[..., (count - 1) // 2] + ordered[..., count // 2]) / 2


def _bootstrap(statistic: Callable[[np.ndarray], np.ndarray], runs: int) -> Interval | None:
    """Returns the percentile interval of a statistic, a function of run indices [resamples, runs]."""
    if runs < MIN_RUNS:
        return None
    index = np.random.default_rng(0).integers(runs, size=(RESAMPLES, runs))
    # Interpolating between a finite and an infinite value would give infinity or NaN: take values that occurred.
    low, high = np.quantile(statistic(index), [(1 - INTERVAL_LEVEL) / 2, (1 + INTERVAL_LEVEL) / 2], method="inverted_cdf")
    return Interval(float(low), float(high))


def _pairs(base: Mapping[int, float], other: Mapping[int, float]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the times of the common seeds, sorted by time, so that the seeds' names do not change a bootstrap."""
    _checked(base.values())
    _checked(other.values())
    common = sorted((base[seed], other[seed]) for seed in base.keys() & other.keys())
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
