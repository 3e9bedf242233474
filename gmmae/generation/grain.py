"""The grain of scans: the spectrum that noise and blur leave in a cube.

Noise and sharpness follow the scan's kernel, dose and slices, not the nodule. A decoded mixture with blended residuals has the
grain of several scans, so all generated nodules would be equally grainy. Here each gets the spectrum of a single nodule.
Spectrum and grey levels are imposed alternately (Schreiber and Schmitz, Phys. Rev. Lett. 77, 1996; here by cosines).
The phases, and so all places, remain those of the generated nodule.
"""

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy import fft

from gmmae.generation.texture import with_grey_levels

EDGES = (0.12, 0.25, 0.37, 0.5, 0.62, 0.75, 0.87)
"""Edges of the bands of frequencies across slices and within slices, as shares of the highest frequency of an axis."""
ITERATIONS = 6


def bands(shape: tuple[int, ...]) -> Int[np.ndarray, "z y x"]:
    """Returns the band of each coefficient of a cosine transform. Band 0 has the lowest frequencies.

    A band is a range of frequencies across slices and a range of frequencies within slices.
    """
    z, y, x = (np.arange(n) / n for n in shape)
    within = np.digitize(np.hypot(y[:, None], x), EDGES)
    return np.digitize(z, EDGES)[:, None, None] * (len(EDGES) + 1) + within


def spectra(volumes: Float[np.ndarray, "samples z y x"]) -> Float[np.ndarray, "samples bands"]:
    """Returns the mean square of the coefficients in each band. Bands without a coefficient have 0."""
    return _energies(_transform(volumes), bands(volumes.shape[1:]))


def with_spectra(
    volumes: Float[np.ndarray, "samples z y x"],
    wanted: Float[np.ndarray, "samples bands"],
    levels: Float[np.ndarray, "samples levels"],
    inside: Bool[np.ndarray, "samples z y x"],
) -> Float[np.ndarray, "samples z y x"]:
    """Gives volumes the energy of each band but band 0, and grey levels, alternately.

    Args:
      volumes: volumes as shares of the window.
      wanted: mean square of each band, by `spectra`.
      levels: grey levels of each volume, by `gmmae.generation.texture.grey_levels`.
      inside: the masks, of as many voxels as those of the levels.
    """
    band = bands(volumes.shape[1:])
    for _ in range(ITERATIONS):
        coefficients = _transform(volumes)
        gain = np.sqrt(wanted / np.maximum(_energies(coefficients, band), 1e-12))
        gain[:, 0] = 1
        volumes = with_grey_levels(_inverse(coefficients * gain[:, band]), levels, inside)
    return volumes


def _transform(volumes: Float[np.ndarray, "samples z y x"]) -> Float[np.ndarray, "samples z y x"]:
    return np.asarray(fft.dctn(volumes.astype(np.float64), axes=(1, 2, 3), norm="ortho"))


def _inverse(coefficients: Float[np.ndarray, "samples z y x"]) -> Float[np.ndarray, "samples z y x"]:
    return np.asarray(fft.idctn(coefficients, axes=(1, 2, 3), norm="ortho"))


def _energies(
    coefficients: Float[np.ndarray, "samples z y x"], band: Int[np.ndarray, "z y x"]
) -> Float[np.ndarray, "samples bands"]:
    count = (len(EDGES) + 1) ** 2
    sizes = np.bincount(band.ravel(), minlength=count)
    sums = [np.bincount(band.ravel(), np.square(one).ravel(), count) for one in coefficients]
    return np.array(sums).reshape(-1, count) / np.maximum(sizes, 1)
