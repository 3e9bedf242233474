import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gmmae.sweep.report import efficiency
from gmmae.sweep.report.efficiency import (
    Efficiency,
    Interval,
    TimeSummary,
    median,
    paired,
    strong_percent,
    summary,
    time_to_loss,
    weak_percent,
)
from gmmae.system.errors import InputError

INF = math.inf

PAPER_TABLE_I: dict[int, float] = {1: 100.00, 2: 105.17, 4: 86.81, 8: 90.09, 16: 58.08, 32: 46.25}
"""Table I of the paper: the efficiency of strong scaling in percent, by number of GPUs."""

PAPER_TABLE_II: dict[str, dict[int, float]] = {
    "weak": {1: 100.00, 2: 96.96, 4: 63.86, 8: 42.32, 16: 19.65, 32: 9.45},
    "linear-warmup": {1: 100.00, 2: 84.95, 4: 75.49, 8: math.nan, 16: math.nan, 32: math.nan},
    "linear": {1: 100.0, 2: math.nan, 4: math.nan, 8: math.nan, 16: math.nan, 32: math.nan},
}
"""Table II of the paper: the efficiencies of its other strategies. NaN: the target of 0.0016384 was not reached."""


def by_seed(*times):
    return dict(enumerate(times))


def over_three_seeds(middle):
    """Three seeds with that median, the quickest run last."""
    return by_seed(1.5 * middle, middle, 0.5 * middle)


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ([3.0], 3),
        ([4.0, 1.0], 2.5),
        ([9.0, 1.0, 2.0], 2),
        ([1.0, 2.0, 4.0, INF], 3),
        ([1.0, INF], INF),
        ([INF, INF, 1.0, 2.0], INF),
        ([INF, INF], INF),
        ([5.0, INF, 1.0], 5),
    ],
)
def test_medians_worked_by_hand(times, expected):
    assert median(times) == expected
    assert median(times[::-1]) == expected


# T1 is 10,000 s. The seconds on 2, 4, ... devices are 10,000 / (n · efficiency), worked manually to the second decimal, which
# leaves an error under 0.001 in a percentage; infinite where the paper has NaN.
TIMES = {
    "strong": [4754.21, 2879.85, 1387.50, 1076.10, 675.68],
    "weak": [5156.77, 3914.81, 2953.69, 3180.66, 3306.88],
    "linear-warmup": [5885.82, 3311.70, INF, INF, INF],
    "linear": [INF, INF, INF, INF, INF],
}


@pytest.mark.parametrize("scaling", TIMES)
def test_the_papers_tables_from_times_worked_by_hand(scaling):
    table = PAPER_TABLE_I if scaling == "strong" else PAPER_TABLE_II[scaling]
    base = over_three_seeds(10_000)
    found = {1: time_to_loss(base, base, 1).percent}
    for devices, seconds in zip((2, 4, 8, 16, 32), TIMES[scaling], strict=True):
        found[devices] = time_to_loss(base, over_three_seeds(seconds), devices).percent
    assert found == pytest.approx(table, abs=0.0015, nan_ok=True)


def test_a_summary_of_three_runs():
    assert summary([30.0, 10.0, 20.0]) == TimeSummary(20, Interval(10, 30), reached=3, runs=3)


@pytest.mark.parametrize(
    ("runs", "place"),
    # The median lies below the first of six runs in 1 of 64 cases, below the second of eight in 9 of 256 (3.5 %), and below
    # the second of nine in 10 of 512 (2.0 %). Below the fourth of 15 it is in 576 of 32768 (1.8 %), the fifth in 1941 (5.9 %).
    [(5, 1), (6, 1), (8, 1), (9, 2), (15, 4)],
)
def test_an_interval_is_that_of_the_order_statistics(runs, place):
    times = [float(time) for time in range(1, runs + 1)]
    assert summary(times[::-1]).interval == Interval(place, runs + 1 - place)


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ([7.0], TimeSummary(7, None, 1, 1)),
        ([INF], TimeSummary(INF, None, 0, 1)),
        ([7.0, 9.0], TimeSummary(8, None, 2, 2)),
        ([7.0, 9.0, INF], TimeSummary(9, Interval(7, INF), 2, 3)),
        ([7.0, INF, INF], TimeSummary(INF, Interval(7, INF), 1, 3)),
        ([INF, INF, INF], TimeSummary(INF, Interval(INF, INF), 0, 3)),
    ],
)
def test_missed_targets_and_few_runs_in_a_summary(times, expected):
    assert summary(times) == expected


