"""The noise of a scan: measurement of its strength and its correlation within a slice, and random draws of it.

A high-pass filter subtracts a Gaussian blur of 1.5 pixels from each slice, which suppresses vessels. The median absolute
deviation then gives the strength, and the correlation of neighbouring pixels gives the reach. Simulated noise of known reach
goes through the same filter, and corrects both measurements. Slices are assumed to be independent.
"""

from functools import cache
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Real
from scipy import ndimage

from gmmae.generation.insertion.hosts import Host
from gmmae.generation.insertion.lungs import Lungs

MIN_PLEURA_MM = 5.0
"""Minimum distance from the pleura of voxels in which a scan's noise is measured."""

MAX_SLICES = 12
MIN_VOXELS = 30
FILTER_PIXELS = 1.5
REACHES = (0.01, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2, 1.4)
"""Standard deviations, in pixels, of the Gaussian that turns white noise into a scan's noise."""

MAD = 1.4826


class Noise(NamedTuple):
    """Standard deviation of the noise in HU, and of the Gaussian that correlates neighbours in a slice, in pixels."""

    hu: float
    reach_pixels: float


def measure(host: Host, lungs: Lungs) -> Noise:
    """Measures the noise of a scan's lungs, away from the pleura. It is zero if there is too little lung."""
    deep = lungs.depth_mm > MIN_PLEURA_MM
    slices = np.flatnonzero(deep.any(axis=(1, 2)))
    chosen = slices[np.unique(np.linspace(0, len(slices) - 1, min(MAX_SLICES, len(slices))).round().astype(int))]
    z, y, x = lungs.step
    residuals: list[np.ndarray] = []
    neighbours: list[np.ndarray] = []
    for block in chosen:
        pixels = host.voxels[block * z].astype(float)
        mask = np.zeros(pixels.shape, bool)
        upsampled = deep[block].repeat(y, 0).repeat(x, 1)
        rows, columns = (min(pair) for pair in zip(upsampled.shape, pixels.shape, strict=True))
        mask[:rows, :columns] = upsampled[:rows, :columns]
        residual = _residual(pixels)
        residuals.append(residual[mask])
        neighbours.append(np.stack([residual[:, :-1], residual[:, 1:]])[:, mask[:, :-1] & mask[:, 1:]])
    if sum(map(len, residuals)) < MIN_VOXELS:
        return Noise(0.0, REACHES[0])
    deviation = _robust_deviation(np.concatenate(residuals))
    pairs = np.clip(np.concatenate(neighbours, axis=1), -2.5 * deviation, 2.5 * deviation)
    correlation = float(np.corrcoef(pairs)[0, 1]) if deviation > 0 and pairs.shape[1] > 1 else 0.0
    kept, correlations = _simulated()
    reach = float(np.interp(correlation, correlations, REACHES))
    return Noise(deviation / float(np.interp(reach, REACHES, kept)), reach)


def within(values: Float[np.ndarray, "z y x"], inner: Bool[np.ndarray, "z y x"], reach_pixels: float) -> float | None:
    """Measures the noise in a nodule's inner voxels, given its reach; returns its standard deviation in HU.

    The result is None for too few voxels.
    """
    if inner.sum() < MIN_VOXELS:
        return None
    residual = np.stack([_residual(plane) for plane in values])
    kept, _ = _simulated()
    return _robust_deviation(residual[inner]) / float(np.interp(reach_pixels, REACHES, kept))


def draw(rng: np.random.Generator, noise: Noise, shape: tuple[int, ...]) -> Float[np.ndarray, "z y x"]:
    """Draws noise of a strength and reach."""
    white = rng.standard_normal(shape)
    field = ndimage.gaussian_filter(white, (0, noise.reach_pixels, noise.reach_pixels), mode="wrap")
    return field * (noise.hu / _gain(noise.reach_pixels))


def _residual(pixels: Real[np.ndarray, "y x"]) -> Float[np.ndarray, "y x"]:
    return pixels - ndimage.gaussian_filter(pixels, FILTER_PIXELS, mode="nearest")


def _robust_deviation(values: Float[np.ndarray, " n"]) -> float:
    return MAD * float(np.median(np.abs(values - np.median(values))))


@cache
def _gain(reach_pixels: float) -> float:
    """Returns the standard deviation of white noise after the Gaussian of a reach."""
    impulse = np.zeros((25, 25))
    impulse[12, 12] = 1
    return float(np.sqrt(np.square(ndimage.gaussian_filter(impulse, reach_pixels)).sum()))


@cache
def _simulated() -> tuple[list[float], list[float]]:
    """Returns, for each reach, the share of the noise after the filter and the correlation of neighbours."""
    white = np.random.default_rng(0).standard_normal((192, 192))
    kept, correlations = [], []
    for reach in REACHES:
        residual = _residual(ndimage.gaussian_filter(white, reach, mode="wrap") / _gain(reach))
        kept.append(float(residual.std()))
        correlations.append(float(np.corrcoef(residual[:, :-1].ravel(), residual[:, 1:].ravel())[0, 1]))
    return kept, correlations
