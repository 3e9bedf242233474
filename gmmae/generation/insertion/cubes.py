"""A nodule in its cube, and its resampling to the voxels of a scan."""

from itertools import product
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Real
from scipy import ndimage

from gmmae.data.volumes import Nodules
from gmmae.generation.insertion.hosts import Grid
from gmmae.generation.insertion.lungs import signed_distance

BAND_MM = (2.0, 4.0)
"""Minimum and maximum width of the band in which a nodule is blended. Between them it is the distance of slices."""

DOME_SLOPE = 3.0
"""Increase of the surface distance beyond a cube's face, in mm per mm. It closes a cut nodule with a dome, about a ball's cap.

Cubes of 1.25 diameters cut 96 % of 770 nodules a little."""

SOLID_HU = -300.0
MIN_ATTACHED_SHARE = 0.1
"""Minimum share of solid tissue on a cube's border, outside the nodule, for a nodule at the pleura or on a large vessel."""

MAX_SAMPLES = 8
"""Maximum number of a cube's samples in a scan's voxel along each axis."""


class Symmetry(NamedTuple):
    """One of the 16 symmetries of a cube that keep its slices: the order of its axes, and the signs that reverse them."""

    order: tuple[int, ...] = (0, 1, 2)
    signs: tuple[int, ...] = (1, 1, 1)

    def __str__(self) -> str:
        return "".join(f"{'+' if sign > 0 else '-'}{'zyx'[axis]}" for axis, sign in zip(self.order, self.signs, strict=True))

    def of_array(self, values: Real[np.ndarray, "z y x"]) -> Real[np.ndarray, "z y x"]:
        """Returns the rotated or reflected cube."""
        return values.transpose(self.order)[tuple(slice(None, None, sign) for sign in self.signs)]

    def of_vector(self, vector: Float[np.ndarray, "3"]) -> Float[np.ndarray, "3"]:
        """Returns a direction (z, y, x) in the rotated or reflected cube."""
        return vector[list(self.order)] * np.array(self.signs)


SYMMETRIES = tuple(Symmetry(order, signs) for order in ((0, 1, 2), (0, 2, 1)) for signs in product((1, -1), repeat=3))


class Nodule(NamedTuple):
    """A nodule to insert.

    Attributes:
      name: unique name.
      group: the patient, or another name of nodules that no split divides.
      category: category, or an empty string.
      hu: the cube along the world's z, y, x, extended beyond its faces.
      distance_mm: distance from the nodule's surface, negative inside.
      voxel_mm: edge of the cube's voxels.
      diameter_mm: annotated diameter.
      wall: direction (z, y, x) of the solid tissue at the cube's border; None for a nodule that lies free in the lung.
    """

    name: str
    group: str
    category: str
    hu: Float[np.ndarray, "z y x"]
    distance_mm: Float[np.ndarray, "z y x"]
    voxel_mm: float
    diameter_mm: float
    wall: Float[np.ndarray, "3"] | None

    def surface_mm(self, band_mm: float = 0.0) -> Float[np.ndarray, "points 3"]:
        """Returns the voxels inside the nodule or its band, in mm from the cube's centre along z, y, x."""
        middle = (np.array(self.hu.shape) - 1) / 2
        return (np.argwhere(self.distance_mm < band_mm) - middle) * self.voxel_mm


class ResampledNodule(NamedTuple):
    """A nodule on the voxels of a scan, in the scan's region that contains its band."""

    region: tuple[slice, slice, slice]
    hu: Float[np.ndarray, "z y x"]
    distance_mm: Float[np.ndarray, "z y x"]


