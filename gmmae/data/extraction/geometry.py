"""Cuts cubes out of scans.

World coordinates are x, y, z in mm, LPS as in ITK. Arrays are z, y, x. A cube is aligned with the world's axes, for any
direction matrix of the scan, and centred on a world point. Along an axis of S voxels, voxel i lies at
`centre + (i - (S - 1) / 2) · edge / S` of the longest axis. So voxels are cubic, also where the edges differ.

The "cube" of an array of fewer axes has its number of axes (`gmmae.data.extraction.grids.Volume.axes`).
"""

import contextlib
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import SimpleITK as sitk
from jaxtyping import Bool, Float, Real, UInt8

from gmmae.data.extraction import voxels
from gmmae.data.extraction.grids import Index, Volume, as_index, index_of
from gmmae.data.settings import CROP_PATTERN
from gmmae.data.volumes import DataError, Point

MAX_REGION_VOXELS = 2**26
"""Largest number of scan voxels around one cube. A larger one means a diameter or a spacing in a wrong unit."""

Shape = tuple[int, ...]
"""Voxels of a cube along each of its volume's axes, in array order."""


class Cut(NamedTuple):
    """A cube, and the share of its voxels that lie outside the scan and were filled."""

    values: Real[np.ndarray, "*volume"]
    filled: float


class Box(NamedTuple):
    """The voxels of a scan that a cube needs: first index and last, x, y, z; beyond the scan where the cube is."""

    first: Index
    last: Index


def edge_mm(edge: str, diameter_mm: float | None, volume: Volume, shape: Shape) -> float:
    """Returns the longest edge of a cube in mm, from `data.crop`: "1.25x" the diameter, "20mm", or "whole" (the volume).

    Raises:
      DataError: the edge is a multiple of a diameter that is not known.
    """
    match = CROP_PATTERN.fullmatch(edge)
    assert match is not None, "checked by DataConfig"
    if edge == "whole":
        edges = zip(volume.size, volume.frame.GetSpacing(), reversed(shape), strict=False)
        return max(spacing * size * (max(shape) / count) for size, spacing, count in edges)
    if match["unit"] == "mm":
        return float(match["number"])
    if diameter_mm is None:
        raise DataError(f"data.crop = {edge} needs a column diameter_mm; there is none: give data.crop in mm, or whole")
    return float(match["number"]) * diameter_mm


def cut(volume: Volume, centre_mm: Point, edge_mm: float, shape: Shape, outside: float | None, hu: bool) -> Cut:
    """Resamples a cube, `edge_mm` wide and centred on a world point, by trilinear interpolation.

    Args:
      volume: the scan; only the voxels around the cube are read.
      centre_mm: world point x, y, z.
      edge_mm: from outer face to outer face along the longest edge, mm.
      shape: voxels along each axis of the cube.
      outside: the value outside of the scan; None: that of the nearest voxel.
      hu: whether voxels are HU, which are checked and rounded (int16). Others are not rounded (float32).

    Raises:
      DataError: the point lies outside the scan, the cube covers too many voxels, or as `voxels.read`.
    """
    index_of(volume, centre_mm)

    def read(first: Index, size: Index) -> sitk.Image:
        return voxels.read(volume, first, size, hu)

    values, inside = _sample(volume, centre_mm, edge_mm, shape, read)
    values = np.rint(values).astype(np.int16) if hu else values.astype(np.float32)
    if outside is not None:
        values[~inside] = outside
    return Cut(values, float(1 - inside.mean()))


def averaged(volume: Volume, shape: Shape, hu: bool) -> Real[np.ndarray, "*volume"]:
    """Returns a whole volume with fewer voxels. Each is the mean of the part of the volume that it covers.

    So nothing is aliased, and the sum over the volume is kept, in units of its own voxels.

    Args:
      volume: the scan, with at least `shape` voxels.
      shape: voxels along each axis.
      hu: as in `cut`.
    """
    values = voxels.read_whole(volume, hu).astype(np.float64)
    for axis, count in enumerate(_in_three_axes(shape)):
        size = values.shape[axis]
        starts, ends = np.arange(count)[:, None] * size / count, np.arange(1, count + 1)[:, None] * size / count
        covered = np.clip(np.minimum(ends, np.arange(1, size + 1)) - np.maximum(starts, np.arange(size)), 0, None)
        values = np.moveaxis(np.tensordot(covered * count / size, values, (1, axis)), 0, axis)
    values = values.reshape(shape)
    return np.rint(values).astype(np.int16) if hu else values.astype(np.float32)


def cut_mask(volume: Volume, centre_mm: Point, edge_mm: float, shape: Shape) -> UInt8[np.ndarray, "*volume"]:
    """Cuts a mask as `cut` does: 1 where the interpolated mask is at least one half, 0 beyond the mask's own grid."""

    def read(first: Index, size: Index) -> sitk.Image:
        return sitk.Cast(voxels.read_mask(volume, first, size), sitk.sitkFloat32)

    values, inside = _sample(volume, centre_mm, edge_mm, shape, read)
    return ((values >= 0.5) & inside).astype(np.uint8)


