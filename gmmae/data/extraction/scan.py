"""Scans: the voxels of a volume and their positions in the world, and the checks of both.

World coordinates are x, y, z in mm, LPS; arrays are z, y, x. An array `[y, x]` is a volume of one slice, and `[x]` one of a
single line. A file is read once: what is checked is what is used. ITK reads headers only: from a damaged `.zraw` it gave wrong
voxels without an error, and 0 for NaN in NIfTI.
"""

import hashlib
import math
import re
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import SimpleITK as sitk
from jaxtyping import Bool, Float, Integer, Real, Shaped, UInt8

from gmmae.data.extraction.arrays import ARRAY_SUFFIXES, VOLUMES_ARRAY, array_header, array_names, open_array, require_length
from gmmae.data.extraction.headers import SUFFIXES, listed, read_stored, require_spacing
from gmmae.data.volumes import DataError, Point

MAX_DIRECTION_ERROR = 0.01
"""Largest error of a direction matrix times its transpose: headers are rounded."""
MAX_ORIGIN_MM = 1e6
"""Beyond, places lose their digits."""
MAX_GRID_DISTANCE = 0.1
"""How far a nodule's centre may be from its mask, in voxels: headers are rounded."""
MAX_MASK_SHIFT = 1.0
"""How far a corner of a mask may be from that of a volume of its shape, in voxels: some tools count from a voxel's edge."""
Volume = Real[np.ndarray, "z y x"]
Index = Integer[np.ndarray, " 3"]
HU_RANGE = (-32768, 32767)
MIN_LARGEST_HU = 10
"""The noise of CT has larger magnitudes."""
ORIGIN_VOXELS = 2**20
"""Of a larger volume only some slices are hashed, so that a scan takes some hundredths of a second."""


class Scan(NamedTuple):
    """A volume, whose voxels `region` checks where they are used."""

    voxels: Volume  # in memory, or mapped from a file
    frame: sitk.Image  # one voxel, with the geometry
    axes: int = 3  # 2 for an array `[y, x]`, 1 for `[x]`
    bare: bool = False  # an array, which has no place in the world

    @property
    def size(self) -> tuple[int, ...]:
        """Voxels along x, y, z."""
        return self.voxels.shape[::-1]

    @property
    def spacing_mm(self) -> Point:
        """Along x, y, z."""
        return self.frame.GetSpacing()


def read(path: Path, key: str = "volume") -> Scan:
    """Reads a volume file, or an array `key` of a `.npz`, its axes turned to the world's: x, y, z in LPS.

    Raises:
      DataError: the file, or the data file its header names, is missing, damaged or no scalar volume.
      OSError, MemoryError: the system failed, not the file.
    """
    if path.name.endswith(ARRAY_SUFFIXES):
        return of_array(open_array(path, key))
    stored = as_stored(path)
    turn = sitk.DICOMOrientImageFilter()  # to LPS
    frame = turn.Execute(stored.frame)
    order, backwards = np.array(turn.GetPermuteOrder()), np.array(turn.GetFlipAxes(), bool)
    voxels = np.flip(stored.voxels.transpose(2 - order[::-1]), tuple(np.flatnonzero(backwards[::-1]).tolist()))
    first = np.where(backwards, 1 - np.array(voxels.shape[::-1]), 0)
    frame.SetOrigin(frame.TransformIndexToPhysicalPoint(first.tolist()))
    return stored._replace(voxels=voxels, frame=frame)


def as_stored(path: Path) -> Scan:
    """Reads a volume file as `read`, its axes as they are stored."""
    try:
        str(path).encode()
    except UnicodeEncodeError as error:
        raise DataError("a path must be text in UTF-8, which ITK reads: rename the file or folder") from error
    stored = read_stored(path)
    header = sitk.ImageFileReader()
    header.SetFileName(str(path))
    try:
        header.ReadImageInformation()
    except RuntimeError as error:
        reason = re.sub(r".*ERROR: (\w+\(0x\w+\): )?", "", str(error), flags=re.DOTALL)
        raise DataError(f"the header cannot be read: {reason}") from error
    if header.GetDimension() != 3 or header.GetNumberOfComponents() != 1:
        kind = f"{header.GetDimension()} axes and {header.GetNumberOfComponents()} values a voxel"
        raise DataError(f"a volume must have 3 axes and 1 value a voxel; this one has {kind}")
    frame = make_frame(header.GetSpacing(), header.GetOrigin(), header.GetDirection())
    kind = sitk.GetArrayViewFromImage(sitk.Image([1] * 3, header.GetPixelID())).dtype
    size = header.GetSize()[::-1]
    in_file = np.dtype(stored.kind or kind).newbyteorder(stored.order)
    promised = math.prod(size) * in_file.itemsize
    content = stored.content[-promised:] if stored.from_end else stored.content
    require_length(stored.path, promised, len(content))
    voxels = content.view(in_file).reshape(size)
    if stored.scaling != (1, 0):
        slope, intercept = map(np.float64, stored.scaling)
        scaled = np.empty(size, kind)
        for part, whole in zip(scaled, voxels, strict=True):  # slice by slice, because it takes double precision
            part[...] = whole * slope + intercept
        voxels = scaled
    return Scan(voxels, frame)


