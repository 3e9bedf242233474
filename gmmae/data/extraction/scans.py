"""Opens volumes on disk or in arrays. It reads only their headers, and checks their data."""

import functools
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
import SimpleITK as sitk
from jaxtyping import Shaped

from gmmae.data.extraction.grids import Index, Volume, as_index, frame
from gmmae.data.extraction.headers import check_header, listed, require_spacing
from gmmae.data.extraction.integrity import SUFFIXES, check_data, check_gzip, data_file, nifti_values, read_through
from gmmae.data.volumes import DataError, Point

VOXEL_BYTES = {
    **dict.fromkeys((sitk.sitkUInt8, sitk.sitkInt8), 1),
    **dict.fromkeys((sitk.sitkUInt16, sitk.sitkInt16), 2),
    **dict.fromkeys((sitk.sitkUInt32, sitk.sitkInt32, sitk.sitkFloat32), 4),
    **dict.fromkeys((sitk.sitkUInt64, sitk.sitkInt64, sitk.sitkFloat64), 8),
}

MAX_DIRECTION_ERROR = 0.01
"""Largest difference between the identity and a direction matrix times its transpose. Headers are rounded."""

T = TypeVar("T")


def open_scan(path: Path) -> Volume:
    """Opens a volume as `open_stored` does, with its axes in the order and direction of the world's: x, y, z in LPS."""
    stored = open_stored(path)
    turned = sitk.DICOMOrient(stored.frame)
    last = stored.frame.TransformIndexToPhysicalPoint(as_index(np.array(stored.size) - 1))
    end = np.array(turned.TransformPhysicalPointToIndex(last))  # below 0 along flipped axes
    turned.SetOrigin(turned.TransformIndexToPhysicalPoint(as_index(np.minimum(end, 0))))

    def read(start: Index, shape: Index) -> sitk.Image:
        ends = (turned.TransformIndexToPhysicalPoint(as_index(end)) for end in (np.array(start), np.add(start, shape) - 1))
        low, high = np.sort([stored.frame.TransformPhysicalPointToIndex(end) for end in ends], axis=0)
        return sitk.DICOMOrient(stored.read(as_index(low), as_index(high - low + 1)))

    return stored._replace(frame=turned, size=as_index(np.abs(end) + 1), read=read)


def open_stored(path: Path) -> Volume:
    """Opens a volume file: reads its header, and checks its data without keeping them.

    Raises:
      DataError: the file, or the data file its header names, is missing, truncated, damaged or no scalar volume.
      OSError: the system failed, not the file.
      MemoryError: likewise.
    """
    if not path.is_file():
        raise DataError("there is no such file")
    if not path.name.endswith(SUFFIXES):
        raise DataError(f"a volume file must end in {', '.join(SUFFIXES)}")
    data = data_file(path)
    if not data.is_file():
        raise DataError(f"the header has no data: {data.name}, which it names, is not there")
    check_header(path)
    reader = sitk.ImageFileReader()
    reader.SetFileName(str(path))
    try:
        ask_itk(reader.ReadImageInformation, path, data)
        if reader.GetDimension() != 3 or reader.GetNumberOfComponents() != 1:
            kind = f"{reader.GetDimension()} axes and {reader.GetNumberOfComponents()} values a voxel"
            raise DataError(f"a volume must have 3 axes and 1 value a voxel; this one has {kind}")
        _check_geometry(reader.GetSize(), reader.GetSpacing(), reader.GetOrigin(), reader.GetDirection())
        geometry = frame(reader.GetSpacing(), reader.GetOrigin(), reader.GetDirection())
    except RuntimeError as error:
        check_gzip(path)
        raise DataError(f"the header cannot be read: {itk_reason(error)}") from error
    x, y, z = reader.GetSize()
    if reader.GetPixelIDValue() not in VOXEL_BYTES:
        raise DataError(f"voxels must be numbers; got {sitk.GetPixelIDValueAsString(reader.GetPixelIDValue())}")
    checked = check_data(path, data, x * y * z, VOXEL_BYTES[reader.GetPixelIDValue()])
    on_disk = functools.cache(lambda: nifti_values(path, (z, y, x)) if checked.hides_nan else None)

    def read(start: Index, shape: Index) -> sitk.Image:
        reader.SetExtractIndex(start)
        reader.SetExtractSize(shape)
        try:
            image = ask_itk(reader.Execute, path, data)
        except RuntimeError as error:
            raise DataError(f"the voxels cannot be read: {itk_reason(error)}") from error
        return _with_nan(image, start, on_disk())

    return Volume(geometry, (x, y, z), read, checked.one_pass)


