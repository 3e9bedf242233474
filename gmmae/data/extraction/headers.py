"""Headers of volume files, read and checked without SimpleITK, and the checks of numbers in files.

ITK silently repairs some faults: a spacing of 0 or NaN in NIfTI becomes 1 mm, as does a missing one in MetaImage, whose origin
becomes 0 if it is no number, and whose rescaling is ignored. Such headers are refused here.
"""

import math
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import UInt8

from gmmae.data.extraction.arrays import content
from gmmae.data.volumes import DataError

SUFFIXES = (".mhd", ".mha", ".nii", ".nii.gz", ".nrrd")
SPACING_MM = (0.05, 20.0)
SPACING_TOLERANCE = 0.01
"""Relative, between the two spacings in a NIfTI header."""
FORM_TOLERANCE_MM = 0.5
"""Largest distance between a voxel's places by the two matrices."""

META_NUMBERS = (
    *((3, (name,)) for name in ("DimSize", "ElementSpacing", "ElementSize")),
    (3, ("Offset", "Position", "Origin")),
    (9, ("TransformMatrix", "Rotation", "Orientation")),
)
"""Count and names of a MetaImage's fields; readers choose differently among the names, so they must agree."""
META_FIXED = {
    "ElementToIntensityFunctionSlope": "1",
    "ElementToIntensityFunctionOffset": "0",
    "BinaryData": "True",
    "DistanceUnits": "mm",
}
"""Fields of a MetaImage that may only have this value."""

NIFTI_TYPES = {2: "u1", 4: "i2", 8: "i4", 16: "f4", 64: "f8", 256: "i1", 512: "u2", 768: "u4", 1024: "i8", 1280: "u8"}
"""Types of voxels by their codes; others have several components."""
NIFTI_FIELDS = {
    "dim": ("8i2", 40),
    "datatype": ("i2", 70),
    "pixdim": ("8f4", 76),
    "vox_offset": ("f4", 108),
    "scaling": ("2f4", 112),
    "codes": ("2i2", 252),
    "quatern": ("3f4", 256),
    "qoffset": ("3f4", 268),
    "sform": ("(3,4)f4", 280),
    "magic": ("S4", 344),
}
"""Types and first bytes of a NIfTI header's fields."""
FIRST_VOXEL = 352
"""Least first byte of a NIfTI file's voxels."""


class Stored(NamedTuple):
    """The voxels of a volume as they are stored."""

    path: Path
    content: UInt8[np.ndarray, " bytes"]
    order: Literal["<", ">"]  # of bytes
    from_end: bool = False  # whether they end the content
    kind: str = ""  # type, where ITK does not say it
    scaling: tuple[float, float] = (1.0, 0.0)  # slope and intercept


def read_stored(path: Path) -> Stored:
    """Reads a volume file, and refuses faults in its header that ITK would repair.

    Raises:
      DataError: the header must not be trusted, or compressed voxels are damaged.
      OSError: the system failed, not the file.
    """
    if not path.is_file():
        raise DataError("there is no such file")
    if path.suffix in (".mhd", ".mha"):
        return _read_meta(path)
    if path.suffix == ".nrrd":
        return _read_nrrd(path)
    if path.name.endswith((".nii", ".nii.gz")):
        return _read_nifti(path)
    raise DataError(f"a volume file must end in {', '.join(SUFFIXES)}")


def data_file(path: Path) -> Path:
    """The file with the voxels, perhaps another one that a `.mhd` header names."""
    if path.suffix in (".mhd", ".mha") and path.is_file():
        name = _fields(path, "=")[0].get("ElementDataFile", "LOCAL")
        if name.upper() != "LOCAL":
            return Path(os.path.normpath(path.parent / name))
    return path


def _fields(path: Path, separator: str) -> tuple[dict[str, str], int]:
    fields = dict[str, str]()
    with path.open("rb") as file:
        for _ in range(200):
            name, _, value = map(str.strip, file.readline(10_000).decode("latin-1").partition(separator))
            fields[name] = value
            if name == "ElementDataFile" or (separator == ":" and not name):
                break
        return fields, file.tell()


def _read_meta(path: Path) -> Stored:
    data, (fields, end) = data_file(path), _fields(path, "=")
    if not (data.is_relative_to(os.path.normpath(path.parent)) and data.is_file()):
        raise DataError(f"the data must lie beside the header; ElementDataFile is {fields['ElementDataFile']!r}")
    for count, names in META_NUMBERS:
        found = {name: _numbers(fields[name]) for name in names if name in fields}
        for name, numbers in found.items():
            if len(numbers) != count:
                raise DataError(f"{name} in the header must be {count} finite numbers; got {fields[name]}")
        if len(set(found.values())) > 1:
            raise DataError(f"the header must have one of {', '.join(names)}, or equal ones; they differ")
    if "ElementSpacing" not in fields and "ElementSize" not in fields:
        raise DataError("ElementSpacing in the header must give the spacing in mm; got none, which ITK takes for 1 mm")
    for name, wanted in META_FIXED.items():
        given = fields.get(name, wanted)
        if given.lower() != wanted.lower() and as_number(given) != as_number(wanted):
            raise DataError(f"{name} in the header must be {wanted}, because nothing else is applied; got {given}")
    big = fields.get("BinaryDataByteOrderMSB", fields.get("ElementByteOrderMSB", "")).lower() == "true"
    compressed = fields.get("CompressedData", "").lower() == "true"
    skipped = "0" if compressed else fields.get("HeaderSize", "0")
    return _behind(data, end if data == path else 0, skipped, big, compressed)