def read_scan(path: Path) -> tuple[Scan, Volume]:
    """Reads a whole scan in HU, its axes as they are stored."""
    scan = as_stored(path)
    return scan, np.require(region(scan, hu=True), requirements="W")


def shape(path: Path) -> tuple[int, ...]:
    """The voxels along z, y, x of a volume, or of each in a file of several."""
    several = VOLUMES_ARRAY in array_names(path)
    return array_header(path, VOLUMES_ARRAY)[0][1:] if several else read(path).voxels.shape


def of_array(voxels: Shaped[np.ndarray, "..."]) -> Scan:
    """An array or memory map as a scan, whose first voxel is at the world's origin."""
    if not 1 <= voxels.ndim <= 3 or min(voxels.shape) < 1 or voxels.dtype.kind not in "biuf":
        what = f"{voxels.dtype} of the shape {voxels.shape}"
        raise DataError(f"a volume must be numbers along the axes z, y, x, or the last of them; this one is {what}")
    kind = {"?": "f4", "e": "f4", "g": "f8"}.get(voxels.dtype.char, voxels.dtype)  # ITK does not know these
    in_three_axes = voxels.astype(kind, copy=False)[(None,) * (3 - voxels.ndim)]
    return Scan(in_three_axes, make_frame((1.0,) * 3), voxels.ndim, bare=True)


def make_frame(
    spacing_mm: tuple[float, ...],
    origin_mm: tuple[float, ...] = (0.0, 0.0, 0.0),
    direction: tuple[float, ...] = tuple(np.eye(3).ravel().tolist()),
) -> sitk.Image:
    """An image of one voxel with a scan's geometry, which transforms between points and indices."""
    if not np.isfinite([*spacing_mm, *origin_mm, *direction]).all():
        raise DataError("spacing, origin and direction in the header must be finite numbers")
    if max(map(abs, origin_mm)) > MAX_ORIGIN_MM:
        raise DataError(f"the origin must be within {MAX_ORIGIN_MM:g} mm along each axis; it is {listed(origin_mm)}")
    require_spacing(spacing_mm)
    matrix = np.array(direction).reshape(3, 3)
    if np.abs(matrix.T @ matrix - np.eye(3)).max() > MAX_DIRECTION_ERROR:
        raise DataError(f"the axes must be at right angles, and the direction of unit vectors; it is {listed(direction)}")
    one = sitk.Image([1] * 3, sitk.sitkUInt8)
    one.SetSpacing(spacing_mm)
    one.SetOrigin(origin_mm)
    one.SetDirection(direction)
    return one


def index_of(scan: Scan, point_mm: Point, tolerance: float = 0.0) -> Float[np.ndarray, " 3"]:
    """The continuous index (x, y, z) of a world point.

    Raises:
      DataError: the point lies outside the scan, by more voxels than the tolerance.
    """
    index = np.array(scan.frame.TransformPhysicalPointToContinuousIndex(point_mm))
    beyond = np.maximum(-0.5 - index, index - (np.array(scan.size) - 0.5))
    if not (beyond <= tolerance).all():
        distance = math.hypot(*(np.maximum(beyond, 0) * scan.spacing_mm).tolist())
        raise DataError(f"the point ({', '.join(f'{c:g}' for c in point_mm)}) mm lies {distance:.6g} mm outside the scan")
    return index


def region(scan: Scan, hu: bool, *ends: Index) -> Volume:
    """Reads the voxels from a first index to a last, both x, y, z, or all.

    Raises:
      DataError: voxels are not finite, 32 bits cannot hold them, or, with `hu`, they cannot be HU.
    """
    part = scan.voxels[tuple(slice(first, last + 1) for first, last in zip(*(end[::-1] for end in ends), strict=True))]
    values = np.asarray(part, part.dtype.newbyteorder("="), "C")
    low, high = values.min(), values.max()
    floating = values.dtype.kind == "f"
    if not (np.isfinite(low) and np.isfinite(high)):
        wrong = np.count_nonzero(~np.isfinite(values))
        raise DataError(f"voxels must be finite numbers; {wrong} of the {values.size} read are NaN or infinite")
    if floating and max(-low, high) > np.finfo(np.float32).max:
        raise DataError(f"voxels must be numbers that 32 bits can hold; got {max(-low, high):g}")
    if not hu:
        return values
    other = "if they have another unit, give data.window in it"
    if values.dtype.itemsize == 1:
        raise DataError(f"voxels must be HU, which 8 bits cannot hold; got {values.dtype}: {other}, such as 0 255")
    if low < HU_RANGE[0] or high > HU_RANGE[1]:
        raise DataError(f"voxels must be HU between {HU_RANGE[0]} and {HU_RANGE[1]}; got {low:g} to {high:g}: {other}")
    if low >= -MIN_LARGEST_HU and high <= MIN_LARGEST_HU and (low < high or floating):
        looks, window = ("windowed already", "0 1") if low >= 0 and high <= 1 else ("scaled already", "-1 1")
        raise DataError(f"voxels must be HU; got {low:g} to {high:g}, which looks {looks}: {other}, such as {window}")
    return values


