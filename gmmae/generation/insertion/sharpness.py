"""The blur of a nodule becomes that of a scan, within slices. Its own noise is taken away first.

The nodule's own blur is a Gaussian of its scan and the width of its cube's voxels. Interpolation on the scan's voxels adds to
it. What is missing to the edges of the new scan is a Gaussian too. If the nodule is the softer one, it is divided out.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Real
from scipy import fft, ndimage

from gmmae.generation.grain import PIXEL_DEVIATION
from gmmae.generation.insertion.cubes import samples_in

EDGE_SHARE = 0.16
"""Share of the difference of two scans' squared blurs that edges of nodules show.

A scan's blur is that of its noise, and of fine vessels. In 578 real nodules the logarithm of the energy within slices falls
with it, .14 to .17 times as much as by such a Gaussian. That is from a quarter to five eighths of the highest frequency
(`experiments/edges.py`).
"""
MAX_GAIN = 4.0
"""Maximum amplification of a frequency. A cube's finest frequencies hold rounding and ringing beside the nodule."""
NEIGHBOURHOOD = (3, 5, 5)
"""Voxels along z, y, x in which the variance is compared with that of the noise."""
CHANCE = 2.0
"""Factor of the noise's variance up to which the variance of so few voxels may be noise alone."""


class Own(NamedTuple):
    """The grain of a nodule's own scan: noise in HU, and standard deviation of the blur within slices in mm."""

    noise_hu: float
    blur_mm: float


def with_blur(
    values: Real[np.ndarray, "z y x"], voxel_mm: float, own: Own, pixel_mm: float, blur_mm: float
) -> Float[np.ndarray, "z y x"]:
    """Returns a cube without its noise, and with the blur that interpolation makes that of a scan.

    Within slices frequencies f get the gain `exp(-2π² (e (b² - a²) - r²) f²)`, at most `MAX_GAIN`.

    Here e is `EDGE_SHARE`. b is the scan's blur, a the nodule's own, and r that of voxels and interpolation.

    Args:
      values: the cube, HU.
      voxel_mm: edge of its voxels.
      own: noise and blur of the scan that the nodule comes from.
      pixel_mm: edge of the pixels of the scan that it is put into.
      blur_mm: blur of that scan.
    """
    rows, columns = (np.arange(n) / (2 * n * voxel_mm) for n in values.shape[1:])  # cycles per mm of a cosine transform
    missing = EDGE_SHARE * (blur_mm**2 - own.blur_mm**2) - _resampling_mm2(voxel_mm, pixel_mm)
    exponent = -2 * np.pi**2 * missing * (rows[:, None] ** 2 + columns**2)
    gain = np.exp(np.minimum(exponent, np.log(MAX_GAIN)))
    coefficients = np.asarray(fft.dctn(without_noise(values.astype(float), own.noise_hu), axes=(1, 2)))
    return np.asarray(fft.idctn(coefficients * gain, axes=(1, 2)))


def without_noise(values: Float[np.ndarray, "z y x"], noise_hu: float) -> Float[np.ndarray, "z y x"]:
    """Returns the local means, and the share of the deviation from them that the noise does not explain.

    The share is `1 - c σ² / s²` with `CHANCE` c, where the local variance s² is above that of the noise σ². So edges stay.

    Source: Lee, IEEE Trans. Pattern Anal. Mach. Intell. 2, 1980.
    """
    mean, mean_square = _local_mean(values), _local_mean(values**2)
    variance = np.maximum(mean_square - mean**2, 1e-6)
    return mean + np.maximum(1 - CHANCE * noise_hu**2 / variance, 0) * (values - mean)


def _local_mean(values: Float[np.ndarray, "z y x"]) -> Float[np.ndarray, "z y x"]:
    for axis, size in enumerate(NEIGHBOURHOOD):
        values = np.asarray(ndimage.uniform_filter1d(values, size, axis, mode="nearest"))
    return values


def _resampling_mm2(voxel_mm: float, pixel_mm: float) -> float:
    """Returns the variance of the blur, in mm², by a cube's voxels, their linear interpolation, and the mean over a pixel."""
    samples = samples_in(pixel_mm, voxel_mm)
    return (voxel_mm**2 + pixel_mm**2 * (1 - samples**-2)) * PIXEL_DEVIATION**2 + voxel_mm**2 / 6
