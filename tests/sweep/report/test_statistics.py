import math

import pytest

from gmmae.sweep.report.statistics import estimate, holm, paired

INF, NAN = math.inf, math.nan


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ([], (NAN, NAN, NAN)),
        ([7.0, 9.0], (8, NAN, NAN)),
        ([30.0, 10.0, 20.0], (20, 10, 30)),
        ([7.0, 9.0, INF], (9, 7, INF)),
        ([1.0, 2.0, NAN], (NAN, NAN, NAN)),
        # The median lies below the first of six runs in 1 of 64 cases, below the second of eight in 9 of 256 (3.5 %), and below
        # the second of nine in 10 of 512 (2.0 %).
        (range(5, 0, -1), (3, 1, 5)),
        (range(8, 0, -1), (4.5, 1, 8)),
        (range(9, 0, -1), (5, 2, 8)),
        ([1.0, 2.0, 3.0, 4.0, 5.0, INF], (3.5, 1, INF)),
    ],
)
def test_medians_and_exact_intervals_worked_by_hand(times, expected):
    assert estimate(list(times)) == pytest.approx(expected, nan_ok=True)


def by_seed(*times):
    return dict(enumerate(times))


@pytest.mark.parametrize(
    ("base", "other", "expected"),  # seeds, slower, ratio, p
    [
        # Ratios .5, 1, 2, 3, 4, 5, ∞. Of 6 coins, at most one head or at most one tail: 2 · (1 + 6) / 64.
        ((10.0,) * 7, (20.0, 30.0, 5.0, INF, 40.0, 10.0, 50.0), (7, 5, (3, 0.5, INF), 14 / 64)),
        ((INF,), (INF,), (1, 0, (NAN, NAN, NAN), NAN)),
        ((5.0, 5.0, INF), (INF, INF, 5.0), (3, 2, (INF, 0, INF), 1)),
        ((5.0, 7.0, 9.0), (5.0, 7.0, 9.0), (3, 0, (1, 1, 1), NAN)),
        # Three seeds miss on both sides, which says nothing of the three that took three times as long.
        ((2.0, 4.0, 5.0, INF, INF, INF), (6.0, 12.0, 15.0, INF, INF, INF), (6, 3, (3, 3, 3), 0.25)),
        ((2.0, NAN), (3.0, 4.0), (0, 0, (NAN, NAN, NAN), NAN)),
    ],
)
def test_comparisons_with_misses_and_ties_worked_by_hand(base, other, expected):
    found = paired(by_seed(*base), by_seed(*other))
    assert found[:2] == expected[:2]
    assert found.ratio == pytest.approx(expected[2], nan_ok=True)
    assert found.p == pytest.approx(expected[3], nan_ok=True)


def test_holms_correction_worked_by_hand():
    # Sorted 0.01, 0.02, 0.03, 0.5, times 4, 3, 2 and 1: 0.04, 0.06, 0.06, 0.5. The third may not be below the second.
    assert holm([0.03, NAN, 0.5, 0.01, 0.02]) == pytest.approx([0.06, NAN, 0.5, 0.04, 0.06], nan_ok=True)
    assert holm([0.5, 0.5]) == [1.0, 1.0]
