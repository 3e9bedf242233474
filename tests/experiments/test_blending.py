"""What the study says of a classifier: its folds and its interval go by patient."""

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from experiments.blending import auc, fold_of

PATIENTS = [*"aabbbcdefghhij"]


def test_a_fold_holds_all_nodules_of_a_patient_and_their_insertions():
    both = np.array([*PATIENTS, *PATIENTS])
    folds = [fold_of(PATIENTS, fold) for fold in range(5)]
    assert sorted(np.concatenate([test for _, test in folds])) == list(range(28))
    for train, test in folds:
        assert not set(both[train]) & set(both[test])


def test_the_interval_of_the_auc_resamples_patients():
    rng = np.random.default_rng(0)
    score = np.concatenate([rng.uniform(0, 0.8, 14), rng.uniform(0.2, 1, 14)])
    found = auc(score, PATIENTS)
    assert found.value == pytest.approx(roc_auc_score(np.repeat([0, 1], 14), score))
    assert found.low < found.value < found.high
    assert np.isnan(auc(score, ["a"] * 14).low)
