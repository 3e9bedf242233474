"""Two-sample tests: a classifier's AUC, Kolmogorov-Smirnov tests, and coverage."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from scipy.spatial.distance import cdist
from scipy.stats import false_discovery_control
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from gmmae.data import grouped
from gmmae.data.grouped import Estimate
from gmmae.generation.judging.features import IS_COPIED, NAMES
from gmmae.system.errors import InputError

REPETITIONS = 10
"""Divisions into folds, which are averaged."""
NEIGHBOURS = 5
"""As in the paper on coverage."""
SIGNIFICANCE = 0.05
EXCHANGES = 999
"""Exchanges of groups, so p is at least 1/1000."""


class Sample(NamedTuple):
    """Features of a set of nodules, and each one's group, its patient."""

    features: Float[np.ndarray, "samples features"]
    groups: Sequence[str]


class Comparison(NamedTuple):
    """A comparison of two sets."""

    samples: int  # in each set
    patients: tuple[int, int]  # in the first and in the second set; a nodule without a patient counts as one
    c2st: Estimate  # AUC of a classifier, 0.5 for one population
    c2st_rest: Estimate  # the same without the features that `gmmae generate` copies from a real nodule
    coverage: Estimate  # near 1 for one population
    ks_share: float  # of features whose Kolmogorov-Smirnov test has p of at least 0.05
    ks_share_corrected: float  # p adjusted for the false discovery rate (Benjamini and Hochberg 1995)
    ks: dict[str, tuple[float, float]]  # largest distance of the distributions of each feature, and p


def compare(real: Sample, other: Sample, seed: int = 0) -> Comparison:
    """Runs all tests of two sets with the features of `NAMES`."""
    rest = [sample._replace(features=sample.features[:, ~IS_COPIED]) for sample in (real, other)]
    statistic, p = ks_tests(real, other, seed)
    return Comparison(
        len(real.groups),
        (len(set(real.groups)), len(set(other.groups))),
        c2st(real, other, seed),
        c2st(rest[0], rest[1], seed),
        coverage(real, other, seed),
        float(np.mean(p >= SIGNIFICANCE)),
        float(np.mean(false_discovery_control(p) >= SIGNIFICANCE)),
        dict(zip(NAMES, zip(statistic.tolist(), p.tolist(), strict=True), strict=True)),
    )


def c2st(real: Sample, other: Sample, seed: int = 0) -> Estimate:
    """The AUC of a logistic regression that separates the sets, on held-out samples; 0.5 is perfect.

    It is the mean over the folds of several divisions, as scores of different classifiers are not comparable. The interval
    resamples groups with fixed classifiers: for 30 pairs of 120 a standard deviation of .035, where new populations have .050.
    A sample made from a nodule, such as its flipped copy, must have its group, or the two would lower the AUC.

    Source: Lopez-Paz and Oquab 2017.
    """
    inputs = np.concatenate([real.features, other.features])
    labels = np.repeat([0, 1], [len(real.features), len(other.features)])
    groups = np.array([*real.groups, *other.groups])
    weight = grouped.weights(groups, seed)
    aucs = []
    for repetition in range(REPETITIONS):
        for train, test in grouped.folds(labels, groups, seed + repetition):
            classifier = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)).fit(inputs[train], labels[train])
            aucs.append(grouped.auc(classifier.decision_function(inputs[test]), labels[test] == 1, weight[:, test]))
    if not aucs:
        raise InputError(
            f"training and test of a classifier's fold must both have nodules of both sets; got {len(set(groups))} groups "
            f"without such a division into {grouped.FOLDS} folds: add nodules of other patients"
        )
    # a resample may lack a label in a fold
    return grouped.estimate(np.ma.masked_invalid(aucs).mean(0).filled(np.nan))


def ks_tests(real: Sample, other: Sample, seed: int = 0) -> Float[np.ndarray, "2 features"]:
    """The largest distance between the two distributions of each feature, and its p value by group.

    p is the share of exchanges of whole groups between the sets with a distance at least as large. The classical p assumes
    independent samples: for two sets of one population (105 patients, 186 nodules), with correlations of 0, .7 and 1 between a
    patient's nodules, it was below .05 for 5, 19 and 47 % of the features, and this p for 4, 5 and 3 %.
    """
    labels = exchanged([*real.groups, *other.groups], len(real.groups), seed)
    found = []
    for values in np.concatenate([real.features, other.features]).T:
        order = np.argsort(values, kind="stable")
        last = np.append(np.diff(values[order]) > 0, True)  # the last of equal values
        one, two = (np.cumsum(side[:, order], axis=1, dtype=np.int32)[:, last] for side in (labels, ~labels))
        distance = np.abs(one / one[:, -1:] - two / two[:, -1:]).max(1)
        found.append((distance[0], np.mean(distance >= distance[0] - 1e-12)))  # tolerance of rounding
    return np.array(found).T


def exchanged(groups: Sequence[str], first: int, seed: int) -> Bool[np.ndarray, "exchanges samples"]:
    """Which samples are in the first set: in row 0 the `first` ones, in the others after exchanges of whole groups.

    Groups in one set are permuted between the sets; one in both, such as a nodule and its reconstruction, swaps its sides with
    a probability of 1/2.
    """
    names, group_index = np.unique(np.asarray(groups), return_inverse=True)
    label = np.arange(len(group_index)) < first
    in_first, in_second = (np.bincount(group_index, side, len(names)) > 0 for side in (label, ~label))
    both, alone, rng = in_first & in_second, np.flatnonzero(in_first != in_second), np.random.default_rng(seed)
    rows = [label]
    for _ in range(EXCHANGES):
        of_group = np.zeros(len(names), bool)
        of_group[alone] = rng.permutation(in_first[alone])
        swapped = label ^ (rng.random(len(names)) < 0.5)[group_index]
        rows.append(np.where(both[group_index], swapped, of_group[group_index]))
    return np.array(rows)


def coverage(real: Sample, other: Sample, seed: int = 0) -> Estimate:
    """Coverage by balls around the real samples (Naeem et al. 2020, Eq. 4).

    A ball's radius is the distance to the fifth nearest real sample, and coverage the share of balls with a sample of the other
    set, about `1 - 2^-k` = 0.97 for one population. The interval resamples the real samples with fixed balls. The real set
    standardises both: outliers in the other do not change the scale.
    """
    centre, sd = real.features.mean(0), real.features.std(0)
    centres, points = ((sample.features - centre) / np.where(sd > 1e-9, sd, 1) for sample in (real, other))
    radius = np.sort(cdist(centres, centres), axis=1)[:, min(NEIGHBOURS, len(centres) - 1)]
    return grouped.mean((cdist(centres, points) <= radius[:, None]).any(1).astype(float), real.groups, seed)
