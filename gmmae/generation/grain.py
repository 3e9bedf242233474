"""The noise texture of scans: the spectrum that noise and blur leave in a cube.

With residuals blended from several scans all nodules would be equally noisy, so each gets the spectrum of a single one.
Spectrum and grey levels are imposed alternately (Schreiber and Schmitz, Phys. Rev. Lett. 77, 1996; here by cosines), while
phases, and so all places, remain.
"""

from typing import Any

import numpy as np
from jaxtyping import Float, Int
from scipy import fft

from gmmae.generation.texture import Levels, Masks, Volumes, with_grey_levels

EDGES = (0.12, 0.25, 0.37, 0.5, 0.62, 0.75, 0.87)
"""Edges of the bands of frequencies, over the highest one."""
ITERATIONS = 6
COSINES: dict[str, Any] = {"axes": (1, 2, 3), "norm": "ortho"}

Spectra = Float[np.ndarray, "samples bands"]


def spectra(volumes: Volumes) -> Spectra:
    """The mean square of the cosine coefficients in each band, 0 in bands without any.

    A band is a range of frequencies across slices and one within slices; band 0 has the lowest.
    """
    return _energies(np.asarray(fft.dctn(volumes.astype(np.float64), **COSINES)), _bands(volumes.shape[1:]))


def with_spectra(volumes: Volumes, wanted: Spectra, levels: Levels, inside: Masks) -> Volumes:
    """Gives volumes the `wanted` energy of each band but band 0, and the grey levels, alternately."""
    band = _bands(volumes.shape[1:])
    for _ in range(ITERATIONS):
        coefficients = np.asarray(fft.dctn(volumes.astype(np.float64), **COSINES))
        gain = np.sqrt(wanted / np.maximum(_energies(coefficients, band), 1e-12))
        gain[:, 0] = 1
        volumes = with_grey_levels(np.asarray(fft.idctn(coefficients * gain[:, band], **COSINES)), levels, inside)
    return volumes


def _bands(shape: tuple[int, ...]) -> Int[np.ndarray, "z y x"]:
    z, y, x = (np.arange(n) / n for n in shape)
    return np.digitize(z, EDGES)[:, None, None] * (len(EDGES) + 1) + np.digitize(np.hypot(y[:, None], x), EDGES)


def _energies(coefficients: Volumes, band: Int[np.ndarray, "z y x"]) -> Spectra:
    flat, count = band.ravel(), (len(EDGES) + 1) ** 2
    sums = np.array([np.bincount(flat, np.square(one).ravel(), count) for one in coefficients]).reshape(-1, count)
    return sums / np.maximum(np.bincount(flat, minlength=count), 1)
