"""Comparison of generated with real nodules: fidelity, coverage and novelty, each beside the value of real nodules.

Fidelity needs novelty beside it, because copies of the training set have perfect fidelity.

Most values depend on the number of compared nodules, and all intervals on the number of patients. So both columns compare the
same number of nodules with the same real ones, and each set needs a minimum number of patients.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from gmmae.data.volumes import Nodules
from gmmae.generation.judging import novelty as novelties
from gmmae.generation.judging import two_samples
from gmmae.generation.judging.bootstrap import Estimate, estimate, weighted_median, weights
from gmmae.generation.judging.features import CT_WINDOW, IS_COPIED, as_hu, features
from gmmae.generation.judging.novelty import Nearest
from gmmae.generation.judging.two_samples import KSTests, Sample
from gmmae.system.errors import InputError

MIN_NODULES = 25
"""Minimum number of nodules in each set: five folds of five."""
MIN_PATIENTS = two_samples.FOLDS
"""Minimum number of patients in each set, one for each fold of the classifier. Intervals of fewer are far too narrow."""


class Scale(NamedTuple):
    """The window and the unit of voxel values.

    Attributes:
      window: range to which values are clipped.
      hu: whether values are in Hounsfield units; otherwise they are in a unit of the data's own.
    """

    window: tuple[float, float]
    hu: bool


class Comparison(NamedTuple):
    """A comparison of two sets. `two_samples` defines its values.

    Attributes:
      samples: number of nodules in each set.
      patients: number of patients in the first and in the second set; a nodule without a patient counts as one.
      c2st: AUC of a classifier, 0.5 for one population.
      c2st_rest: the same without the features that `gmmae generate` copies from a real nodule.
      ks_tests: Kolmogorov-Smirnov tests of the features.
      coverage: near 1 for one population.
    """

    samples: int
    patients: tuple[int, int]
    c2st: Estimate
    c2st_rest: Estimate
    ks_tests: KSTests
    coverage: Estimate


class Novelty(NamedTuple):
    """Distances to the training set over those of held-out real nodules: 1 for new patients, 0 for copies.

    Attributes:
      plain: ratio of the medians.
      symmetric: ratio of the medians over all symmetries, which finds flipped and rotated copies.
      copies: share of nodules nearer to the training set than `copy_distance` in any symmetry; .01 for new patients.
      copy_distance: the 1st percentile of the held-out nodules' distances.
      nearest: nearest training nodule of each generated nodule in any symmetry, including those not compared.
    """

    plain: Estimate
    symmetric: Estimate
    copies: float
    copy_distance: float
    nearest: Nearest


class Sets(NamedTuple):
    """Increasing indices of the compared nodules, equally many for each set.

    Attributes:
      reference: indices of the real nodules with which both other sets are compared.
      generated: indices of the generated nodules.
      others: indices into the training set, or without one into the real nodules.
    """

    reference: Int[np.ndarray, " compared"]
    generated: Int[np.ndarray, " compared"]
    others: Int[np.ndarray, " compared"]


class Judgement(NamedTuple):
    """The result of `judge`.

    Attributes:
      generated: comparison of generated with real nodules.
      real_vs_real: comparison of equally many other real nodules with the same real ones, a perfect generator's result.
      novelty: novelty of the generated nodules; None without a training set.
      masks: whether shapes follow from the nodules' masks instead of their intensity.
      scale: window and unit of the voxels.
      sets: the compared nodules.
    """

    generated: Comparison
    real_vs_real: Comparison
    novelty: Novelty | None
    masks: bool
    scale: Scale
    sets: Sets


def judge(
    real: Nodules,
    generated: Nodules,
    training: Nodules | None = None,
    seed: int = 0,
    *,
    scale: Scale,
    count: int = 0,
) -> Judgement:
    """Compares generated nodules with real ones held out of the generator's training.

    `real_vs_real` compares the same real nodules with equally many of the training set, from other patients. Without a
    training set the real nodules are divided by patient. Both comparisons are then with the first half.

    Args:
      real: real nodules held out of the generator's training.
      generated: generated nodules.
      training: training nodules of the generator.
      seed: seed of choices and divisions.
      scale: window and unit of all voxels.
      count: number of compared nodules in each set; 0 means the size of the smallest. Judgements are comparable only for
        equal numbers.

    Raises:
      InputError: too few nodules or patients, different shapes of volumes, real nodules or patients in the training set, or
        real nodules among the generated ones.
    """
    _check(real, generated, training)
    _require_no_copies(real, generated, training, scale.window)
    sets = _sets(real, generated, training, seed, count)
    masks = all(nodules.masks is not None for nodules in (real, generated, training) if nodules is not None)
    sources = (real, generated, real if training is None else training)
    compared = [nodules.take(index) for nodules, index in zip(sources, sets, strict=True)]
    reference, new, others = (population(nodules, masks, scale) for nodules in compared)
    novelty = None
    if training is not None:
        novelty = measure_novelty(compared[0], generated, training, scale.window, seed, sets.generated)
    by_generated, by_others = (compare(reference, other, seed) for other in (new, others))
    return Judgement(by_generated, by_others, novelty, masks, scale, sets)


def population(nodules: Nodules, masks: bool, scale: Scale) -> Sample:
    """Returns the features of volumes. Shapes follow from masks if asked for, otherwise from intensity."""
    values, window = (nodules.values, scale.window) if scale.hu else (as_hu(nodules.values, scale.window), CT_WINDOW)
    return Sample(features(values, nodules.masks if masks else None, window), nodules.groups)


def compare(real: Sample, other: Sample, seed: int = 0) -> Comparison:
    """Runs all tests of two sets.

    Args:
      real: the first set.
      other: the second set.
      seed: seed of divisions and intervals.
    """
    one, two = (sample._replace(features=sample.features[:, ~IS_COPIED]) for sample in (real, other))
    return Comparison(
        len(real.groups),
        (len(set(real.groups)), len(set(other.groups))),
        two_samples.c2st(real, other, seed),
        two_samples.c2st(one, two, seed),
        two_samples.ks_tests(real, other, seed),
        two_samples.coverage(real, other, seed),
    )


def measure_novelty(
    held_out: Nodules,
    generated: Nodules,
    training: Nodules,
    window: tuple[float, float],
    seed: int = 0,
    compared: Int[np.ndarray, " compared"] | None = None,
) -> Novelty:
    """Measures distances of generated nodules to the training set, relative to those of held-out real ones.

    Args:
      held_out: real nodules outside the training set.
      generated: generated nodules.
      training: training nodules of the generator.
      window: range to which voxels are clipped.
      seed: seed of the intervals.
      compared: indices of the compared generated nodules; None compares all.
    """
    index = np.arange(len(generated.names)) if compared is None else compared
    groups = [generated.groups[i] for i in index]
    resamples = weights(held_out.groups, seed), weights(groups, seed + 1)
    ratios, copy_distance, new = [], 0.0, None
    for symmetric in (False, True):
        real, new = (novelties.nearest(some.values, training.values, window, symmetric) for some in (held_out, generated))
        distances = real.distance, new.distance[index]
        real_medians, new_medians = map(weighted_median, distances, resamples)
        ratio = novelties.novelty(distances[1], distances[0])
        ratios.append(estimate(ratio, new_medians / np.where(real_medians > 0, real_medians, np.nan)))
        copy_distance = float(np.percentile(real.distance, novelties.COPY_PERCENTILE))
    assert new is not None
    return Novelty(ratios[0], ratios[1], float(np.mean(new.distance[index] < copy_distance)), copy_distance, new)


def halves(groups: Sequence[str], seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns increasing indices of two halves with whole groups. Larger groups come first, each to the smaller half."""
    names, group_of, counts = np.unique(np.asarray(groups), return_inverse=True, return_counts=True)
    order = np.random.default_rng(seed).permutation(len(names))
    sizes, first = np.zeros(2, int), np.zeros(len(names), bool)
    for group in sorted(order, key=lambda group: -counts[group]):
        side = int(sizes[1] < sizes[0])
        sizes[side] += counts[group]
        first[group] = side == 0
    return np.flatnonzero(first[group_of]), np.flatnonzero(~first[group_of])