def origin(scan: Scan) -> str:
    """A hash of a volume's voxels, the same for each format, type of numbers, compression and header.

    It is that of flipped and turned copies too, unless the volume is so large that slices are left out. The largest values of
    its planes decide which way it is hashed, and their sums where these are equal, as in clipped volumes: of bits, because
    rounding would follow the order.
    """
    values = scan.voxels[:: -(-scan.voxels.size // ORIGIN_VOXELS)].astype(np.float64) + 0.0  # there is one zero
    planes = [
        [one.tolist() for one in (values.max(others), values.view(np.int64).sum(others))] for others in ((1, 2), (0, 2), (0, 1))
    ]
    flipped = [[one[::-1] for one in of_planes] for of_planes in planes]
    values = np.flip(values, tuple(axis for axis in range(3) if flipped[axis] < planes[axis]))
    values = values.transpose(sorted(range(3), key=lambda axis: min(planes[axis], flipped[axis])))
    return hashlib.blake2b(values.tobytes(), digest_size=8).hexdigest()


def mask_region(mask: Scan, *ends: Index) -> Bool[np.ndarray, "z y x"]:
    """Reads a region of a mask: 0, and one other value in the nodule. `ends` are those of `region`."""
    try:
        values = region(mask, False, *ends)
    except DataError as error:
        raise DataError(f"the mask's {error}") from error
    inside = values[values != 0]
    if inside.size and inside.min() != inside.max():
        labels = np.unique(inside).tolist()
        got = f"{len(labels)} others, such as {listed(labels[:5])}"
        raise DataError(f"the mask must hold 0 and one other value; got {got}: keep the nodule only")
    return values != 0


def read_mask(source: Path | Shaped[np.ndarray, "..."], scan: Scan, centre_mm: Point | None = None) -> Scan:
    """Reads a nodule's mask from a file, or from an array on the grid of its scan.

    Raises:
      DataError: it cannot be used, does not overlap the scan, or does not hold the nodule's centre.
      OSError: the system failed, not the file.
    """
    try:
        mask = read(source, "mask") if isinstance(source, Path) else of_array(source)
        if mask.bare:
            ours, theirs = (one.voxels.shape[3 - one.axes :] for one in (scan, mask))
            if not scan.bare:
                raise DataError(f"must lie in the world, as its volume does; give it as one of {', '.join(SUFFIXES)}")
            if ours != theirs:
                raise DataError(f"must have the shape of its volume, {ours}; got {theirs}")
            mask = mask._replace(frame=scan.frame)
        if mask.axes != scan.axes:
            raise DataError(f"must have the {scan.axes} axes of its volume; it has {mask.axes}")
        # The box around its corners must reach into the scan.
        ends = [*product(*((-0.5, n - 0.5) for n in mask.size))]
        corners = [mask.frame.TransformContinuousIndexToPhysicalPoint(end) for end in ends]
        indices = np.array([scan.frame.TransformPhysicalPointToContinuousIndex(corner) for corner in corners])
        if not ((indices.min(0) < np.array(scan.size) - 0.5) & (indices.max(0) > -0.5)).all():
            ours, theirs = (listed(one.frame.GetOrigin()) for one in (scan, mask))
            raise DataError(f"must overlap its volume, which begins at ({ours}) mm; it begins at ({theirs}) mm")
        if mask.size == scan.size and (apart := np.abs(indices - ends).max()) > MAX_MASK_SHIFT:
            raise DataError(
                f"must lie where its volume does, whose shape it has; corners are up to {apart:.3g} voxels apart: save it with "
                "the volume's spacing, origin and direction"
            )
        if centre_mm is not None:
            index_of(mask, centre_mm, MAX_GRID_DISTANCE)
    except DataError as error:
        name = f" {source.name}" if isinstance(source, Path) else ""
        raise DataError(f"the mask{name}: {error}") from error
    return mask


def mask_on_grid(mask: Scan, scan: Scan) -> UInt8[np.ndarray, "z y x"]:
    """A mask on a scan's grid: the mask's nearest voxel in the world, and 0 outside of the mask."""
    image, frame = as_image(mask_region(mask).astype(np.uint8), mask), scan.frame
    grid = frame.GetOrigin(), frame.GetSpacing(), frame.GetDirection()
    return sitk.GetArrayFromImage(sitk.Resample(image, scan.size, sitk.Transform(), sitk.sitkNearestNeighbor, *grid))


def as_image(values: Volume, scan: Scan, first: Sequence[int] = (0, 0, 0)) -> sitk.Image:
    """A part of a scan that begins at an index x, y, z, as an image."""
    image = sitk.GetImageFromArray(values)
    image.SetSpacing(scan.spacing_mm)
    image.SetOrigin(scan.frame.TransformIndexToPhysicalPoint(first))
    image.SetDirection(scan.frame.GetDirection())
    return image