def as_nodule(nodules: Nodules, index: int) -> Nodule:
    """Returns one of the nodules, padded. Without an annotated diameter it has that of a ball of equal volume.

    Args:
      nodules: cubes with three axes, and masks that have voxels.
      index: number of the nodule.
    """
    assert nodules.masks is not None
    values, inside = nodules.values[index], nodules.masks[index] > 0
    diameter_mm, voxel_mm = nodules.diameter_mm[index], float(nodules.edge_mm[index]) / max(values.shape)
    border = np.ones(values.shape, bool)
    border[1:-1, 1:-1, 1:-1] = False
    solid = border & ~inside & (values > SOLID_HU)
    wall = None
    if solid.sum() >= MIN_ATTACHED_SHARE * border.sum():
        direction = (np.argwhere(solid) - (np.array(values.shape) - 1) / 2).mean(0)
        wall = direction / max(float(np.linalg.norm(direction)), 1e-9)
    if not np.isfinite(diameter_mm):
        diameter_mm = float((6 / np.pi * inside.sum()) ** (1 / 3) * voxel_mm)
    pad = int(np.ceil((BAND_MM[1] + 2.0) / voxel_mm))
    extended = np.pad(values.astype(float), pad, mode="edge")
    distance_mm = _distance(inside, pad, voxel_mm)
    name, group, category = (str(nodules.table[column][index]) for column in ("name", "group", "category"))
    return Nodule(name, group, category, extended, distance_mm, voxel_mm, float(diameter_mm), wall)


def _distance(inside: Bool[np.ndarray, "z y x"], pad: int, voxel_mm: float) -> Float[np.ndarray, "z y x"]:
    """Returns the distance to the nodule's surface. Domes close it beyond the cube's faces."""
    within = -signed_distance(inside, np.full(3, voxel_mm))
    within = np.maximum(within, -0.5 * voxel_mm * max(inside.shape))  # a mask may fill its cube
    beyond = ~np.pad(np.ones(inside.shape, bool), pad)
    away = np.asarray(ndimage.distance_transform_edt(beyond)) * voxel_mm if pad else 0.0
    extended = np.pad(within, pad, mode="edge")
    return extended + np.where(extended < 0, DOME_SLOPE, 1.0) * away


def reoriented(nodule: Nodule, symmetry: Symmetry) -> Nodule:
    """Returns the nodule in its rotated or reflected cube."""
    wall = None if nodule.wall is None else symmetry.of_vector(nodule.wall)
    return nodule._replace(hu=symmetry.of_array(nodule.hu), distance_mm=symmetry.of_array(nodule.distance_mm), wall=wall)


def band_mm(grid: Grid) -> float:
    """Returns the width of the band in which nodules are blended into a scan."""
    return float(np.clip(grid.spacing_mm.max(), *BAND_MM))


def resample(nodule: Nodule, centre_mm: Float[np.ndarray, "3"], grid: Grid) -> ResampledNodule | None:
    """Resamples a nodule to a scan's voxels, its cube centred on a world point; returns None if it exceeds the scan.

    A voxel of the scan is the mean of samples over the pixel's edges and the distance of slices, for any direction matrix.
    The samples are as far apart as the cube's voxels. So the cube gets only the scan's additional blur. Its own voxels
    contain a scanner's point spread already, because real and generated nodules come from scans.
    """
    reach = np.abs(nodule.surface_mm(band_mm(grid))).max(0) + nodule.voxel_mm
    corners = np.array(list(product((-1, 1), repeat=3))) * reach
    indices = grid.indices(centre_mm + corners[:, ::-1])
    first, last = np.floor(indices.min(0)).astype(int) - 1, np.ceil(indices.max(0)).astype(int) + 1
    if (first < 0).any() or (last >= grid.shape).any():
        return None
    spacing = grid.spacing_mm
    counts = [samples_in(float(mm), nodule.voxel_mm) for mm in spacing]
    whole = np.stack(np.meshgrid(*map(np.arange, first, last + 1), indexing="ij"), -1).astype(float)
    middle = (np.array(nodule.hu.shape) - 1) / 2
    hu, distance = np.zeros(whole.shape[:3]), np.zeros(whole.shape[:3])
    for part in product(*map(range, counts)):
        offset = (np.array(part) + 0.5) / counts - 0.5
        away = (grid.world(whole + offset) - centre_mm)[..., ::-1] / nodule.voxel_mm
        points = np.moveaxis(away + middle, -1, 0)
        hu += ndimage.map_coordinates(nodule.hu, points, order=1, mode="nearest")
        distance += ndimage.map_coordinates(nodule.distance_mm, points, order=1, mode="nearest")
    samples = int(np.prod(counts))
    z, y, x = map(slice, first, last + 1)
    return ResampledNodule((z, y, x), hu / samples, distance / samples)


def samples_in(scan_mm: float, voxel_mm: float) -> int:
    """Returns the number of a cube's samples along an axis of a scan's voxel."""
    return int(np.clip(round(scan_mm / voxel_mm), 1, MAX_SAMPLES))
