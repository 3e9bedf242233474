"""A nodule in its cube, and how a scan's voxels would see it."""

from itertools import permutations, product
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Real
from scipy import ndimage

from gmmae.generation.insertion.hosts import Grid
from gmmae.generation.insertion.lungs import signed_distance

BAND_MM = (2.0, 4.0)
"""How far beyond its surface a nodule is blended into the lung, at least and at most; between them, a slice's distance."""

DOME = 3.0
"""Cubes of 1.25 diameters cut most nodules a little (96 % of 770). Beyond the face one is closed by a dome, whose height is
this part of the cut's depth: about that of a ball's cap."""

SOLID_HU = -300.0
ATTACHED = 0.1
"""A nodule lies at the pleura (or on a large vessel) where this share of its cube's border is solid tissue beside it."""

MOST_SAMPLES = 8
"""Of a cube in a scan's voxel along each axis."""


class Turn(NamedTuple):
    """One of the 48 symmetries of a cube: its axes in a new order, and which are reversed then."""

    order: tuple[int, ...] = (0, 1, 2)
    signs: tuple[int, ...] = (1, 1, 1)

    def __str__(self) -> str:
        return "".join(f"{'+' if sign > 0 else '-'}{'zyx'[axis]}" for axis, sign in zip(self.order, self.signs, strict=True))

    def array(self, values: Real[np.ndarray, "z y x"]) -> Real[np.ndarray, "z y x"]:
        """The turned cube."""
        return values.transpose(self.order)[tuple(slice(None, None, sign) for sign in self.signs)]

    def vector(self, vector: Float[np.ndarray, "3"]) -> Float[np.ndarray, "3"]:
        """A direction (z, y, x) in the turned cube."""
        return vector[list(self.order)] * np.array(self.signs)


TURNS = tuple(Turn(order, signs) for order in permutations(range(3)) for signs in product((1, -1), repeat=3))


class Nodule(NamedTuple):
    """A nodule to insert.

    Attributes:
      name: unique among those to insert.
      category: or an empty string.
      hu: the cube, continued beyond its faces, along the world's z, y, x.
      distance_mm: from the nodule's surface, negative inside it.
      voxel_mm: of the cube.
      diameter_mm: as annotated.
      wall: the direction (z, y, x) of the tissue at its border; None for a nodule that lies free in the lung.
    """

    name: str
    category: str
    hu: Float[np.ndarray, "z y x"]
    distance_mm: Float[np.ndarray, "z y x"]
    voxel_mm: float
    diameter_mm: float
    wall: Float[np.ndarray, "3"] | None

    def surface_mm(self, band_mm: float = 0.0) -> Float[np.ndarray, "points 3"]:
        """Where the voxels within a distance of the nodule's surface lie, mm from the cube's centre, z, y, x."""
        middle = (np.array(self.hu.shape) - 1) / 2
        return (np.argwhere(self.distance_mm < band_mm) - middle) * self.voxel_mm


class Seen(NamedTuple):
    """A nodule on the voxels of a scan, in the region of the scan that its band needs."""

    region: tuple[slice, slice, slice]
    hu: Float[np.ndarray, "z y x"]
    distance_mm: Float[np.ndarray, "z y x"]


def as_nodule(
    name: str,
    category: str,
    values: Real[np.ndarray, "z y x"],
    mask: Real[np.ndarray, "z y x"],
    edge_mm: float,
    diameter_mm: float,
) -> Nodule:
    """A cube and its mask, not empty, as a `Nodule`; without a diameter (NaN) it has that of a ball of the mask's volume."""
    inside = mask > 0
    voxel_mm = edge_mm / max(values.shape)
    border = np.ones(values.shape, bool)
    border[1:-1, 1:-1, 1:-1] = False
    solid = border & ~inside & (values > SOLID_HU)
    wall = None
    if solid.sum() >= ATTACHED * border.sum():
        direction = (np.argwhere(solid) - (np.array(values.shape) - 1) / 2).mean(0)
        wall = direction / max(float(np.linalg.norm(direction)), 1e-9)
    if not np.isfinite(diameter_mm):
        diameter_mm = float((6 / np.pi * inside.sum()) ** (1 / 3) * voxel_mm)
    pad = int(np.ceil((BAND_MM[1] + 2.0) / voxel_mm))
    continued = np.pad(values.astype(float), pad, mode="edge")
    return Nodule(name, category, continued, _distance(inside, pad, voxel_mm), voxel_mm, float(diameter_mm), wall)


def _distance(inside: Bool[np.ndarray, "z y x"], pad: int, voxel_mm: float) -> Float[np.ndarray, "z y x"]:
    """Distance to the nodule's surface, which beyond the cube's faces is closed by domes."""
    within = -signed_distance(inside, np.full(3, voxel_mm))
    within = np.maximum(within, -0.5 * voxel_mm * max(inside.shape))  # of a mask that fills its cube
    beyond = ~np.pad(np.ones(inside.shape, bool), pad)
    away = np.asarray(ndimage.distance_transform_edt(beyond)) * voxel_mm if pad else 0.0
    continued = np.pad(within, pad, mode="edge")
    return continued + np.where(continued < 0, DOME, 1.0) * away


def turned(nodule: Nodule, turn: Turn) -> Nodule:
    """The nodule in a turned cube."""
    wall = None if nodule.wall is None else turn.vector(nodule.wall)
    return nodule._replace(hu=turn.array(nodule.hu), distance_mm=turn.array(nodule.distance_mm), wall=wall)


def band_mm(grid: Grid) -> float:
    """The width of the band in which a nodule is blended into this scan."""
    return float(np.clip(grid.spacing_mm.max(), *BAND_MM))


def see(nodule: Nodule, centre_mm: Float[np.ndarray, "3"], grid: Grid) -> Seen | None:
    """A nodule as a scan's voxels see it, its cube centred on a world point; None where the scan does not hold it whole.

    A voxel of the scan is the mean of samples that are as far apart as the cube's voxels, over the pixel's edges and the
    distance of slices, whatever the scan's direction matrix. So the cube gets the blur that the scan's voxels have and its own
    have not, and no more: those of a real or a generated nodule come from a scanner, whose point spread is in them.
    """
    reach = np.abs(nodule.surface_mm(band_mm(grid))).max(0) + nodule.voxel_mm
    corners = np.array(list(product((-1, 1), repeat=3))) * reach
    indices = grid.indices(centre_mm + corners[:, ::-1])
    first, last = np.floor(indices.min(0)).astype(int) - 1, np.ceil(indices.max(0)).astype(int) + 1
    if (first < 0).any() or (last >= grid.shape).any():
        return None
    spacing = grid.spacing_mm
    counts = [int(np.clip(round(float(mm) / nodule.voxel_mm), 1, MOST_SAMPLES)) for mm in spacing]
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
    return Seen((z, y, x), hu / samples, distance / samples)
