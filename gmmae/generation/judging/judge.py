"""Generated nodules against real ones: how alike (fidelity), how varied (coverage), and how new (novelty), each beside what
real nodules get.

No figure of likeness means anything without that of novelty: copies of the training set are perfectly alike.

Most figures depend on how many nodules are compared, and all intervals on how many patients there are. So both columns compare
the same number with the same real nodules, and each set must have some patients.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int, Real

from gmmae.data.volumes import Nodules
from gmmae.generation.judging import novelty, two_samples
from gmmae.generation.judging.bootstrap import Estimate, estimate, weighted_median, weights
from gmmae.generation.judging.features import CT_WINDOW, as_hu, features
from gmmae.generation.judging.novelty import Nearest
from gmmae.generation.judging.two_samples import Marginals
from gmmae.system.errors import InputError

LEAST = 25
"""Nodules of each set: five folds of five."""
LEAST_PATIENTS = two_samples.FOLDS
"""Patients of each set: each fold of the classifier holds out others, and an interval of fewer would be far too narrow."""


class Scale(NamedTuple):
    """What the numbers in voxels mean.

    Attributes:
      window: the values that are compared; what lies beyond is clipped.
      hu: whether they are in Hounsfield units, and not in a unit of the data's own.
    """

    window: tuple[float, float]
    hu: bool


class Population(NamedTuple):
    """A set of volumes as the tests see it, with the window of their values."""

    values: Real[np.ndarray, "samples z y x"]
    features: Float[np.ndarray, "samples features"]
    groups: tuple[str, ...]
    window: tuple[float, float]

    def take(self, index: np.ndarray) -> "Population":
        """Some of them."""
        return Population(self.values[index], self.features[index], tuple(self.groups[i] for i in index), self.window)


class Comparison(NamedTuple):
    """One set against another; what the figures mean, and what is perfect, stands in `two_samples`.

    Attributes:
      samples: of each set.
      patients: of the first and of the second set; a nodule without a patient counts as one.
      c2st: AUC of a classifier, 0.5 for one population.
      mmd2: maximum mean discrepancy, 0 for one population.
      marginals: the features one by one.
      density, coverage: near 1 for one population.
      value_distance: of the histograms of all voxels, in their unit.
    """

    samples: int
    patients: tuple[int, int]
    c2st: Estimate
    mmd2: Estimate
    marginals: Marginals
    density: Estimate
    coverage: Estimate
    value_distance: float


class Novelty(NamedTuple):
    """Distances to the training set over those of real nodules that were held out of it: 1 for new patients, 0 for copies.

    Attributes:
      plain, symmetric: ratios of the medians; the second finds flipped and rotated copies too.
      copies: the share that is nearer to the training set than `copy_distance` in any symmetry; .05 for new patients.
      copy_distance: below which 5 % of the real held-out nodules lie.
      nearest: of each generated nodule, also of those that are not compared, in any symmetry.
    """

    plain: Estimate
    symmetric: Estimate
    copies: float
    copy_distance: float
    nearest: Nearest


class Sets(NamedTuple):
    """Increasing indices of what is compared, as many of each.

    Attributes:
      reference: of the real nodules, with which both others are compared.
      generated: of the generated ones.
      others: of the training set, or without one of the real nodules.
    """

    reference: Int[np.ndarray, " compared"]
    generated: Int[np.ndarray, " compared"]
    others: Int[np.ndarray, " compared"]


class Judgement(NamedTuple):
    """What `judge` found.

    Attributes:
      generated: generated nodules against real ones.
      floor: other real nodules against the same real ones, as many: the best that can be expected.
      novelty: None where no training set was given.
      masks: whether shapes are those of the nodules' masks, and not of their intensity.
      scale: of the voxels.
      sets: the nodules that were compared.
    """

    generated: Comparison
    floor: Comparison
    novelty: Novelty | None
    masks: bool
    scale: Scale
    sets: Sets


def judge(
    real: Nodules, generated: Nodules, training: Nodules | None = None, seed: int = 0, *, scale: Scale, count: int = 0
) -> Judgement:
    """Judges generated nodules by real ones that their generator has not seen.

    The floor compares the same real nodules with as many of the training set, which are other patients. Without a training set
    the real ones are divided into two halves by patient, and the first half is what both are compared with.

    Args:
      real: held out of the generator's training.
      generated: as it made them.
      training: what it was fitted to.
      seed: of the choices and divisions.
      scale: of the voxels of all sets.
      count: nodules of each set that are compared; 0: as many as the smallest has. Two judgements are comparable only where
        this number is the same.

    Raises:
      InputError: too few nodules or patients, volumes of different shapes, patients that are in both `real` and `training`, or
        real nodules that the training set holds.
    """
    _check(real, generated, training)
    sets = _sets(real, generated, training, seed, count)
    masks = all(some.masks is not None for some in (real, generated, training) if some is not None)
    of_others = real if training is None else training
    chosen = [some.take(index) for some, index in zip((real, generated, of_others), sets, strict=True)]
    reference, made, others = (population(some, masks, scale) for some in chosen)
    found = None if training is None else novelties(chosen[0], generated, training, scale.window, seed, sets.generated)
    return Judgement(compare(reference, made, seed), compare(reference, others, seed), found, masks, scale, sets)


def population(nodules: Nodules, masks: bool, scale: Scale) -> Population:
    """The volumes with their features; of their masks' shapes, or of their intensity's."""
    shapes = nodules.masks if masks else None
    if scale.hu:
        found = features(nodules.values, shapes, scale.window)
    else:
        found = features(as_hu(nodules.values, scale.window), shapes, CT_WINDOW)
    return Population(nodules.values, found, nodules.groups, scale.window)


def compare(real: Population, other: Population, seed: int = 0, paired: bool = False) -> Comparison:
    """All tests of two sets; `paired` where each of the second was made from the one of its number in the first."""
    arguments = (real.features, other.features, real.groups, other.groups)
    density, coverage = two_samples.support(*arguments, seed)
    return Comparison(
        len(real.groups),
        (len(set(real.groups)), len(set(other.groups))),
        two_samples.c2st(*arguments, seed),
        two_samples.mmd2(*arguments, paired, seed),
        two_samples.marginals(*arguments, seed),
        density,
        coverage,
        two_samples.value_distance(real.values, other.values, real.window),
    )


def novelties(
    held_out: Nodules,
    generated: Nodules,
    training: Nodules,
    window: tuple[float, float],
    seed: int = 0,
    compared: Int[np.ndarray, " compared"] | None = None,
) -> Novelty:
    """How far generated nodules lie from the training set, in units of how far real held-out ones do.

    Args:
      held_out: real nodules that the training set does not hold.
      generated: whose nearest training nodules are looked for.
      training: what the generator was fitted to.
      window: of the voxels' values.
      seed: of the intervals.
      compared: indices of the generated nodules that the figures are of; None: all.

    Raises:
      InputError: the training set holds half of the held-out nodules, or more.
    """
    index = np.arange(len(generated.names)) if compared is None else compared
    groups = [generated.groups[i] for i in index]
    drawn = weights(held_out.groups, seed), weights(groups, seed + 1)
    ratios, least, found = [], 0.0, None
    for symmetric in (False, True):
        real, found = (novelty.nearest(some.values, training.values, window, symmetric) for some in (held_out, generated))
        if np.median(real.distance) == 0:
            raise InputError(
                f"REAL must have been held out of the training set; {int((real.distance == 0).sum())} of "
                f"{len(real.distance)} nodules are voxel for voxel in it{' when flipped' * symmetric}: leave them out of one"
            )
        known, new = real.distance, found.distance[index]
        of_known, of_new = (weighted_median(distance, weight) for distance, weight in zip((known, new), drawn, strict=True))
        ratios.append(estimate(novelty.novelty(new, known), of_new / np.where(of_known > 0, of_known, np.nan)))
        least = float(np.percentile(real.distance, novelty.COPY_PERCENTILE))
    assert found is not None
    return Novelty(ratios[0], ratios[1], float(np.mean(found.distance[index] < least)), least, found)


def halves(groups: Sequence[str], seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Increasing indices of two halves, as equal as can be, that divide no group: the larger groups first, each to the smaller
    half.
    """
    names, of, counts = np.unique(np.asarray(groups), return_inverse=True, return_counts=True)
    order = np.random.default_rng(seed).permutation(len(names))
    sizes, first = np.zeros(2, int), np.zeros(len(names), bool)
    for group in sorted(order, key=lambda group: -counts[group]):
        side = int(sizes[1] < sizes[0])
        sizes[side] += counts[group]
        first[group] = side == 0
    return np.flatnonzero(first[of]), np.flatnonzero(~first[of])


