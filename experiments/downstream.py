"""Tests whether generated nodules help a classifier of malignancy or category, with few or all real nodules.

The classifier is a logistic regression on the features, the diameter and coarse voxels. It weighs classes equally with and
without additional nodules. So a gain does not come from balance alone.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from experiments.cohorts import WINDOW
from gmmae.classification.features import block_means
from gmmae.classification.scores import auc, share
from gmmae.data.volumes import Nodules
from gmmae.generation.judging.features import features
from gmmae.generation.judging.novelty import nearest, novelty

NUMBERS = (50, 100, 200, 0)
"""Numbers of real training nodules (0: all)."""
DRAWS = 4
"""Number of random choices of these nodules for each seed. A seed's value is their mean."""
LEAST = 3
"""Minimum number of nodules of each class among them."""
MULTIPLE = 3
"""Number of generated nodules for each real one."""
STRENGTH = 0.01
"""C of scikit-learn's regression, the inverse of its regularisation. It was set without a search."""
POOLED = 4
"""Voxels along each axis of the coarse volume, which are means of the volume's."""

Maker = Callable[[Nodules, Sequence[str], int, int], list[Nodules]]
"""Function from labelled training nodules, labels, a count and a seed to `count` new nodules of each label, with details."""


class Task(NamedTuple):
    """Labelled nodules for training and for evaluation. Their `categories` are the labels."""

    train: Nodules
    judged: Nodules


def labelled(nodules: Nodules, labels: Sequence[str]) -> Nodules:
    """Returns the nodules that have a label, with the label in place of the category."""
    index = np.flatnonzero([bool(label) for label in labels])
    return nodules.take(index)._replace(categories=tuple(labels[i] for i in index.tolist()))


def one_by_one(make: Callable[[Nodules, int, int], Nodules]) -> Maker:
    """Returns a maker that generates nodules of each label from the training nodules with that label."""

    def maker(training: Nodules, labels: Sequence[str], count: int, seed: int) -> list[Nodules]:
        categories = np.array(training.categories)
        return [make(training.take(np.flatnonzero(categories == label)), count, seed) for label in labels]

    return maker


def malignancy(scores: Float[np.ndarray, " samples"]) -> list[str]:
    """Returns benign for scores of 1 and 2, malignant for 4 and 5, and "" between.

    >>> malignancy(np.array([1, 2, 3, 4.5]))
    ['benign', 'benign', '', 'malignant']
    """
    return ["benign" if score <= 2 else "malignant" if score >= 4 else "" for score in scores]


def inputs(nodules: Nodules) -> Float[np.ndarray, "samples inputs"]:
    """Returns 29 features, the logarithm of the diameter, and 4³ means of the windowed volume."""
    assert nodules.details is not None
    sizes = np.log(nodules.details.diameter_mm)
    means = block_means(nodules.values, WINDOW, POOLED)
    return np.column_stack([features(nodules.values, nodules.masks, WINDOW), sizes, means])


def run(task: Task, makers: dict[str, Maker], seed: int) -> list[dict[str, Any]]:
    """Returns the scores of all evaluated nodules for each number of real nodules, draw and way to generate more.

    Each way generates `MULTIPLE` times as many nodules, equally of each class.

    Returns:
      A row each: real, draw, arm, `classes`, `scores` (evaluated nodules × classes), and `nn_sym`. That is the novelty of the
      generated nodules relative to the whole training set (`gmmae.generation.judging.novelty`), or None if there are none.
    """
    classes = sorted(set(task.train.categories))
    judged = inputs(task.judged)
    apart = nearest(task.judged.values, task.train.values, WINDOW, symmetric=True).distance
    rows = []
    for number in NUMBERS:
        for draw in range(DRAWS):
            lot = np.random.SeedSequence([seed, number, draw])
            index = choose(task.train.categories, number or len(task.train.names), np.random.default_rng(lot))
            real = task.train.take(index)
            x, y = inputs(real), np.array(real.categories)
            for arm, make in {"real": None, **makers}.items():
                more_x, more_y, new = x[:0], y[:0], None
                if make is not None:
                    count, state = MULTIPLE * len(index) // len(classes), int(lot.generate_state(1)[0]) % 2**31
                    made = make(real, classes, count, state)
                    values = np.concatenate([some.values for some in made])
                    new = round(novelty(nearest(values, task.train.values, WINDOW, symmetric=True).distance, apart), 4)
                    more_x = np.concatenate([inputs(some) for some in made])
                    more_y = np.repeat(classes, count)
                scores = _scores(np.concatenate([x, more_x]), np.concatenate([y, more_y]), judged)
                row = {"real": number, "draw": draw, "arm": arm, "classes": classes, "scores": scores.round(5).tolist()}
                rows.append(row | {"nn_sym": new})
            if not number:
                break  # there is one choice of all
    return rows


def choose(labels: Sequence[str], number: int, rng: np.random.Generator) -> np.ndarray:
    """Returns increasing indices of `number` random samples, with at least 3 of each class."""
    kinds = np.asarray(labels)
    order = rng.permutation(len(kinds))
    first = np.concatenate([order[kinds[order] == name][:LEAST] for name in np.unique(kinds)])
    rest = order[~np.isin(order, first)]
    return np.sort(np.concatenate([first, rest])[:number])


def _scores(x: np.ndarray, y: np.ndarray, judged: np.ndarray) -> Float[np.ndarray, "judged classes"]:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    classifier = make_pipeline(StandardScaler(), LogisticRegression(C=STRENGTH, class_weight="balanced", max_iter=2000))
    return classifier.fit(x, y).predict_proba(judged)


def figure(
    scores: Float[np.ndarray, "judged classes"], labels: Sequence[str], classes: Sequence[str], weight: np.ndarray
) -> np.ndarray:
    """Returns the AUC of two classes, or the balanced accuracy of more, for each row of weights (1 a nodule: unweighted).

    It is NaN if a class has no weight.
    """
    truth = np.array([classes.index(label) for label in labels])
    if len(classes) > 2:
        right = scores.argmax(1) == truth
        of_class = [truth == i for i in range(len(classes))]
        return np.mean([share(weight[:, own] @ right[own], weight[:, own].sum(1)) for own in of_class], axis=0)
    return auc(scores[:, 1], truth == 1, weight)
