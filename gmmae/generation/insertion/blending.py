"""A nodule blended into the lung around it. Nothing changes outside its support, the nodule and a band around it."""

from collections.abc import Callable

import numpy as np
from jaxtyping import Bool, Float
from scipy import ndimage, sparse
from scipy.sparse.linalg import cg

Grid = Float[np.ndarray, "z y x"]

SCREENING_MM = 2.0
"""How deep, below its surface, Poisson blending may change a nodule's own values."""

KEPT_HU = (100.0, 300.0)
"""What is denser than the nodule by less than the first stays not at all, by more than the second wholly: vessels through ground
glass, and the chest wall beside a nodule at the pleura, which its cube's air would otherwise cut into."""


def dense(host: Grid, nodule: Grid) -> Grid:
    """The share of the host that stays in each voxel, because it is denser than the nodule there."""
    low, high = KEPT_HU
    excess = ndimage.uniform_filter(host, (1, 3, 3), mode="nearest") - nodule
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
    weight = _smoothstep(1 - distance_mm / band_mm)
    return host + weight * (nodule - host)


def poisson(host: Grid, nodule: Grid, distance_mm: Grid, band_mm: float, spacing_mm: Float[np.ndarray, "3"]) -> Grid:
    """Poisson blending, screened: the values whose gradients are the nodule's, and whose border is the host.

    In the support, `u` minimises `Σ |∇u − ∇v|² + Σ (u − v)² / s²`, v the nodule, the second sum over its inside alone: so it
    keeps its own HU but for a rim of a few s. Pérez, Gangnet, Blake, ACM Trans. Graph. 22, 2003, without the second sum.

    Args: as `alpha`.
    """
    support = distance_mm < band_mm
    number = np.full(host.shape, -1)
    number[support] = np.arange(support.sum())
    size = int(support.sum())
    difference = host - nodule  # of u − v: zero gradient wanted inside, the host's difference on the border
    diagonal = np.where(distance_mm < 0, 1 / SCREENING_MM**2, 0.0)[support]
    right = np.zeros(size)
    rows, columns, weights = [], [], []
    for axis, mm in enumerate(spacing_mm):
        for side in (-1, 1):
            there, neighbour, beyond = _neighbours(number, difference, axis, side)
            weight = 1 / float(mm) ** 2
            diagonal[number[there]] += weight
            inner = neighbour >= 0
            rows.append(number[there][inner])
            columns.append(neighbour[inner])
            weights.append(np.full(int(inner.sum()), -weight))
            right[number[there][~inner]] += weight * beyond[~inner]
    laplacian = sparse.coo_array((np.concatenate(weights), (np.concatenate(rows), np.concatenate(columns))), shape=(size, size))
    matrix = sparse.csr_array(laplacian + sparse.diags_array(diagonal))
    scale = sparse.diags_array(1 / diagonal)
    solution, failed = cg(matrix, right, rtol=1e-6, atol=1e-3, maxiter=10 * size, M=scale)
    assert not failed, "the matrix is symmetric and positive"
    blended = host.copy()
    blended[support] = nodule[support] + solution
    return blended


def _neighbours(
    number: np.ndarray, difference: Grid, axis: int, side: int
) -> tuple[Bool[np.ndarray, "z y x"], np.ndarray, np.ndarray]:
    """The support's voxels that have a neighbour on this side, and of each neighbour its number (-1 outside) and difference."""
    there = number >= 0
    ends = [slice(None)] * 3
    ends[axis] = slice(-1, None) if side > 0 else slice(0, 1)
    there[tuple(ends)] = False
    return there, np.roll(number, -side, axis)[there], np.roll(difference, -side, axis)[there]


Blend = Callable[[Grid, Grid, Grid, float, Float[np.ndarray, "3"]], Grid]
BLENDINGS: dict[str, Blend] = {"poisson": poisson, "alpha": alpha}


def _smoothstep(t: Grid) -> Grid:
    t = np.clip(t, 0, 1)
    return t * t * (3 - 2 * t)
