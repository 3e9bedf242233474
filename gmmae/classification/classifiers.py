"""Logistic regression and gradient boosting, with settings that are chosen on validation samples."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from gmmae.classification.scores import macro_auc

Settings = dict[str, Any]

INVERSE_PENALTIES = (0.0001, 0.001, 0.01, 0.1, 1.0)
LEAVES = (4, 16)
ITERATIONS = (25, 50, 100, 200)
BOOSTING = {"learning_rate": 0.05, "max_features": 0.3, "early_stopping": False}
"""Settings of all boosted trees. Each split sees a random part of the features, so seeds differ."""
MIN_TO_BOOST = 2 * HistGradientBoostingClassifier().min_samples_leaf
"""Minimum number of samples of a tree that divides them. A smaller training set gives the same probability to all."""


class Method(NamedTuple):
    """A classifier, and the settings to choose from; simpler ones come first.

    `make` takes settings and a seed.
    """

    name: str
    make: Callable[[Settings, int], Any]
    settings: Sequence[Settings]


def _logistic(settings: Settings, seed: int) -> Any:  # noqa: ANN401
    return make_pipeline(StandardScaler(), LogisticRegression(max_iter=5000, random_state=seed, **settings))


def _boosting(settings: Settings, seed: int) -> Any:  # noqa: ANN401
    return HistGradientBoostingClassifier(random_state=seed, **BOOSTING, **settings)


METHODS = (
    Method("logistic regression", _logistic, tuple({"C": value} for value in INVERSE_PENALTIES)),
    Method(
        "gradient boosting",
        _boosting,
        tuple({"max_leaf_nodes": leaves, "max_iter": count} for leaves in LEAVES for count in ITERATIONS),
    ),
)


class Fold(NamedTuple):
    """Indices of samples to fit to, and of others to choose settings by."""

    fit: Int[np.ndarray, " fit"]
    judge: Int[np.ndarray, " judge"]


def choose(method: Method, inputs: Float[np.ndarray, "samples features"], truth: np.ndarray, folds: Sequence[Fold]) -> Settings:
    """Returns the settings with the largest mean AUC over the folds. Of equal ones it takes the smallest mean log loss.

    The AUC of a single feature is the same for all penalties.
    """

    def value(settings: Settings) -> tuple[float, float]:
        aucs, losses = [], []
        for fold in folds:
            judged = truth[fold.judge]
            probabilities = predict(method, settings, 0, inputs[fold.fit], truth[fold.fit], inputs[fold.judge])
            aucs.append(macro_auc(probabilities, judged, np.ones((1, len(judged))))[0])
            losses.append(-np.log(np.maximum(probabilities[np.arange(len(judged)), judged], 1e-12)).mean())
        return round(float(np.mean(aucs)), 9), -float(np.mean(losses))

    return max(method.settings, key=value)


def predict(
    method: Method,
    settings: Settings,
    seed: int,
    inputs: Float[np.ndarray, "fit features"],
    truth: Int[np.ndarray, " fit"],
    others: Float[np.ndarray, "others features"],
) -> Float[np.ndarray, "others classes"]:
    """Fits a classifier. Returns the probabilities of the classes for other samples.

    One thread is enough for so few samples. Several wait for each other, and took ten times as long beside other work.
    """
    with threadpool_limits(1):
        return method.make(settings, seed).fit(inputs, truth).predict_proba(others)
