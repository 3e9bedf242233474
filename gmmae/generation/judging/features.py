"""The 29 features of a nodule for two-sample tests and classifiers: HU, shape and texture.

Lengths are shares of the cube's longest edge, so the size of nodules does not count. HU are clipped to the window, because a
density cannot represent values beyond it.

Volumes in another unit are stretched first, so that their window becomes CT's (`as_hu`). The thresholds of lung and solid
tissue are then the same shares of the window as in CT.
"""

import numpy as np
from jaxtyping import Bool, Float, Float32, Real, Shaped
from scipy import ndimage

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
"""Names of the columns of `features`."""
IS_COPIED = np.array([name.startswith(("hu_", "share_", "inside_", "volume")) for name in NAMES])
"""Features that `gmmae generate` copies: each nodule has the grey levels, and as many voxels in the mask, of a real one."""
CT_WINDOW = DataConfig.window
"""Window in HU to which volumes in another unit are stretched."""
AIR_HU, SOLID_HU = -750.0, -300.0
"""Limits of ground glass, as in most papers on its quantification. Lung lies below, solid tissue and vessels lie above."""
GREY_LEVELS = 8
BLOCK = 128
"""Number of volumes computed at a time. Their padded masks of 22³ in float32 and the gradients take 22 MB."""


def as_hu(values: Real[np.ndarray, "samples z y x"], window: tuple[float, float]) -> Float32[np.ndarray, "samples z y x"]:
    """Stretches volumes in a unit of their own so that their window becomes CT's.

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
    """Computes the features of each volume, with columns as in `NAMES`.

    Args:
      values: volumes in HU.
      masks: masks of the nodules. `intensity_masks` replaces None and empty masks.
      window: limits to which HU are clipped.
    """
    parts = []
    for start in range(0, len(values), BLOCK):
        part = slice(start, start + BLOCK)
        hu = np.clip(values[part].astype(np.float32), *window)
        mask = intensity_masks(hu)
        if masks is not None:
            nodule = masks[part] > 0
            mask = np.where(nodule.any((1, 2, 3), keepdims=True), nodule, mask)
        parts.append(np.concatenate([_intensity(hu, mask), _shape(mask), _texture(hu, window)], axis=1))
    return np.concatenate(parts) if parts else np.empty((0, len(NAMES)))


def intensity_masks(hu: Float32[np.ndarray, "samples z y x"]) -> Bool[np.ndarray, "samples z y x"]:
    """Returns the voxels above the mean of the 5th and 95th percentile of their volume, so each volume has a threshold."""
    low, high = np.percentile(hu, [5, 95], axis=(1, 2, 3), keepdims=True)
    return hu > (low + high) / 2


def radii(shape: tuple[int, ...]) -> Float[np.ndarray, "z y x"]:
    """Returns the distance of each voxel's centre from the volume's centre, in halves of the longest edge."""
    axes = [(np.arange(n) - (n - 1) / 2) * 2 / max(shape) for n in shape]
    return np.sqrt(sum(axis**2 for axis in np.meshgrid(*axes, indexing="ij")))


def _intensity(
    hu: Float32[np.ndarray, "samples z y x"], mask: Bool[np.ndarray, "samples z y x"]
) -> Float[np.ndarray, "samples 14"]:
    """Computes moments, percentiles, shares of two ranges, means of four shells, and mean and sd within the mask, in HU.

    A shell is an eighth of the edge wide.
    """
    flat, inside = hu.reshape(len(hu), -1), mask.reshape(len(hu), -1)
    mean, sd = flat.mean(1), flat.std(1)
    skewness = np.mean((flat - mean[:, None]) ** 3, axis=1) / np.maximum(sd, 1.0) ** 3
    shell = np.minimum((radii(hu.shape[1:]) * 4).astype(int), 3).ravel()
    count = np.maximum(inside.sum(1), 1)
    mean_inside = (flat * inside).sum(1) / count
    sd_inside = np.sqrt((((flat - mean_inside[:, None]) * inside) ** 2).sum(1) / count)
    return np.stack(
        [
            *(mean, sd, skewness, *np.percentile(flat, [5, 50, 95], axis=1)),
            *(np.mean(flat < AIR_HU, axis=1), np.mean((flat >= AIR_HU) & (flat < SOLID_HU), axis=1)),
            *(flat[:, shell == i].mean(1) for i in range(4)),
            *(mean_inside, sd_inside),
        ],
        axis=1,
    )


def _shape(mask: Bool[np.ndarray, "samples z y x"]) -> Float[np.ndarray, "samples 6"]:
    """Computes volume, sphericity, elongation, flatness, gyration and displacement.

    Volume is a share of the cube. Sphericity is `π^(1/3) (6V)^(2/3) / A` (Wadell 1935). The area A follows from the coarea
    formula, as the integral of the smoothed mask's gradient. A count of faces would give a ball 1.5 times its area. The axes
    are roots of the eigenvalues of the second moments. Gyration is the radius of gyration over that of a ball of equal volume,
    `√(3/5) (3V/4π)^(1/3)`. Displacement is the centroid's distance from the centre, in halves of the longest edge. A ball has
    1 for all except volume and displacement.
    """
    samples, *shape = mask.shape
    solid = np.pad(mask, ((0, 0), (3, 3), (3, 3), (3, 3))).astype(np.float32)
    smooth = ndimage.gaussian_filter(solid, (0, 0.5, 0.5, 0.5))
    area = np.sqrt(sum(slope**2 for slope in np.gradient(smooth, axis=(1, 2, 3)))).sum((1, 2, 3), dtype=np.float64)
    points = np.stack([axis.ravel() - (n - 1) / 2 for axis, n in zip(np.indices(shape), shape, strict=True)], axis=1)
    weights = mask.reshape(samples, -1).astype(np.float64)
    volume = weights.sum(1)
    count = np.maximum(volume, 1)
    centroid = weights @ points / count[:, None]
    products = np.einsum("pi,pj->pij", points, points).reshape(-1, 9)
    moments = (weights @ products).reshape(-1, 3, 3) / count[:, None, None] - np.einsum("si,sj->sij", centroid, centroid)
    # A voxel has the second moment 1/12 about its own centre, so a mask of one voxel is a cube, not a point.
    third, second, first = np.linalg.eigvalsh(moments + np.eye(3) / 12).T
    radius = np.cbrt(3 * count / (4 * np.pi))
    return np.stack(
        [
            volume / mask[0].size,
            np.cbrt(np.pi) * (6 * volume) ** (2 / 3) / np.maximum(area, 1),
            np.sqrt(second / first),
            np.sqrt(third / first),
            np.sqrt((first + second + third) / 0.6) / radius,
            np.linalg.norm(centroid, axis=1) * 2 / max(shape),
        ],
        axis=1,
    )


def _texture(hu: Float32[np.ndarray, "samples z y x"], window: tuple[float, float]) -> Float[np.ndarray, "samples 9"]:
    """Computes mean gradient, root-mean-square Laplacian (HU per voxel), three log energies and four grey-level features."""
    gradient = np.sqrt(sum(slope**2 for slope in np.gradient(hu, axis=(1, 2, 3)))).mean((1, 2, 3))
    laplacian = sum(np.diff(hu, 2, axis)[_inner(axis)] for axis in (1, 2, 3))
    roughness = np.sqrt(np.mean(np.square(laplacian), axis=(1, 2, 3)))
    return np.column_stack([gradient, roughness, _spectrum(hu), _grey_levels(hu, window)])


def _inner(axis: int) -> tuple[slice, ...]:
    """Returns the slices that remove the ends of all axes except the samples' and this one."""
    return tuple(slice(None) if at in (0, axis) else slice(1, -1) for at in range(4))


