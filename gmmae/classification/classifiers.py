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
LINEAR = "logistic regression"
"""The classifier that is kept for other volumes."""
METHODS: dict[str, tuple[Any, dict[str, list[Any]]]] = {
    LINEAR: (
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
    fitted: Any = None  # the first run's classifier for other volumes


def compare(labelled: Labelled, runs: Sequence[dict[str, np.ndarray]], seeds: int, say: Callable[[str], None]) -> list[Result]:
    """Fits all classifiers to training samples and judges them by test samples."""
    test, truth, results = labelled.test, labelled.truth, []
    groups = labelled.nodules.table["group"][test]
    # Boosting many folds would take minutes, and gains nothing on so few samples.
    methods = {LINEAR: METHODS[LINEAR]} if labelled.rounds[1:] else METHODS
    for kind in runs[0]:
        for name, (method, settings) in methods.items():
            chosen, found, kept = [], [], []
            for inputs in (run[kind] for run in runs):
                fits = seeds if method is BOOSTING else 1  # a logistic regression has no seed
                answers, best = np.zeros((fits, len(truth), len(labelled.classes))), {}
                fitted: Any = method
                for train, judged, folds in labelled.rounds:
                    best = choose(method, settings, inputs, truth, folds)
                    for seed in range(fits):
                        fitted = clone(method)
                        fitted.set_params(**best)
                        if method is BOOSTING:
                            fitted.set_params(random_state=seed)
                        # Several threads took ten times as long beside other work.
                        with threadpool_limits(1):
                            fitted.fit(inputs[train], truth[train])
                            if len(judged):
                                answers[seed, judged] = fitted.predict_proba(inputs[judged])
                chosen.append(best)
                kept.append(fitted)
                found.extend(answers[:, test])
            parts = [np.searchsorted(test, judged) for _, judged, _ in labelled.rounds if len(judged)]
            result = scored(kind, name, np.array(found), truth[test], groups, parts)
            results.append(result._replace(features=runs[0][kind].shape[1], settings=chosen, fitted=kept[0]))
        say(f"{kind}: AUC {', '.join(f'{result.auc.value:.3f} ({result.method})' for result in results[-len(methods) :])}")
    return results


def scored(
    kind: str,
    name: str,
    found: np.ndarray,
    truth: Int[np.ndarray, " samples"],
    groups: grouped.Groups,
    parts: Sequence[np.ndarray],
) -> Result:
    """The scores of a classifier's fits, by the probabilities that each gives.

    `parts` are judged by classifiers of their own, whose probabilities are not comparable: the AUC is the mean over those
    with two classes.
    """
    weight, scores = grouped.weights(groups, seed=0), []

    def mean_auc(one: Probabilities) -> np.ndarray:
        aucs = np.array([macro_auc(one[part], truth[part], weight[:, part]) for part in parts])
        known = (~np.isnan(aucs)).sum(0)
        return np.nansum(aucs, 0) / np.where(known, known, np.nan)

    for values in (map(mean_auc, found), (accuracy(one, truth, weight) for one in found)):
        values = np.array([*values])
        scores.append((grouped.estimate(values.mean(0)), float(values[:, 0].std(ddof=1)) if len(found) > 1 else np.nan))
    (auc, auc_sd), (right, right_sd) = scores
    return Result(kind, 0, name, auc, auc_sd, right, right_sd, [], found.mean(0))


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
    # The area of the other of two classes is the same.
    return np.mean([grouped.auc(probabilities[:, i], truth == i, weight) for i in range(n == 2, n)], axis=0)


def accuracy(probabilities: Probabilities, truth: Int[np.ndarray, " samples"], weight: Weights) -> np.ndarray:
    """The share of samples whose class is the most probable one."""
    return weight @ (probabilities.argmax(1) == truth) / weight.sum(1)
