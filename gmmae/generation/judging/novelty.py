"""Distances of volumes from a generator's training set. High fidelity without novelty means copies.

Volumes are windowed to [0, 1] like densities, but not divided by their mass, so a brighter nodule is no copy. The distance of
two volumes is the root-mean-square difference of their voxels. It does not depend on the nodules' size in mm.
"""

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int, Real

from gmmae.data.volumes import windowed

REJECTION_PERCENTILE = 5.0
"""Percentile of the real held-out volumes' distances to the training set, over all symmetries: nearer samples are redrawn."""
COPY_PERCENTILE = 1.0
"""Percentile of the same distances. A judged volume that is nearer is a copy."""
BLOCK = 512
"""Number of volumes compared at a time. 512 × 4096 voxels take 8 MB, their distances to 1000 others take 2 MB."""


class Nearest(NamedTuple):
    """The nearest other volume of each volume: its index, and its distance in units of the window's width."""

    index: Int[np.ndarray, " samples"]  # pyright: ignore[reportIncompatibleMethodOverride]
    distance: Float[np.ndarray, " samples"]


def nearest(
    values: Real[np.ndarray, "samples *volume"],
    training: Real[np.ndarray, "others *volume"],
    window: tuple[float, float],
    symmetric: bool = False,
) -> Nearest:
    """Finds the nearest training volume of each volume, by the root-mean-square difference of windowed voxels.

    Args:
      values: volumes, in HU or a unit of their own.
      training: training volumes of the same shape and unit.
      window: the values that become 0 and 1.
      symmetric: whether to compare each volume in all `symmetries`, which finds flipped and rotated copies.
    """
    others = windowed(training, window).astype(np.float32).reshape(len(training), -1)
    squares = np.einsum("ij,ij->i", others, others)
    index = np.zeros(len(values), np.int64)
    distance = np.full(len(values), np.inf)
    for start in range(0, len(values), BLOCK):
        part = slice(start, start + BLOCK)
        shares = windowed(values[part], window).astype(np.float32)
        for view in symmetries(shares) if symmetric else [shares]:
            volumes = view.reshape(len(view), -1)
            candidate = np.argmin(squares - 2 * volumes @ others.T, axis=1)
            # Distances follow from the differences themselves, because the expanded square loses small ones to rounding.
            candidate_distance = np.sqrt(np.mean((volumes - others[candidate]) ** 2, axis=1, dtype=np.float64))
            nearer = candidate_distance < distance[part]
            index[part] = np.where(nearer, candidate, index[part])
            distance[part] = np.where(nearer, candidate_distance, distance[part])
    return Nearest(index, distance)


def copies(
    values: Real[np.ndarray, "samples *volume"], others: Real[np.ndarray, "others *volume"], window: tuple[float, float]
) -> dict[int, int]:
    """Returns the indices of volumes that equal another one voxel for voxel, in any of the `symmetries`, and of the others.

    >>> ramp = np.arange(8.0).reshape(1, 2, 2, 2)
    >>> copies(ramp[:, ::-1], np.concatenate([ramp + 1, ramp]), (0.0, 9.0))
    {0: 1}
    """
    index = {volume.tobytes(): i for i, volume in enumerate(windowed(others, window).astype(np.float32))}
    views = symmetries(windowed(values, window).astype(np.float32))
    keys = ((i, volume.tobytes()) for view in views for i, volume in enumerate(view))
    return {i: index[key] for i, key in keys if key in index}


def novelty(generated: Float[np.ndarray, " generated"], held_out: Float[np.ndarray, " held_out"]) -> float:
    """Returns the median distance from the training set over that of held-out real volumes.

    1 means as novel as new patients, and 0 means copies. Blur alone lowers the ratio, because a mean of many volumes is near
    all of them.

    >>> novelty(np.array([0.0, 0.1, 0.3]), np.array([0.2, 0.2]))
    0.5
    """
    return float(np.median(generated) / np.median(held_out))


def symmetries(values: Real[np.ndarray, "samples *volume"]) -> Iterator[Real[np.ndarray, "samples *volume"]]:
    """Yields the volumes flipped along all sets of axes, and also transposed in the last two axes if these are equal.

    These are the 16 of a cube's 48 symmetries that keep the first axis. A scan's slices are thicker and sharper than its
    pixels, so a volume rotated out of its plane looks different.

    >>> len(list(symmetries(np.zeros((1, 4, 4, 4))))), len(list(symmetries(np.zeros((1, 4, 4, 5)))))
    (16, 8)
    """
    axes = range(1, values.ndim)
    transposed = [values, values.swapaxes(-1, -2)] if values.ndim > 2 and values.shape[-1] == values.shape[-2] else [values]
    for view in transposed:
        for flipped in itertools.chain.from_iterable(itertools.combinations(axes, n) for n in range(values.ndim)):
            yield np.flip(view, flipped)
