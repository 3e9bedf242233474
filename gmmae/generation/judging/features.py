"""The 29 features of a nodule for two-sample tests and classifiers: HU, shape and texture.

Lengths are shares of the cube's longest edge, so the size of nodules does not count.
"""

import numpy as np
from jaxtyping import Float, Float32, Real, Shaped
from scipy import ndimage
from scipy.stats import entropy

from gmmae.data.settings import DataConfig
from gmmae.data.volumes import windowed

NAMES = (
    *("hu_mean", "hu_sd", "hu_skewness", "hu_p5", "hu_p50", "hu_p95"),
    *("share_air", "share_ground_glass"),
    *("radial_1", "radial_2", "radial_3", "radial_4"),
    *("inside_mean", "inside_sd"),
    *("volume", "sphericity", "elongation", "flatness", "gyration", "off_centre"),
    *("gradient", "laplacian", "spectrum_low", "spectrum_middle", "spectrum_high"),
    *("grey_contrast", "grey_homogeneity", "grey_correlation", "grey_entropy"),
)
IS_COPIED = np.array([name.startswith(("hu_", "share_", "inside_", "volume")) for name in NAMES])
"""Features that `gmmae generate` copies: each nodule has a real one's grey levels and number of voxels in the mask."""
CT_WINDOW = DataConfig.window
AIR_HU, SOLID_HU = -750.0, -300.0
"""Limits of ground glass, as in most papers on its quantification."""
GREY_LEVELS = 8


def as_hu(values: Real[np.ndarray, "samples z y x"], window: tuple[float, float]) -> Float32[np.ndarray, "samples z y x"]:
    """Stretches volumes in a unit of their own so that their window, and with it all thresholds, become CT's.

    >>> as_hu(np.array([0.0, 0.5, 1.0, 9.0]).reshape(1, 1, 2, 2), (0.0, 1.0)).ravel().tolist()
    [-1000.0, -300.0, 400.0, 400.0]
    """
    low, high = CT_WINDOW
    return (low + (high - low) * windowed(values, window)).astype(np.float32)


def features(
    values: Real[np.ndarray, "samples z y x"],
    masks: Shaped[np.ndarray, "samples z y x"] | None,
    window: tuple[float, float],
) -> Float[np.ndarray, "samples features"]:
    """The features of each volume in HU, clipped to the window, with columns as in `NAMES`.

    Without a mask, the voxels above the middle of the 5th and the 95th percentile are a nodule.

    - HU: moments, percentiles, shares of two ranges, means of four shells an eighth of the longest edge wide, mean and standard
      deviation within the mask.
    - Shape of the mask: volume as a share of the cube; sphericity `π^(1/3) (6V)^(2/3) / A` (Wadell 1935), whose area A is the
      integral of the smoothed mask's gradient (coarea formula), because a count of faces gives a ball 1.5 times its area; the
      axes, roots of the eigenvalues of the second moments; gyration, its radius over that of a ball of equal volume, `√(3/5)
      (3V/4π)^(1/3)`; displacement, the centroid's distance from the centre in halves of the longest edge.
    - Texture: mean gradient, root-mean-square Laplacian (HU per voxel), and log10 of the variance (HU²) in three bands of
      frequency, with limits of 1/6 and 1/3 cycle per voxel. A Hann window keeps the jumps between opposite faces out of the
      high band.
    - Grey levels: contrast, homogeneity, correlation and entropy (nats) of the co-occurrence matrix (Haralick 1973) of 8 levels
      and neighbours along all axes in both orders.
    """
    shape = values.shape[1:]
    from_centre = np.moveaxis(np.indices(shape), 0, -1) - (np.array(shape) - 1) / 2
    longest = max(shape)
    shell = np.minimum(np.linalg.norm(from_centre, axis=-1) * 8 / longest, 3).astype(int)
    taper = np.prod(np.meshgrid(*(np.hanning(n + 2)[1:-1] for n in shape), indexing="ij"), axis=0)
    cycles = np.linalg.norm(np.meshgrid(*map(np.fft.fftfreq, shape), indexing="ij"), axis=0)
    band = np.digitize(cycles, (1 / 6, 1 / 3)).ravel()
    rows = []
    for number, volume in enumerate(values):
        hu = np.clip(volume.astype(np.float32), *window)
        low, _, high = percentiles = np.percentile(hu, [5, 50, 95])
        mask = hu > (low + high) / 2 if masks is None or not masks[number].any() else masks[number] > 0
        # a constant volume
        mask = mask if mask.any() else np.ones_like(mask)
        mean, sd = hu.mean(), hu.std()
        points = from_centre[mask]
        smooth = ndimage.gaussian_filter(np.pad(mask, 3).astype(np.float32), 0.5)
        area = np.linalg.norm(np.gradient(smooth), axis=0).sum(dtype=np.float64)
        # A voxel's own second moment is 1/12, so a mask of one voxel is a cube.
        third, second, first = np.linalg.eigvalsh(np.cov(points.T, bias=True) + np.eye(3) / 12)

        power = np.abs(np.fft.fftn((hu - mean) * taper)) ** 2 / np.square(taper).sum() / hu.size
        energies = np.bincount(band, power.ravel(), minlength=3)

        levels = np.minimum((hu - window[0]) * (GREY_LEVELS / (window[1] - window[0])), GREY_LEVELS - 1).astype(int)
        ends = [(np.delete(levels, -1, axis).ravel(), np.delete(levels, 0, axis).ravel()) for axis in range(3)]
        i, j = np.concatenate([part for pair in ends for part in (pair, pair[::-1])], axis=1)
        rows.append(
            [
                *(mean, sd, np.mean((hu - mean) ** 3) / max(sd, 1.0) ** 3, *percentiles),
                *(np.mean(hu < AIR_HU), np.mean((hu >= AIR_HU) & (hu < SOLID_HU))),
                *(hu[near].mean() if (near := shell == i).any() else mean for i in range(4)),
                *(hu[mask].mean(), hu[mask].std()),
                *(len(points) / mask.size, np.cbrt(np.pi) * (6 * len(points)) ** (2 / 3) / area),
                *(np.sqrt(second / first), np.sqrt(third / first)),
                np.sqrt((first + second + third) / 0.6) / np.cbrt(3 * len(points) / (4 * np.pi)),
                np.linalg.norm(points.mean(0)) * 2 / longest,
                np.linalg.norm(np.gradient(hu), axis=0).mean(),
                np.sqrt(np.mean(np.square(ndimage.laplace(hu)[1:-1, 1:-1, 1:-1]))),
                *np.log10(energies + 1),
                *(np.mean((i - j) ** 2), np.mean(1 / (1 + (i - j) ** 2))),
                *(np.corrcoef(i, j)[0, 1] if np.ptp(i) else 1.0, entropy(np.bincount(i * GREY_LEVELS + j))),
            ]
        )
    return np.array(rows, np.float64)
