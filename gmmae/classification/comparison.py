"""Classifiers of each kind of features, with their AUC and accuracy on the test samples."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from gmmae.classification.classifiers import METHODS, Method, Settings, choose, predict
from gmmae.classification.samples import Labelled
from gmmae.classification.scores import accuracy, macro_auc
from gmmae.generation.judging import bootstrap
from gmmae.generation.judging.bootstrap import Estimate


class Result(NamedTuple):
    """The classifiers of one kind of features.

    Attributes:
      kind: of the features.
      features: their number.
      method: name of the classifier.
      auc: mean over runs and seeds on the test samples, with an interval over patients.
      auc_sd: standard deviation between runs and seeds.
      accuracy: likewise.
      accuracy_sd: likewise.
      settings: chosen for each run.
      probabilities: of the classes of each test sample, mean over runs and seeds.
    """

    kind: str
    features: int
    method: str
    auc: Estimate
    auc_sd: float
    accuracy: Estimate
    accuracy_sd: float
    settings: tuple[Settings, ...]
    probabilities: Float[np.ndarray, "test classes"]


def compare(labelled: Labelled, runs: Sequence[dict[str, np.ndarray]], seeds: int, say: Callable[[str], None]) -> list[Result]:
    """Fits all classifiers to the training samples and judges them by the test samples.

    Args:
      labelled: the samples.
      runs: features by kind, of each run.
      seeds: classifiers of each run, with the seeds 0, 1, …
      say: takes a line for each kind of features.
    """
    weight = bootstrap.weights([labelled.nodules.groups[i] for i in labelled.test.tolist()], seed=0)
    results = []
    for kind in runs[0]:
        for method in METHODS:
            results.append(_result(labelled, kind, method, [features[kind] for features in runs], seeds, weight))
        say(f"{kind}: AUC {', '.join(f'{result.auc.value:.3f} ({result.method})' for result in results[-len(METHODS) :])}")
    return results


def _result(
    labelled: Labelled, kind: str, method: Method, runs: Sequence[np.ndarray], seeds: int, weight: np.ndarray
) -> Result:
    truth, chosen, probabilities = labelled.truth, [], []
    for inputs in runs:
        settings = choose(method, inputs, truth, labelled.folds)
        chosen.append(settings)
        train, test = inputs[labelled.train], inputs[labelled.test]
        probabilities += [predict(method, settings, seed, train, truth[labelled.train], test) for seed in range(seeds)]
    tested = truth[labelled.test]
    once = np.ones((1, len(tested)))

    def estimate(measure: Callable[..., np.ndarray]) -> tuple[Estimate, float]:
        values = np.array([measure(of_one, tested, once)[0] for of_one in probabilities])
        resampled = np.mean([measure(of_one, tested, weight) for of_one in probabilities], axis=0)
        sd = float(values.std(ddof=1)) if len(values) > 1 else float("nan")
        return bootstrap.estimate(float(values.mean()), resampled), sd

    return Result(
        kind,
        runs[0].shape[1],
        method.name,
        *estimate(macro_auc),
        *estimate(accuracy),
        tuple(chosen),
        np.mean(probabilities, axis=0),
    )
