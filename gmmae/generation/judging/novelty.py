"""How far volumes lie from those that a generator was fitted to: fidelity without novelty is copying.

Volumes are windowed to [0, 1] as densities are, but not divided by their mass, so that a copy that is brighter is no copy. The
distance of two volumes is the root of the mean squared difference of their voxels; it says nothing of millimetres: a volume is
16 samples of an edge of 1.25 diameters.
"""

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Float32, Int, Real

COPY_PERCENTILE = 5.0
"""A volume is called a copy if it is nearer to the training set than this percentage of real held-out volumes."""
BLOCK = 512
"""Volumes compared at a time with all others: 512 × 4096 voxels are 8 MB, their distances from 1000 others 2 MB."""


class Nearest(NamedTuple):
    """For each volume the nearest one among others: its index, and its distance in units of the window's width."""

    index: Int[np.ndarray, " samples"]  # pyright: ignore[reportIncompatibleMethodOverride]
    distance: Float[np.ndarray, " samples"]


def nearest(
    values: Real[np.ndarray, "samples *volume"],
    training: Real[np.ndarray, "others *volume"],
    window: tuple[float, float],
    symmetric: bool = False,
) -> Nearest:
    """The nearest training volume of each volume, and the root-mean-square difference of their windowed voxels.

    Args:
      values: volumes, in HU or a unit of their own.
      training: those that they may be copies of, of the same shape and unit.
      window: the values that become 0 and 1.
      symmetric: compare each volume in all of `symmetries`, so that flipped and turned copies are found too.
    """
    those = _windowed(training, window)
    squares = np.einsum("ij,ij->i", those, those)
    index = np.zeros(len(values), np.int64)
    distance = np.full(len(values), np.inf)
    for start in range(0, len(values), BLOCK):
        part = slice(start, start + BLOCK)
        for turned in symmetries(values[part]) if symmetric else [values[part]]:
            these = _windowed(turned, window)
            found = np.argmin(squares - 2 * these @ those.T, axis=1)
            # The differences themselves: the expanded square loses the small distances, which are those that matter, to
            # rounding.
            apart = np.sqrt(np.mean((these - those[found]) ** 2, axis=1, dtype=np.float64))
            nearer = apart < distance[part]
            index[part] = np.where(nearer, found, index[part])
            distance[part] = np.where(nearer, apart, distance[part])
    return Nearest(index, distance)


def novelty(generated: Float[np.ndarray, " generated"], held_out: Float[np.ndarray, " held_out"]) -> float:
    """The median distance from the training set over that of real volumes that were held out of it.

    One is as novel as a new patient, zero is a copy; blur alone lowers it, since the mean of many volumes is near to all of
    them.

    >>> novelty(np.array([0.0, 0.1, 0.3]), np.array([0.2, 0.2]))
    0.5
    """
    return float(np.median(generated) / np.median(held_out))


def symmetries(values: Real[np.ndarray, "samples *volume"]) -> Iterator[Real[np.ndarray, "samples *volume"]]:
    """The volumes flipped along any axes, each also with its last two axes exchanged where their edges are equal.

    These are 16 of a cube's 48 symmetries: those that leave the first axis in its place, because a scan's slices are thicker
    and sharper than its pixels are wide, so a volume that was turned out of its plane looks different.

    >>> len(list(symmetries(np.zeros((1, 4, 4, 4))))), len(list(symmetries(np.zeros((1, 4, 4, 5)))))
    (16, 8)
    """
    axes = range(1, values.ndim)
    turns = [values, values.swapaxes(-1, -2)] if values.ndim > 2 and values.shape[-1] == values.shape[-2] else [values]
    for turned in turns:
        for flipped in itertools.chain.from_iterable(itertools.combinations(axes, n) for n in range(values.ndim)):
            yield np.flip(turned, flipped)


def _windowed(
    values: Real[np.ndarray, "samples *volume"], window: tuple[float, float]
) -> Float32[np.ndarray, "samples voxels"]:
    low, high = window
    return np.clip((values.reshape(len(values), -1).astype(np.float32) - low) / (high - low), 0, 1)