def _spectrum(hu: Float32[np.ndarray, "samples z y x"]) -> Float[np.ndarray, "samples 3"]:
    """Computes log10 of the variance (HU²) in three frequency bands, with limits of 1/6 and 1/3 cycle per voxel.

    A Hann window keeps the jumps between opposite faces out of the high band.
    """
    shape = hu.shape[1:]
    taper = np.float32(1)
    for axis, n in enumerate(shape):
        taper = taper * np.hanning(n + 2)[1:-1].reshape([-1 if at == axis else 1 for at in range(3)]).astype(np.float32)
    centred = (hu - hu.mean((1, 2, 3), keepdims=True)) * taper
    power = np.abs(np.fft.fftn(centred, axes=(1, 2, 3))) ** 2 / (taper**2).sum() / hu[0].size
    cycles = np.sqrt(sum(f**2 for f in np.meshgrid(*map(np.fft.fftfreq, shape), indexing="ij")))
    bands = [cycles < 1 / 6, (cycles >= 1 / 6) & (cycles < 1 / 3), cycles >= 1 / 3]
    return np.stack([np.log10(power[:, band].sum(1) + 1) for band in bands], axis=1)


def _grey_levels(hu: Float32[np.ndarray, "samples z y x"], window: tuple[float, float]) -> Float[np.ndarray, "samples 4"]:
    """Computes contrast, homogeneity, correlation and entropy (nats) of the co-occurrence matrix (Haralick 1973).

    It has 8 grey levels, for neighbouring voxels along all axes.
    """
    low, high = window
    samples = len(hu)
    levels = np.minimum((hu - low) * (GREY_LEVELS / (high - low)), GREY_LEVELS - 1).astype(np.int64)
    own = np.arange(samples)[:, None] * GREY_LEVELS**2
    counts = np.zeros(samples * GREY_LEVELS**2)
    for axis in (1, 2, 3):
        n = hu.shape[axis]
        one, next_one = levels.take(range(n - 1), axis), levels.take(range(1, n), axis)
        counts += np.bincount((own + (one * GREY_LEVELS + next_one).reshape(samples, -1)).ravel(), minlength=len(counts))
    table = counts.reshape(samples, GREY_LEVELS, GREY_LEVELS)
    share = (table + table.swapaxes(1, 2)) / (2 * table.sum((1, 2), keepdims=True))
    i, j = np.indices((GREY_LEVELS, GREY_LEVELS))
    mean = (share * i).sum((1, 2))
    variance = (share * i**2).sum((1, 2)) - mean**2
    covariance = (share * i * j).sum((1, 2)) - mean**2
    return np.stack(
        [
            (share * (i - j) ** 2).sum((1, 2)),
            (share / (1 + (i - j) ** 2)).sum((1, 2)),
            np.where(variance > 1e-9, covariance / np.maximum(variance, 1e-9), 1.0),
            -(share * np.log(np.maximum(share, 1e-12))).sum((1, 2)),
        ],
        axis=1,
    )