def _sets(real: Nodules, generated: Nodules, training: Nodules | None, seed: int, count: int) -> Sets:
    """What is compared.

    Raises:
      InputError: a half, or a choice, is of too few nodules or patients, or `count` is not between what is needed and there.
    """
    rng = np.random.default_rng(seed)
    made = np.arange(len(generated.names))
    if training is None:
        reference, others = halves(real.groups, seed)
        for half in (reference, others):
            _require_enough("each half of REAL", real.take(half), "add some, or name the training set with --train")
        names, sources = ("the first half of REAL", "GENERATED", "the second half of REAL"), (real, generated, real)
    else:
        reference, others = np.arange(len(real.names)), np.arange(len(training.names))
        names, sources = ("REAL", "GENERATED", "--train"), (real, generated, training)
    most = min(map(len, (reference, made, others)))
    if count and not LEAST <= count <= most:
        raise InputError(f"--count must be all, or from {LEAST} to the {most} nodules that each set has; got {count}")
    # The generated ones are chosen last: the real column does not depend on how many there are.
    reference, others, made = (np.sort(rng.permutation(of)[: count or most]) for of in (reference, others, made))
    sets = Sets(reference, made, others)
    for name, source, index in zip(names, sources, sets, strict=True):
        _require_enough(f"the {len(index)} of {name} that are compared", source.take(index), "add some")
    return sets