def _sets(real: Nodules, generated: Nodules, training: Nodules | None, seed: int, count: int) -> Sets:
    """Chooses the compared nodules.

    Raises:
      InputError: a half or a choice has too few nodules or patients, or `count` is out of range.
    """
    rng = np.random.default_rng(seed)
    new = np.arange(len(generated.names))
    if training is None:
        reference, others = halves(real.groups, seed)
        for half in (reference, others):
            _require_enough("each half of REAL", real.take(half), "add some, or name the training set with --train")
        names, sources = ("the first half of REAL", "GENERATED", "the second half of REAL"), (real, generated, real)
    else:
        reference, others = np.arange(len(real.names)), np.arange(len(training.names))
        names, sources = ("REAL", "GENERATED", "--train"), (real, generated, training)
    smallest = min(map(len, (reference, new, others)))
    if count and not MIN_NODULES <= count <= smallest:
        raise InputError(f"--count must be all, or from {MIN_NODULES} to {smallest}, the size of the smallest set; got {count}")
    # The generated ones are chosen last, so their number does not change the real column.
    reference, others, new = (np.sort(rng.permutation(part)[: count or smallest]) for part in (reference, others, new))
    sets = Sets(reference, new, others)
    for name, source, index in zip(names, sources, sets, strict=True):
        _require_enough(f"the {len(index)} compared nodules of {name}", source.take(index), "add some")
    return sets


def _check(real: Nodules, generated: Nodules, training: Nodules | None) -> None:
    named = {"REAL": real, "GENERATED": generated} | ({} if training is None else {"--train": training})
    for name, nodules in named.items():
        # Without a training set two halves of the real nodules are compared.
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


def _require_no_copies(real: Nodules, generated: Nodules, training: Nodules | None, window: tuple[float, float]) -> None:
    """Raises `InputError` if another set has a real nodule voxel for voxel, under any name and in any symmetry.

    Generated copies of training nodules are no fault of the sets: they are what `Novelty` measures.
    """
    for name, others in (("GENERATED", generated), ("--train", training)):
        if others is not None and (copies := novelties.copies(real.values, others.values, window)):
            first, same = min(copies.items())
            raise InputError(
                f"REAL must share no nodule with {name}; {len(copies)} of its {len(real.names)} are in it, "
                f"perhaps flipped, such as {real.names[first]}, which is {others.names[same]}: leave them out of one"
            )


def _require_enough(name: str, nodules: Nodules, way_out: str, parts: int = 1) -> None:
    """Raises `InputError` if there are too few nodules or patients for a number of parts."""
    count, patients = len(nodules.names), len(set(nodules.groups))
    if count < parts * MIN_NODULES or patients < parts * MIN_PATIENTS:
        raise InputError(
            f"{name} must have at least {parts * MIN_NODULES} nodules of at least {parts * MIN_PATIENTS} patients (or scans, "
            f"if no patient is named); got {count} of {patients}: {way_out}"
        )
