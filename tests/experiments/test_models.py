"""What the study asks of a trained model."""

from types import SimpleNamespace

import numpy as np

from experiments import models
from gmmae.generation.generator import Wanted
from gmmae.system.errors import InputError
from tests.generation.nodules import balls


def test_the_generator_of_labelled_nodules_knows_all_and_the_labels_of_some(monkeypatch):
    everything = balls(0, 6)
    known = everything.take(np.array([1, 4]))._replace(categories=("benign", "malignant"))
    seen = {}

    def fit(model, training, held_out):
        seen["labels"] = training.categories
        return SimpleNamespace(sample=sample)

    def sample(count, label, seed, strengths):
        if label.category == "malignant" and strengths.bandwidth < 1:
            raise InputError("copies")
        return SimpleNamespace(nodules=(label, count, seed, strengths.bandwidth))

    monkeypatch.setattr(models.generator, "fit", fit)
    run = models.Run(None, everything)  # pyright: ignore[reportArgumentType]
    made = models.labelled(run, everything, known, balls(1, 4), ["benign", "malignant"], 12, seed=3)
    assert seen["labels"] == ("", "benign", "", "", "malignant", "")
    asked = [(Wanted("benign"), 12, 3, 0.6), (Wanted("malignant"), 12, 3, 1.2)]
    assert made == asked  # the first bandwidth with which there are no copies
