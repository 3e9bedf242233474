"""Which samples judge a classifier."""

import numpy as np
import pytest

from gmmae.classification.samples import LabelRule, load
from gmmae.data.settings import DataConfig


def loaded(folder, rule, **columns):
    """Writes 60 volumes with columns, and divides them for a classifier."""
    volumes = np.random.default_rng(0).integers(-900, 300, (60, 8, 8, 8)).astype(np.int16)
    np.savez(folder / "a.npz", volumes=volumes, **columns)
    root, cache = str(folder / "a.npz"), str(folder / "cache")
    return load(DataConfig(source="cubes", root=root, cache=cache, crop="whole", shape=8, workers=1), rule)


@pytest.mark.parametrize("rule", [LabelRule(), LabelRule("malignant")])
@pytest.mark.parametrize(("labels", "classes"), [([0, 1, np.nan], ("0.0", "1.0")), (["0", "1", "NA"], ("0", "1"))])
@pytest.mark.parametrize("limits", [(), (0, 1)])
def test_nan_and_na_are_no_labels(tmp_path, rule, labels, classes, limits):
    malignant = np.resize(labels, 60)
    labelled = loaded(tmp_path, LabelRule(rule.column, *limits), malignant=malignant, categories=malignant)
    assert (labelled.classes, labelled.unlabelled) == (("at least 1", "at most 0") if limits else classes, 20)


def test_few_patients_judge_each_once_and_are_on_one_side(tmp_path):
    patients, kinds = (np.repeat(column, 3) for column in (np.arange(20), ["benign", "malignant"] * 10))
    labelled = loaded(tmp_path, LabelRule(), patient=patients, categories=kinds)
    groups = labelled.nodules.table["group"]
    assert np.sort(np.concatenate([test for _, test, _ in labelled.rounds])).tolist() == list(range(60))
    assert labelled.rounds[-1][0].tolist() == list(range(60))  # what is kept is fitted to all
    for train, test, folds in labelled.rounds:
        for fitted, judged in ((train, test), *folds):
            assert not set(groups[fitted]) & set(groups[judged])
        assert {index for fold in folds for side in fold for index in side} <= set(train.tolist())
