"""CT series in a folder of DICOM files. It reads headers first, and slices only where they are needed.

A series is divided into stacks of evenly spaced slices. A missing slice ends a stack, so no voxel is ever made up.
World coordinates are x, y, z in mm, LPS as in DICOM and ITK; arrays are z, y, x. GDCM, a part of SimpleITK, reads the files
and applies RescaleSlope and RescaleIntercept.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import SimpleITK as sitk
from jaxtyping import Float, Real

from gmmae.data.extraction.annotations import Fault
from gmmae.data.extraction.headers import require_spacing
from gmmae.data.extraction.progress import Say, progress
from gmmae.data.extraction.scan import Scan, as_image, itk_reason, make_frame, region
from gmmae.data.volumes import DataError, Point
from gmmae.system.errors import InputError

MODALITY, PATIENT, SERIES, SLICE = "0008|0060", "0010|0020", "0020|000e", "0008|0018"
POSITION, PIXEL_SPACING = "0020|0032", "0028|0030"
"""Tags of DICOM as ITK names them."""
MAGIC_AT, MAGIC = 128, b"DICM"
"""The first byte of the word by which a DICOM file is known, and the word."""
MAX_GAP_ERROR = 0.1
"""Largest difference between a gap and the series' usual one, as a share of that. Positions in headers are rounded."""
MAX_SHIFT_PIXELS = 0.5
"""Largest shift of a slice within its plane."""
SAME_DIRECTION = 1e-3
"""Largest difference between the directions of two slices of one series."""

Index = tuple[int, int, int]
T = TypeVar("T")


class Slice(NamedTuple):
    """The header of a CT slice.

    Attributes:
      path: the file.
      uid: SOPInstanceUID.
      patient: PatientID; empty where not given.
      size: pixels along x, y.
      spacing_mm: of pixels along x, y.
      origin_mm: centre of the first pixel.
      direction: the unit vectors of rows, columns and normal, as the columns of a matrix.
    """

    path: Path
    uid: str
    patient: str
    size: tuple[int, int]
    spacing_mm: tuple[float, float]
    origin_mm: Point
    direction: tuple[float, ...]

    @property
    def height_mm(self) -> float:
        """Position along the normal."""
        return float(np.array(self.direction).reshape(3, 3)[:, 2] @ self.origin_mm)


class Found(NamedTuple):
    """The DICOM files of a folder.

    Attributes:
      series: the slices of each CT series by SeriesInstanceUID, in the order of their paths.
      others: number of DICOM files that are no CT slice, by their modality.
      faults: a fault for each file that cannot be read.
    """

    series: dict[str, list[Slice]]
    others: Counter[str]
    faults: list[Fault]


class Volume(NamedTuple):
    """The geometry of a stack: an image of one voxel that carries it, and the voxels along x, y, z."""

    frame: sitk.Image
    size: Index


class Stack(NamedTuple):
    """Evenly spaced slices of a series: the volume, and the slices along its axis z."""

    volume: Volume
    slices: tuple[Slice, ...]


def find_series(root: Path, say: Say) -> Found:
    """Reads the headers of all DICOM files in a folder and the folders in it.

    Raises:
      InputError: the disk failed, or a file may not be read.
    """
    found = Found({}, Counter(), [])
    paths = list(_dicom_files(root))
    for path in progress(paths, len(paths), "DICOM headers", say):
        try:
            tags, reader = _header(path)
            if tags.get(MODALITY) != "CT":
                found.others[tags.get(MODALITY) or "none"] += 1
                continue
            found.series.setdefault(tags.get(SERIES, ""), []).append(_slice(path, tags, reader))
        except DataError as error:
            found.faults.append(Fault("unreadable", path.relative_to(root).as_posix(), str(error), 0))
    return found


