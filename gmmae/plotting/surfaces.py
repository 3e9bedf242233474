"""Shaded pictures of iso-surfaces, by parallel rays through a volume.

The camera looks from the front (negative y), rotated by `AZIMUTH` and raised by `ELEVATION`; z points up. Arrays are z, y, x,
and the world is x, y, z. Voxels are cubes, and the longest edge spans [-1, 1].
"""

import itertools
import math

import numpy as np
from jaxtyping import Float, Float32, Float64
from scipy import ndimage

AZIMUTH = math.radians(30)
ELEVATION = math.radians(25)
HALF_WIDTH = 1.52  # world units from the picture's centre
FINE = 48  # fewest interpolated samples along the longest axis
STEP = 0.6  # of a ray, in interpolated samples; longer ones make sharp edges ragged
PAD = 3  # empty samples around the domain, which close surfaces at its border

_LIGHT = np.array([-0.45, 0.55, -0.70])  # of length 1, towards the lamp: right, up, away from the viewer


def camera() -> Float64[np.ndarray, "3 3"]:
    """The world directions (x, y, z) of right, up and away from the viewer, as columns."""
    sin_a, cos_a = math.sin(AZIMUTH), math.cos(AZIMUTH)
    sin_e, cos_e = math.sin(ELEVATION), math.cos(ELEVATION)
    return np.array(
        [
            [cos_a, sin_a * sin_e, sin_a * cos_e],
            [-sin_a, cos_a * sin_e, cos_a * cos_e],
            [0, cos_e, -sin_e],
        ]
    )


def iso_level(volume: Float[np.ndarray, "..."]) -> float:
    """The level that best separates a volume into two classes, such as air and tissue.

    It maximises `w₀ w₁ (m₀ - m₁)²` (Otsu, IEEE Trans. SMC 9, 1979), and is half-way between the two values that it divides.
    """
    values = np.sort(volume, axis=None).astype(float)
    below, sums = np.arange(1, len(values)), np.cumsum(values)
    above = len(values) - below
    between = below * above * (sums[:-1] / below - (sums[-1] - sums[:-1]) / above) ** 2
    best = between.argmax()
    return float(values[best] + values[best + 1]) / 2


def surface(volume: Float[np.ndarray, "z y x"], level: float, pixels: int = 256) -> Float32[np.ndarray, "pixels pixels"]:
    """Brightness, 0 to 1, of the surface `volume = level` under parallel projection; NaN where no surface is seen.

    A ray stops where the volume first rises above the level. Brightness is a constant plus Lambert's cosine between lamp and
    gradient, times a depth cue. Row 0 is on top. The level is at least 0, as the volume is outside the domain.
    """
    # Cubic splines on a finer grid of the same domain. A matrix for each axis takes a tenth of the time of
    # `ndimage.zoom`.
    factor, fine = math.ceil(FINE / max(volume.shape)), volume.astype(np.float32)
    for axis, size in enumerate(volume.shape):
        splines = np.asarray(ndimage.zoom(np.eye(size, dtype=np.float32), (factor, 1), mode="reflect", grid_mode=True))
        fine = np.moveaxis(np.tensordot(splines, fine, (1, axis)), 0, axis)
    empty = min(0.0, fine.min())
    per_unit = max(fine.shape) / 2  # samples per world unit
    fine = np.pad(fine, PAD, constant_values=empty)

    pixel = 2 * HALF_WIDTH / pixels
    depths = math.ceil(2 * math.sqrt(3) * per_unit / STEP) + 1  # along the cube's diagonal
    basis = camera()[::-1]  # rows z, y, x: from camera coordinates to array axes
    transform = basis[:, [1, 0, 2]] * [-pixel * per_unit, pixel * per_unit, STEP]  # steps of row, column, depth
    extent = np.array([pixels, pixels, depths])
    origin = (np.array(fine.shape) - 1) / 2 - transform @ (extent - 1) / 2  # of the ray at the picture's corner
    brightness = np.full((pixels, pixels), np.nan, np.float32)

    # Rays are followed in the box around the samples above the level. A sample counts for places less than one sample
    # away along each axis, and a ray begins one step before.
    inverse = np.linalg.inv(transform)
    seen = inverse @ (np.argwhere(fine > level) - origin).T
    if not seen.size:
        return brightness
    reach = np.abs(inverse).sum(1) + 1
    start = np.maximum(np.floor(seen.min(1) - reach), 0).astype(int)
    end = np.minimum(np.ceil(seen.max(1) + reach) + 1, extent).astype(int)
    rays = ndimage.affine_transform(fine, transform, origin + transform @ start, tuple(end - start), order=1, cval=empty)
    inside = rays > level
    row, column = np.nonzero(inside.any(-1))
    after = np.maximum(inside[row, column].argmax(-1), 1)
    low, high = rays[row, column, after - 1], rays[row, column, after]
    depth = start[2] + after - np.clip((high - level) / np.maximum(high - low, np.finfo(np.float32).tiny), 0, 1)
    row, column = row + start[0], column + start[1]

    at = origin[:, None] + transform @ np.stack([row, column, depth])
    smooth = ndimage.gaussian_filter(fine, 1.0)
    gradient = np.stack([ndimage.map_coordinates(axis, at, order=1, mode="nearest") for axis in np.gradient(smooth)])
    normal = -basis.T @ gradient  # right, up, away; it points out of the dense region
    normal /= np.maximum(np.linalg.norm(normal, axis=0), 1e-30)
    lambert = np.clip(_LIGHT @ normal, 0, 1)
    cue = 1 - 0.35 * np.clip(0.5 + (depth / (depths - 1) - 0.5) * math.sqrt(3), 0, 1)
    brightness[row, column] = (0.22 + 0.78 * lambert) * cue
    return brightness


def domain_edges(shape: tuple[int, int, int]) -> Float64[np.ndarray, "edges ends 2"]:
    """The nine edges of a volume's box (z, y, x), as (right, up) in world units.

    Those at the corner nearest to the viewer are left out, so the edges can be drawn before the surface.
    """
    corners = np.array(list(itertools.product([-1.0, 1.0], repeat=3)))
    seen = corners * shape[::-1] / max(shape) @ camera()
    nearest = seen[:, 2].argmin()
    pairs = [(i, i | bit) for i in range(8) for bit in (1, 2, 4) if not i & bit and nearest not in (i, i | bit)]
    return seen[np.array(pairs), :2]
