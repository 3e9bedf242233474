"""Blending of a nodule into the lung. Only its support changes, the nodule and a band around it."""

import numpy as np
from scipy import ndimage, sparse
from scipy.sparse.linalg import cg

from gmmae.generation.insertion.geometry import Vector, Volume

SCREENING_MM = 0.5
"""Depth below a nodule's surface to which Poisson blending changes its own values."""

KEPT_HU = (100.0, 300.0)
"""Excess of the host's density over the nodule's, from which something and everything of it is kept.

This keeps vessels in ground glass, and the chest wall beside a nodule at the pleura.
"""


def dense(host: Volume, nodule: Volume) -> Volume:
    """The share of the host that is kept in each voxel, because it is denser than the nodule."""
    low, high = KEPT_HU
    return smooth_step((ndimage.uniform_filter(host, 3, axes=(1, 2), mode="nearest") - nodule - low) / (high - low))


def poisson(host: Volume, nodule: Volume, distance_mm: Volume, band_mm: float, spacing_mm: Vector) -> Volume:
    """Blends gradients from the nodule's to the host's over the band, with the host's values at its end (Poisson blending).

    In the support the change `δ = u − h` of the host minimises `Σ |∇δ − w ∇(v − h)|² + Σ (δ − (v − h))² / s²`, where v is the
    nodule, w falls from 1 at its surface to 0 at the band's end, and the second sum runs over the nodule's inside. So the
    nodule keeps its own HU except in a rim of a few s. Plain Poisson blending (w = 1) leaves dark halos if dense tissue ends at
    the band. The arrays, HU and distances from the nodule's surface (negative inside), go at least a voxel beyond the band.

    Source: Pérez, Gangnet, Blake, ACM Trans. Graph. 22, 2003; screened as in Bhat et al., ECCV 2008.
    """
    weight, difference, index = smooth_step(1 - distance_mm / band_mm), nodule - host, np.arange(host.size)
    support, same = weight > 0, sparse.csr_array(sparse.eye_array(host.size))
    steps = [same[np.roll(index.reshape(host.shape), -1, axis).ravel()] for axis in range(3)]
    gradient = sparse.csc_array(sparse.vstack([(step - same) / mm for step, mm in zip(steps, spacing_mm, strict=True)]))
    between = sparse.vstack([(step + same) / 2 for step in steps]) @ weight.ravel()
    inner = gradient[:, support.ravel()]
    screening = (distance_mm[support] < 0) / SCREENING_MM**2
    matrix = inner.T @ inner + sparse.diags_array(screening)
    right = inner.T @ (between * (gradient @ difference.ravel())) + screening * difference[support]
    change, failed = cg(matrix, right, rtol=1e-6, M=sparse.diags_array(1 / matrix.diagonal()))
    assert not failed, "the matrix is symmetric and positive"
    blended = host.copy()
    blended[support] += change
    return np.clip(blended, np.minimum(host, nodule), np.maximum(host, nodule))


def smooth_step(t: Volume) -> Volume:
    """0 up to t = 0, 1 from t = 1 on, and a smooth passage between them."""
    t = np.clip(t, 0, 1)
    return t * t * (3 - 2 * t)