def _check(real: Nodules, generated: Nodules, training: Nodules | None) -> None:
    named = {"REAL": real, "GENERATED": generated} | ({} if training is None else {"--train": training})
    for name, nodules in named.items():
        # Without a training set the floor compares two halves of the real ones.
        halved = name == "REAL" and training is None
        way_out = "add some, or name the training set with --train" if halved else "add some"
        _require_enough(name, nodules, way_out, 2 if halved else 1)
        shape = nodules.values.shape[1:]
        if len(shape) != 3 or shape != real.values.shape[1:]:
            wanted = " × ".join(map(str, real.values.shape[1:])) if real.values.ndim == 4 else "three axes"
            raise InputError(f"{name} must have volumes of {wanted}; got {' × '.join(map(str, shape))}: make them alike")
    shared = set(real.groups) & set(training.groups) if training is not None else set()
    if shared:
        raise InputError(
            f"REAL must have been held out of the training set; {len(shared)} of its {len(set(real.groups))} patients are in "
            f"--train, such as {min(shared)}: leave them out of one"
        )


def _require_enough(name: str, nodules: Nodules, way_out: str, parts: int = 1) -> None:
    """
    Raises:
      InputError: there are too few nodules or patients for this number of parts.
    """
    count, patients = len(nodules.names), len(set(nodules.groups))
    if count < parts * LEAST or patients < parts * LEAST_PATIENTS:
        raise InputError(
            f"at least {parts * LEAST} nodules of at least {parts * LEAST_PATIENTS} patients (scans where none is named) are "
            f"needed in {name}; got {count} of {patients}: {way_out}"
        )
