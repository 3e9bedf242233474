"""Whether generated nodules help a classifier: malignancy and category, learnt from few or all real nodules, with and without
more.

The classifier is a logistic regression on the features, the diameter and coarse voxels; it weighs classes equally with and
without more nodules, so that a gain is not one of balance alone.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from experiments.cohorts import WINDOW
from gmmae.data.volumes import Nodules
from gmmae.generation.judging.features import features
from gmmae.generation.judging.novelty import nearest, novelty

NUMBERS = (50, 100, 200, 0)
"""Real training nodules; 0: all."""
DRAWS = 4
"""Choices of these nodules for each seed: their mean is the seed's figure."""
LEAST = 3
"""Of each class among them."""
MULTIPLE = 3
"""Nodules that are made for each real one."""
STRENGTH = 0.01
"""C of scikit-learn's regression, the inverse of its regularisation; set by hand, not searched for."""
POOLED = 4
"""Voxels along each axis, means of the volume's."""

Maker = Callable[[Nodules, Sequence[str], int, int], list[Nodules]]
"""(training nodules whose categories are labels, labels, count, seed) → so many more of each label, with details."""


class Task(NamedTuple):
    """Labelled nodules to learn from and to be judged by; `categories` of both are the labels."""

    train: Nodules
    judged: Nodules


def labelled(nodules: Nodules, labels: Sequence[str]) -> Nodules:
    """The nodules that have a label, with it in place of the category."""
    index = np.flatnonzero([bool(label) for label in labels])
    return nodules.take(index)._replace(categories=tuple(labels[i] for i in index.tolist()))


def one_by_one(make: Callable[[Nodules, int, int], Nodules]) -> Maker:
    """Of what makes nodules like all of a training set: those of each label from the ones that have it."""

    def maker(training: Nodules, labels: Sequence[str], count: int, seed: int) -> list[Nodules]:
        categories = np.array(training.categories)
        return [make(training.take(np.flatnonzero(categories == label)), count, seed) for label in labels]

    return maker


def malignancy(scores: Float[np.ndarray, " samples"]) -> list[str]:
    """Benign for scores of 1 and 2, malignant for 4 and 5, nothing between.

    >>> malignancy(np.array([1, 2, 3, 4.5]))
    ['benign', 'benign', '', 'malignant']
    """
    return ["benign" if score <= 2 else "malignant" if score >= 4 else "" for score in scores]


def inputs(nodules: Nodules) -> Float[np.ndarray, "samples inputs"]:
    """29 features, the logarithm of the diameter, and 4³ means of the windowed volume."""
    low, high = WINDOW
    shares = (np.clip(nodules.values, low, high) - low) / (high - low)
    for axis in (1, 2, 3):
        parts = np.array_split(np.arange(shares.shape[axis]), POOLED)
        shares = np.stack([shares.take(part, axis).mean(axis) for part in parts], axis)
    assert nodules.details is not None
    sizes = np.log(nodules.details.diameter_mm)
    return np.column_stack([features(nodules.values, nodules.masks, WINDOW), sizes, shares.reshape(len(shares), -1)])


def run(task: Task, makers: dict[str, Maker], seed: int) -> list[dict[str, Any]]:
    """The scores of all judged nodules, for each number of real nodules, draw and way to make `MULTIPLE` times as many more,
    equally of each class.

    Returns:
      A row each: real, draw, arm, `classes`, `scores`, of judged nodules × classes, and `nn_sym`, how novel what was made is
      beside all of the training set (`gmmae.generation.judging.novelty`); None where nothing was.
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
    """Increasing indices of so many samples drawn by lot, with at least 3 of each class."""
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
    """Of two classes the AUC, of more the balanced accuracy: one for each row of weights (1 a nodule: the plain figure).

    NaN where a class has no weight.
    """
    truth = np.array([classes.index(label) for label in labels])
    if len(classes) > 2:
        right = scores.argmax(1) == truth
        of_class = [truth == i for i in range(len(classes))]
        return np.mean([_share(weight[:, own] @ right[own], weight[:, own].sum(1)) for own in of_class], axis=0)
    above = scores[truth == 1, 1][None] - scores[truth == 0, 1][:, None]
    negative, positive = weight[:, truth == 0], weight[:, truth == 1]
    wins = ((negative @ ((above > 0) + 0.5 * (above == 0))) * positive).sum(1)
    return _share(wins, negative.sum(1) * positive.sum(1))


def _share(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    return part / np.where(whole > 0, whole, np.nan)
