"""Logistic regression and gradient boosting, with settings that are chosen on validation samples."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int
from sklearn import clone
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from gmmae.classification.samples import Labelled
from gmmae.data import grouped
from gmmae.data.grouped import Estimate, Weights

Probabilities = Float[np.ndarray, "samples classes"]

# Each split of a tree sees a random part of the features, so seeds differ.
BOOSTING: Any = HistGradientBoostingClassifier(random_state=0).set_params(
    learning_rate=0.05, max_features=0.3, early_stopping=False
)
METHODS: dict[str, tuple[Any, dict[str, list[Any]]]] = {
    "logistic regression": (
        make_pipeline(StandardScaler(), LogisticRegression(max_iter=5000)),
        {"logisticregression__C": [0.0001, 0.001, 0.01, 0.1, 1.0]},
    ),
    "gradient boosting": (BOOSTING, {"max_iter": [25, 50, 100, 200], "max_leaf_nodes": [4, 16]}),
}
"""The classifiers, and the settings to choose from; simpler ones come first."""
MIN_TO_BOOST = 2 * BOOSTING.min_samples_leaf
"""A tree divides no smaller training set, and gives the same probability to all."""


class Result(NamedTuple):
    """A classifier of one kind of features, with mean scores over runs and seeds on the test samples."""

    kind: str
    features: int  # their number
    method: str  # the classifier
    auc: Estimate  # with an interval over patients
    auc_sd: float  # between runs and seeds
    accuracy: Estimate
    accuracy_sd: float
    settings: list[dict[str, Any]]  # chosen for each run
    probabilities: Probabilities  # of the test samples' classes, mean over runs and seeds


def compare(labelled: Labelled, runs: Sequence[dict[str, np.ndarray]], seeds: int, say: Callable[[str], None]) -> list[Result]:
    """Fits all classifiers to the training samples and judges them by the test samples."""
    train, test, truth = labelled.train, labelled.test, labelled.truth
    weight = grouped.weights(labelled.nodules.table["group"][test], seed=0)
    results = []
    for kind in runs[0]:
        for name, (method, settings) in METHODS.items():
            chosen, found = [], []
            for inputs in (run[kind] for run in runs):
                chosen.append(choose(method, settings, inputs, truth, labelled.folds))
                for seed in range(seeds):
                    fitted: Any = clone(method)
                    fitted.set_params(**chosen[-1])
                    if method is BOOSTING:
                        fitted.set_params(random_state=seed)
                    # One thread is enough for so few samples. Several took ten times as long beside other work.
                    with threadpool_limits(1):
                        found.append(fitted.fit(inputs[train], truth[train]).predict_proba(inputs[test]))
            aucs, shares = (np.array([score(one, truth[test], weight) for one in found]) for score in (macro_auc, accuracy))
            auc, right = (grouped.estimate(values.mean(0)) for values in (aucs, shares))
            sds = [float(values[:, 0].std(ddof=1)) if len(found) > 1 else np.nan for values in (aucs, shares)]
            count = runs[0][kind].shape[1]
            results.append(Result(kind, count, name, auc, sds[0], right, sds[1], chosen, np.mean(found, axis=0)))
        say(f"{kind}: AUC {', '.join(f'{result.auc.value:.3f} ({result.method})' for result in results[-len(METHODS) :])}")
    return results


def choose(
    method: Any,  # noqa: ANN401
    settings: dict[str, list[Any]],
    inputs: np.ndarray,
    truth: np.ndarray,
    folds: Sequence[tuple[np.ndarray, np.ndarray]],
) -> dict[str, Any]:
    """The settings with the largest mean AUC, then with the smallest mean log loss: one feature has the same AUC for all."""
    scores = {"auc": "roc_auc_ovr", "log_loss": "neg_log_loss"}
    with threadpool_limits(1):
        found = GridSearchCV(method, settings, scoring=scores, cv=folds, refit=False).fit(inputs, truth).cv_results_
    ranked = zip(found["mean_test_auc"].round(9), found["mean_test_log_loss"], found["params"], strict=True)
    return max(ranked, key=lambda row: row[:2])[2]


def macro_auc(probabilities: Probabilities, truth: Int[np.ndarray, " samples"], weight: Weights) -> np.ndarray:
    """The AUC of two classes, or the mean AUC of each of more classes against the rest, as MedMNIST defines it."""
    n = probabilities.shape[1]
    first = 1 if n == 2 else 0  # the area of the other of two classes is the same
    return np.mean([grouped.auc(probabilities[:, i], truth == i, weight) for i in range(first, n)], axis=0)


def accuracy(probabilities: Probabilities, truth: Int[np.ndarray, " samples"], weight: Weights) -> np.ndarray:
    """The share of samples whose class is the most probable one."""
    return weight @ (probabilities.argmax(1) == truth) / weight.sum(1)
