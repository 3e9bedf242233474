"""CT series in a folder of DICOM files.

pydicom reads the headers, and GDCM, a part of SimpleITK, the voxels where they are needed: it applies RescaleSlope and
RescaleIntercept, and knows compressed slices. A missing slice ends a stack, so no voxel is ever made up.
"""

import itertools
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pydicom
import SimpleITK as sitk
from jaxtyping import Int, Real
from pydicom.errors import InvalidDicomError

from gmmae.data.extraction.progress import Say, progress
from gmmae.data.volumes import DataError, Point, error_line
from gmmae.system.errors import InputError

TAGS = [
    "Modality",
    "SeriesInstanceUID",
    "SOPInstanceUID",
    "PatientID",
    "ImagePositionPatient",
    "ImageOrientationPatient",
    "PixelSpacing",
    "Rows",
    "Columns",
    "BitsAllocated",
]
MAX_GAP_ERROR = 0.1
"""Relative, from the usual gap: positions in headers are rounded."""
MAX_SHIFT_PIXELS = 0.5
SAME_SHAPE = 1e-3
"""Largest difference of a slice from its series' median; a localizer differs more."""

LeftOut = list[tuple[str, str, str]]
"""What is left out (in the plural), where it is, and why."""


class Slice(NamedTuple):
    """The header of a CT slice."""

    path: Path
    uid: str  # SOPInstanceUID
    patient: str  # PatientID
    size: tuple[int, int]  # along x, y
    spacing_mm: tuple[float, float]  # along x, y
    origin_mm: Point  # centre of the first pixel
    direction: tuple[float, ...]  # its columns: unit vectors of rows, columns and normal

    @property
    def height_mm(self) -> float:
        """Position along the normal."""
        return float(np.dot(self.direction[2::3], self.origin_mm))


class Stack(NamedTuple):
    """Evenly spaced slices of a series, along the axis z of a volume."""

    slices: list[Slice]
    spacing_mm: Point  # along x, y, z

    def point_mm(self, zyx: Real[np.ndarray, "3"]) -> Point:
        """The world point of an index."""
        first = self.slices[0]
        return tuple((first.origin_mm + np.reshape(first.direction, (3, 3)) @ (zyx[::-1] * self.spacing_mm)).tolist())


def find_series(paths: list[Path], left_out: LeftOut, say: Say) -> dict[str, list[Slice]]:
    """The slices of each CT series by its SeriesInstanceUID."""
    series = defaultdict[str, list[Slice]](list)
    for path in progress(paths, len(paths), "files", say):
        with reading(path):
            try:
                header = pydicom.dcmread(path, stop_before_pixels=True, specific_tags=TAGS)
                if header.get("Modality") != "CT":
                    raise DataError(f"its modality is {header.get('Modality')}")
                syntax, bits = header.file_meta.TransferSyntaxUID, header.Rows * header.Columns * header.BitsAllocated
                if not (syntax.is_compressed or syntax.is_deflated) and 8 * path.stat().st_size < bits:
                    raise DataError("the file is cut short: it lacks some of its voxels")
                row, column = np.reshape(header.ImageOrientationPatient, (2, 3)).astype(float)
                direction = np.stack([row, column, np.cross(row, column)], 1)
                x, y, z = map(float, header.ImagePositionPatient)
                dy, dx = map(float, header.PixelSpacing)
                uid, patient = (str(header.get(name, "")).strip() for name in ("SOPInstanceUID", "PatientID"))
                size = (header.Columns, header.Rows)
                item = Slice(path, uid, patient, size, (dx, dy), (x, y, z), tuple(direction.flat))
                series[str(header.SeriesInstanceUID)].append(item)
            except InvalidDicomError:
                continue
            except OSError:
                raise
            except Exception as error:  # pydicom has no common error
                left_out.append(("DICOM files without a CT slice", str(path), error_line(error)))
    return series


