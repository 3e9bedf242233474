"""New nodules without a model, as baselines of a generator: flipped, pasted, mixed or interpolated copies."""

from collections.abc import Sequence
from itertools import product

import numpy as np
from jaxtyping import Float, Int
from scipy.spatial.distance import cdist

from experiments.cohorts import WINDOW
from gmmae.data.volumes import Nodules
from gmmae.generation.judging.novelty import symmetries

NEIGHBOURS = 5
"""Number of neighbours of SMOTE, as in its paper."""


def repeated(training: Nodules, count: int, seed: int) -> Nodules:
    """Returns training nodules again, to show the effect of more samples without new information.

    A classifier's regularisation is fixed, so more samples alone may change it.
    """
    donors = _donors(len(training.names), count, np.random.default_rng(seed))
    assert training.masks is not None
    return named("repeated", training, donors, training.values[donors], training.masks[donors])


def copy_paste(training: Nodules, count: int, seed: int, shift: int = 0) -> Nodules:
    """Returns training nodules, flipped and rotated within their plane, and shifted by up to `shift` voxels.

    Each one is used once before any is repeated.
    """
    rng = np.random.default_rng(seed)
    donors = _donors(len(training.names), count, rng)
    values, masks = _disturbed(training, donors, shift, rng)
    return named("copy", training, donors, values, masks)


def carved(training: Nodules, count: int, seed: int) -> Nodules:
    """Returns nodules whose flipped and rotated voxels lie in another nodule's cube of the same category.

    The method is CarveMix (Yang et al., 2021).
    """
    rng = np.random.default_rng(seed)
    donors, hosts = _pairs_of_category(training, count, rng)
    values, masks = _disturbed(training, donors, 0, rng)
    assert training.masks is not None
    over = masks > 0
    return named("carved", training, donors, np.where(over, values, training.values[hosts]), over | (training.masks[hosts] > 0))


def cutmix(training: Nodules, count: int, seed: int) -> Nodules:
    """Returns nodules in which a box has the voxels of another nodule of the same category, at the same place.

    The share of the box is uniform, and its centre lies anywhere (Yun et al., CutMix, 2019). Both nodules have one category,
    so labels need no mixture.
    """
    rng = np.random.default_rng(seed)
    assert training.masks is not None
    donors, others = _pairs_of_category(training, count, rng)
    shape = np.array(training.values.shape[1:])
    inside = np.zeros((count, *shape), bool)
    for box in inside:
        width = np.maximum(1, np.rint(shape * np.cbrt(rng.random()))).astype(int)
        start = rng.integers(0, shape) - width // 2
        box[tuple(slice(max(at, 0), max(at + n, 0)) for at, n in zip(start, width, strict=True))] = True
    values, masks = (np.where(inside, x[others], x[donors]) for x in (training.values, training.masks))
    return named("cutmix", training, donors, values, masks)


def mosaic(training: Nodules, count: int, seed: int) -> Nodules:
    """Returns nodules whose eight octants come from eight nodules of one category, each at its own place."""
    rng = np.random.default_rng(seed)
    assert training.masks is not None
    donors = _donors(len(training.names), count, rng)
    values, masks = training.values[donors].copy(), training.masks[donors].copy()
    categories = np.array(training.categories)
    for octant in product(*((slice(None, n // 2), slice(n // 2, None)) for n in values.shape[1:])):
        others = np.array([rng.choice(np.flatnonzero(categories == categories[donor])) for donor in donors])
        for new, old in ((values, training.values), (masks, training.masks)):
            new[(slice(None), *octant)] = old[(others, *octant)]
    return named("mosaic", training, donors, values, masks)


def _pairs_of_category(
    training: Nodules, count: int, rng: np.random.Generator
) -> tuple[Int[np.ndarray, " count"], Int[np.ndarray, " count"]]:
    """Draws donors, and another nodule of each donor's category. It may be the donor itself."""
    donors = _donors(len(training.names), count, rng)
    categories = np.array(training.categories)
    return donors, np.array([rng.choice(np.flatnonzero(categories == categories[donor])) for donor in donors])


def smote(training: Nodules, count: int, seed: int) -> Nodules:
    """Interpolates a training nodule and one of its 5 nearest of its category voxel by voxel (Chawla et al., SMOTE, 2002)."""
    low, high = WINDOW
    flat = (np.clip(training.values, low, high).reshape(len(training.values), -1) - low) / (high - low)
    one, two, share = between(flat, training.categories, count, seed)
    assert training.masks is not None
    parts = share.reshape(-1, 1, 1, 1)
    values, masks = (x[one] * (1 - parts) + x[two] * parts for x in (training.values, training.masks > 0))
    return named("smote", training, one, values.round(), masks >= 0.5)


def between(
    points: Float[np.ndarray, "samples features"], categories: Sequence[str], count: int, seed: int
) -> tuple[Int[np.ndarray, " count"], Int[np.ndarray, " count"], Float[np.ndarray, " count"]]:
    """Draws pairs of a sample and one of its nearest of its category, and a fraction of the way between them.

    A sample that is alone in its category is its own neighbour.
    """
    rng = np.random.default_rng(seed)
    donors = _donors(len(points), count, rng)
    apart = cdist(points, points, "sqeuclidean")
    labels = np.asarray(categories)
    apart[labels[:, None] != labels] = np.inf
    np.fill_diagonal(apart, np.inf)
    near = np.argsort(apart, axis=1)[:, :NEIGHBOURS]
    known = np.minimum(np.isfinite(apart).sum(1), NEIGHBOURS)
    others = np.array([near[donor, rng.integers(known[donor])] if known[donor] else donor for donor in donors])
    return donors, others, rng.random(count)


def _donors(samples: int, count: int, rng: np.random.Generator) -> Int[np.ndarray, " count"]:
    """Draws donors. Each one is drawn once before any is repeated."""
    rounds = [rng.permutation(samples) for _ in range(-(-count // samples))]
    return np.concatenate(rounds)[:count]


def _disturbed(
    training: Nodules, donors: Int[np.ndarray, " count"], shift: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Returns values and masks after a random symmetry and shift. The outermost voxels are repeated."""
    assert training.masks is not None
    values, masks = [], []
    for donor in donors:
        pair = np.stack([training.values[donor], training.masks[donor]])
        turns = list(symmetries(pair))
        padded = np.pad(turns[rng.integers(len(turns))], ((0, 0), *[(shift, shift)] * 3), mode="edge")
        start = rng.integers(0, 2 * shift + 1, 3)
        value, mask = padded[(slice(None), *(slice(at, at + n) for at, n in zip(start, pair.shape[1:], strict=True)))]
        values.append(value)
        masks.append(mask)
    return np.stack(values), np.stack(masks)


def named(kind: str, training: Nodules, donors: np.ndarray, values: np.ndarray, masks: np.ndarray) -> Nodules:
    """Returns the new nodules, with patient, category and size of their donors."""
    names = tuple(f"{kind}_{i}" for i in range(len(donors)))
    return training.take(donors)._replace(names=names, values=values.astype(np.int16), masks=masks.astype(np.uint8))
