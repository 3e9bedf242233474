"""Shaded pictures of iso-surfaces, by parallel rays through a volume.

The camera looks at the domain [-1, 1]^3 from the front (from negative y), rotated by `AZIMUTH` and raised by `ELEVATION`. The z
axis points up. Volumes have array axes z, y, x, and the camera has world coordinates x, y, z. Voxels are cubes, so the longest
edge spans [-1, 1], and shorter edges span less.
"""

import itertools
import math
from typing import Any

import numpy as np
from jaxtyping import Float, Float32, Float64, Int
from scipy import ndimage

AZIMUTH = math.radians(30)
ELEVATION = math.radians(25)
HALF_WIDTH = 1.52  # world units from the picture's centre to its border, just enough for the domain's cube
FINE = 48  # minimum number of samples along the longest axis of the interpolated volume
STEP = 0.6  # step of a ray in interpolated samples; longer ones make sharp edges ragged
TILE = 16  # pixels along each side of a part of the picture
STRETCH = 16  # samples of a ray at a time
PAD = 3  # empty interpolated samples around the domain, which close surfaces at its border

_LIGHT = np.array([-0.45, 0.55, -0.70])  # towards the lamp, in camera coordinates: right, up, away from the viewer


def camera() -> Float64[np.ndarray, "3 3"]:
    """Returns the world directions (x, y, z) of right, up and away from the viewer, as columns."""
    sin_a, cos_a = math.sin(AZIMUTH), math.cos(AZIMUTH)
    sin_e, cos_e = math.sin(ELEVATION), math.cos(ELEVATION)
    right = [cos_a, -sin_a, 0]
    up = [sin_a * sin_e, cos_a * sin_e, cos_e]
    away = [sin_a * cos_e, cos_a * cos_e, -sin_e]
    return np.array([right, up, away]).T


def iso_level(volume: Float[np.ndarray, "..."]) -> float:
    """Returns the level that best separates a volume into two classes, such as air and tissue.

    It maximises the variance between the classes, `w₀ w₁ (m₀ - m₁)²` (Otsu, IEEE Trans. SMC 9, 1979). Among equally good
    levels the middle one is used. The level of a constant volume is its value.
    """
    if np.ptp(volume) == 0:
        return float(volume.flat[0])
    counts, edges = np.histogram(volume, 256)
    centres = (edges[1:] + edges[:-1]) / 2
    below, total = np.cumsum(counts)[:-1], counts.sum()
    sum_below = np.cumsum(counts * centres)[:-1]
    mean_below = sum_below / below
    mean_above = ((counts * centres).sum() - sum_below) / (total - below)
    between = below * (total - below) * (mean_below - mean_above) ** 2
    best = np.flatnonzero(between >= between.max() * (1 - 1e-9))
    return float(edges[1:-1][best].mean())


def _interpolated(volume: Float[np.ndarray, "z y x"]) -> Float32[np.ndarray, "fine_z fine_y fine_x"]:
    """Interpolates the samples by cubic splines on a finer grid of the same domain, padded with empty samples."""
    factor = math.ceil(FINE / max(volume.shape))
    fine = np.asarray(ndimage.zoom(volume.astype(np.float32), factor, order=3, mode="reflect", grid_mode=True))
    return np.pad(fine, PAD, constant_values=min(0.0, float(fine.min())))


