"""The benchmarks' statistics, against numbers worked manually."""

import math

import numpy as np
import pytest

from benchmarks.spread import Spread, array_distance, distance, exponent, ratios


def test_a_ratio_pairs_turns_of_the_same_moment():
    # A machine that is ten times slower in the second turn: the ratio is 2 in both.
    assert ratios([2.0, 20.0], [1.0, 10.0]) == Spread(2.0, 2.0, 2.0)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_finite_is_no_agreement(value):
    assert not distance([1.0, value], [1.0, 1.0]) <= 1e-4


def test_an_array_is_as_far_as_its_norm_says():
    # (3, 4) has norm 5; a difference of 0.5 in one entry is a tenth of it.
    wanted = {"a": np.array([3.0, 4.0]), "b": np.ones(2)}
    found = {"a": np.array([3.0, 4.5]), "b": np.ones(2)}
    assert array_distance(found, wanted) == pytest.approx(0.1)


def test_arrays_that_one_side_lacks_are_refused():
    with pytest.raises(ValueError, match=r"same on both sides; got \['b'\]"):
        array_distance({"a": np.ones(1)}, {"a": np.ones(1), "b": np.ones(1)})


def test_the_exponent_of_a_constant_is_zero_and_of_a_square_two():
    assert exponent([1, 2, 4, 8], [5, 5, 5, 5]) == pytest.approx(0)
    assert exponent([1, 2, 3], [2, 8, 18]) == pytest.approx(2)
