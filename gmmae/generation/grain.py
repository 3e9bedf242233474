"""The grain of scans: noise and blur of each scan, and the spectrum that they leave in a cube.

Noise and sharpness follow the scan's kernel, dose and slices, not the nodule. A decoded mixture with blended residuals has the
grain of several scans, so all generated nodules would be equally grainy. Here each gets the spectrum of a single nodule.
Spectrum and grey levels are imposed alternately (Schreiber and Schmitz, Phys. Rev. Lett. 77, 1996; here by cosines).
The phases, and so all places, remain those of the generated nodule.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy import fft, ndimage

from gmmae.data.volumes import NativeNodule
from gmmae.generation.insertion.noise import Noise, of_pixels
from gmmae.generation.texture import with_grey_levels

EDGES = (0.12, 0.25, 0.37, 0.5, 0.62, 0.75, 0.87)
"""Edges of the bands of frequencies across slices and within slices, as shares of the highest frequency of an axis."""
FINE = 0.5
"""Share from which frequencies show the scan's grain rather than the nodule's shape."""
ITERATIONS = 6
LUNG_HU = -700.0
MARGIN_PIXELS = 2
"""Distance from the nodule's mask from which a scan's noise is measured."""
PIXEL_DEVIATION = 12**-0.5
"""Standard deviation of a pixel's own width, in pixels. It limits the sharpness of noise without correlation."""
MTF_LEVEL = 0.1
"""Contrast at the frequency that is a scan's sharpness."""
SHARPNESS_OF_BLUR = float(10 * np.sqrt(-np.log(MTF_LEVEL) / 2) / np.pi)
"""Sharpness in line pairs per cm, times the blur in mm: a Gaussian's contrast is `exp(-2 π² b² f²)`."""


class Grain(NamedTuple):
    """Noise and blur of the scan of each nodule; NaN where the volume has too little lung.

    Attributes:
      noise_hu: standard deviation of the noise in the lung, HU.
      blur_mm: standard deviation of the blur within a slice, mm: of the noise's correlation and of a pixel's width.
      slice_mm: distance of slices, mm.
    """

    noise_hu: Float[np.ndarray, " samples"]
    blur_mm: Float[np.ndarray, " samples"]
    slice_mm: Float[np.ndarray, " samples"]

    @property
    def sharpness(self) -> Float[np.ndarray, " samples"]:
        """Frequency within a slice at which the blur leaves a tenth of the contrast, in line pairs per cm."""
        return SHARPNESS_OF_BLUR / self.blur_mm


def measure(volumes: Sequence[NativeNodule]) -> Grain:
    """Measures the grain in the lung around nodules, on the voxels of their scans."""
    rows = []
    for volume in volumes:
        hu = volume.values.astype(np.float64)
        near = np.asarray(ndimage.binary_dilation(volume.mask > 0, iterations=MARGIN_PIXELS))
        smooth = ndimage.uniform_filter1d(ndimage.uniform_filter1d(hu, 3, 1), 3, 2)
        lung = (smooth < LUNG_HU) & np.logical_not(near)
        noise = of_pixels(hu, lung)
        rows.append((noise.hu or np.nan, blur_mm(noise, volume.spacing_mm[2]), volume.spacing_mm[0]))
    return Grain(*np.array(rows, np.float64).reshape(-1, 3).T)


def blur_mm(noise: Noise, pixel_mm: float) -> float:
    """Returns the blur within slices of a scan with this noise, in mm; NaN without noise."""
    return float(np.hypot(noise.reach_pixels, PIXEL_DEVIATION)) * pixel_mm if noise.hu > 0 else float("nan")


def bands(shape: tuple[int, ...]) -> Int[np.ndarray, "z y x"]:
    """Returns the band of each coefficient of a cosine transform. Band 0 has the lowest frequencies.

    A band is a range of frequencies across slices and a range of frequencies within slices.
    """
    z, y, x = (np.arange(n) / n for n in shape)
    within = np.digitize(np.hypot(y[:, None], x), EDGES)
    return np.digitize(z, EDGES)[:, None, None] * (len(EDGES) + 1) + within


def fine_bands() -> np.ndarray:
    """Returns the numbers of the bands that show grain."""
    return np.flatnonzero(np.add.outer(*[np.array((0.0, *EDGES)) >= FINE] * 2).ravel())


def spectra(volumes: Float[np.ndarray, "samples z y x"]) -> Float[np.ndarray, "samples bands"]:
    """Returns the mean square of the coefficients in each band. Bands without a coefficient have 0."""
    return _energies(_transform(volumes), bands(volumes.shape[1:]))


def with_spectra(
    volumes: Float[np.ndarray, "samples z y x"],
    wanted: Float[np.ndarray, "samples bands"],
    levels: Float[np.ndarray, "samples levels"],
    inside: Bool[np.ndarray, "samples z y x"],
    only: Int[np.ndarray, " imposed"] | None = None,
) -> Float[np.ndarray, "samples z y x"]:
    """Gives volumes the energy of each band, and grey levels, alternately.

    Args:
      volumes: volumes as shares of the window.
      wanted: mean square of each band, by `spectra`.
      levels: grey levels of each volume, by `gmmae.generation.texture.grey_levels`.
      inside: the masks, of as many voxels as those of the levels.
      only: bands that are changed; None changes all but band 0.
    """
    band = bands(volumes.shape[1:])
    kept = np.ones(wanted.shape[1], bool)
    kept[1:] = False
    if only is not None:
        kept[np.setdiff1d(np.arange(len(kept)), only)] = True
    for _ in range(ITERATIONS):
        coefficients = _transform(volumes)
        gain = np.sqrt(wanted / np.maximum(_energies(coefficients, band), 1e-12))
        gain[:, kept] = 1
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