def surface(volume: Float[np.ndarray, "z y x"], level: float, pixels: int = 256) -> Float32[np.ndarray, "pixels pixels"]:
    """Brightness of the surface `volume = level` under parallel projection; NaN where no surface is seen.

    A ray stops where the volume first rises above the level. Brightness is a constant, plus Lambert's cosine between lamp
    and normal (the volume's gradient there), times a depth cue that darkens what lies far from the viewer.

    Args:
      volume: finite samples at the voxel centres of the domain, array axes z, y, x.
      level: of the surface, in the volume's unit; must be at least 0, because outside the domain the volume counts as 0.
      pixels: of the picture along each side, which spans 2 × `HALF_WIDTH` world units.

    Returns:
      Brightness between 0 and 1, row 0 on top.
    """
    fine = _interpolated(volume)
    per_unit = (max(fine.shape) - 2 * PAD) / 2  # interpolated samples per world unit
    centre = (np.array(fine.shape) - 1) / 2
    basis = camera()[::-1]  # rows z, y, x: from camera coordinates to array axes

    pixel = 2 * HALF_WIDTH / pixels
    depths = math.ceil(2 * math.sqrt(3) * per_unit / STEP) + 1  # along the cube's diagonal
    steps = np.array([-pixel * per_unit, pixel * per_unit, STEP])  # of row, column, depth
    transform = basis[:, [1, 0, 2]] * steps
    extent = np.array([pixels, pixels, depths])
    origin = centre - transform @ (extent - 1) / 2  # first sample of the ray at the picture's corner
    brightness = np.full((pixels, pixels), np.nan, np.float32)
    row, column, depth = _first_crossings(fine, level, transform, origin, extent)
    if not len(row):
        return brightness
    at = origin[:, None] + transform @ np.stack([row, column, depth])
    smooth = ndimage.gaussian_filter(fine, 1.0)
    gradient = np.stack([ndimage.map_coordinates(axis, at, order=1, mode="nearest") for axis in np.gradient(smooth)])
    normal = -basis.T @ gradient  # right, up, away; it points out of the dense region
    normal /= np.maximum(np.linalg.norm(normal, axis=0), 1e-30)
    lambert = np.clip(_LIGHT / np.linalg.norm(_LIGHT) @ normal, 0, 1)
    cue = 1 - 0.35 * np.clip(0.5 + (depth / (depths - 1) - 0.5) * math.sqrt(3), 0, 1)
    brightness[row, column] = (0.22 + 0.78 * lambert) * cue
    return brightness


def _first_crossings(
    fine: Float[np.ndarray, "z y x"],
    level: float,
    transform: Float64[np.ndarray, "3 3"],
    origin: Float64[np.ndarray, "3"],
    extent: Int[np.ndarray, "3"],
) -> tuple[Int[np.ndarray, " rays"], Int[np.ndarray, " rays"], Float[np.ndarray, " rays"]]:
    """Returns row, column and depth of the places where rays first rise above the level, for the rays that do.

    The rays of a tile of the picture are followed together. They begin shortly before the first sample above the level that
    one of them can meet, and end when all have crossed.

    Args:
      fine: the volume.
      level: that of the surface.
      transform: from steps of row, column and depth to steps of the volume.
      origin: the volume's coordinates at row, column and depth 0.
      extent: the numbers of rows, columns and depths.
    """
    tiles = -(-extent[:2] // TILE)
    near, far = np.full(tiles, np.inf), np.full(tiles, -np.inf)
    inverse = np.linalg.inv(transform)
    seen = inverse @ (np.argwhere(fine > level) - origin).T
    reach = np.abs(inverse).sum(1)  # of a sample, which counts for places less than one sample away along each axis
    for sides in itertools.product((-1, 1), repeat=2):  # a tile is larger than a sample's reach
        corner = (seen[:2] + np.multiply(sides, reach[:2])[:, None]) // TILE
        place = tuple(np.clip(corner, 0, tiles[:, None] - 1).astype(int))
        np.minimum.at(near, place, seen[2] - reach[2])
        np.maximum.at(far, place, seen[2] + reach[2])
    found = [np.empty((3, 0))]
    for tile in np.argwhere(near < np.inf):
        corner = tile * TILE
        size = np.minimum(TILE, extent[:2] - corner)
        waiting = np.ones(size, bool)
        start, end = max(math.floor(near[tuple(tile)]) - 1, 0), min(math.ceil(far[tuple(tile)]) + 1, int(extent[2]))
        while start + 1 < end and waiting.any():
            length = min(STRETCH, end - start)
            corner_of_stretch: Any = origin + transform @ (*corner, start)
            rays = ndimage.affine_transform(
                fine, transform, corner_of_stretch, (*size, length), order=1, mode="constant", cval=float(fine[0, 0, 0])
            )
            inside = rays > level
            row, column = np.nonzero(waiting & inside.any(-1))
            after = np.maximum(inside[row, column].argmax(-1), 1)
            low, high = rays[row, column, after - 1], rays[row, column, after]
            depth = after - np.clip((high - level) / np.maximum(high - low, np.finfo(np.float32).tiny), 0, 1)
            found.append(np.stack([row + corner[0], column + corner[1], depth + start]))
            waiting[row, column] = False
            start += length - 1  # the last sample is the next stretch's first
    row, column, depth = np.concatenate(found, axis=1)
    return row.astype(int), column.astype(int), depth


def domain_edges(shape: tuple[int, int, int]) -> Float64[np.ndarray, "edges ends 2"]:
    """Returns the nine edges of a volume's box (z, y, x) behind its content, as (right, up) in world units.

    The three edges at the corner nearest to the viewer are left out, so the edges can be drawn before the surface.
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
