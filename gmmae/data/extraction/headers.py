"""Headers of volume files, read without ITK, and the checks of numbers in files.

ITK silently repairs some faults: a spacing of 0 or NaN in NIfTI becomes 1 mm, as does a missing one in MetaImage. An origin in
MetaImage that is no number becomes 0. ITK also ignores the rescaling of a MetaImage header. Such headers are refused here,
before ITK reads them. Nothing here imports SimpleITK.
"""

import math
import re
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from gmmae.data.volumes import DataError

SPACING_MM = (0.05, 20.0)
"""Range of plausible distances between voxels."""
SPACING_TOLERANCE = 0.01
"""Largest relative difference between the two spacings that a NIfTI header gives."""
FORM_TOLERANCE_MM = 0.5
"""Largest distance between a voxel's places by the two matrices of a NIfTI header."""

META_NUMBERS = {
    "DimSize": 1,
    **dict.fromkeys(("ElementSpacing", "ElementSize"), 1),
    **dict.fromkeys(("Offset", "Position", "Origin"), 1),
    **dict.fromkeys(("TransformMatrix", "Rotation", "Orientation"), 2),
}
"""Fields of a MetaImage that hold a number for each axis (1), or for each pair of axes (2)."""
META_SYNONYMS = (("Offset", "Position", "Origin"), ("TransformMatrix", "Rotation", "Orientation"))
"""Names of one field each. Readers choose differently where a header has several."""
META_SCALING = {"ElementToIntensityFunctionSlope": 1.0, "ElementToIntensityFunctionOffset": 0.0}
"""Fields of a MetaImage that rescale its voxels, and the values at which they change nothing."""

NIFTI_BYTES = {
    **{2: 1, 4: 2, 8: 4, 16: 4, 64: 8, 256: 1, 512: 2, 768: 4, 1024: 8, 1280: 8},
    **{32: 8, 128: 3, 1536: 16, 1792: 16, 2048: 32, 2304: 4},
}
"""Bytes of a voxel by the code of its type. The types of the second line have several components, and are refused later."""
NIFTI_HEADER = np.dtype(
    {
        "names": [
            *("dim", "datatype", "pixdim", "vox_offset", "scl_slope", "scl_inter"),
            *("qform_code", "sform_code", "quatern", "qoffset", "sform", "magic"),
        ],
        "formats": ["8i2", "i2", "8f4", "f4", "f4", "f4", "i2", "i2", "3f4", "3f4", "(3,4)f4", "S4"],
        "offsets": [40, 70, 76, 108, 112, 116, 252, 254, 256, 268, 280, 344],
        "itemsize": 348,
    }
)
"""The fields of a NIfTI header that are read. Their names are those of the format."""
FIRST_VOXEL = 352
"""First byte that voxels of a NIfTI file may have."""

Nifti = dict[str, Any]
"""The fields of `NIFTI_HEADER`, and `order`: the byte order as NumPy names it, "<" or ">"."""


def check_header(path: Path) -> None:
    """Checks a header for faults that ITK would repair.

    Raises:
      DataError: the header cannot be read, or must not be trusted.
    """
    if path.suffix in (".mhd", ".mha"):
        _check_meta(read_meta(path))
    elif path.suffix == ".nrrd":
        _check_nrrd(read_nrrd(path)[0])
    elif path.name.endswith((".nii", ".nii.gz")):
        _check_nifti(read_nifti(path))


def read_meta(path: Path) -> dict[str, str]:
    """Returns the fields of a MetaImage header, and as `end` the first byte after it; `ElementDataFile` is the last field.

    Raises:
      DataError: it has no such field.
    """
    fields: dict[str, str] = {}
    with path.open("rb") as file:
        for line in _lines(file):
            key, _, value = line.partition("=")
            fields[key.strip()] = value.strip()
            if key.strip() == "ElementDataFile":
                fields["end"] = str(file.tell())
                return fields
    raise DataError("the header is no MetaImage header: it has no ElementDataFile")


