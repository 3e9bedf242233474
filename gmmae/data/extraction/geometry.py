"""Cutting a cube out of a scan: from world millimetres to voxels, in one place.

World coordinates are x, y, z in mm, LPS as in ITK; arrays are z, y, x. A cube is aligned with the world's axes, whatever the
scan's direction matrix, and centred on a world point: along each axis voxel i lies at
`centre + (i - (size - 1) / 2) · edge / size`.
"""

import contextlib
import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np
import SimpleITK as sitk
from jaxtyping import Bool, Float, Int16, Shaped, UInt8

from gmmae.data.config import EDGE
from gmmae.data.volumes import DataError, Point

AIR_HU = -1000
MAX_REGION_VOXELS = 2**26
"""More scan voxels than this around one cube means a diameter or a spacing in a wrong unit, and a lot of memory."""

Fill = Literal["air", "replicate"]
Index = tuple[int, int, int]


class Volume(NamedTuple):
    """A scan whose voxels are read when they are needed.

    Attributes:
      frame: an image of one voxel that carries origin, spacing and direction.
      size: voxels along x, y, z.
      read: gives the image of a region, from its first index and its size, both x, y, z.
      one_pass: reading any region costs about as much as reading all (compressed files), so regions are read together.
    """

    frame: sitk.Image
    size: Index
    read: Callable[[Index, Index], sitk.Image]
    one_pass: bool = False


class Cut(NamedTuple):
    """A cube in HU, and the share of its voxels that lie outside the scan and were filled."""

    hu: Int16[np.ndarray, "size size size"]
    filled: float


class Box(NamedTuple):
    """The voxels of a scan that a cube needs: first index and last, x, y, z; beyond the scan where the cube is."""

    first: Index
    last: Index


def image_volume(image: sitk.Image) -> Volume:
    """An image in memory as a `Volume`."""
    return Volume(
        frame(image.GetSpacing(), image.GetOrigin(), image.GetDirection()),
        image.GetSize(),
        lambda start, size: sitk.RegionOfInterest(image, size, start),
    )


def frame(spacing_mm: Point, origin_mm: Point, direction: tuple[float, ...]) -> sitk.Image:
    """An image of one voxel with this geometry; its transforms between points and indices are the scan's."""
    one = sitk.Image(1, 1, 1, sitk.sitkUInt8)
    one.SetSpacing(spacing_mm)
    one.SetOrigin(origin_mm)
    one.SetDirection(direction)
    return one


def extent_mm(volume: Volume) -> Point:
    """The lengths of the volume's three edges in mm, outer voxel faces included."""
    spacing = volume.frame.GetSpacing()
    return (spacing[0] * volume.size[0], spacing[1] * volume.size[1], spacing[2] * volume.size[2])


def middle_mm(volume: Volume) -> Point:
    """The world point in the middle of a volume."""
    return volume.frame.TransformContinuousIndexToPhysicalPoint([(n - 1) / 2 for n in volume.size])


def edge_mm(edge: str, diameter_mm: float | None, volume: Volume) -> float:
    """The edge of a cube in mm, as `data.edge` says: "1.25x" the diameter, "20mm", or "whole" (the volume's longest edge).

    Raises:
      DataError: the edge is a multiple of a diameter that is not known.
    """
    match = EDGE.fullmatch(edge)
    assert match is not None, "checked by DataConfig"
    if edge == "whole":
        return max(extent_mm(volume))
    if match["unit"] == "mm":
        return float(match["number"])
    if diameter_mm is None:
        raise DataError(f"data.edge = {edge} needs a column diameter_mm; there is none: give data.edge in mm, or whole")
    return float(match["number"]) * diameter_mm


def cut(volume: Volume, centre_mm: Point, edge_mm: float, size: int, fill: Fill) -> Cut:
    """Resample a cube of `size`³ voxels, `edge_mm` wide and centred on a world point, by trilinear interpolation.

    Args:
      volume: the scan; only the voxels around the cube are read.
      centre_mm: world point x, y, z.
      edge_mm: from outer face to outer face, mm.
      size: voxels along each axis of the cube.
      fill: what stands where the scan does not reach: "air" is -1000 HU, "replicate" the scan's nearest outermost voxels.

    Raises:
      DataError: the point lies outside the scan, the cube covers absurdly many voxels, or voxels are no HU.
    """
    values, inside = _sample(volume, centre_mm, edge_mm, size, _hu)
    hu = np.rint(values).astype(np.int16)
    if fill == "air":
        hu[~inside] = AIR_HU
    return Cut(hu, float(1 - inside.mean()))


def cut_mask(volume: Volume, centre_mm: Point, edge_mm: float, size: int) -> UInt8[np.ndarray, "size size size"]:
    """As `cut`, of a mask: 1 where the interpolated mask is at least one half; 0 outside the volume."""
    values, inside = _sample(volume, centre_mm, edge_mm, size, lambda image: sitk.Cast(image != 0, sitk.sitkFloat32))
    return ((values >= 0.5) & inside).astype(np.uint8)


def preload(volume: Volume, cubes: list[tuple[Point, float]], size: int) -> Volume:
    """The same volume with every slice that these cubes (centre, edge in mm) need read in one go.

    For files that are decompressed from their beginning whatever region is asked for. Whole slices, because ITK decompresses
    a region narrower than they are line by line, at half the speed.
    """
    boxes: list[Box] = []
    for centre, edge in cubes:
        with contextlib.suppress(DataError):  # `cut` says so, for its own cube
            boxes.append(_box(_indices(volume, centre, edge, size), edge))
    if not boxes:
        return volume
    first = np.array([0, 0, max(min(box.first[2] for box in boxes), 0)])
    last = np.array([*volume.size[:2], min(max(box.last[2] for box in boxes) + 1, volume.size[2])]) - 1
    image = volume.read(_index(first), _index(last - first + 1))
    return volume._replace(
        read=lambda start, shape: sitk.RegionOfInterest(image, shape, _index(np.array(start) - first)), one_pass=False
    )