def stacks(slices: list[Slice]) -> tuple[list[Stack], list[str]]:
    """The stacks of a series, and what was left out or is missing, in words.

    Raises:
      DataError: the slices make no volume, or two at one place differ.
    """
    shapes = np.array([(*item.size, *item.spacing_mm, *item.direction) for item in slices])
    alike = np.all(np.abs(shapes - np.median(shapes, 0)) <= SAME_SHAPE, 1)
    ordered = sorted(itertools.compress(slices, alike), key=lambda item: (item.height_mm, item.path))
    gaps = np.diff([item.height_mm for item in ordered])
    if not (gaps > 0).any():
        raise DataError("a series must have slices of one size and direction at 2 places or more")
    again = np.array([False, *(gaps < MAX_GAP_ERROR * np.median(gaps[gaps > 0]))])
    for i in np.flatnonzero(again):
        one, other = ordered[i - 1 : i + 1]
        if not np.array_equal(_pixels(one), _pixels(other)):
            raise DataError(
                f"a series must have one slice at each place; {one.path.name} and {other.path.name} are both at "
                f"z = {one.origin_mm[2]:g} mm, and differ"
            )
    kept = list(itertools.compress(ordered, ~again))
    first, places = kept[0], np.array([item.origin_mm for item in kept])
    shift = np.abs((places - first.origin_mm) @ np.reshape(first.direction, (3, 3))[:, :2] / first.spacing_mm).max()
    if not shift <= MAX_SHIFT_PIXELS:  # nor where it is NaN
        raise DataError(f"slices must lie straight above each other; these are {shift:.1f} pixels off, as with a tilted gantry")
    heights = np.array([item.height_mm for item in kept])
    usual = np.median(np.diff(heights))
    breaks = np.flatnonzero(np.abs(np.diff(heights) / usual - 1) > MAX_GAP_ERROR) + 1
    spoilt = {"have another size, spacing or direction": ~alike, "are there twice: one of each is used": again}
    notes = [f"{np.sum(which)} slices {why}" for why, which in spoilt.items() if which.any()]
    for i in breaks:
        notes.append(f"a slice is missing, or out of place, between z = {places[i - 1, 2]:g} and {places[i, 2]:g} mm")
    made = list[Stack]()
    for start, end in itertools.pairwise([0, *breaks, len(kept)]):
        gap = np.ptp(heights[start:end]) / max(end - start - 1, 1) or usual
        made.append(Stack(kept[start:end], (*first.spacing_mm, float(gap))))
    return made, notes


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turns errors of the disk into InputError: they are no fault of the file."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"FOLDER must be readable; {error.filename or path} is not ({error.strerror or error}): see to the disk or its "
            "permissions, and give the same command again"
        ) from error


def _pixels(item: Slice) -> Real[np.ndarray, "y x"]:
    with reading(item.path):
        item.path.read_bytes()  # for GDCM a failing disk is a damaged file
    try:
        voxels = sitk.GetArrayFromImage(sitk.ReadImage(item.path, imageIO="GDCMImageIO"))
    except RuntimeError as error:
        raise DataError(f"{item.path.name}: the voxels cannot be read: {error_line(error).rpartition(': ')[2]}") from error
    if voxels.shape != (1, *item.size[::-1]):
        raise DataError(f"{item.path.name}: must be one image of grey values; got voxels of {voxels.shape}")
    return voxels[0]


def read_region(stack: Stack, low: Int[np.ndarray, "3"], high: Int[np.ndarray, "3"]) -> sitk.Image:
    """Reads a stack between two indices z, y, x, the second one excluded, in HU as int16.

    Raises:
      DataError: voxels cannot be read, or cannot be HU.
      InputError: the disk failed.
    """
    rows, columns = slice(low[1], high[1]), slice(low[2], high[2])
    voxels = np.stack([_pixels(item)[rows, columns] for item in stack.slices[low[0] : high[0]]])
    if voxels.dtype.itemsize == 1 or voxels.min() < -32768 or voxels.max() > 32767:
        raise DataError(f"voxels must be HU, in 16 bits; got {voxels.dtype} of {voxels.min():g} to {voxels.max():g}")
    image = sitk.GetImageFromArray(np.rint(voxels).astype(np.int16))
    image.SetSpacing(stack.spacing_mm)
    image.SetOrigin(stack.point_mm(low))
    image.SetDirection(stack.slices[0].direction)
    return image