def _check_geometry(size: Sequence[int], spacing: Sequence[float], origin: Sequence[float], direction: Sequence[float]) -> None:
    if min(size) < 1:
        raise DataError(f"a volume must have a voxel; its size is {' × '.join(map(str, size))}")
    if not np.isfinite([*spacing, *origin, *direction]).all():
        raise DataError("spacing, origin and direction in the header must be finite numbers")
    require_spacing(spacing)
    matrix = np.array(direction).reshape(len(size), len(size))
    if np.linalg.matrix_rank(matrix) == len(size) and np.abs(matrix.T @ matrix - np.eye(len(size))).max() > MAX_DIRECTION_ERROR:
        raise DataError(f"the axes must be at right angles, and the direction of unit vectors; it is {listed(direction)}")


def _with_nan(image: sitk.Image, start: Index, on_disk: Shaped[np.ndarray, "z y x"] | None) -> sitk.Image:
    """Returns the image of a region with NaN for each NaN or infinite voxel on disk."""
    if on_disk is None:
        return image
    (i, j, k), (nx, ny, nz) = start, image.GetSize()
    wrong = ~np.isfinite(on_disk[k : k + nz, j : j + ny, i : i + nx])
    if not wrong.any():
        return image
    voxels = sitk.GetArrayFromImage(image)
    voxels[wrong] = np.nan
    marked = sitk.GetImageFromArray(voxels)
    marked.CopyInformation(image)
    return marked


def array_volume(voxels: Shaped[np.ndarray, "..."], spacing_mm: Point) -> Volume:
    """Returns an array or memory map as a `Volume` with this spacing. Its first voxel is at the world's origin.

    Raises:
      DataError: the array has no axes or more than 3, or no numbers.
    """
    if not 1 <= voxels.ndim <= 3 or min(voxels.shape) < 1:
        raise DataError(f"a volume must have the axes z, y, x, or the last of them; this one has the shape {voxels.shape}")
    if voxels.dtype.kind not in "iufb":
        raise DataError(f"voxels must be numbers; got the type {voxels.dtype}")
    axes = voxels.ndim
    voxels = voxels.reshape((1,) * (3 - axes) + voxels.shape)
    z, y, x = voxels.shape
    origin, direction = (0.0, 0.0, 0.0), tuple(np.eye(3).ravel().tolist())
    _check_geometry((x, y, z), spacing_mm, origin, direction)
    geometry = frame(spacing_mm, origin, direction)

    def read(start: Index, shape: Index) -> sitk.Image:
        (i, j, k), (nx, ny, nz) = start, shape
        region = np.array(voxels[k : k + nz, j : j + ny, i : i + nx])
        if region.dtype in (np.float16, np.bool_):
            region = region.astype(np.float32)
        elif region.dtype.itemsize > 8:
            region = region.astype(np.float64)
        image = sitk.GetImageFromArray(region.astype(region.dtype.newbyteorder("=")))
        image.SetSpacing(spacing_mm)
        image.SetOrigin(geometry.TransformIndexToPhysicalPoint(start))
        return image

    return Volume(geometry, (x, y, z), read, axes=axes)


def ask_itk(call: Callable[[], T], *files: Path) -> T:
    """Calls ITK, and repeats the call when it fails.

    ITK has the same error for a broken file and for a transient failure of the disk. So the files are read through first. That
    raises the disk's own error if it still fails. A second error of ITK is then true of the file.
    """
    try:
        return call()
    except RuntimeError as error:
        if "Failed to allocate memory" in str(error):
            raise MemoryError("ITK had too little memory") from error
        for file in files:
            read_through(file)
        return call()


def itk_reason(error: RuntimeError) -> str:
    """Returns the first telling words of an ITK exception, without its source file and addresses."""
    match = re.search(r"ERROR: (?:\w+\(0x[0-9a-f]+\): )?(.*)", str(error))
    return match[1] if match else " ".join(str(error).split())
