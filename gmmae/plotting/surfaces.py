"""Shaded pictures of iso-surfaces, by casting parallel rays through a volume.

The camera looks at the domain [-1, 1]^3 from the front (from negative y), turned by `AZIMUTH` and raised by `ELEVATION`;
z points up in the picture. Volumes have array axes z, y, x; the camera works in world coordinates x, y, z. Where edges differ,
voxels are drawn as cubes all the same: the longest edge spans [-1, 1], and the others less.
"""

import itertools
import math

import numpy as np
from jaxtyping import Float, Float32, Float64
from scipy import ndimage

AZIMUTH = math.radians(30)
ELEVATION = math.radians(25)
HALF_WIDTH = 1.52  # world units from the centre of the picture to its border: the domain's cube just fits
FINE = 48  # samples along an axis, at least, of the interpolated volume that the rays cross
STEP = 0.6  # of a ray, in interpolated samples: longer ones fray the silhouettes of sharp edges
PAD = 3  # interpolated samples of emptiness around the domain: they close surfaces that the domain cuts

_LIGHT = np.array([-0.45, 0.55, -0.70])  # towards the lamp, in camera coordinates: right, up, away from the viewer


def camera() -> Float64[np.ndarray, "3 3"]:
    """Columns: the world directions (x, y, z) that the picture shows as right, up and away from the viewer."""
    sin_a, cos_a = math.sin(AZIMUTH), math.cos(AZIMUTH)
    sin_e, cos_e = math.sin(ELEVATION), math.cos(ELEVATION)
    right = [cos_a, -sin_a, 0]
    up = [sin_a * sin_e, cos_a * sin_e, cos_e]
    away = [sin_a * cos_e, cos_a * cos_e, -sin_e]
    return np.array([right, up, away]).T


def iso_level(volume: Float[np.ndarray, "..."], bins: int = 256) -> float:
    """The level that best separates a volume into two classes; for a nodule, air from tissue.

    The level maximises the variance between the classes, `w₀ w₁ (m₀ - m₁)²` (Otsu, IEEE Trans. SMC 9, 1979). Empty bins
    between the classes tie; the middle one is taken. A constant volume has no classes: its level is its value.

    Raises:
      ValueError: a value is NaN or infinite.
    """
    if not np.isfinite(volume).all():
        raise ValueError("a volume must be finite to have an iso-level; it holds NaN or infinity")
    if np.ptp(volume) == 0:
        return float(volume.flat[0])
    counts, edges = np.histogram(volume, bins)
    centres = (edges[1:] + edges[:-1]) / 2
    below, total = np.cumsum(counts)[:-1], counts.sum()
    sum_below = np.cumsum(counts * centres)[:-1]
    mean_below = sum_below / below
    mean_above = ((counts * centres).sum() - sum_below) / (total - below)
    between = below * (total - below) * (mean_below - mean_above) ** 2
    best = np.flatnonzero(between >= between.max() * (1 - 1e-9))
    return float(edges[1:-1][best].mean())


def _interpolated(volume: Float[np.ndarray, "z y x"]) -> Float32[np.ndarray, "fine_z fine_y fine_x"]:
    """Cubic splines through the samples, on a finer grid that covers the same domain, padded with emptiness."""
    factor = math.ceil(FINE / max(volume.shape))
    fine = np.asarray(ndimage.zoom(volume.astype(np.float32), factor, order=3, mode="reflect", grid_mode=True))
    return np.pad(fine, PAD, constant_values=min(0.0, float(fine.min())))


