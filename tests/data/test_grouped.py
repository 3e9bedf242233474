"""Resampling of groups, folds and AUC."""

import math

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from gmmae.data import grouped


def names(samples):
    return [f"a{i}" for i in range(samples)]


def test_a_bootstrap_draws_whole_patients_and_its_interval_is_that_of_the_mean():
    drawn = grouped.weights([*"aabbcdefgh"], seed=0)
    assert (drawn[0] == 1).all()
    assert (drawn[:, 0] == drawn[:, 1]).all()
    assert (drawn[:, 0] != drawn[:, 2]).any()
    values = np.random.default_rng(10).normal(size=200)
    alone = grouped.mean(values, names(200))
    width = 2 * 1.96 * values.std() / np.sqrt(200)
    assert alone.high - alone.low == pytest.approx(width, rel=0.1)
    # Samples that repeat each other do not narrow it.
    assert grouped.mean(np.repeat(values, 5), np.repeat(names(200), 5)) == pytest.approx(alone)


@pytest.mark.parametrize(("values", "groups"), [([1.0, 2, 6], "aaa"), ([1.0, math.nan], "ab"), ([1.0, math.inf], "ab")])
def test_one_group_and_what_is_not_finite_have_no_interval(values, groups):
    value, low, high = grouped.mean(np.array(values), [*groups])
    assert (value, low, high) == pytest.approx((np.mean(values), math.nan, math.nan), nan_ok=True)


def test_resamples_that_say_nothing_are_left_out():
    assert grouped.estimate(np.array([2.0, 1.0, math.nan, 1.0])) == (2.0, 1.0, 1.0)


def test_the_auc_is_that_of_scikit_learn_with_any_weights():
    rng = np.random.default_rng(0)
    truth = np.arange(60) % 3 == 0
    score = rng.normal(0, 1, 60).round(1) + truth  # with ties
    weight = rng.integers(0, 3, (4, 60)).astype(float)
    expected = [roc_auc_score(truth, score, sample_weight=row) for row in weight]
    np.testing.assert_allclose(grouped.auc(score, truth, weight), expected)
    assert np.isnan(grouped.auc(score, truth, 1.0 * truth[None]))  # no weight in one class


def test_folds_divide_no_group_and_test_each_sample_once():
    groups = np.random.default_rng(6).integers(0, 30, 100).astype(str)
    labels = np.repeat([0, 1], 50)
    first, second = (grouped.folds(labels, groups, seed) for seed in (0, 1))
    assert sorted(np.concatenate([test for _, test in first])) == list(range(100))
    assert not any(set(groups[train]) & set(groups[test]) for train, test in first)
    assert [test.tolist() for _, test in first] != [test.tolist() for _, test in second]
