"""The noise of a scan: its strength, its reach (the correlation within a slice), and random draws of it.

Each slice loses a Gaussian blur of 1.5 pixels, which suppresses vessels. The median absolute deviation of the rest gives the
strength, the correlation of neighbouring pixels the reach. Simulated noise of known reach corrects both. Slices are assumed to
be independent.
"""

from functools import cache
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Real
from scipy import ndimage

from gmmae.generation.insertion.geometry import Volume, Voxels
from gmmae.generation.insertion.lungs import Lungs

MIN_PLEURA_MM = 5.0
"""Noise is measured only this far from the pleura."""

MAX_SLICES = 12
MIN_VOXELS = 30
FILTER_PIXELS = 1.5
REACHES = (0.01, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2, 1.4)
"""Standard deviations of the Gaussian, in pixels, that turns white noise into a scan's."""

EDGE_MM = 1.0
"""The edge of a nodule is left out when its own noise is measured."""

MAD = 1.4826


class Noise(NamedTuple):
    """Standard deviation of the noise in HU, and of the Gaussian that correlates neighbours in a slice, in pixels."""

    sd_hu: float
    reach_pixels: float


def measure(voxels: Voxels, lungs: Lungs) -> Noise:
    """Measures the noise of a scan's lungs, away from the pleura; zero if there is too little lung."""
    deep = lungs.depth_mm > MIN_PLEURA_MM
    slices = np.flatnonzero(deep.any((1, 2)))
    chosen, (z, y, x) = slices[:: len(slices) // MAX_SLICES + 1], lungs.step
    mask = deep[chosen].repeat(y, 1).repeat(x, 2)
    pairs = mask[..., :-1] & mask[..., 1:]
    residual = _residual(voxels[chosen * z, : mask.shape[1], : mask.shape[2]])
    if pairs.sum() < MIN_VOXELS or not (deviation := _robust_deviation(residual[mask])):
        return Noise(0.0, REACHES[0])
    neighbours = np.clip([residual[..., :-1][pairs], residual[..., 1:][pairs]], -2.5 * deviation, 2.5 * deviation)
    _, kept, correlations = _simulated()
    reach = np.interp(np.corrcoef(neighbours)[0, 1], correlations, REACHES)
    return Noise(deviation / float(np.interp(reach, REACHES, kept)), reach)


def measure_inside(hu: Volume, distance_mm: Volume, reach_pixels: float) -> float | None:
    """The noise's standard deviation (HU) in a nodule, without its edge if it is large; None for too few voxels."""
    for inner in (distance_mm < -EDGE_MM, distance_mm < 0):
        if inner.sum() >= MIN_VOXELS:
            return _robust_deviation(_residual(hu)[inner]) / np.interp(reach_pixels, REACHES, _simulated()[1])
    return None


def draw(rng: np.random.Generator, reach_pixels: float, shape: tuple[int, ...]) -> Volume:
    """Draws noise of a reach, with a standard deviation of 1."""
    field = ndimage.gaussian_filter(rng.standard_normal(shape), reach_pixels, axes=(1, 2), mode="wrap")
    return field / np.interp(reach_pixels, REACHES, _simulated()[0])


def _residual(values: Real[np.ndarray, "*slices y x"]) -> Float[np.ndarray, "*slices y x"]:
    return values - ndimage.gaussian_filter(values.astype(float), FILTER_PIXELS, axes=(-2, -1), mode="nearest")


def _robust_deviation(values: Float[np.ndarray, " n"]) -> float:
    return MAD * float(np.median(np.abs(values - np.median(values))))


@cache
def _simulated() -> Float[np.ndarray, "3 reaches"]:
    """Each reach's standard deviation, its share after the filter, and the neighbours' correlation."""
    white = np.random.default_rng(0).standard_normal((192, 192))
    found = []
    for reach in REACHES:
        noise = ndimage.gaussian_filter(white, reach, mode="wrap")
        residual = _residual(noise)
        correlation = np.corrcoef(residual[:, :-1].ravel(), residual[:, 1:].ravel())[0, 1]
        found.append((noise.std(), residual.std() / noise.std(), correlation))
    return np.transpose(found)
