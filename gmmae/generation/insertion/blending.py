"""Blending of a nodule into the lung. Only its support changes, the nodule and a band around it."""

from itertools import product

import numpy as np
from jaxtyping import Float
from scipy import ndimage, sparse
from scipy.sparse.linalg import cg

Volume = Float[np.ndarray, "z y x"]

SCREENING_MM = 0.5
"""Depth below a nodule's surface to which Poisson blending changes its own values."""

KEPT_HU = (100.0, 300.0)
"""Excess of the host's density over the nodule's. Below the first value nothing of the host is kept, above the second all.

This keeps vessels in ground glass. It also keeps the chest wall beside a nodule at the pleura, despite the air in its cube."""


def dense(host: Volume, nodule: Volume) -> Volume:
    """Returns the share of the host that is kept in each voxel, because it is denser than the nodule."""
    low, high = KEPT_HU
    smooth = ndimage.uniform_filter1d(ndimage.uniform_filter1d(host, 3, 1, mode="nearest"), 3, 2, mode="nearest")
    excess = smooth - nodule
    return _smoothstep((excess - low) / (high - low))


def poisson(host: Volume, nodule: Volume, distance_mm: Volume, band_mm: float, spacing_mm: Float[np.ndarray, "3"]) -> Volume:
    """Blends gradients from the nodule's to the host's over the band, with the host's values at its end (Poisson blending).

    In the support the change `δ = u − h` of the host minimises `Σ |∇δ − w ∇(v − h)|² + Σ (δ − (v − h))² / s²`. Here v is the
    nodule and w its `blend_weight`. The second sum runs over the nodule's inside alone. So the nodule keeps its own
    HU except in a rim of a few s. All values are limited to the range between host and nodule. Plain Poisson blending (w = 1)
    leaves dark halos if dense tissue ends at the band.

    Args:
      host: HU of the scan.
      nodule: HU of the nodule on the same voxels.
      distance_mm: distance from the nodule's surface, negative inside.
      band_mm: width of the band.
      spacing_mm: spacing of the voxels along z, y, x.

    Source: Pérez, Gangnet, Blake, ACM Trans. Graph. 22, 2003; screened as in Bhat et al., ECCV 2008.
    """
    weight, difference = blend_weight(distance_mm, band_mm), nodule - host
    support = weight > 0
    inside = distance_mm[support] < 0
    size = int(support.sum())
    number = np.full(host.shape, -1)
    number[support] = np.arange(size)
    diagonal = inside / SCREENING_MM**2
    right = diagonal * difference[support]
    entries = []
    for axis, side in product(range(3), (-1, 1)):
        # Voxels at the region's end have no neighbour. They lie outside the support, because a region is a voxel wider.
        strength = 1 / float(spacing_mm[axis]) ** 2
        neighbour = np.roll(number, -side, axis)[support]
        step = difference[support] - np.roll(difference, -side, axis)[support]
        right += strength * (weight[support] + np.roll(weight, -side, axis)[support]) / 2 * step
        diagonal = diagonal + strength
        inner = np.flatnonzero(neighbour >= 0)
        entries.append((np.full(len(inner), -strength), inner, neighbour[inner]))
    strengths, rows, columns = (np.concatenate(part) for part in zip(*entries, strict=True))
    matrix = sparse.csr_array((strengths, (rows, columns)), shape=(size, size)) + sparse.diags_array(diagonal)
    change, failed = cg(matrix, right, rtol=1e-6, maxiter=10 * size, M=sparse.diags_array(1 / diagonal))
    assert not failed, "the matrix is symmetric and positive"
    blended = host.copy()
    blended[support] += change
    return np.clip(blended, np.minimum(host, nodule), np.maximum(host, nodule))


def blend_weight(distance_mm: Volume, band_mm: float) -> Volume:
    """Returns weights of 1 inside the nodule and 0 beyond its band."""
    return _smoothstep(1 - distance_mm / band_mm)


def _smoothstep(t: Volume) -> Volume:
    t = np.clip(t, 0, 1)
    return t * t * (3 - 2 * t)
