"""A nodule blended into the lung around it. Nothing changes outside its support, the nodule and a band around it."""

from collections.abc import Callable
from itertools import product

import numpy as np
from jaxtyping import Float
from scipy import ndimage, sparse
from scipy.sparse.linalg import cg

Grid = Float[np.ndarray, "z y x"]

SCREENING_MM = 0.5
"""How deep, below its surface, Poisson blending may change a nodule's own values."""

KEPT_HU = (100.0, 300.0)
"""What is denser than the nodule by more than the second stays wholly, by less than the first not at all: vessels through
ground glass, and the chest wall beside a nodule at the pleura, which its cube's air would otherwise cut into."""


def dense(host: Grid, nodule: Grid) -> Grid:
    """The share of the host that stays in each voxel, because it is denser than the nodule there."""
    low, high = KEPT_HU
    smooth = ndimage.uniform_filter1d(ndimage.uniform_filter1d(host, 3, 1, mode="nearest"), 3, 2, mode="nearest")
    excess = smooth - nodule
    return _smoothstep((excess - low) / (high - low))


def alpha(host: Grid, nodule: Grid, distance_mm: Grid, band_mm: float, spacing_mm: Float[np.ndarray, "3"]) -> Grid:
    """Alpha blending: the nodule within its surface, falling smoothly to the host over the band.

    Args:
      host: HU of the scan.
      nodule: HU of the nodule on the same voxels.
      distance_mm: from the nodule's surface, negative inside.
      band_mm: the band's width.
      spacing_mm: of the voxels, z, y, x; not needed here.
    """
    del spacing_mm
    return host + _weight(distance_mm, band_mm) * (nodule - host)


def poisson(host: Grid, nodule: Grid, distance_mm: Grid, band_mm: float, spacing_mm: Float[np.ndarray, "3"]) -> Grid:
    """Poisson blending: gradients pass from the nodule's to the host's over the band, values are the host's at its end.

    In the support the change `δ = u − h` of the host minimises `Σ |∇δ − w ∇(v − h)|² + Σ (δ − (v − h))² / s²`, where v is the
    nodule and w its weight in alpha blending; the second sum runs over its inside alone, so that it keeps its own HU but for a
    rim of a few s. No voxel gets darker, or brighter, than both host and nodule are: plain Poisson blending (w = 1) leaves dark
    halos where something dense ends at the band.

    Args: as `alpha`.

    Source: Pérez, Gangnet, Blake, ACM Trans. Graph. 22, 2003; screened as in Bhat et al., ECCV 2008.
    """
    weight, difference = _weight(distance_mm, band_mm), nodule - host
    support = weight > 0
    inside = distance_mm[support] < 0
    size = int(support.sum())
    number = np.full(host.shape, -1)
    number[support] = np.arange(size)
    diagonal = inside / SCREENING_MM**2
    right = diagonal * difference[support]
    entries = []
    for axis, side in product(range(3), (-1, 1)):
        # Voxels at the region's end have no neighbour; they are in no support, since a region is a voxel wider.
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


Blend = Callable[[Grid, Grid, Grid, float, Float[np.ndarray, "3"]], Grid]
BLENDINGS: dict[str, Blend] = {"poisson": poisson, "alpha": alpha}


def _weight(distance_mm: Grid, band_mm: float) -> Grid:
    """1 within the nodule, 0 where its band ends."""
    return _smoothstep(1 - distance_mm / band_mm)


def _smoothstep(t: Grid) -> Grid:
    t = np.clip(t, 0, 1)
    return t * t * (3 - 2 * t)