def preload(volume: Volume, cubes: list[tuple[Point, float]], shape: Shape) -> Volume:
    """Reads all slices that these cubes (centre, edge in mm) need at once, and returns the volume with them.

    Compressed files are decompressed from their beginning for any region. The slices are whole, because ITK decompresses
    narrower regions line by line, at half the speed.
    """
    boxes: list[Box] = []
    for centre, edge in cubes:
        with contextlib.suppress(DataError):  # `cut` says so, for its own cube
            index_of(volume, centre)
            boxes.append(_box(_indices(volume, centre, edge, shape), edge))
    if not boxes:
        return volume
    first = np.array([0, 0, max(min(box.first[2] for box in boxes), 0)])
    last = np.array([*volume.size[:2], min(max(box.last[2] for box in boxes) + 1, volume.size[2])]) - 1
    image = volume.read(as_index(first), as_index(last - first + 1))
    return volume._replace(
        read=lambda start, shape: sitk.RegionOfInterest(image, shape, as_index(np.array(start) - first)), one_pass=False
    )


def _sample(
    volume: Volume, centre_mm: Point, edge_mm: float, shape: Shape, read: Callable[[Index, Index], sitk.Image]
) -> tuple[Float[np.ndarray, "*volume"], Bool[np.ndarray, "*volume"]]:
    """Returns the interpolated values at the cube's voxels, and whether each voxel lies inside the scan."""
    indices = _indices(volume, centre_mm, edge_mm, shape)
    box = _box(indices, edge_mm)
    first, last = (np.clip(end, 0, np.array(volume.size) - 1) for end in box)
    image = read(as_index(first), as_index(last - first + 1))
    values = _resample(_pad(image, volume, box), centre_mm, edge_mm, shape)
    inside = np.all((indices >= -0.5) & (indices <= np.array(volume.size) - 0.5), axis=-1)
    return values.reshape(shape), inside.reshape(shape)


def _in_three_axes(shape: Shape) -> Index:
    z, y, x = (1,) * (3 - len(shape)) + shape
    return (z, y, x)


@np.errstate(over="ignore", invalid="ignore")  # `_box` refuses what comes of it
def _indices(volume: Volume, centre_mm: Point, edge_mm: float, shape: Shape) -> Float[np.ndarray, "z y x 3"]:
    """Returns the continuous index (x, y, z) in the scan of each voxel of the cube (z, y, x)."""
    if not (math.isfinite(edge_mm) and edge_mm > 0):
        raise DataError(f"a cube's edge must be positive and finite; got {edge_mm:g} mm")
    at = volume.frame.TransformPhysicalPointToContinuousIndex
    middle = np.array(at(centre_mm))
    # The map from points to indices is affine: three more points give it all.
    x, y, z = centre_mm
    columns = [np.array(at(p)) - middle for p in ((x + 1, y, z), (x, y + 1, z), (x, y, z + 1))]
    offsets = [(np.arange(n) - (n - 1) / 2) * edge_mm / max(shape) for n in _in_three_axes(shape)]
    dz, dy, dx = np.meshgrid(*offsets, indexing="ij")
    return middle + np.stack([dx, dy, dz], -1) @ np.stack(columns)


@np.errstate(over="ignore", invalid="ignore")
def _box(indices: Float[np.ndarray, "z y x 3"], edge_mm: float) -> Box:
    low, high = np.floor(indices.min((0, 1, 2))), np.ceil(indices.max((0, 1, 2)))
    covered = float(np.prod(high - low + 1))
    if not covered <= MAX_REGION_VOXELS:  # a NaN is refused too
        raise DataError(
            f"a cube may cover at most {MAX_REGION_VOXELS:.2g} voxels of its scan; {edge_mm:g} mm cover {covered:.2g}: "
            "are diameter, data.crop and spacing in mm?"
        )
    return Box(as_index(low), as_index(high))


def _pad(image: sitk.Image, volume: Volume, box: Box) -> sitk.Image:
    """Repeats the outermost voxels out to the box, so that interpolation beyond the scan continues its faces."""
    lower = np.maximum(-np.array(box.first), 0)
    upper = np.maximum(np.array(box.last) - (np.array(volume.size) - 1), 0)
    if not lower.any() and not upper.any():
        return image
    return sitk.ZeroFluxNeumannPad(image, [int(v) for v in lower], [int(v) for v in upper])


def _resample(image: sitk.Image, centre_mm: Point, edge_mm: float, shape: Shape) -> Float[np.ndarray, "z y x"]:
    spacing, sizes = edge_mm / max(shape), _in_three_axes(shape)[::-1]
    resample = sitk.ResampleImageFilter()
    resample.SetSize(sizes)
    resample.SetOutputSpacing([spacing] * 3)
    resample.SetOutputOrigin([c - (n - 1) / 2 * spacing for c, n in zip(centre_mm, sizes, strict=True)])
    resample.SetOutputDirection(np.eye(3).ravel().tolist())
    resample.SetInterpolator(sitk.sitkLinear)
    resample.SetOutputPixelType(sitk.sitkFloat64)
    resample.SetNumberOfThreads(1)
    return sitk.GetArrayFromImage(resample.Execute(image))
