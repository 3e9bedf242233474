"""Volumes before they are read, and the positions of their voxels in the world.

World coordinates are x, y, z in mm, LPS as in ITK; arrays are z, y, x. An array `[y, x]` is a volume of one slice, and
`[x]` one of a single line; `Volume.axes` says so.
"""

import math
from collections.abc import Callable
from itertools import product
from typing import NamedTuple

import numpy as np
import SimpleITK as sitk
from jaxtyping import Float, Shaped

from gmmae.data.volumes import DataError, Point

MAX_GRID_DISTANCE = 0.1
"""Largest distance between the points of two equal grids, in voxels. Headers are rounded."""

Index = tuple[int, int, int]


class Volume(NamedTuple):
    """A scan whose voxels are read when they are needed.

    Attributes:
      frame: an image of one voxel that carries origin, spacing and direction.
      size: voxels along x, y, z.
      read: gives the image of a region, from its first index and its size, both x, y, z. Its voxels are not checked: only
        `gmmae.data.extraction.voxels` calls it.
      one_pass: reading any region costs about as much as reading all (compressed files), so regions are read together.
      axes: 3, or 2 for an array `[y, x]`, or 1 for `[x]`.
    """

    frame: sitk.Image
    size: Index
    read: Callable[[Index, Index], sitk.Image]
    one_pass: bool = False
    axes: int = 3


def as_index(values: Shaped[np.ndarray, " 3"]) -> Index:
    """Returns whole numbers as an index."""
    x, y, z = (int(value) for value in values)
    return (x, y, z)


def frame(spacing_mm: tuple[float, ...], origin_mm: tuple[float, ...], direction: tuple[float, ...]) -> sitk.Image:
    """Returns an image of one voxel with the geometry of a scan. It transforms between points and indices."""
    one = sitk.Image([1] * 3, sitk.sitkUInt8)
    one.SetSpacing(spacing_mm)
    one.SetOrigin(origin_mm)
    one.SetDirection(direction)
    return one


def middle_mm(volume: Volume) -> Point:
    """Returns the world point in the middle of a volume."""
    return volume.frame.TransformContinuousIndexToPhysicalPoint([(n - 1) / 2 for n in volume.size])


def index_of(volume: Volume, point_mm: Point) -> Float[np.ndarray, " 3"]:
    """Returns the continuous index (x, y, z) of a world point.

    Raises:
      DataError: the point lies outside the volume.
    """
    index, beyond = _beyond(volume, point_mm)
    if not (beyond <= 0).all():
        distance = math.hypot(*(np.maximum(beyond, 0) * volume.frame.GetSpacing()).tolist())
        raise DataError(f"the point ({', '.join(f'{c:g}' for c in point_mm)}) mm lies {distance:.6g} mm outside the scan")
    return index


def holds(volume: Volume, point_mm: Point) -> bool:
    """Returns whether a world point lies in a voxel, up to the rounding of headers."""
    _, beyond = _beyond(volume, point_mm)
    return bool((beyond <= MAX_GRID_DISTANCE).all())


def _beyond(volume: Volume, point_mm: Point) -> tuple[Float[np.ndarray, " 3"], Float[np.ndarray, " 3"]]:
    """Returns the continuous index of a world point, and its distance outside the volume along each axis, in voxels."""
    index = np.array(volume.frame.TransformPhysicalPointToContinuousIndex(point_mm))
    return index, np.maximum(-0.5 - index, index - (np.array(volume.size) - 0.5))


def same_grid(one: Volume, other: Volume) -> bool:
    """Returns whether both have the same voxel centres in the world, up to the rounding of headers."""
    if one.size != other.size:
        return False
    return bool(np.abs(_corners(one, other) - _corners(one, one)).max() < MAX_GRID_DISTANCE)


def overlap(one: Volume, other: Volume) -> bool:
    """Returns whether the box around the corners of one volume, along the axes of the other, reaches into the other."""
    corners = _corners(one, other)
    return bool(((corners.min(0) < np.array(other.size) - 0.5) & (corners.max(0) > -0.5)).all())


def corners_mm(volume: Volume) -> list[Point]:
    """Returns the outer corners of a volume in the world."""
    ends = product(*((-0.5, n - 0.5) for n in volume.size))
    return [volume.frame.TransformContinuousIndexToPhysicalPoint(end) for end in ends]


def _corners(one: Volume, other: Volume) -> Float[np.ndarray, "8 3"]:
    """Returns the outer corners of a volume, as indices of another's voxels."""
    return np.array([other.frame.TransformPhysicalPointToContinuousIndex(point) for point in corners_mm(one)])
