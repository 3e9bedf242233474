"""Resampling of groups, folds and AUC."""

import math

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from gmmae.data import grouped


def test_a_bootstrap_draws_whole_patients_and_its_interval_is_that_of_the_mean():
    values, names = np.random.default_rng(10).normal(size=200), np.arange(200).astype(str)
    alone = grouped.mean(values, names)
    assert alone.high - alone.low == pytest.approx(2 * 1.96 * values.std() / np.sqrt(200), rel=0.1)
    # Samples that repeat each other do not narrow it.
    assert grouped.mean(np.repeat(values, 5), np.repeat(names, 5)) == pytest.approx(alone)


@pytest.mark.parametrize(("values", "groups"), [([1.0, 2, 6], "aaa"), ([1.0, math.nan], "ab"), ([1.0, math.inf], "ab")])
def test_one_group_and_what_is_not_finite_have_no_interval(values, groups):
    assert grouped.mean(np.array(values), [*groups]) == pytest.approx((np.mean(values), math.nan, math.nan), nan_ok=True)


def test_the_auc_is_that_of_scikit_learn_with_any_weights():
    rng = np.random.default_rng(0)
    truth = np.arange(60) % 3 == 0
    score = rng.normal(0, 1, 60).round(1) + truth  # with ties
    weight = rng.integers(0, 3, (4, 60)).astype(float)
    expected = [roc_auc_score(truth, score, sample_weight=row) for row in weight]
    np.testing.assert_allclose(grouped.auc(score, truth, weight), expected)
    # Resamples that lack a class say nothing, and are left out.
    weight[1] = truth
    aucs = grouped.auc(score, truth, weight)
    assert np.isnan(aucs[1])
    assert grouped.estimate(aucs)[1:] == pytest.approx(np.percentile(expected[2:], [2.5, 97.5]))


def test_folds_of_another_seed_are_others():
    labels, groups = np.repeat([0, 1], 50), np.arange(100).astype(str)
    first, second = ([test.tolist() for _, test in grouped.folds(labels, groups, seed)] for seed in (0, 1))
    assert first != second
