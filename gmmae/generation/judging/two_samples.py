"""Whether two sets of volumes are of one population, by their features: a classifier's AUC, MMD², Kolmogorov and Smirnov,
density and coverage.

All but the classifier standardise by the first set, the real one, so that a bad second set cannot stretch its own ruler.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Real

from gmmae.generation.judging.bootstrap import Estimate, estimate, mean, weights
from gmmae.system.errors import InputError

FOLDS = 5
REPETITIONS = 10
"""Divisions into folds that are averaged."""
NEIGHBOURS = 5
"""Of density and coverage, as in their paper."""
SIGNIFICANT = 0.05
EXCHANGES = 999
"""Exchanges of groups between the sets that a p rests on; it is at least a thousandth."""
LEVELS = 65_536
"""Levels of a histogram of voxels, about; a window that has fewer units is divided finer."""

RealFeatures = Float[np.ndarray, "real features"]
OtherFeatures = Float[np.ndarray, "other features"]


def c2st(
    real: RealFeatures,
    other: OtherFeatures,
    real_groups: Sequence[str],
    other_groups: Sequence[str],
    seed: int = 0,
) -> Estimate:
    """The AUC with which a logistic regression tells the sets apart on samples that it has not seen: 0.5 is perfect (Lopez-Paz
    and Oquab 2017).

    The mean over the folds of several divisions, of the AUC within each fold: scores of different folds are of different
    classifiers. The interval resamples groups with the classifiers as they are, so it is narrower than that of new populations:
    of 30 pairs of 120 the standard deviation was .050, and the interval's .035.

    Args:
      real, other: features; standardised by what each classifier was trained on.
      real_groups, other_groups: a fold never divides a group. **Paired**: what was made from one nodule, its reconstruction or
        its flipped copy, has that nodule's group, or else the classifier, which has seen the one, takes the other for it, and
        the AUC comes out too low.
      seed: of the divisions.

    Raises:
      InputError: too few groups for a fold with both sets in it.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    inputs = np.concatenate([real, other])
    labels = np.repeat([0, 1], [len(real), len(other)])
    groups = np.array([*real_groups, *other_groups])
    drawn = weights(groups, seed)
    aucs, resampled = [], []
    for repetition in range(REPETITIONS):
        for train, test in folds(labels, groups, seed + repetition):
            classifier = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)).fit(inputs[train], labels[train])
            score = classifier.decision_function(inputs[test])
            negative, positive = labels[test] == 0, labels[test] == 1
            above = score[positive][None] - score[negative][:, None]
            wins = (above > 0) + 0.5 * (above == 0)
            aucs.append(wins.mean())
            left, right = drawn[:, test[negative]], drawn[:, test[positive]]
            with np.errstate(invalid="ignore"):
                resampled.append(np.einsum("bi,ij,bj->b", left, wins, right, optimize=True) / (left.sum(1) * right.sum(1)))
    if not aucs:
        raise InputError(
            f"a fold of the classifier must hold out nodules of both sets and learn from others; got {len(set(groups))} groups "
            f"that no division into {FOLDS} folds parts like that: add nodules of other patients"
        )
    known = ~np.isnan(resampled)  # a resample may hold one label only in some fold
    totals, counts = np.where(known, resampled, 0).sum(0), known.sum(0)
    return estimate(float(np.mean(aucs)), np.where(counts, totals, np.nan) / np.maximum(counts, 1))