def read_nrrd(path: Path) -> tuple[dict[str, str], int]:
    """Returns the fields of an attached NRRD header, with lower-case names, and the first byte after it."""
    fields: dict[str, str] = {}
    with path.open("rb") as file:
        for line in _lines(file):
            if not line.strip():
                break
            key, _, value = line.partition(":")
            fields[key.strip().lower()] = value.strip().removeprefix("=")
        return fields, file.tell()


def read_nifti(path: Path) -> Nifti:
    """Reads the header of a NIfTI file, compressed or not.

    Raises:
      DataError: it is no NIfTI header, or is damaged.
    """
    with path.open("rb") as file:
        start = file.read(4096)
    if path.suffix == ".gz":
        try:
            start = zlib.decompressobj(wbits=31).decompress(start, FIRST_VOXEL)
        except zlib.error as error:
            raise DataError(f"damaged .nii.gz: {path.name} does not decompress near byte 0 ({error})") from error
    for order in ("<", ">"):
        length = np.dtype(f"{order}i4")
        if len(start) >= NIFTI_HEADER.itemsize and np.frombuffer(start, length, 1)[0] == NIFTI_HEADER.itemsize:
            fields = np.frombuffer(start, NIFTI_HEADER.newbyteorder(order), 1)[0]
            return {"order": order, **{name: fields[name].tolist() for name in NIFTI_HEADER.names or ()}}
    if start[4:7] == b"n+2":
        raise DataError("a NIfTI file must be of version 1; this one is of version 2: save it as version 1")
    raise DataError("the header is no NIfTI header")


def _lines(file: BinaryIO) -> Iterator[str]:
    for _ in range(200):
        line = file.readline(10_000)
        if not line:
            return
        yield line.decode("latin-1")


def _check_meta(fields: dict[str, str]) -> None:
    axes = fields.get("NDims", "")
    if not axes.isdecimal():
        raise DataError(f"NDims in the header must be a number; got {axes or 'none'}")
    for name, power in META_NUMBERS.items():
        if name in fields and len(_numbers(fields[name])) != int(axes) ** power:
            count = int(axes) ** power
            raise DataError(f"{name} in the header must be {count} finite numbers; got {fields[name]}")
    for names in META_SYNONYMS:
        if len({tuple(_numbers(fields[name])) for name in names if name in fields}) > 1:
            raise DataError(f"the header must have one of {', '.join(names)}, or equal ones; they differ")
    if "ElementSpacing" not in fields and "ElementSize" not in fields:
        raise DataError("ElementSpacing in the header must give the spacing in mm; got none, which ITK takes for 1 mm")
    for name, neutral in META_SCALING.items():
        if _numbers(fields.get(name, str(neutral))) != [neutral]:
            raise DataError(f"{name} in the header must be {neutral:g}, because it is not applied; got {fields[name]}")
    if fields.get("BinaryData", "True").lower() != "true":
        raise DataError("the voxels must be binary; BinaryData in the header is False")


def _check_nrrd(fields: dict[str, str]) -> None:
    for name in ("space units", "units"):
        units = set(re.findall(r'"([^"]*)"', fields.get(name, ""))) - {"", "mm"}
        if units:
            raise DataError(f"{name} in the header must be mm; got {', '.join(sorted(units))}: save the volume in mm")
    spacings = fields.get("spacings", "").split()
    if len(_numbers(" ".join(spacings))) != len(spacings):
        raise DataError(f"spacings in the header must be finite numbers; got {' '.join(spacings)}")


def voxel_bytes(header: Nifti) -> int:
    """Returns the bytes of a voxel on disk."""
    return NIFTI_BYTES[header["datatype"]]


def floating_type(header: Nifti) -> np.dtype | None:
    """Returns the type of floating voxels on disk; None for others, which have no NaN."""
    return {16: np.dtype(f"{header['order']}f4"), 64: np.dtype(f"{header['order']}f8")}.get(header["datatype"])


