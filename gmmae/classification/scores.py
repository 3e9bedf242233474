"""AUC and accuracy of predicted probabilities, with weights for the samples, as MedMNIST defines them.

The weights are those of a bootstrap (`gmmae.generation.judging.bootstrap.weights`), a row for each resample.
"""

import numpy as np
from jaxtyping import Bool, Float, Int

THRESHOLD = 0.5
"""Probability above which a sample counts as one of the second of two classes."""

Weights = Float[np.ndarray, "resamples samples"]


def auc(score: Float[np.ndarray, " samples"], positive: Bool[np.ndarray, " samples"], weight: Weights) -> np.ndarray:
    """Returns the area under the ROC curve for each row of weights. It is NaN if one of the two classes has no weight.

    >>> auc(np.array([0.1, 0.4, 0.35, 0.8]), np.array([False, False, True, True]), np.ones((1, 4))).tolist()
    [0.75]
    """
    above = score[positive][None] - score[~positive][:, None]
    of_negative, of_positive = weight[:, ~positive], weight[:, positive]
    wins = ((of_negative @ ((above > 0) + 0.5 * (above == 0))) * of_positive).sum(1)
    return share(wins, of_negative.sum(1) * of_positive.sum(1))


def macro_auc(
    probabilities: Float[np.ndarray, "samples classes"], truth: Int[np.ndarray, " samples"], weight: Weights
) -> np.ndarray:
    """Returns the AUC of two classes, or the mean AUC of each of more classes against the rest."""
    classes = range(1, 2) if probabilities.shape[1] == 2 else range(probabilities.shape[1])
    return np.mean([auc(probabilities[:, i], truth == i, weight) for i in classes], axis=0)


def accuracy(
    probabilities: Float[np.ndarray, "samples classes"], truth: Int[np.ndarray, " samples"], weight: Weights
) -> np.ndarray:
    """Returns the share of samples whose class is the most probable one."""
    two = probabilities.shape[1] == 2
    predicted = probabilities[:, 1] > THRESHOLD if two else probabilities.argmax(1)
    return share(weight @ (predicted == truth), weight.sum(1))


def share(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """Returns a quotient, which is NaN where the whole is 0.

    >>> share(np.array([1.0, 0.0]), np.array([2.0, 0.0])).tolist()
    [0.5, nan]
    """
    return part / np.where(whole > 0, whole, np.nan)
