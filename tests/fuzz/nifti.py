"""NIfTI files byte by byte: headers that SimpleITK would not write."""

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np

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


def contents(path: Path) -> tuple[np.ndarray, bytes]:
    """The header as an array of one record that can be changed, and the bytes behind it."""
    data = gzip.decompress(path.read_bytes())
    return np.frombuffer(data[: FIELDS.itemsize], FIELDS).copy(), data[FIELDS.itemsize :]


def write(path: Path, header: np.ndarray, rest: bytes) -> None:
    """Writes a header and the bytes behind it, compressed."""
    path.write_bytes(gzip.compress(header.tobytes() + rest, mtime=0))


def with_fields(**values: object) -> Callable[[Path], None]:
    """A change of header fields; `pixdim_1=0` sets an element of a field."""

    def change(path: Path) -> None:
        header, rest = contents(path)
        for name, value in values.items():
            if name in NAMES:
                header[name] = value
            else:
                field, _, index = name.rpartition("_")
                header[field][0][int(index)] = value
        write(path, header, rest)

    return change


def big_endian(path: Path) -> None:
    """The same file in the other byte order; the voxels are of two bytes."""
    header, rest = contents(path)
    write(path, header.astype(FIELDS.newbyteorder(">")), rest[:4] + np.frombuffer(rest[4:], "<i2").astype(">i2").tobytes())


def extended(path: Path) -> None:
    """The same file with an extension between header and voxels."""
    header, rest = contents(path)
    header["vox_offset"] = 352 + 32
    write(path, header, bytes([1, 0, 0, 0]) + np.array([32, 6], "<i4").tobytes() + b"a comment".ljust(24) + rest[4:])


def in_units(code: int, per_mm: float) -> Callable[[Path], None]:
    """The same geometry in another unit of length, which the header names."""

    def change(path: Path) -> None:
        header, rest = contents(path)
        header["xyzt_units"] = code
        header["pixdim"][0][1:4] *= per_mm
        for name in ("qoffset", "srow"):
            header[name] *= per_mm
        write(path, header, rest)

    return change


def sheared(path: Path) -> None:
    """A direction matrix that is not orthogonal: each slice is moved along x. The matrix is the only geometry."""
    header, rest = contents(path)
    header["qform_code"], header["sform_code"] = 0, 1
    header["srow"][0][0, 2] += 0.8
    write(path, header, rest)


def version_2(path: Path) -> None:
    """The same file as NIfTI-2."""
    old, rest = contents(path)
    new = np.zeros(
        1, np.dtype({"names": list(PLACES), "formats": [*PLACES.values()], "offsets": list(OFFSETS), "itemsize": 540})
    )
    for name in PLACES:
        if name in NAMES and name not in ("magic", "sizeof_hdr"):
            new[name] = old[name]
    new["sizeof_hdr"], new["magic"], new["vox_offset"] = 540, b"n+2\0\r\n\x1a\n", 544
    write(path, new, rest)


PLACES = {
    **{"sizeof_hdr": "i4", "magic": "S8", "datatype": "i2", "bitpix": "i2", "dim": ("i8", 8), "pixdim": ("f8", 8)},
    **{"vox_offset": "i8", "scl_slope": "f8", "scl_inter": "f8", "qform_code": "i4", "sform_code": "i4"},
    **{"quatern": ("f8", 3), "qoffset": ("f8", 3), "srow": ("f8", (3, 4)), "xyzt_units": "i4"},
}
OFFSETS = (0, 4, 12, 14, 16, 104, 168, 176, 184, 344, 348, 352, 376, 400, 500)
"""The fields of NIfTI-2 that are set, with their places."""
