"""AUC and accuracy against scikit-learn's."""

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, roc_auc_score

from gmmae.classification.scores import accuracy, auc, macro_auc


@pytest.fixture(params=[2, 3])
def predicted(request):
    rng = np.random.default_rng(0)
    truth = np.arange(60) % request.param
    logits = rng.normal(0, 1, (60, request.param)).round(1) + np.eye(request.param)[truth]  # with ties
    return np.exp(logits) / np.exp(logits).sum(1, keepdims=True), truth, rng.integers(0, 3, (4, 60)).astype(float)


def test_they_are_those_of_scikit_learn_with_any_weights(predicted):
    probabilities, truth, weight = predicted
    classes = range(probabilities.shape[1])
    best = probabilities.argmax(1)
    for i, row in enumerate(weight):
        each = [roc_auc_score(truth == c, probabilities[:, c], sample_weight=row) for c in classes]
        assert macro_auc(probabilities, truth, weight)[i] == pytest.approx(each[1] if len(each) == 2 else np.mean(each))
        assert accuracy(probabilities, truth, weight)[i] == pytest.approx(accuracy_score(truth, best, sample_weight=row))


def test_a_resample_without_a_class_has_no_auc():
    weight = np.array([[1.0, 1.0, 0.0], [1.0, 0.0, 1.0]])
    found = auc(np.array([0.1, 0.2, 0.3]), np.array([False, False, True]), weight)
    assert np.isnan(found[0])
    assert found[1] == 1
