"""NIfTI files byte by byte: headers that SimpleITK would not write."""

import gzip
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from tests.fuzz.cases import Change

FIELDS = np.dtype(
    [
        *(("sizeof_hdr", "i4"), ("unused", "S35"), ("dim_info", "u1"), ("dim", "i2", 8), ("intent", "f4", 3)),
        *(("intent_code", "i2"), ("datatype", "i2"), ("bitpix", "i2"), ("slice_start", "i2"), ("pixdim", "f4", 8)),
        *(("vox_offset", "f4"), ("scl_slope", "f4"), ("scl_inter", "f4"), ("slice_end", "i2"), ("slice_code", "u1")),
        *(("xyzt_units", "u1"), ("cal", "f4", 2), ("slice_duration", "f4"), ("toffset", "f4"), ("glmax", "i4", 2)),
        *(("descrip", "S80"), ("aux_file", "S24"), ("qform_code", "i2"), ("sform_code", "i2"), ("quatern", "f4", 3)),
        *(("qoffset", "f4", 3), ("srow", "f4", (3, 4)), ("intent_name", "S16"), ("magic", "S4")),
    ]
)
"""The header of NIfTI-1: 348 bytes."""
NAMES = FIELDS.names or ()
GEOMETRY = ("pixdim", "xyzt_units", "qform_code", "sform_code", "quatern", "qoffset", "srow")
"""The fields that say where the voxels lie."""

FIELDS_2 = {
    **{"sizeof_hdr": (0, "i4"), "magic": (4, "S8"), "datatype": (12, "i2"), "bitpix": (14, "i2"), "dim": (16, ("i8", 8))},
    **{"pixdim": (104, ("f8", 8)), "vox_offset": (168, "i8"), "scl_slope": (176, "f8"), "scl_inter": (184, "f8")},
    **{"qform_code": (344, "i4"), "sform_code": (348, "i4"), "quatern": (352, ("f8", 3)), "qoffset": (376, ("f8", 3))},
    **{"srow": (400, ("f8", (3, 4))), "xyzt_units": (500, "i4")},
}
"""The fields of NIfTI-2 that are set: their places and types."""


def contents(path: Path) -> tuple[np.ndarray, bytes]:
    """The header as an array of one record that can be changed, and the bytes behind it."""
    data = gzip.decompress(path.read_bytes())
    return np.frombuffer(data[: FIELDS.itemsize], FIELDS).copy(), data[FIELDS.itemsize :]


def rewritten(name: str, function: Callable[[np.ndarray, bytes], tuple[np.ndarray, bytes]]) -> Change:
    """A change of a file by a function of its header and the bytes behind it."""

    def change(folder: Path) -> None:
        header, rest = function(*contents(folder / name))
        (folder / name).write_bytes(gzip.compress(header.tobytes() + rest, mtime=0))

    return change


def changed(name: str, edit: Callable[[np.ndarray], None]) -> Change:
    """A change of a file's header in place."""
    return rewritten(name, lambda header, rest: (edit(header), (header, rest))[1])


def set_fields(header: np.ndarray, values: Mapping[str, object]) -> None:
    """Sets header fields; the key `pixdim_1` is an element of a field."""
    for name, value in values.items():
        if name in NAMES:
            header[name] = value
        else:
            field, _, index = name.rpartition("_")
            header[field][0][int(index)] = value


def use_unit(header: np.ndarray, code: int, per_mm: float) -> None:
    """Gives the same geometry in another unit of length, which the header names."""
    header["xyzt_units"] = code
    header["pixdim"][0][1:4] *= per_mm
    for name in ("qoffset", "srow"):
        header[name] *= per_mm


def shear(header: np.ndarray) -> None:
    """Moves each slice along x, so that the direction matrix is not orthogonal. The matrix is the only geometry."""
    header["qform_code"], header["sform_code"] = 0, 1
    header["srow"][0][0, 2] += 0.8


def big_endian(header: np.ndarray, rest: bytes) -> tuple[np.ndarray, bytes]:
    """The same file in the other byte order; the voxels are of two bytes."""
    return header.astype(FIELDS.newbyteorder(">")), rest[:4] + np.frombuffer(rest[4:], "<i2").astype(">i2").tobytes()


def extended(header: np.ndarray, rest: bytes) -> tuple[np.ndarray, bytes]:
    """The same file with an extension between header and voxels."""
    header["vox_offset"] = 352 + 32
    return header, bytes([1, 0, 0, 0]) + np.array([32, 6], "<i4").tobytes() + b"a comment".ljust(24) + rest[4:]


def version_2(header: np.ndarray, rest: bytes) -> tuple[np.ndarray, bytes]:
    """The same file as NIfTI-2."""
    offsets, formats = zip(*FIELDS_2.values(), strict=True)
    new = np.zeros(1, np.dtype({"names": [*FIELDS_2], "formats": [*formats], "offsets": [*offsets], "itemsize": 540}))
    for name in FIELDS_2.keys() & set(NAMES):
        new[name] = header[name]
    new["sizeof_hdr"], new["magic"], new["vox_offset"] = 540, b"n+2\0\r\n\x1a\n", 544
    return new, rest
