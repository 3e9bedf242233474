"""Generated nodules against real ones: how alike (fidelity), how varied (coverage), and how new (novelty), each beside what
real nodules get.

No figure of likeness means anything without that of novelty: copies of the training set are perfectly alike.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Real

from gmmae.analysis.bootstrap import Estimate, estimate, weighted_median, weights
from gmmae.base.errors import InputError
from gmmae.data.volumes import Nodules
from gmmae.generation import novelty, two_samples
from gmmae.generation.features import features
from gmmae.generation.novelty import WINDOW, Nearest
from gmmae.generation.two_samples import Marginals

LEAST = 25
"""Nodules of each kind: five folds of five."""


class Population(NamedTuple):
    """A set of volumes as the tests see it."""

    values: Real[np.ndarray, "samples z y x"]
    features: Float[np.ndarray, "samples features"]
    groups: tuple[str, ...]

    def take(self, index: np.ndarray) -> "Population":
        """Some of them."""
        return Population(self.values[index], self.features[index], tuple(self.groups[i] for i in index))


class Comparison(NamedTuple):
    """One set against another; what the figures mean, and what is perfect, stands in `two_samples`.

    Attributes:
      samples: of each set.
      c2st: AUC of a classifier, 0.5 for one population.
      mmd2: maximum mean discrepancy, 0 for one population.
      marginals: the features one by one.
      density, coverage: near 1 for one population.
      hu_distance: of the histograms of all voxels, HU.
    """

    samples: int
    c2st: Estimate
    mmd2: Estimate
    marginals: Marginals
    density: Estimate
    coverage: Estimate
    hu_distance: float


class Novelty(NamedTuple):
    """Distances to the training set over those of real nodules that were held out of it: 1 for new patients, 0 for copies.

    Attributes:
      plain, symmetric: ratios of the medians; the second finds flipped and turned copies too.
      copies: the share that is nearer to the training set than 95 % of the real held-out nodules are, in any symmetry; .05 for
      new patients. nearest: of each generated nodule, in any symmetry.
    """

    plain: Estimate
    symmetric: Estimate
    copies: float
    nearest: Nearest


class Judgement(NamedTuple):
    """What `judge` found.

    Attributes:
      generated: generated nodules against real ones.
      floor: real nodules against other real ones: the best that can be expected.
      novelty: None where no training set was given.
      masks: whether shapes are those of the nodules' masks, and not of their intensity.
    """

    generated: Comparison
    floor: Comparison
    novelty: Novelty | None
    masks: bool


def judge(
    real: Nodules, generated: Nodules, training: Nodules | None = None, seed: int = 0, window: tuple[float, float] = WINDOW
) -> Judgement:
    """Judges generated nodules by real ones that their generator has not seen.

    As many of each are compared, because the tests find more the more they see. The floor compares the real ones with as many
    of the training set, which are other patients, or without one two halves of the real ones, by patient.

    Args:
      real: held out of the generator's training.
      generated: as it made them.
      training: what it was fitted to.
      seed: of the choices and divisions.
      window: the HU that are compared; what lies beyond is clipped.

    Raises:
      InputError: too few nodules, volumes of different shapes, or patients that are in both `real` and `training`.
    """
    _check(real, generated, training)
    masks = real.masks is not None and generated.masks is not None
    rng = np.random.default_rng(seed)
    these, those = population(real, masks, window), population(generated, masks, window)
    if training is None:
        one, two = halves(these.groups, seed)
        floor = compare(these.take(one), these.take(two), seed)
    else:
        others = population(training, masks and training.masks is not None, window)
        floor = compare(*_equally_many(these, others, rng), seed)
    found = None if training is None else novelties(real, generated, training, seed, window)
    return Judgement(compare(*_equally_many(these, those, rng), seed), floor, found, masks)


def population(nodules: Nodules, masks: bool, window: tuple[float, float] = WINDOW) -> Population:
    """The volumes with their features; of their masks' shapes, or of their intensity's."""
    return Population(nodules.values, features(nodules.values, nodules.masks if masks else None, window), nodules.groups)


def compare(real: Population, other: Population, seed: int = 0, paired: bool = False) -> Comparison:
    """All tests of two sets; `paired` where each of the second was made from the one of its number in the first."""
    arguments = (real.features, other.features, real.groups, other.groups)
    density, coverage = two_samples.support(*arguments, seed)
    return Comparison(
        len(real.groups),
        two_samples.c2st(*arguments, seed),
        two_samples.mmd2(*arguments, paired, seed),
        two_samples.marginals(real.features, other.features),
        density,
        coverage,
        two_samples.hu_distance(real.values, other.values),
    )


def novelties(
    held_out: Nodules, generated: Nodules, training: Nodules, seed: int = 0, window: tuple[float, float] = WINDOW
) -> Novelty:
    """How far generated nodules lie from the training set, in units of how far real held-out ones do."""
    drawn = weights(held_out.groups, seed), weights(generated.groups, seed + 1)
    ratios, found = [], []
    for symmetric in (False, True):
        real, new = (novelty.nearest(some.values, training.values, symmetric, window) for some in (held_out, generated))
        medians = [weighted_median(nearest.distance, weight) for nearest, weight in zip((real, new), drawn, strict=True)]
        ratios.append(estimate(novelty.novelty(new.distance, real.distance), medians[1] / medians[0]))
        found = [real, new]
    real, new = found
    least = np.percentile(real.distance, novelty.COPY_PERCENTILE)
    return Novelty(ratios[0], ratios[1], float(np.mean(new.distance < least)), new)


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


def _equally_many(one: Population, two: Population, rng: np.random.Generator) -> tuple[Population, Population]:
    """As many of each as the smaller one has."""
    count = min(len(one.groups), len(two.groups))
    first, second = (some.take(np.sort(rng.permutation(len(some.groups))[:count])) for some in (one, two))
    return first, second


def _check(real: Nodules, generated: Nodules, training: Nodules | None) -> None:
    named = {"REAL": real, "GENERATED": generated} | ({} if training is None else {"--train": training})
    # Without a training set the floor compares two halves of the real ones.
    least = {"REAL": LEAST if training is not None else 2 * LEAST, "GENERATED": LEAST, "--train": LEAST}
    for name, nodules in named.items():
        if len(nodules.names) < least[name]:
            raise InputError(
                f"{name} must have at least {least[name]} nodules to be judged; got {len(nodules.names)}: add some"
            )
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
