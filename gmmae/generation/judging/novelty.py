"""Distances of volumes from a generator's training set. High fidelity without novelty means copies.

The distance of two volumes is the root-mean-square difference of their voxels, windowed to [0, 1] but not divided by their
mass, so a brighter nodule is no copy. Size in mm does not count.
"""

import itertools
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int, Real

from gmmae.data.grouped import Estimate, estimate, weights
from gmmae.data.volumes import Nodules, windowed

Volumes = Real[np.ndarray, "samples *volume"]
REJECTION_PERCENTILE = 5.0
"""Samples nearer to the training set than these percent of real held-out volumes are redrawn."""
COPY_PERCENTILE = 1.0
"""A judged volume nearer than these percent of them is a copy."""
BLOCK = 512
"""Volumes compared at a time: 512 × 4096 voxels take 8 MB."""


class Nearest(NamedTuple):
    """The nearest other volume, the distance in units of the window's width, and the volume's symmetry."""

    index: Int[np.ndarray, " samples"]  # pyright: ignore[reportIncompatibleMethodOverride]
    distance: Float[np.ndarray, " samples"]
    turn: Int[np.ndarray, " samples"]


class Novelty(NamedTuple):
    """Distances to the training set over those of held-out real nodules: 1 for new patients, 0 for copies."""

    nn: Estimate  # ratio of the medians
    nn_symmetric: Estimate  # ratio of the medians over all symmetries, which finds flipped and rotated copies
    copies: float  # share of nodules nearer to the training set than `copy_distance` in any symmetry
    copy_distance: float  # the 1st percentile of the held-out nodules' distances
    nearest_distance: dict[str, float]  # of each generated nodule in any symmetry, also of those not compared


def nearest(
    values: Volumes,
    training: Real[np.ndarray, "others *volume"],
    window: tuple[float, float],
    symmetric: bool = False,
) -> Nearest:
    """Finds the nearest training volume of each volume; `symmetric` also among its `symmetries`."""
    others = windowed(training, window).astype(np.float32).reshape(len(training), -1)
    squares = np.einsum("ij,ij->i", others, others)
    found = Nearest(np.zeros(len(values), np.int64), np.full(len(values), np.inf), np.zeros(len(values), np.int64))
    for start in range(0, len(values), BLOCK):
        part = slice(start, start + BLOCK)
        shares = windowed(values[part], window).astype(np.float32)
        for turn, view in enumerate(symmetries(shares) if symmetric else [shares]):
            volumes = view.reshape(len(view), -1)
            index = np.argmin(squares - 2 * volumes @ others.T, axis=1)
            # The expanded square would lose small distances to rounding.
            distance = np.sqrt(np.mean((volumes - others[index]) ** 2, axis=1, dtype=np.float64))
            nearer = distance < found.distance[part]
            for known, new in zip(found, (index, distance, turn), strict=True):
                known[part] = np.where(nearer, new, known[part])
    return found


def copies(values: Volumes, others: Real[np.ndarray, "others *volume"], window: tuple[float, float]) -> dict[int, int]:
    """Indices of volumes that equal another one, in any of the `symmetries`, and of the others.

    >>> ramp = np.arange(8.0).reshape(1, 2, 2, 2)
    >>> copies(ramp[:, ::-1], np.concatenate([ramp + 1, ramp]), (0.0, 9.0))
    {0: 1}
    """
    index = {volume.tobytes(): i for i, volume in enumerate(windowed(others, window).astype(np.float32))}
    views = symmetries(windowed(values, window).astype(np.float32))
    return {i: index[key] for view in views for i, volume in enumerate(view) if (key := volume.tobytes()) in index}


def symmetries(values: Volumes) -> list[Volumes]:
    """The volumes flipped along all sets of axes, and also transposed in the last two axes if these are equal.

    These are the 16 of a cube's 48 symmetries that keep the first axis: slices are thicker and sharper than pixels.

    >>> len(symmetries(np.zeros((1, 4, 4, 4)))), len(symmetries(np.zeros((1, 4, 4, 5))))
    (16, 8)
    """
    transposed = [values, values.swapaxes(-1, -2)] if values.ndim > 2 and values.shape[-1] == values.shape[-2] else [values]
    return [
        np.flip(view, flipped)
        for view in transposed
        for n in range(values.ndim)
        for flipped in itertools.combinations(range(1, values.ndim), n)
    ]


def measure(
    held_out: Nodules,
    generated: Nodules,
    training: Nodules,
    window: tuple[float, float],
    seed: int,
    compared: Int[np.ndarray, " compared"],
) -> tuple[Novelty, Nearest]:
    """Distances of generated nodules to the training set, relative to those of real ones, and each one's nearest.

    Blur alone lowers the ratios, because a mean of many volumes is near all of them.
    """
    resamples = weights(held_out.groups, seed), weights(np.array(generated.groups)[compared], seed + 1)
    ratios = []
    for symmetric in (False, True):
        real, new = (nearest(nodules.values, training.values, window, symmetric) for nodules in (held_out, generated))
        distances = real.distance, new.distance[compared]
        medians = []
        for values, weight in zip(distances, resamples, strict=True):
            resampled = np.broadcast_to(values, weight[1:].shape)
            found = np.quantile(resampled, 0.5, axis=1, weights=weight[1:], method="inverted_cdf")
            medians.append(np.array([np.median(values), *found]))
        ratios.append(estimate(medians[1] / np.where(medians[0] > 0, medians[0], np.nan)))
    limit = float(np.percentile(distances[0], COPY_PERCENTILE))
    by_name = dict(zip(generated.names, new.distance.round(5).tolist(), strict=True))
    return Novelty(ratios[0], ratios[1], float(np.mean(distances[1] < limit)), limit, by_name), new