def _check_nifti(header: Nifti) -> None:
    if header["magic"] != b"n+1":
        raise DataError(f"a NIfTI file must hold header and voxels in one piece; its magic word is {header['magic']!r}")
    axes = header["dim"][0]
    if not 1 <= axes <= 7 or min(header["dim"][1 : axes + 1]) < 1:
        raise DataError(f"dim in the header must be 1 to 7 axes and their positive lengths; got {listed(header['dim'])}")
    if header["datatype"] not in NIFTI_BYTES:
        raise DataError(f"voxels must be numbers; datatype in the header is {header['datatype']}")
    spacing = header["pixdim"][1 : min(axes, 3) + 1]
    if not all(math.isfinite(mm) and mm > 0 for mm in spacing):
        raise DataError(f"the spacing in the header must be positive and finite; pixdim is {listed(spacing)}")
    first = header["vox_offset"]
    if not (math.isfinite(first) and first >= FIRST_VOXEL):
        raise DataError(f"the voxels must begin at byte {FIRST_VOXEL} or later; vox_offset in the header is {first:g}")
    _check_scaling(header["scl_slope"], header["scl_inter"])
    columns = np.array(header["sform"])[:, : len(spacing)]
    if header["sform_code"] > 0 and np.isfinite(columns).all():
        lengths = np.linalg.norm(columns, axis=0)
        if (np.abs(lengths / spacing - 1) > SPACING_TOLERANCE).any():
            raise DataError(
                f"the header must have one spacing; pixdim says {listed(spacing)}, the sform matrix {listed(lengths.tolist())}"
            )
    if header["sform_code"] > 0 and header["qform_code"] > 0 and len(spacing) == 3:
        vector = np.array(header["quatern"])
        cross = np.cross(vector, np.eye(3)).T
        rotation = np.eye(3) + 2 * (math.sqrt(max(1 - vector @ vector, 0)) * cross + cross @ cross)
        flip = -1 if header["pixdim"][0] < 0 else 1
        qform = np.column_stack([rotation * spacing * (1, 1, flip), header["qoffset"]])
        apart = np.abs(qform - header["sform"]) @ [*header["dim"][1:4], 1]
        if not apart.max() <= FORM_TOLERANCE_MM:
            raise DataError(
                f"qform and sform in the header must be one geometry; they differ by {apart.max():.3g} mm: save it again "
                "with one of them"
            )


def _check_scaling(slope: float, intercept: float) -> None:
    """Refuses a scaling on which readers disagree. A slope of 0 or NaN with an intercept of 0 or NaN means no scaling."""
    scaled = math.isfinite(slope) and slope != 0
    none = (slope == 0 or math.isnan(slope)) and (intercept == 0 or math.isnan(intercept))
    if not none and not (scaled and math.isfinite(intercept)):
        raise DataError(
            f"scl_slope and scl_inter in the header must be finite, and the slope not 0; got {slope:g} and {intercept:g}"
        )


def _numbers(text: str) -> list[float]:
    """Returns the numbers of a field, or none where one of them is not finite."""
    numbers = [as_number(word) for word in text.split()]
    return numbers if all(map(math.isfinite, numbers)) else []


def as_number(text: str) -> float:
    """Returns the number in a text, or NaN where it holds none.

    Python also reads `1_0` as a number. No other reader does.

    >>> as_number(" 5.1e0 "), as_number("1_0"), as_number("six")
    (5.1, nan, nan)
    """
    try:
        return math.nan if "_" in text else float(text)
    except ValueError:
        return math.nan


def require_diameter(diameter_mm: float | None) -> None:
    """Checks a diameter; None passes.

    Raises:
      DataError: it is not positive and finite.
    """
    if diameter_mm is not None and not (math.isfinite(diameter_mm) and diameter_mm > 0):
        raise DataError(f"diameter_mm must be positive; got {diameter_mm:g}")


def require_spacing(spacing: Iterable[float], name: str = "the spacing") -> None:
    """Checks the distances between voxels.

    Raises:
      DataError: one is implausible in mm; the message begins with `name`.
    """
    lengths = tuple(spacing)
    least, most = SPACING_MM
    if not all(least <= mm <= most for mm in lengths):
        raise DataError(f"{name} must be between {least:g} and {most:g} mm; it is {listed(lengths)}")


def listed(numbers: Iterable[int | float]) -> str:
    """Returns numbers as text for a message."""
    return " ".join(f"{number:g}" for number in numbers)