def folds(labels: Real[np.ndarray, " samples"], groups: np.ndarray, seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Training and test indices of each fold, whole groups at random.

    A fold that lacks a label on either side is left out.

    scikit-learn's stratified division by groups takes longer than the classifiers, for labels that are nearly even anyway.
    """
    from sklearn.model_selection import GroupKFold

    divided = GroupKFold(FOLDS, shuffle=True, random_state=seed).split(labels, labels, groups)
    return [parts for parts in divided if all(len(set(labels[part])) == 2 for part in parts)]


def standardised(real: RealFeatures, other: OtherFeatures) -> tuple[RealFeatures, OtherFeatures]:
    """Both less the real mean, over the real standard deviation; a feature that is constant there keeps its unit."""
    mean, sd = real.mean(0), real.std(0)
    sd = np.where(sd > 1e-9, sd, 1)
    return (real - mean) / sd, (other - mean) / sd


def mmd2(
    real: RealFeatures,
    other: OtherFeatures,
    real_groups: Sequence[str],
    other_groups: Sequence[str],
    paired: bool = False,
    seed: int = 0,
) -> Estimate:
    """The squared maximum mean discrepancy, without bias, with a Gaussian kernel as wide as the median distance (Gretton et al.
    2012, Eq. 3 and 4).

    `Σ_{i≠j} k(x_i, x_j) / m(m-1) + Σ_{i≠j} k(y_i, y_j) / n(n-1) - 2 Σ_ij k(x_i, y_j) / mn`, k = exp(-d²/2s²), s the median of
    all distances; about 0 for one population, and below it by chance.

    Args:
      real, other: features.
      real_groups, other_groups: what the interval resamples.
      paired: row i of `other` was made from row i of `real`; such pairs are left out of the third sum, as Gretton's Eq. 4 does:
        they are as near to each other as no two independent samples are.
      seed: of the interval.
    """
    from scipy.spatial.distance import cdist, pdist

    both = np.concatenate(standardised(real, other))
    width = np.median(pdist(both)) or 1.0  # 0 where most samples are equal
    kernel = np.exp(-(cdist(both, both, "sqeuclidean")) / (2 * width**2))
    m = len(real)
    keep = ~np.eye(len(both), dtype=bool)
    if paired:
        keep[:m, m:] = keep[m:, :m] = ~np.eye(m, dtype=bool)

    def of(weight: np.ndarray) -> np.ndarray:
        """MMD² of each row of weights."""

        def mean(a: slice, b: slice) -> np.ndarray:
            total, pairs = (((weight[:, a] @ table[a, b]) * weight[:, b]).sum(1) for table in (kernel * keep, keep))
            return total / np.where(pairs, pairs, np.nan)  # a resample may hold one sample only

        one, two = slice(None, m), slice(m, None)
        return mean(one, one) + mean(two, two) - 2 * mean(one, two)

    # Resampling lays samples on top of each other only across sets: within one, equal samples are left out with the diagonal.
    drawn = weights([*real_groups, *other_groups], seed)
    return estimate(of(np.ones((1, len(both))))[0], of(drawn))


class Marginals(NamedTuple):
    """Tests of Kolmogorov and Smirnov, a feature each, with p values by patient.

    Attributes:
      statistic, p: of each feature.
      share: of features with p at least 0.05, without correction.
      corrected_share: the same, of p adjusted for the false discovery rate (Benjamini and Hochberg 1995).
    """

    statistic: Float[np.ndarray, " features"]
    p: Float[np.ndarray, " features"]
    share: float
    corrected_share: float


def marginals(
    real: RealFeatures, other: OtherFeatures, real_groups: Sequence[str], other_groups: Sequence[str], seed: int = 0
) -> Marginals:
    """The features' distributions compared one by one. More samples find smaller differences: compare shares at equal numbers
    only.

    p is the share of exchanges of whole groups between the sets with a statistic at least as large. Kolmogorov's own p takes
    samples for independent. Two sets of 105 patients and 186 nodules were drawn from one population. With a correlation of 0,
    .7 and 1 between a patient's nodules Kolmogorov's p was below .05 for 5, 19 and 47 % of features, this one for 4, 5 and 3 %.
    """
    from scipy.stats import false_discovery_control

    labels = exchanged([*real_groups, *other_groups], len(real), seed)
    statistic, p = np.array([_ks(column, labels) for column in np.concatenate([real, other]).T]).T
    adjusted = false_discovery_control(p)
    return Marginals(statistic, p, float(np.mean(p >= SIGNIFICANT)), float(np.mean(adjusted >= SIGNIFICANT)))


def exchanged(groups: Sequence[str], first: int, seed: int) -> Bool[np.ndarray, "exchanges samples"]:
    """Returns which samples are of the first set: in row 0 as it is, in the others after exchanges of whole groups.

    Groups of one set change places with each other. A group that both sets have, as what was made from a nodule and the nodule,
    changes sides within itself or stays.

    Args:
      groups: of all samples.
      first: how many of these, from the beginning, are the first set's.
      seed: of the exchanges.
    """
    names, of = np.unique(np.asarray(groups), return_inverse=True)
    label = np.arange(len(of)) < first
    in_first, in_second = (np.bincount(of, side, len(names)) > 0 for side in (label, ~label))
    both, alone, rng = in_first & in_second, np.flatnonzero(in_first != in_second), np.random.default_rng(seed)
    rows = [label]
    for _ in range(EXCHANGES):
        of_group = np.zeros(len(names), bool)
        of_group[alone] = rng.permutation(in_first[alone])
        turned = label ^ (rng.random(len(names)) < 0.5)[of]
        rows.append(np.where(both[of], turned, of_group[of]))
    return np.array(rows)


def _ks(values: Float[np.ndarray, " samples"], labels: Bool[np.ndarray, "exchanges samples"]) -> tuple[float, float]:
    """The largest distance of the two distributions, and its p."""
    order = np.argsort(values, kind="stable")
    last = np.append(np.diff(values[order]) > 0, True)  # of equal values
    of_set = labels[:, order]
    one, two = (np.cumsum(side, axis=1, dtype=np.int32)[:, last] for side in (of_set, ~of_set))
    apart = np.abs(one / one[:, -1:] - two / two[:, -1:]).max(1)
    return float(apart[0]), float(np.mean(apart >= apart[0] - 1e-12))  # rounding


class Support(NamedTuple):
    """How the second set lies among the first one's balls (Naeem et al. 2020, Eq. 3 and 4).

    Attributes:
      density: how many balls a sample of the second lies in, over the number of neighbours; near 1 for one population, more if
      it keeps to the middle. coverage: the share of balls with a sample of the second in them; for one population `1 - 2^-k` at
      most, nearly: 0.97.
    """

    density: Estimate
    coverage: Estimate


def support(
    real: RealFeatures, other: OtherFeatures, real_groups: Sequence[str], other_groups: Sequence[str], seed: int = 0
) -> Support:
    """Density and coverage; a ball's centre is a real sample and its radius reaches the fifth nearest other one.

    The intervals resample the samples that are counted, the balls being as they are.
    """
    from scipy.spatial.distance import cdist

    these, those = standardised(real, other)
    radius = np.sort(cdist(these, these), axis=1)[:, min(NEIGHBOURS, len(these) - 1)]
    inside: Bool[np.ndarray, "real other"] = cdist(these, those) <= radius[:, None]

    density, coverage = inside.sum(0) / NEIGHBOURS, inside.any(1).astype(float)
    return Support(mean(density, other_groups, seed), mean(coverage, real_groups, seed))


def value_distance(
    real: Real[np.ndarray, "real z y x"], other: Real[np.ndarray, "other z y x"], window: tuple[float, float]
) -> float:
    """Wasserstein's distance of the histograms of all voxels: how far a voxel's value has to be moved on average.

    It is in the unit of the voxels, and within the window: what lies beyond counts as the window's end. Whole numbers are
    compared exactly where the window is at most `LEVELS` wide.
    """
    from scipy.stats import wasserstein_distance

    low, high = window
    width = high - low
    steps = max(1, round(LEVELS / width)) if width <= LEVELS else LEVELS / width  # of the histogram, in one unit
    one, two = (np.bincount(((np.clip(v, low, high) - low) * steps).round().astype(np.int64).ravel()) for v in (real, other))
    return float(wasserstein_distance(np.arange(len(one)), np.arange(len(two)), one, two) / steps)
