"""Volumes on disk or in arrays, opened without reading more of them than their headers."""

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
import SimpleITK as sitk
from jaxtyping import Shaped

from gmmae.data.extraction.geometry import Index, Volume, as_volume, frame
from gmmae.data.extraction.integrity import SUFFIXES, check_data, check_gzip, data_file, read_through
from gmmae.data.volumes import DataError, Point

VOXEL_BYTES = {
    sitk.sitkUInt8: 1,
    sitk.sitkInt8: 1,
    sitk.sitkUInt16: 2,
    sitk.sitkInt16: 2,
    sitk.sitkUInt32: 4,
    sitk.sitkInt32: 4,
    sitk.sitkFloat32: 4,
    sitk.sitkUInt64: 8,
    sitk.sitkInt64: 8,
    sitk.sitkFloat64: 8,
}

T = TypeVar("T")


def open_scan(path: Path) -> Volume:
    """A volume file as a `Volume`: its header is read, its data checked as far as that takes no memory.

    Raises:
      DataError: the file, or the data file its header names, is missing, truncated, damaged or no scalar volume or image.
      OSError, MemoryError: the system failed, not the file.
    """
    if not path.is_file():
        raise DataError("there is no such file")
    if not path.name.endswith(SUFFIXES):
        raise DataError(f"a volume file must end in {', '.join(SUFFIXES)}")
    data = data_file(path)
    if not data.is_file():
        raise DataError(f"the header has no data: {data.name}, which it names, is not there")
    reader = sitk.ImageFileReader()
    reader.SetFileName(str(path))
    try:
        _ask_itk(reader.ReadImageInformation, path, data)
        if reader.GetDimension() not in (2, 3) or reader.GetNumberOfComponents() != 1:
            kind = f"{reader.GetDimension()} axes and {reader.GetNumberOfComponents()} values a voxel"
            raise DataError(f"a volume must have 3 axes, an image 2, and 1 value a voxel; this one has {kind}")
        geometry = frame(reader.GetSpacing(), reader.GetOrigin(), reader.GetDirection())
    except RuntimeError as error:
        check_gzip(path)
        raise DataError(f"the header cannot be read: {_reason(error)}") from error
    if not np.isfinite([*reader.GetSpacing(), *reader.GetOrigin(), *reader.GetDirection()]).all():
        raise DataError("spacing, origin and direction in the header must be finite numbers")
    x, y, z = (*reader.GetSize(), 1)[:3]
    size = (x, y, z)
    if reader.GetPixelIDValue() not in VOXEL_BYTES:
        raise DataError(f"voxels must be numbers; got {sitk.GetPixelIDValueAsString(reader.GetPixelIDValue())}")
    axes = reader.GetDimension()
    one_pass = check_data(path, data, math.prod(size), VOXEL_BYTES[reader.GetPixelIDValue()])

    def read(start: Index, shape: Index) -> sitk.Image:
        reader.SetExtractIndex(start[:axes])
        reader.SetExtractSize(shape[:axes])
        try:
            return as_volume(_ask_itk(reader.Execute, path, data))
        except RuntimeError as error:
            raise DataError(f"the voxels cannot be read: {_reason(error)}") from error

    return Volume(geometry, size, read, one_pass, axes)


def array_volume(voxels: Shaped[np.ndarray, "..."], spacing_mm: Point) -> Volume:
    """An array (which may be a memory map) as a `Volume` with this spacing, its first voxel at the world's origin.

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
    geometry = frame(spacing_mm, (0.0, 0.0, 0.0), tuple(np.eye(3).ravel()))

    def read(start: Index, shape: Index) -> sitk.Image:
        (i, j, k), (nx, ny, nz) = start, shape
        region = np.array(voxels[k : k + nz, j : j + ny, i : i + nx])
        if region.dtype in (np.float16, np.bool_):
            region = region.astype(np.float32)
        image = sitk.GetImageFromArray(region.astype(region.dtype.newbyteorder("=")))
        image.SetSpacing(spacing_mm)
        image.SetOrigin(geometry.TransformIndexToPhysicalPoint(start))
        return image

    return Volume(geometry, (x, y, z), read, axes=axes)


def _ask_itk(call: Callable[[], T], *files: Path) -> T:
    """What ITK answers, asked a second time when it fails.

    It has the same error for a broken file and for a disk that failed for a moment. So the files are read through first, which
    raises the disk's own error if it still fails; what ITK then says again is true of the file.
    """
    try:
        return call()
    except RuntimeError as error:
        if "Failed to allocate memory" in str(error):
            raise MemoryError("ITK had too little memory") from error
        for file in files:
            read_through(file)
        return call()


def _reason(error: RuntimeError) -> str:
    """The first telling words of an ITK exception, without its source file and addresses."""
    match = re.search(r"ERROR: (?:\w+\(0x[0-9a-f]+\): )?(.*)", str(error))
    return match[1] if match else " ".join(str(error).split())
