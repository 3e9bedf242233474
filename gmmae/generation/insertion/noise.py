"""The noise of a scan: how strong it is, how far it reaches in a slice, and more of the same.

It is measured on what a Gaussian of 1.5 pixels takes out of each slice, where vessels hardly matter: through the median
absolute deviation and the correlation of neighbouring pixels. Simulated noise of a known reach goes through the same filter, so
that both are corrected for what the filter takes away. Slices are taken to be independent of each other.
"""

from functools import cache
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Real
from scipy import ndimage

from gmmae.generation.insertion.hosts import Host
from gmmae.generation.insertion.lungs import Lungs

DEEP_MM = 5.0
SLICES = 12
"""At most so many slices of a scan are measured."""

LEAST_VOXELS = 30
FILTER_PIXELS = 1.5
REACHES = (0.01, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2, 1.4)
"""Standard deviations, in pixels, of the Gaussian that makes white noise into a scan's."""

MAD = 1.4826


class Noise(NamedTuple):
    """Standard deviation in HU, and that of the Gaussian which correlates neighbours in a slice, in pixels."""

    hu: float
    reach_pixels: float


def measure(host: Host, lungs: Lungs) -> Noise:
    """The noise of a scan's lungs, away from the pleura; none where there is too little lung to see it."""
    deep = lungs.depth_mm > DEEP_MM
    slices = np.flatnonzero(deep.any(axis=(1, 2)))
    chosen = slices[np.unique(np.linspace(0, len(slices) - 1, min(SLICES, len(slices))).round().astype(int))]
    z, y, x = lungs.step
    residuals: list[np.ndarray] = []
    products: list[np.ndarray] = []
    for block in chosen:
        pixels = host.voxels[block * z].astype(float)
        where = np.zeros(pixels.shape, bool)
        there = deep[block].repeat(y, 0).repeat(x, 1)
        rows, columns = (min(pair) for pair in zip(there.shape, pixels.shape, strict=True))
        where[:rows, :columns] = there[:rows, :columns]
        residual = _residual(pixels)
        residuals.append(residual[where])
        products.append(np.stack([residual[:, :-1], residual[:, 1:]])[:, where[:, :-1] & where[:, 1:]])
    if sum(map(len, residuals)) < LEAST_VOXELS:
        return Noise(0.0, REACHES[0])
    spread = _spread(np.concatenate(residuals))
    pairs = np.clip(np.concatenate(products, axis=1), -2.5 * spread, 2.5 * spread)
    correlation = float(np.corrcoef(pairs)[0, 1]) if spread > 0 else 0.0
    kept, correlations = _simulated()
    reach = float(np.interp(correlation, correlations, REACHES))
    return Noise(spread / float(np.interp(reach, REACHES, kept)), reach)


def within(values: Float[np.ndarray, "z y x"], inner: Bool[np.ndarray, "z y x"], reach_pixels: float) -> float | None:
    """The standard deviation, in HU, of noise of this reach in a nodule's inner voxels; None where these are too few."""
    if inner.sum() < LEAST_VOXELS:
        return None
    residual = np.stack([_residual(plane) for plane in values])
    kept, _ = _simulated()
    return _spread(residual[inner]) / float(np.interp(reach_pixels, REACHES, kept))


def draw(rng: np.random.Generator, noise: Noise, shape: tuple[int, ...]) -> Float[np.ndarray, "z y x"]:
    """Noise of this strength and reach."""
    white = rng.standard_normal(shape)
    field = ndimage.gaussian_filter(white, (0, noise.reach_pixels, noise.reach_pixels), mode="wrap")
    return field * (noise.hu / _gain(noise.reach_pixels))


def _residual(pixels: Real[np.ndarray, "y x"]) -> Float[np.ndarray, "y x"]:
    return pixels - ndimage.gaussian_filter(pixels, FILTER_PIXELS, mode="nearest")


def _spread(values: Float[np.ndarray, " n"]) -> float:
    return MAD * float(np.median(np.abs(values - np.median(values))))


@cache
def _gain(reach_pixels: float) -> float:
    """The standard deviation that white noise keeps under the Gaussian of this reach."""
    impulse = np.zeros((25, 25))
    impulse[12, 12] = 1
    return float(np.sqrt(np.square(ndimage.gaussian_filter(impulse, reach_pixels)).sum()))


@cache
def _simulated() -> tuple[list[float], list[float]]:
    """For each reach: the share of the noise that the filter leaves, and the correlation of neighbours in it."""
    white = np.random.default_rng(0).standard_normal((192, 192))
    kept, correlations = [], []
    for reach in REACHES:
        residual = _residual(ndimage.gaussian_filter(white, reach, mode="wrap") / _gain(reach))
        kept.append(float(residual.std()))
        correlations.append(float(np.corrcoef(residual[:, :-1].ravel(), residual[:, 1:].ravel())[0, 1]))
    return kept, correlations