def test_the_interval_of_an_efficiency_pairs_both_times_of_a_seed():
    # Every seed has the same quotient.
    t1, tn = by_seed(10.0, 20.0, 40.0, 80.0, 160.0), by_seed(8.0, 16.0, 32.0, 64.0, 128.0)
    assert time_to_loss(t1, tn, 1).interval == Interval(125, 125)


@pytest.mark.parametrize("runs", [6, 7, 10, 41])
def test_an_interval_of_six_runs_or_more_covers_the_true_median_as_often_as_it_says(runs):
    # Runs from an exponential distribution of mean 1, whose median is log 2. Over 1,000 repetitions the standard error of the
    # share that holds it is 0.7 %; 3 of them are allowed for.
    rng = np.random.default_rng(0)
    intervals = [summary(rng.exponential(size=runs).tolist()).interval for _ in range(1000)]
    assert np.mean([interval.low <= math.log(2) <= interval.high for interval in intervals if interval]) > 0.95 - 0.021


@pytest.mark.parametrize(
    ("t1", "tn", "expected"),
    [
        # Worked manually for 4 devices: 100 · 80 / (4 · 40) = 50, and so on.
        ((80.0,), (40.0,), Efficiency(50, None, 1, 1)),
        ((80.0, 80.0), (40.0, INF), Efficiency(math.nan, None, 1, 2)),
        ((80.0, 80.0, 80.0), (40.0, 20.0, INF), Efficiency(50, Interval(0, 100), 2, 3)),
        ((80.0, 80.0, 80.0), (40.0, INF, INF), Efficiency(math.nan, Interval(0, 50), 1, 3)),
        ((80.0, 80.0, 80.0), (INF, INF, INF), Efficiency(math.nan, Interval(0, 0), 0, 3)),
        ((80.0, 80.0, INF), (40.0, 40.0, 40.0), Efficiency(50, Interval(50, INF), 3, 3)),
        ((80.0, INF, INF), (40.0, 40.0, 40.0), Efficiency(math.nan, None, 3, 3)),
        ((INF, INF, INF), (INF, INF, INF), Efficiency(math.nan, None, 0, 3)),
    ],
)
def test_missed_targets_in_an_efficiency(t1, tn, expected):
    found = time_to_loss(by_seed(*t1), by_seed(*tn), 4)
    assert found.percent == pytest.approx(expected.percent, nan_ok=True)
    assert found[1:] == expected[1:]


def test_seeds_of_one_side_alone_do_not_count():
    t1, tn = {0: 80.0, 1: 1000.0, 2: 60.0}, {0: 40.0, 2: 20.0, 3: 1.0}
    assert time_to_loss(t1, tn, 1) == Efficiency(100 * 70 / 30, None, 2, 2)


SECONDS = st.floats(0.1, 1e6) | st.just(INF)
PAIRS = st.lists(st.tuples(SECONDS, SECONDS), min_size=1, max_size=7)


def split(pairs):
    return by_seed(*(first for first, _ in pairs)), by_seed(*(nth for _, nth in pairs))


def same(found, expected):
    """Equal but for rounding: a few units in the last place of a float64."""
    assert (found.interval is None) == (expected.interval is None)
    flat = [[result._replace(interval=None), *(result.interval or ())] for result in (found, expected)]
    numbers = [[item for item in (*row[0], *row[1:]) if item is not None] for row in flat]
    assert numbers[0] == pytest.approx(numbers[1], rel=1e-12, nan_ok=True)


@settings(max_examples=50, deadline=None)
@given(PAIRS, st.floats(1e-3, 1e3), st.sampled_from([1, 2, 32]), st.randoms(use_true_random=False))
def test_neither_the_unit_of_time_nor_the_names_and_the_order_of_seeds_matter(pairs, factor, devices, random):
    scaled = [(factor * first, factor * nth) for first, nth in pairs]
    shuffled = random.sample(pairs, len(pairs))
    found, compared = time_to_loss(*split(pairs), devices), paired(*split(pairs))
    same(time_to_loss(*split(scaled), devices), found)
    same(time_to_loss(*split(shuffled), devices), found)
    same(paired(*split(shuffled)), compared)


@settings(max_examples=100, deadline=None)
@given(PAIRS)
def test_no_interval_is_nan_or_the_wrong_way_round(pairs):
    t1, tn = split(pairs)
    for result in (summary(list(t1.values())), time_to_loss(t1, tn, 2), paired(t1, tn)):
        assert result.interval is None or 0 <= result.interval.low <= result.interval.high