def _behind(path: Path, end: int, skipped: str, big_endian: bool, compressed: bool) -> Stored:
    """The voxels behind a header and some more bytes, or -1 for all that come before them."""
    begin = end + int(skipped) if skipped.isdigit() else 0
    return Stored(path, content(path, begin, compressed), ">" if big_endian else "<", skipped == "-1")


def _read_nrrd(path: Path) -> Stored:
    found, end = _fields(path, ":")
    fields = {name.lower(): value.removeprefix("=") for name, value in found.items()}
    for name in ("space units", "units"):
        units = set(re.findall(r'"([^"]*)"', fields.get(name, ""))) - {"", "mm"}
        if units:
            raise DataError(f"{name} in the header must be mm; got {', '.join(sorted(units))}: save the volume in mm")
    if {"spacings", "space directions"}.isdisjoint(fields):
        raise DataError("the header must give spacings or space directions in mm; got neither, which ITK takes for 1 mm")
    if (spacings := fields.get("spacings", "")) and not _numbers(spacings):
        raise DataError(f"spacings in the header must be finite numbers; got {spacings}")
    if not {"data file", "datafile"}.isdisjoint(fields):
        raise DataError("a .nrrd must hold its voxels itself; this one names another file: save it attached")
    encoding = fields.get("encoding", "")
    if encoding not in ("raw", "gzip", "gz"):
        raise DataError(f"the header cannot be read: encoding must be raw or gzip; got {encoding or 'none'}: save it so")
    return _behind(path, end, fields.get("byte skip", "0"), fields.get("endian") == "big", encoding != "raw")


def _read_nifti(path: Path) -> Stored:
    file = content(path, 0, path.suffix == ".gz")
    start = file[:FIRST_VOXEL].tobytes()
    orders: dict[bytes, Literal["<", ">"]] = {b"\x5c\x01\0\0": "<", b"\0\0\x01\x5c": ">"}
    order = orders.get(start[:4])
    if start[4:7] == b"n+2":
        raise DataError("a NIfTI file must be of version 1; this one is of version 2: save it as version 1")
    if order is None or len(start) < FIRST_VOXEL:
        raise DataError("the header is no NIfTI header")
    header = {
        name: np.ndarray((), np.dtype(kind).newbyteorder(order), start, place).tolist()
        for name, (kind, place) in NIFTI_FIELDS.items()
    }
    _check_nifti(header)
    slope, intercept = header["scaling"]
    if all(value == 0 or math.isnan(value) for value in (slope, intercept)):  # for all readers no scaling
        slope, intercept = 1.0, 0.0
    if slope == 0 or not np.isfinite([slope, intercept]).all():
        raise DataError(
            f"scl_slope and scl_inter in the header must be finite, and the slope not 0; got {slope:g} and {intercept:g}"
        )
    voxels, kind = file[int(header["vox_offset"]) :], NIFTI_TYPES[header["datatype"]]
    return Stored(path, voxels, order, kind=kind, scaling=(slope, intercept))


def _check_nifti(header: dict[str, Any]) -> None:
    if header["magic"] != b"n+1":
        raise DataError(f"a NIfTI file must hold header and voxels in one piece; its magic word is {header['magic']!r}")
    if header["datatype"] not in NIFTI_TYPES:
        raise DataError(f"voxels must be numbers; datatype in the header is {header['datatype']}")
    spacing = header["pixdim"][1:4]
    if not all(0 < mm < math.inf for mm in spacing):
        raise DataError(f"the spacing in the header must be positive and finite; pixdim is {listed(spacing)}")
    first = header["vox_offset"]
    if not FIRST_VOXEL <= first < math.inf:
        raise DataError(f"the voxels must begin at byte {FIRST_VOXEL} or later; vox_offset in the header is {first:g}")
    if header["codes"][1] <= 0:  # there is no sform
        return
    sform = np.array(header["sform"])
    lengths = np.linalg.norm(sform[:, :3], axis=0)
    if (np.abs(lengths / spacing - 1) > SPACING_TOLERANCE).any():
        raise DataError(f"the header must have one spacing; pixdim says {listed(spacing)}, the sform matrix {listed(lengths)}")
    if header["codes"][0] > 0:
        vector = np.array(header["quatern"])
        cross = np.cross(vector, np.eye(3)).T
        rotation = np.eye(3) + 2 * (math.sqrt(max(1 - vector @ vector, 0)) * cross + cross @ cross)
        rotation[:, 2] *= -1 if header["pixdim"][0] < 0 else 1
        qform = np.column_stack([rotation * spacing, header["qoffset"]])
        apart = (np.abs(qform - sform) @ [*header["dim"][1:4], 1]).max()
        if not apart <= FORM_TOLERANCE_MM:
            raise DataError(
                f"qform and sform in the header must be one geometry; they differ by {apart:.3g} mm: save it again with one "
                "of them"
            )


def _numbers(text: str) -> tuple[float, ...]:
    numbers = tuple(as_number(word) for word in text.split())
    return numbers if all(map(math.isfinite, numbers)) else ()


def as_number(text: str) -> float:
    """The number in a text, or NaN. Python also reads `1_0` as one, unlike any other reader.

    >>> as_number(" 5.1e0 "), as_number("1_0"), as_number("six")
    (5.1, nan, nan)
    """
    try:
        return math.nan if "_" in text else float(text)
    except ValueError:
        return math.nan


def require_spacing(spacing: Sequence[float], name: str = "the spacing") -> None:
    """Raises DataError, which begins with `name`, for implausible distances between voxels."""
    least, most = SPACING_MM
    if not all(least <= mm <= most for mm in spacing):
        raise DataError(f"{name} must be between {least:g} and {most:g} mm; it is {listed(spacing)}")


def listed(numbers: Iterable[int | float]) -> str:
    """Numbers as text for a message."""
    return " ".join(f"{number:g}" for number in numbers)
