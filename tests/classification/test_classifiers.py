"""How many samples a classifier needs."""

import numpy as np
import pytest

from gmmae.classification.classifiers import METHODS, MIN_TO_BOOST, predict


@pytest.mark.parametrize(("count", "divided"), [(MIN_TO_BOOST - 2, False), (MIN_TO_BOOST, True)])
def test_boosted_trees_need_some_samples_to_divide(count, divided):
    (boosting,) = [method for method in METHODS if method.name == "gradient boosting"]
    truth = np.arange(count) % 2
    inputs = np.stack([truth, truth], 1) + np.arange(count)[:, None] / 1000
    probabilities = predict(boosting, boosting.settings[0], 0, inputs, truth, inputs)
    assert bool(np.ptp(probabilities[:, 1]) > 0.1) is divided