def test_throughput_efficiencies_worked_by_hand():
    assert strong_percent(12.0, 2.0, 8) == 75  # 12 / 16
    assert weak_percent(12.0, 16.0) == 75
    assert strong_percent(12.0, 12.0, 1) == weak_percent(12.0, 12.0) == 100


def test_a_paired_comparison_worked_by_hand():
    base = by_seed(10.0, 10.0, 10.0, 10.0, 10.0, 10.0, 10.0)
    other = by_seed(20.0, 30.0, 5.0, INF, 40.0, 10.0, 50.0)
    found = paired(base, other)
    assert found[:5] == (7, 1, 5, 1, 0)
    assert found.ratio == 3  # 0.5, 1, 2, 3, 4, 5, infinity
    # Of 6 coins, at most one head or at most one tail: 2 · (1 + 6) / 64.
    assert found.p_value == pytest.approx(14 / 64)
    assert paired(other, base)[:4] == (7, 5, 1, 1)
    assert paired(other, base).ratio == pytest.approx(1 / 3)
    assert paired(other, base).p_value == found.p_value


@pytest.mark.parametrize(
    ("base", "other", "expected"),
    [
        ((INF,), (INF,), (1, 0, 0, 0, 1, math.nan, None, None)),
        ((INF,), (5.0,), (1, 1, 0, 0, 0, 0, None, 1)),
        ((5.0,), (INF,), (1, 0, 1, 0, 0, INF, None, 1)),
        ((5.0, INF), (INF, 5.0), (2, 1, 1, 0, 0, INF, None, 1)),
        ((INF, INF, INF), (INF, INF, INF), (3, 0, 0, 0, 3, math.nan, None, None)),
        ((5.0, 5.0, INF), (INF, INF, 5.0), (3, 1, 2, 0, 0, INF, (0, INF), 1)),
        ((5.0, 5.0, 5.0), (INF, INF, INF), (3, 0, 3, 0, 0, INF, (INF, INF), 0.25)),
        ((5.0, 7.0, 9.0), (5.0, 7.0, 9.0), (3, 0, 0, 3, 0, 1, (1, 1), None)),
        # Three seeds miss on both sides, which says nothing of the three that took three times as long.
        ((2.0, 4.0, 5.0, INF, INF, INF), (6.0, 12.0, 15.0, INF, INF, INF), (6, 0, 3, 0, 3, 3, (3, 3), 0.25)),
    ],
)
def test_missed_targets_and_ties_in_a_comparison(base, other, expected):
    found = paired(by_seed(*base), by_seed(*other))
    assert found[:5] + found[6:] == expected[:5] + expected[6:]
    assert found.ratio == pytest.approx(expected[5], nan_ok=True)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: median([]), "a median needs at least one time; got none: pass the time"),
        (lambda: summary([]), "a median needs at least one time; got none"),
        (lambda: median([1.0, math.nan]), "must be positive seconds, infinite where it was missed; got nan"),
        (lambda: summary([0.0]), "must be positive seconds, infinite where it was missed; got 0.0"),
        (lambda: time_to_loss({0: 1.0}, {0: -1.0}, 2), "must be positive seconds, .*; got -1.0"),
        (lambda: paired({0: 1.0}, {0: 1.0, 1: math.nan}), "must be positive seconds, .*; got nan"),
        (lambda: time_to_loss({0: 1.0}, {1: 1.0}, 2), r"common seed; got \[0\] and \[1\]: run both with the same seeds"),
        (lambda: paired({2: 1.0, 0: 1.0}, {1: 1.0}), r"common seed; got \[0, 2\] and \[1\]: run both"),
        (lambda: strong_percent(1.0, 1.0, 0), "devices must be at least 1; got 0"),
        (lambda: strong_percent(1.0, INF, 2), "must be positive and finite; got inf s: measure at least one step"),
        (lambda: weak_percent(0.0, 1.0), "must be positive and finite; got 0.0 s"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(InputError, match=message):
        call()


def test_holms_correction_worked_by_hand():
    # Sorted 0.01, 0.02, 0.03, 0.5, times 4, 3, 2 and 1: 0.04, 0.06, 0.06, 0.5. The third may not be below the second.
    assert efficiency.holm([0.03, 0.5, 0.01, 0.02]) == pytest.approx([0.06, 0.5, 0.04, 0.06])
    assert efficiency.holm([0.5, 0.5]) == [1.0, 1.0]
    assert efficiency.holm([]) == []
