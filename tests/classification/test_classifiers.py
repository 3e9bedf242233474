"""How many samples a classifier needs, and its scores against scikit-learn's."""

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, roc_auc_score

from gmmae.classification.classifiers import BOOSTING, LINEAR, MIN_TO_BOOST, Result, accuracy, compare, macro_auc, scored
from gmmae.classification.report import verdict
from gmmae.classification.samples import Labelled
from gmmae.data.grouped import Estimate
from gmmae.data.volumes import Nodules, make_table


@pytest.mark.parametrize("missing", [0, 2])
def test_boosted_trees_need_some_samples_to_divide(missing):
    inputs = np.arange(MIN_TO_BOOST - missing)[:, None]
    found = BOOSTING.fit(inputs, inputs[:, 0] < len(inputs) // 2).predict_proba(inputs)
    assert bool(np.ptp(found)) is not bool(missing)


@pytest.mark.parametrize("classes", [2, 3])
def test_scores_are_those_of_scikit_learn(classes):
    truth, once = np.arange(60) % classes, np.ones((1, 60))
    found = np.random.default_rng(0).dirichlet(np.ones(classes), 60)
    expected = roc_auc_score(truth, found[:, 1] if classes == 2 else found, multi_class="ovr")
    assert macro_auc(found, truth, once) == pytest.approx(expected)
    assert accuracy(found, truth, once) == pytest.approx(accuracy_score(truth, found.argmax(1)))


def test_probabilities_of_two_classifiers_are_not_compared():
    found, parts = np.array([0.1, 0.2, 0.8, 0.9]), [np.array([0, 1]), np.array([2, 3])]
    result = scored("", "", np.stack([1 - found, found], 1)[None], np.array([0, 1, 0, 1]), [*"abcd"], parts)
    assert result.auc.value == 1


def test_intervals_resample_patients():
    """All samples are of one, so there is none."""
    inputs, half = np.arange(60.0)[:, None], np.arange(30)
    nodules = Nodules(inputs, None, make_table([*map(str, inputs)], group=["a"] * 60))
    rounds = [(half, half + 30, [(half, half + 30)])]
    labelled = Labelled(nodules, ("x", "y"), np.arange(60) % 2, half, set(), half + 30, rounds, True, 0)
    for result in compare(labelled, [{"voxels": inputs}], 1, print):
        assert np.isnan([*result.auc[1:], *result.accuracy[1:]]).all()


@pytest.mark.parametrize(
    ("diameter", "ahead"), [((0.9, 0.8, 0.95), True), ((0.65, 0.55, 0.8), False), ((0.8, 0.4, 0.9), False)]
)
def test_the_verdict_says_where_the_diameter_alone_is_ahead(diameter, ahead):
    aucs = {"latent": (0.7, 0.6, 0.8), "diameter": diameter, "all three and diameter": (0.99, 0.9, 1.0)}
    results = [Result(kind, 1, LINEAR, Estimate(*auc), 0.0, Estimate(), 0.0, [], np.zeros(0)) for kind, auc in aucs.items()]
    assert ("the diameter alone is ahead" in verdict(results, np.arange(20), "patient")) == ahead
    assert "no features" in verdict(results, np.arange(9), "patient")
