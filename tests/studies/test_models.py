"""What the study asks of a trained model."""

from types import SimpleNamespace

import numpy as np

from studies import models
from tests.generation.nodules import balls


def test_the_generator_of_labelled_nodules_knows_all_and_the_labels_of_some(monkeypatch):
    everything = balls(0, 6)
    known = everything.take(np.array([1, 4]))._replace(categories=("benign", "malignant"))
    seen = {}

    def fit(model, training, held_out):
        seen["labels"] = training.categories
        return SimpleNamespace(sample=sample)

    def sample(count, label, seed, strengths):
        return SimpleNamespace(nodules=(label, count, seed, strengths.bandwidth))

    monkeypatch.setattr(models.generator, "fit", fit)
    trained = models.Trained(None, None, everything)  # pyright: ignore[reportArgumentType]
    made = models.labelled(trained, everything, known, balls(1, 4), ["benign", "malignant"], 12, seed=3)
    assert seen["labels"] == ("", "benign", "", "", "malignant", "")
    assert made == [(label, 12, 3, models.FOR_CLASSIFIERS.bandwidth) for label in ("benign", "malignant")]
