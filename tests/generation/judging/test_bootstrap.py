"""Resampling of groups: which are drawn together, how wide an interval is, and where there is none."""

import math

import numpy as np
import pytest

from gmmae.generation.judging import bootstrap
from gmmae.generation.judging.bootstrap import Estimate, estimate, weighted_median, weights


def names(samples):
    return [f"a{i}" for i in range(samples)]


def test_a_bootstrap_draws_whole_patients_and_its_interval_is_that_of_the_mean():
    drawn = weights([*"aabbcdefgh"], seed=0)
    assert (drawn[:, 0] == drawn[:, 1]).all()
    assert len(np.unique(drawn[:, 0] - drawn[:, 2])) > 1
    values = np.random.default_rng(10).normal(size=200)
    drawn = weights(names(200), seed=1, resamples=2000)
    low, high = estimate(0.0, drawn @ values / drawn.sum(1))[1:]
    assert (high - low) / (2 * 1.96) == pytest.approx(values.std() / np.sqrt(200), rel=0.1)


def test_samples_that_repeat_each_other_do_not_narrow_the_interval():
    values = np.random.default_rng(0).normal(size=40)
    alone = bootstrap.mean(values, names(40), seed=0)
    repeated = bootstrap.mean(np.repeat(values, 5), np.repeat(names(40), 5), seed=0)
    assert repeated == pytest.approx(alone)
    as_if_independent = bootstrap.mean(np.repeat(values, 5), names(200), seed=0)
    # Five times as many samples make it narrower by the root of 5.
    width = as_if_independent.high - as_if_independent.low
    assert width == pytest.approx((alone.high - alone.low) / np.sqrt(5), rel=0.15)


def test_one_group_has_no_interval():
    value, low, high = bootstrap.mean(np.array([1.0, 2.0, 6.0]), ["a", "a", "a"], seed=0)
    assert value == 3
    assert math.isnan(low)
    assert math.isnan(high)
    assert np.isnan(weighted_median(np.arange(3.0), weights(["a"] * 3, seed=0, resamples=4))).all()


def test_what_is_not_finite_has_no_interval_and_stays_what_it_is():
    assert repr(bootstrap.mean(np.array([1.0, math.nan]), ["a", "b"], seed=0)) == repr(Estimate(math.nan))
    assert repr(bootstrap.mean(np.array([1.0, math.inf]), ["a", "b"], seed=0)) == repr(Estimate(math.inf))


def test_resamples_that_say_nothing_are_left_out():
    assert estimate(2.0, np.array([1.0, math.nan, 1.0])) == (2.0, 1.0, 1.0)
    assert repr(estimate(2.0, np.full(3, math.nan))) == repr(Estimate(2.0))
