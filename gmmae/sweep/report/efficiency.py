"""Times to a target loss over seeds: medians, bootstrap intervals, the paper's efficiency, and two strategies compared seed by seed.

A run that missed the target took infinitely long: it counts in every median and every resample and is never left out.

The intervals are percentile bootstraps (Efron 1979) without interpolation, so a bound is the value of some resample, and
infinity where enough runs missed. They are as good as the runs are many (`most_coverage`): no interval from fewer than 6
runs can keep a promise of 95 %, so a text that shows one says from how many runs it is.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy.stats import binomtest

from gmmae.system.errors import InputError

LEAST_RUNS = 3
"""Fewer runs get no interval: three are the least of which the median can differ from the mean and from both ends."""

RESAMPLES = 10_000
"""Resamples of a bootstrap: the standard error of the share of resamples under a bound of a 95 % interval is 0.16 %."""

PAPER_TABLE_I: dict[int, float] = {1: 100.00, 2: 105.17, 4: 86.81, 8: 90.09, 16: 58.08, 32: 46.25}
"""Table I of the paper: strong scaling, efficiency in percent by number of GPUs."""

PAPER_TABLE_II: dict[str, dict[int, float]] = {
    "weak": {1: 100.00, 2: 96.96, 4: 63.86, 8: 42.32, 16: 19.65, 32: 9.45},
    "linear-warmup": {1: 100.00, 2: 84.95, 4: 75.49, 8: math.nan, 16: math.nan, 32: math.nan},
    "linear": {1: 100.0, 2: math.nan, 4: math.nan, 8: math.nan, 16: math.nan, 32: math.nan},
}
"""Table II of the paper: its other strategies, likewise. NaN: the target of 0.0016384 was not reached."""


class Interval(NamedTuple):
    """A bootstrap interval; a bound may be infinite."""

    low: float
    high: float


class Summary(NamedTuple):
    """The times of one configuration over its seeds."""

    median: float  # seconds; infinite where half of the runs or more missed the target
    interval: Interval | None  # of the median; None with fewer than `LEAST_RUNS` runs
    reached: int
    runs: int


class Efficiency(NamedTuple):
    """The efficiency of n devices, over the seeds run on both one and n."""

    percent: float  # NaN where the median run on one or on n devices missed the target
    interval: Interval | None  # None with fewer than `LEAST_RUNS` seeds, or where the median run on one device missed
    reached: int  # of the runs on n devices
    runs: int


class Comparison(NamedTuple):
    """How a strategy did against the base strategy, seed by seed."""

    pairs: int
    faster: int  # seeds at which the other strategy took less time than the base
    slower: int
    ties: int
    ratio: float  # median over seeds of other time / base time; under 1, the other strategy is the faster
    interval: Interval | None  # of the ratio; None with fewer than `LEAST_RUNS` pairs
    p_value: float | None  # two-sided exact sign test; None when all pairs are ties


def median(times: Collection[float]) -> float:
    """The median, the mean of the middle two when their number is even. Infinite times are times; the result is never NaN.

    Raises:
      InputError: no times, or one that is NaN or not positive.

    >>> median([10.0, math.inf, 20.0]), median([10.0, math.inf])
    (20.0, inf)
    """
    return float(_medians(_checked(times)))


def most_coverage(runs: int) -> float:
    """The largest probability with which an interval between two of m runs can hold the true median: 1 - 2 · 2^-m, that of
    their whole range, for runs that are independent of each other.

    >>> most_coverage(3), most_coverage(5), most_coverage(6)
    (0.75, 0.9375, 0.96875)
    """
    return 1 - 2.0 ** (1 - runs)


def summary(times: Sequence[float], level: float = 0.95, resamples: int = RESAMPLES, seed: int = 0) -> Summary:
    """Median time, its interval, and how many runs reached the target.

    Args:
      times: seconds, one a run, in any order; infinite where the target was missed.
      level: the interval's share of the bootstrap distribution.
      resamples: of the bootstrap.
      seed: of the bootstrap's random numbers.

    Raises:
      InputError: as `median`; a level outside 0 to 1; no resamples.
    """
    runs = np.sort(_checked(times))
    interval = _bootstrap(lambda index: _medians(runs[index]), len(runs), level, resamples, seed)
    return Summary(float(_medians(runs)), interval, int(np.isfinite(runs).sum()), len(runs))


def time_to_loss(
    t1: Mapping[int, float],
    tn: Mapping[int, float],
    devices: int,
    level: float = 0.95,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Efficiency:
    """The paper's efficiency (section VII), with medians over seeds: median(T1) / (n · median(Tn)) · 100 %.

    Only seeds that both mappings hold count. The bootstrap draws seeds, and with a seed both its times. A resample whose
    median Tn is infinite has efficiency 0, whatever its T1; one where only the median T1 is infinite has efficiency
    infinity, the limit of a base that takes ever longer. Neither is left out. Where the median T1 of all seeds is infinite
    there is nothing to compare with, and no interval.

    Args:
      t1: seconds to the target on one device, by seed; infinite where it was missed.
      tn: likewise on n devices.
      devices: n.
      level, resamples, seed: as in `summary`.

    Raises:
      InputError: no common seed; fewer devices than one; as `summary`.

    >>> time_to_loss({0: 100.0}, {0: 40.0}, devices=2).percent
    125.0
    """
    _check_devices(devices)
    base, other = _pairs(t1, tn)

    def percents(index: np.ndarray) -> np.ndarray:
        first, nth = _medians(base[index]), _medians(other[index])
        return 100 * np.where(np.isinf(nth), 0.0, first) / (devices * nth)

    first, nth = float(_medians(base)), float(_medians(other))
    percent = 100 * first / (devices * nth) if math.isfinite(first) and math.isfinite(nth) else math.nan
    interval = _bootstrap(percents, len(base), level, resamples, seed)
    return Efficiency(percent, interval if math.isfinite(first) else None, int(np.isfinite(other).sum()), len(base))


def strong_percent(t1_s: float, tn_s: float, devices: int) -> float:
    """Efficiency of strong scaling in throughput: t1 / (N · tN) · 100 %, for the same work on one and on N devices.

    Source: Serebryakov, "Scaling deep learning workloads" (2017).

    Raises:
      InputError: a time that is not positive and finite; fewer devices than one.

    >>> strong_percent(100.0, 20.0, devices=8)
    62.5
    """
    _check_devices(devices)
    return weak_percent(t1_s, tn_s) / devices


def weak_percent(t1_s: float, tn_s: float) -> float:
    """Efficiency of weak scaling in throughput: t1 / tN · 100 %, for N times the work on N devices. Source and errors likewise.

    >>> weak_percent(100.0, 125.0)
    80.0
    """
    for time_s in (t1_s, tn_s):
        if not 0 < time_s < math.inf:
            raise InputError(f"a measured time must be positive and finite; got {time_s!r} s: measure at least one step")
    return 100 * t1_s / tn_s


def paired(
    base: Mapping[int, float],
    other: Mapping[int, float],
    level: float = 0.95,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Comparison:
    """Compares two strategies at the same number of devices over the seeds that both have.

    Equal times, and two missed targets, are ties, of ratio 1. The sign test asks how likely a split of the other pairs at
    least as uneven would be if either strategy were as likely to be the faster. From 5 pairs or fewer its p is above 0.05.

    Args:
      base, other: seconds to the target by seed; infinite where it was missed.
      level, resamples, seed: as in `summary`.

    Raises:
      InputError: no common seed; as `summary`.
    """
    base_times, other_times = _pairs(base, other)
    faster, slower = int((other_times < base_times).sum()), int((other_times > base_times).sum())
    ties = len(base_times) - faster - slower
    # The quotient of two infinities would be NaN; ties are 1 without dividing.
    ratios = np.sort([1.0 if a == b else b / a for a, b in zip(base_times.tolist(), other_times.tolist(), strict=True)])
    return Comparison(
        pairs=len(ratios),
        faster=faster,
        slower=slower,
        ties=ties,
        ratio=float(_medians(ratios)),
        interval=_bootstrap(lambda index: _medians(ratios[index]), len(ratios), level, resamples, seed),
        p_value=float(binomtest(faster, faster + slower).pvalue) if faster + slower else None,
    )


def _medians(runs: np.ndarray) -> np.ndarray:
    """Medians along the last axis. A sum of times is infinite, never NaN, since no time is -infinity."""
    ordered, count = np.sort(runs, axis=-1), runs.shape[-1]
    return (ordered[..., (count - 1) // 2] + ordered[..., count // 2]) / 2


def _bootstrap(
    statistic: Callable[[np.ndarray], np.ndarray], runs: int, level: float, resamples: int, seed: int
) -> Interval | None:
    """The percentile interval of a statistic, a function of run indices [resamples, runs]."""
    if not 0 < level < 1:
        raise InputError(f"the level of an interval must lie between 0 and 1; got {level!r}: 0.95 is 95 %")
    if resamples < 1:
        raise InputError(f"a bootstrap needs at least one resample; got {resamples!r}: take {RESAMPLES}")
    if runs < LEAST_RUNS:
        return None
    index = np.random.default_rng(seed).integers(runs, size=(resamples, runs))
    # Interpolating between a finite and an infinite value would give infinity or NaN: take values that occurred.
    low, high = np.quantile(statistic(index), [(1 - level) / 2, (1 + level) / 2], method="inverted_cdf")
    return Interval(float(low), float(high))


def _pairs(base: Mapping[int, float], other: Mapping[int, float]) -> tuple[np.ndarray, np.ndarray]:
    """Both times of each common seed, sorted by the times: names and order of the seeds do not change a bootstrap."""
    _checked(base.values())
    _checked(other.values())
    common = sorted((base[seed], other[seed]) for seed in base.keys() & other.keys())
    if not common:
        raise InputError(
            f"two sets of runs are compared over their common seeds; got {sorted(base)} and {sorted(other)}: "
            "run both with the same seeds"
        )
    pairs = np.asarray(common, float)
    return pairs[:, 0], pairs[:, 1]


def _checked(times: Collection[float]) -> np.ndarray:
    if not times:
        raise InputError("a median needs at least one time; got none: give every run's, infinite where it missed the target")
    for time in times:
        if not time > 0:
            raise InputError(f"a time to target must be positive seconds, infinite where it was missed; got {time!r}")
    return np.asarray(list(times), float)


def _check_devices(devices: int) -> None:
    if devices < 1:
        raise InputError(f"devices must be at least 1; got {devices!r}")