def _sample(
    volume: Volume, centre_mm: Point, edge_mm: float, size: int, convert: Callable[[sitk.Image], sitk.Image]
) -> tuple[Float[np.ndarray, "size size size"], Bool[np.ndarray, "size size size"]]:
    """The interpolated values at the cube's voxels, and which of these lie inside the scan."""
    indices = _indices(volume, centre_mm, edge_mm, size)
    box = _box(indices, edge_mm)
    image = convert(_read(volume, box))
    values = _resample(_pad(image, volume, box), centre_mm, edge_mm, size)
    return values, np.all((indices >= -0.5) & (indices <= np.array(volume.size) - 0.5), axis=-1)


def _indices(volume: Volume, centre_mm: Point, edge_mm: float, size: int) -> Float[np.ndarray, "size size size 3"]:
    """The continuous index (x, y, z) in the scan of each voxel of the cube (z, y, x)."""
    if not (math.isfinite(edge_mm) and edge_mm > 0):
        raise DataError(f"a cube's edge must be positive; got {edge_mm:g} mm")
    at = volume.frame.TransformPhysicalPointToContinuousIndex
    middle = np.array(at(centre_mm))
    beyond = np.maximum(-0.5 - middle, middle - (np.array(volume.size) - 0.5))
    if not (beyond <= 0).all():
        distance = np.linalg.norm(np.maximum(beyond, 0) * volume.frame.GetSpacing())
        raise DataError(f"the point ({', '.join(f'{c:g}' for c in centre_mm)}) mm lies {distance:.1f} mm outside the scan")
    # The map from points to indices is affine: three more points give it all.
    x, y, z = centre_mm
    columns = [np.array(at(p)) - middle for p in ((x + 1, y, z), (x, y + 1, z), (x, y, z + 1))]
    offset = (np.arange(size) - (size - 1) / 2) * edge_mm / size
    dz, dy, dx = np.meshgrid(offset, offset, offset, indexing="ij")
    return middle + np.stack([dx, dy, dz], -1) @ np.stack(columns)


def _box(indices: Float[np.ndarray, "size size size 3"], edge_mm: float) -> Box:
    low, high = np.floor(indices.min((0, 1, 2))), np.ceil(indices.max((0, 1, 2)))
    voxels = float(np.prod(high - low + 1))
    if voxels > MAX_REGION_VOXELS:
        raise DataError(
            f"a cube may cover at most {MAX_REGION_VOXELS:.2g} voxels of its scan; {edge_mm:g} mm cover {voxels:.2g}: "
            "are diameter, data.edge and spacing in mm?"
        )
    return Box(_index(low), _index(high))


def _index(values: Shaped[np.ndarray, " 3"]) -> Index:
    x, y, z = (int(v) for v in values)
    return (x, y, z)


def _read(volume: Volume, box: Box) -> sitk.Image:
    first = np.clip(box.first, 0, np.array(volume.size) - 1)
    last = np.clip(box.last, 0, np.array(volume.size) - 1)
    return volume.read(_index(first), _index(last - first + 1))


def _pad(image: sitk.Image, volume: Volume, box: Box) -> sitk.Image:
    """Repeat the outermost voxels out to the box, so that interpolation beyond the scan continues its faces."""
    lower = np.maximum(-np.array(box.first), 0)
    upper = np.maximum(np.array(box.last) - (np.array(volume.size) - 1), 0)
    if not lower.any() and not upper.any():
        return image
    return sitk.ZeroFluxNeumannPad(image, [int(v) for v in lower], [int(v) for v in upper])


def _resample(image: sitk.Image, centre_mm: Point, edge_mm: float, size: int) -> Float[np.ndarray, "size size size"]:
    spacing = edge_mm / size
    resample = sitk.ResampleImageFilter()
    resample.SetSize([size] * 3)
    resample.SetOutputSpacing([spacing] * 3)
    resample.SetOutputOrigin([c - (size - 1) / 2 * spacing for c in centre_mm])
    resample.SetOutputDirection(np.eye(3).ravel().tolist())
    resample.SetInterpolator(sitk.sitkLinear)
    resample.SetOutputPixelType(sitk.sitkFloat64)
    resample.SetDefaultPixelValue(AIR_HU)
    resample.SetNumberOfThreads(1)
    return sitk.GetArrayFromImage(resample.Execute(image))


def _hu(image: sitk.Image) -> sitk.Image:
    """The image itself, if its voxels can be HU."""
    voxels = sitk.GetArrayViewFromImage(image)
    floats = np.issubdtype(voxels.dtype, np.floating)
    if floats and not np.isfinite(voxels).all():
        raise DataError(
            f"voxels must be finite HU; {np.count_nonzero(~np.isfinite(voxels))} around the nodule are NaN or infinite"
        )
    low, high = voxels.min(), voxels.max()
    if low < -32768 or high > 32767:
        raise DataError(f"voxels must be HU between -32768 and 32767; got {low:g} to {high:g}")
    if floats and low >= 0 and high <= 1:
        raise DataError(f"voxels must be HU; got {low:g} to {high:g}, which looks windowed already: turn it back into HU")
    return image
