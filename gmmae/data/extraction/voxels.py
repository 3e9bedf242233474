"""Reads the voxels of a volume and checks them. All other modules read voxels through this one."""

import numpy as np
import SimpleITK as sitk
from jaxtyping import Real, UInt8

from gmmae.data.extraction.grids import Index, Volume, corners_mm, holds, overlap, same_grid
from gmmae.data.volumes import DataError, Point

HU_RANGE = (-32768, 32767)
"""Range of 16-bit integers."""
EIGHT_BIT_TYPES = (np.dtype(np.uint8), np.dtype(np.int8))
"""Types that cannot hold HU."""
MIN_LARGEST_HU = 10
"""Smallest plausible magnitude of the largest HU of a region. The noise of CT is larger."""
MAX_LABELS_NAMED = 5
"""Largest number of labels in an error."""


def read(volume: Volume, first: Index, size: Index, hu: bool) -> sitk.Image:
    """Reads a region of a volume.

    Args:
      volume: the scan.
      first: the region's first index, x, y, z.
      size: voxels along x, y, z.
      hu: whether voxels must be HU. Otherwise they may have any unit.

    Raises:
      DataError: voxels are not finite, or cannot be HU, or 32 bits cannot hold them.
    """
    image = volume.read(first, size)
    _require_finite(image)
    if hu:
        _require_hu(image)
    return image


def read_whole(volume: Volume, hu: bool) -> Real[np.ndarray, "z y x"]:
    """Reads all voxels of a volume. Arguments and errors are those of `read`."""
    return sitk.GetArrayFromImage(read(volume, (0, 0, 0), volume.size, hu))


def read_mask(mask: Volume, first: Index, size: Index) -> sitk.Image:
    """Reads a region of a mask: 1 in the nodule and 0 around it. Arguments are those of `read`.

    Raises:
      DataError: voxels are not finite, or have several values besides 0.
    """
    image = mask.read(first, size)
    _require_finite(image)
    voxels = sitk.GetArrayViewFromImage(image)
    inside = voxels[voxels != 0]
    if inside.size and inside.min() != inside.max():
        labels = np.unique(inside)
        more = ", …" if len(labels) > MAX_LABELS_NAMED else ""
        listed = ", ".join(f"{label:g}" for label in labels[:MAX_LABELS_NAMED]) + more
        raise DataError(f"must hold 0 and one other value; got {listed}: keep the voxels of the nodule only")
    return image != 0


def require_mask_of(mask: Volume, volume: Volume, centre_mm: Point | None = None) -> None:
    """Checks that a mask fits its volume.

    Raises:
      DataError: it has other axes, does not overlap the volume, or does not hold the nodule's centre.
    """
    if mask.axes != volume.axes:
        raise DataError(f"must have the {volume.axes} axes of its volume; it has {mask.axes}")
    if not overlap(mask, volume):
        ours, theirs = (_extent(one) for one in (volume, mask))
        raise DataError(f"must overlap its volume, which covers {ours} mm; it covers {theirs} mm")
    if centre_mm is not None and not holds(mask, centre_mm):
        point = ", ".join(f"{mm:g}" for mm in centre_mm)
        raise DataError(f"must hold its nodule's centre, ({point}) mm; it covers {_extent(mask)} mm")


def mask_on_grid(mask: Volume, volume: Volume) -> UInt8[np.ndarray, "z y x"]:
    """Returns a mask on a volume's grid: the mask's nearest voxel in the world, and 0 outside of the mask.

    Raises:
      DataError: as `read_mask`.
    """
    image = read_mask(mask, (0, 0, 0), mask.size)
    if same_grid(mask, volume):
        return sitk.GetArrayFromImage(image)
    resample = sitk.ResampleImageFilter()
    resample.SetSize(volume.size)
    resample.SetOutputSpacing(volume.frame.GetSpacing())
    resample.SetOutputOrigin(volume.frame.GetOrigin())
    resample.SetOutputDirection(volume.frame.GetDirection())
    resample.SetInterpolator(sitk.sitkNearestNeighbor)
    return sitk.GetArrayFromImage(resample.Execute(image))


def _extent(volume: Volume) -> str:
    """Returns the box that a volume covers in the world."""
    points = np.array(corners_mm(volume))
    return ", ".join(
        f"{axis} {low:.0f} to {high:.0f}" for axis, low, high in zip("xyz", points.min(0), points.max(0), strict=True)
    )


def _require_finite(image: sitk.Image) -> None:
    voxels = sitk.GetArrayViewFromImage(image)
    if not np.issubdtype(voxels.dtype, np.floating):
        return
    if not np.isfinite(voxels).all():
        wrong = np.count_nonzero(~np.isfinite(voxels))
        raise DataError(f"voxels must be finite numbers; {wrong} of the {voxels.size} read are NaN or infinite")
    largest = max(abs(float(voxels.min())), abs(float(voxels.max())))
    if largest > float(np.finfo(np.float32).max):
        raise DataError(f"voxels must be numbers that 32 bits can hold; got {largest:g}")


def _require_hu(image: sitk.Image) -> None:
    voxels = sitk.GetArrayViewFromImage(image)
    low, high = voxels.min(), voxels.max()
    other = "if they have another unit, give data.window in it"
    if voxels.dtype in EIGHT_BIT_TYPES:
        raise DataError(f"voxels must be HU, which 8 bits cannot hold; got {voxels.dtype}: {other}, such as 0 255")
    if low < HU_RANGE[0] or high > HU_RANGE[1]:
        raise DataError(f"voxels must be HU between {HU_RANGE[0]} and {HU_RANGE[1]}; got {low:g} to {high:g}: {other}")
    if low >= -MIN_LARGEST_HU and high <= MIN_LARGEST_HU and (low < high or np.issubdtype(voxels.dtype, np.floating)):
        looks, window = ("windowed already", "0 1") if low >= 0 and high <= 1 else ("scaled already", "-1 1")
        raise DataError(f"voxels must be HU; got {low:g} to {high:g}, which looks {looks}: {other}, such as {window}")
