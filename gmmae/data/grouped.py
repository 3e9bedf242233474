"""Statistics of samples in groups, such as a patient's nodules: folds, AUC, and bootstrap intervals.

The nodules of a patient resemble each other, so they are held out together and resampled together.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Shaped

FOLDS = 5
RESAMPLES = 500
CONFIDENCE_LEVEL = 0.95
MIN_GROUPS = 2
"""Fewest groups for an interval; all resamples of a single one are equal."""
FEW_GROUPS = 10
"""Fewer groups make an interval too narrow.

In 3,000 trials with normal data it contained the true mean in 52 % for 2 groups, 83 % for 5, 89 % for 10, and 94 % for 100.
"""

Groups = Sequence[str] | Shaped[np.ndarray, " samples"]
Weights = Float[np.ndarray, "resamples samples"]


class Estimate(NamedTuple):
    """A value and its interval. NaN is unknown."""

    value: float = math.nan
    low: float = math.nan
    high: float = math.nan

    def text(self, number: Callable[[float], str]) -> str:
        """The value, with its interval in brackets if the bounds differ; a dash if it is unknown.

        >>> Estimate(2.0, 1.0, 4.0).text("{:g}".format), Estimate(2.0, 2.0, 2.0).text("{:g}".format), Estimate().text(str)
        ('2 (1 to 4)', '2', '–')
        """
        if math.isnan(self.value):
            return "–"
        high = "∞" if math.isinf(self.high) else number(self.high)
        return number(self.value) + (f" ({number(self.low)} to {high})" if self.low < self.high else "")


def folds(labels: Shaped[np.ndarray, " samples"], groups: Groups, seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Indices of training and test of `FOLDS` random folds with whole groups; folds without a label on a side are left out."""
    # NumPy's older generator: scikit-learn's GroupKFold divides by it, and so did earlier judgements.
    names = np.random.RandomState(seed).permutation(np.unique(groups))
    tests = [np.isin(groups, part) for part in np.array_split(names, FOLDS)]
    sides = [(np.flatnonzero(~test), np.flatnonzero(test)) for test in tests]
    return [pair for pair in sides if all(len(set(labels[side])) == len(set(labels)) for side in pair)]


def weights(groups: Groups, seed: int) -> Weights:
    """Ones, and below them how often each sample is in each resample of the groups, with replacement.

    The resamples are NaN for fewer than `MIN_GROUPS` groups.

    >>> np.unique(weights(["a", "a", "b"], seed=0), axis=0).tolist()
    [[0.0, 0.0, 2.0], [1.0, 1.0, 1.0], [2.0, 2.0, 0.0]]
    """
    names, group_index = np.unique(np.asarray(groups), return_inverse=True)
    drawn = np.random.default_rng(seed).multinomial(len(names), np.full(len(names), 1 / len(names)), RESAMPLES)
    known = drawn[:, group_index] if len(names) >= MIN_GROUPS else np.full((RESAMPLES, len(group_index)), np.nan)
    return np.vstack([np.ones(len(group_index)), known])


def estimate(values: Float[np.ndarray, " resamples"]) -> Estimate:
    """The first value, with the percentile interval of the others, its resamples; NaN among these are left out."""
    known = values[1:][~np.isnan(values[1:])]
    low, high = (
        np.percentile(known, [50 * (1 - CONFIDENCE_LEVEL), 50 * (1 + CONFIDENCE_LEVEL)]) if len(known) else (math.nan,) * 2
    )
    return Estimate(float(values[0]), float(low), float(high))


def mean(values: Float[np.ndarray, " samples"], groups: Groups, seed: int = 0) -> Estimate:
    """The mean with its interval by groups; a mean that is not finite has none.

    >>> mean(np.array([1.0, 1.0, 4.0]), ["a", "a", "b"])
    Estimate(value=2.0, low=1.0, high=4.0)
    """
    if not np.isfinite(values).all():
        return Estimate(float(values.mean()))
    drawn = weights(groups, seed)
    return estimate(drawn @ values / drawn.sum(1))


def auc(
    score: Float[np.ndarray, " samples"], positive: Bool[np.ndarray, " samples"], weight: Weights
) -> Float[np.ndarray, " resamples"]:
    """The area under the ROC curve for each row of weights; NaN if one of the two classes has no weight.

    scikit-learn's takes one row at a time.

    >>> auc(np.array([0.1, 0.4, 0.35, 0.8]), np.array([False, False, True, True]), np.ones((1, 4))).tolist()
    [0.75]
    """
    above = score[positive] - score[~positive][:, None]
    wins = (above > 0) + 0.5 * (above == 0)
    negative, positives = weight[:, ~positive], weight[:, positive]
    pairs = negative.sum(1) * positives.sum(1)
    return ((negative @ wins) * positives).sum(1) / np.where(pairs > 0, pairs, np.nan)