def stacks(slices: Sequence[Slice]) -> tuple[list[Stack], list[str]]:
    """Returns the stacks of a series, and what was left out or is missing, in words.

    Raises:
      DataError: the slices make no volume, or two at one place differ.
    """
    kept, notes = _most_alike(slices)
    kept.sort(key=lambda item: (item.height_mm, item.path))
    kept, repeated = _without_copies(kept)
    if repeated:
        notes.append(f"{repeated} slices are there twice, with equal voxels: one of each is used")
    if len(kept) < 2:
        raise DataError(f"a series must have 2 slices or more; this one has {len(kept)}")
    gaps = np.diff([item.height_mm for item in kept])
    usual = float(np.median(gaps))
    _require_straight(kept)
    breaks = np.flatnonzero(np.abs(gaps / usual - 1) > MAX_GAP_ERROR)
    if len(breaks):
        places = ", ".join(f"{kept[i].origin_mm[2]:g} and {kept[i + 1].origin_mm[2]:g}" for i in breaks[:3])
        more = ", …" if len(breaks) > 3 else ""
        notes.append(f"a slice is missing, or out of place, between z = {places}{more} mm")
    parts = np.split(np.arange(len(kept)), breaks + 1)
    return [_stack([kept[i] for i in part], usual) for part in parts], notes


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turns errors of the disk into one for the user, which is never taken for a fault of the file.

    Raises:
      InputError: the file cannot be read.
    """
    try:
        yield
    except OSError as error:
        raise InputError(
            f"FOLDER must be readable; {path} is not ({error.strerror or error}): see to the disk or its permissions, and give "
            "the same command again"
        ) from error


def _dicom_files(root: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(root):
        folders.sort()
        for name in sorted(names):
            path = Path(folder, name)
            if name.startswith(".") or not path.is_file():
                continue
            with reading(path), path.open("rb") as file:
                start = file.read(MAGIC_AT + len(MAGIC))
            if start[MAGIC_AT:] == MAGIC:
                yield path


def _reader(path: Path) -> sitk.ImageFileReader:
    reader = sitk.ImageFileReader()
    reader.SetImageIO("GDCMImageIO")
    reader.SetFileName(str(path))
    return reader


def _header(path: Path) -> tuple[dict[str, str], sitk.ImageFileReader]:
    reader = _reader(path)
    try:
        with reading(path):
            ask_itk(reader.ReadImageInformation, path)
    except RuntimeError as error:
        raise DataError(f"the header cannot be read: {itk_reason(error)}") from error
    tags = {key: reader.GetMetaData(key).strip(" \0") for key in reader.GetMetaDataKeys()}
    return tags, reader


def _slice(path: Path, tags: dict[str, str], reader: sitk.ImageFileReader) -> Slice:
    for tag, name in ((SERIES, "SeriesInstanceUID"), (POSITION, "ImagePositionPatient"), (PIXEL_SPACING, "PixelSpacing")):
        if not tags.get(tag):
            raise DataError(f"the header of a CT slice must have {name}")
    size, spacing, origin = reader.GetSize(), reader.GetSpacing(), reader.GetOrigin()
    if len(size) != 3 or size[2] != 1 or reader.GetNumberOfComponents() != 1:
        raise DataError(f"a CT slice must be one image of grey values; got {' × '.join(map(str, size))} voxels")
    require_spacing(spacing[:2])
    if not np.isfinite(origin).all():
        raise DataError("ImagePositionPatient must be finite numbers")
    return Slice(path, tags.get(SLICE, ""), tags.get(PATIENT, ""), size[:2], spacing[:2], origin, reader.GetDirection())


def _most_alike(slices: Sequence[Slice]) -> tuple[list[Slice], list[str]]:
    """Returns the largest part of a series with one size, spacing and direction. A localizer may be among its slices."""
    parts: list[list[Slice]] = []
    for item in slices:
        for part in parts:
            turn = np.abs(np.subtract(item.direction, part[0].direction)).max()
            if (item.size, *np.round(item.spacing_mm, 4)) == (
                part[0].size,
                *np.round(part[0].spacing_mm, 4),
            ) and turn <= SAME_DIRECTION:
                part.append(item)
                break
        else:
            parts.append([item])
    kept = max(parts, key=len)
    others = len(slices) - len(kept)
    return kept, [f"{others} slices have another size, spacing or direction"] if others else []


def _without_copies(slices: Sequence[Slice]) -> tuple[list[Slice], int]:
    """Returns slices in order without second ones at the same place, and the number of these."""
    heights = np.array([item.height_mm for item in slices])
    apart = np.diff(heights)
    usual = float(np.median(apart[apart > 0])) if (apart > 0).any() else 1.0
    kept: list[Slice] = []
    for item in slices:
        if not kept or item.height_mm - kept[-1].height_mm > MAX_GAP_ERROR * usual:
            kept.append(item)
        elif not np.array_equal(_pixels(item), _pixels(kept[-1])):
            raise DataError(
                f"a series must have one slice at each place; {item.path.name} and {kept[-1].path.name} are both at "
                f"z = {item.origin_mm[2]:g} mm, and differ"
            )
    return kept, len(slices) - len(kept)


def _require_straight(slices: Sequence[Slice]) -> None:
    """Refuses slices that are shifted within their plane, as with a tilted gantry."""
    axes = np.array(slices[0].direction).reshape(3, 3)
    shifts = (np.array([item.origin_mm for item in slices]) - slices[0].origin_mm) @ axes[:, :2] / slices[0].spacing_mm
    if np.abs(shifts).max() > MAX_SHIFT_PIXELS:
        raise DataError(
            f"slices must lie straight above each other; these are shifted by {np.abs(shifts).max():.1f} pixels, as with a "
            "tilted gantry"
        )


def _pixels(item: Slice) -> Real[np.ndarray, "y x"]:
    reader = _reader(item.path)
    try:
        with reading(item.path):
            return sitk.GetArrayFromImage(ask_itk(reader.Execute, item.path))[0]
    except RuntimeError as error:
        raise DataError(f"{item.path.name}: the voxels cannot be read: {itk_reason(error)}") from error


def _stack(slices: Sequence[Slice], usual_gap_mm: float) -> Stack:
    first = slices[0]
    gap = (slices[-1].height_mm - first.height_mm) / (len(slices) - 1) if len(slices) > 1 else usual_gap_mm
    spacing = (*first.spacing_mm, gap)
    require_spacing(spacing)
    geometry = make_frame(spacing, first.origin_mm, first.direction)
    return Stack(Volume(geometry, (*first.size, len(slices))), tuple(slices))


def read_region(stack: Stack, start: Index, size: Index) -> sitk.Image:
    """Reads a region of a stack in HU, as int16.

    Args:
      stack: the slices.
      start: the first index, x, y, z.
      size: voxels along x, y, z.

    Raises:
      DataError: voxels cannot be read, or cannot be HU.
      InputError: the disk failed, or a file may not be read.
    """
    (i, j, k), (nx, ny, nz) = start, size
    voxels = np.stack([_pixels(item)[j : j + ny, i : i + nx] for item in stack.slices[k : k + nz]])
    scan = Scan(voxels, stack.volume.frame)
    return as_image(np.rint(region(scan, hu=True)).astype(np.int16), scan, start)


def ask_itk(call: Callable[[], T], path: Path) -> T:
    """Calls ITK, and repeats the call when it fails: its error is the same for a broken file and for a failing disk."""
    try:
        return call()
    except RuntimeError as error:
        if "Failed to allocate memory" in str(error):
            raise MemoryError("ITK had too little memory") from error
        path.read_bytes()  # raises the disk's own error
        return call()


def heights_mm(stack: Stack) -> Float[np.ndarray, " slices"]:
    """Returns the world coordinate z of each slice's first pixel, which the readers' XML names."""
    return np.array([item.origin_mm[2] for item in stack.slices])