def surface(volume: Float[np.ndarray, "z y x"], level: float, pixels: int = 256) -> Float32[np.ndarray, "pixels pixels"]:
    """Brightness of the surface `volume = level` under parallel projection; NaN where no surface is seen.

    A ray stops where the volume first rises above the level. Brightness is a constant, plus Lambert's cosine between lamp
    and normal (the volume's gradient there), times a depth cue that darkens what lies far from the viewer.

    Args:
      volume: samples at the voxel centres of the domain, array axes z, y, x.
      level: of the surface, in the volume's unit; must be at least 0, because outside the domain the volume counts as 0.
      pixels: of the picture along each side, which spans 2 × `HALF_WIDTH` world units.

    Returns:
      Brightness between 0 and 1, row 0 on top.

    Raises:
      ValueError: the volume is not finite, or the level is negative.
    """
    if not np.isfinite(volume).all():
        raise ValueError("a volume must be finite to be rendered; it holds NaN or infinity")
    if not level >= 0:
        raise ValueError(f"level must be at least 0, what a volume is outside its domain; got {level}")
    fine = _interpolated(volume)
    per_unit = (max(fine.shape) - 2 * PAD) / 2  # interpolated samples for a world unit
    centre = (np.array(fine.shape) - 1) / 2
    basis = camera()[::-1]  # rows z, y, x: from camera coordinates to array axes

    pixel = 2 * HALF_WIDTH / pixels
    depths = math.ceil(2 * math.sqrt(3) * per_unit / STEP) + 1  # along the cube's diagonal
    steps = np.array([-pixel * per_unit, pixel * per_unit, STEP])  # of row, column, depth
    turn = basis[:, [1, 0, 2]] * steps
    every = np.array([pixels, pixels, depths])
    origin = centre - turn @ (every - 1) / 2  # of the first sample of the ray of the picture's corner
    brightness = np.full((pixels, pixels), np.nan, np.float32)
    above = np.argwhere(fine > level)
    if not len(above):
        return brightness
    # Only these samples may be above the level: most of the picture is empty.
    corners = np.array(list(itertools.product(*zip(above.min(0) - 1, above.max(0) + 1, strict=True))))
    seen = np.linalg.solve(turn, (corners - origin).T)
    begin = np.clip(np.floor(seen.min(1)).astype(int) - 1, 0, every)
    end = np.clip(np.ceil(seen.max(1)).astype(int) + 2, begin, every)
    origin += turn @ begin
    rays = ndimage.affine_transform(fine, turn, origin, tuple(end - begin), order=1, mode="constant", cval=float(fine[0, 0, 0]))
    inside = rays > level
    hit = np.argwhere(inside.any(-1))
    if not len(hit):
        return brightness
    row, column = hit.T
    after = np.maximum(inside[row, column].argmax(-1), 1)
    low, high = rays[row, column, after - 1], rays[row, column, after]
    depth = after - np.clip((high - level) / np.maximum(high - low, np.finfo(np.float32).tiny), 0, 1)

    at = origin[:, None] + turn @ np.stack([row, column, depth])
    smooth = ndimage.gaussian_filter(fine, 1.0)
    gradient = np.stack([ndimage.map_coordinates(axis, at, order=1, mode="nearest") for axis in np.gradient(smooth)])
    normal = -basis.T @ gradient  # right, up, away; it points out of what is dense
    normal /= np.maximum(np.linalg.norm(normal, axis=0), 1e-30)
    lambert = np.clip(_LIGHT / np.linalg.norm(_LIGHT) @ normal, 0, 1)
    cue = 1 - 0.35 * np.clip(0.5 + ((depth + begin[2]) / (depths - 1) - 0.5) * math.sqrt(3), 0, 1)
    brightness[row + begin[0], column + begin[1]] = (0.22 + 0.78 * lambert) * cue
    return brightness


def domain_edges(shape: tuple[int, int, int]) -> Float64[np.ndarray, "edges ends 2"]:
    """The nine edges of the box of a volume (z, y, x) that its content cannot cover, as (right, up) in world units.

    The three that meet in the corner nearest to the viewer are left out, so the edges can be drawn before the surface.
    """
    corners = np.array(list(itertools.product([-1.0, 1.0], repeat=3)))
    seen = corners * shape[::-1] / max(shape) @ camera()
    nearest = seen[:, 2].argmin()
    pairs = [
        (i, j)
        for i, j in itertools.combinations(range(8), 2)
        if np.abs(corners[i] - corners[j]).sum() == 2 and nearest not in (i, j)
    ]
    return np.array([[seen[i, :2], seen[j, :2]] for i, j in pairs])
