"""Checks that a volume file holds the voxels that its header promises.

ITK silently reads wrong voxels from a damaged `.zraw` or `.nii.gz`, and from a truncated `.zraw` without a compressed size. It
reports other broken files as "No such file or directory". So sizes and compressed streams are checked first.
"""

import math
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Shaped

from gmmae.data.extraction.headers import Nifti, floating_type, read_meta, read_nifti, read_nrrd, voxel_bytes
from gmmae.data.volumes import DataError

SUFFIXES = (".mhd", ".mha", ".nii", ".nii.gz", ".nrrd")
CHUNK_BYTES = 2**20


def data_file(path: Path) -> Path:
    """Returns the file with the voxels: the one that a `.mhd` header names, otherwise the file itself.

    Raises:
      DataError: the header names no file, or one outside its own folder.
    """
    if path.suffix not in (".mhd", ".mha"):
        return path
    name = read_meta(path)["ElementDataFile"]
    if name.upper() == "LOCAL":
        return path
    data = Path(os.path.normpath(path.parent / name))
    if not data.is_relative_to(os.path.normpath(path.parent)):
        raise DataError(f"the data must lie beside the header; ElementDataFile is {name!r}")
    return data


def data_file_or_header(path: Path) -> Path:
    """Returns `data_file`, or the header itself where it cannot be read. The extraction then reports the fault."""
    try:
        return data_file(path)
    except (DataError, FileNotFoundError):
        return path


class Checked(NamedTuple):
    """The properties of a file's voxels before ITK reads them.

    Attributes:
      one_pass: they are compressed as one stream.
      hides_nan: some of them may be NaN or infinite, and ITK reads 0 there, as from NIfTI.
    """

    one_pass: bool
    hides_nan: bool = False


def check_data(path: Path, data: Path, voxels: int, bytes_each: int) -> Checked:
    """Compares the length of the data with the header. A header that promises less would give a part of the volume.

    Args:
      path: the file with the header.
      data: the file with the voxels (`data_file`).
      voxels: their number in the header.
      bytes_each: of a voxel.

    Raises:
      DataError: truncated, damaged or longer data; the message gives both lengths.
    """
    promised = voxels * bytes_each
    if path.suffix in (".mhd", ".mha"):
        return Checked(_check_meta(path, data, promised))
    if path.suffix == ".nrrd":
        return Checked(_check_nrrd(path, promised))
    return _check_nifti(path, voxels)


def check_gzip(path: Path) -> None:
    """Decompresses a `.gz`; other files pass.

    Raises:
      DataError: it is damaged.
    """
    if path.suffix == ".gz":
        for _ in _decompressed(path, 0, 0):
            pass


def read_through(path: Path) -> None:
    """Reads all bytes of a file and keeps none.

    Raises:
      OSError: the file is not there, or the disk or the network fails.
    """
    with path.open("rb") as file:
        while file.read(CHUNK_BYTES):
            pass


def _check_meta(path: Path, data: Path, promised: int) -> bool:
    header = read_meta(path)
    offset = int(header["end"]) if data == path else 0
    if header.get("CompressedData", "").lower() != "true":
        skipped = header.get("HeaderSize", "0")  # -1: whatever comes before the last bytes
        _check_length(data, promised + offset + (int(skipped) if skipped.isdigit() else 0), exactly=skipped != "-1")
        return False
    stored, actual = header.get("CompressedDataSize", ""), data.stat().st_size - offset
    if stored.isdigit() and actual < int(stored):
        raise DataError(f"truncated {_kind(data)}: the header promises {stored} compressed bytes, {data.name} has {actual}")
    _check_stream(data, promised, offset)
    return True


def _check_nrrd(path: Path, promised: int) -> bool:
    """Checks a `.nrrd`: a text header, an empty line, then the voxels. Returns whether they are compressed."""
    fields, offset = read_nrrd(path)
    if not {"data file", "datafile"}.isdisjoint(fields):
        raise DataError("a .nrrd must hold its voxels itself; this one names another file: save it attached")
    encoding = fields.get("encoding", "")
    if encoding in ("gzip", "gz"):
        _check_stream(path, promised, offset)
    elif encoding == "raw":
        _check_length(path, promised + offset, exactly={"byte skip", "line skip"}.isdisjoint(fields))
    return encoding != "raw"


def _check_nifti(path: Path, voxels: int) -> Checked:
    """Checks a NIfTI file. Its length follows from the type on disk, which ITK does not report when the header rescales."""
    header = read_nifti(path)
    if path.suffix != ".gz":
        _check_length(path, _promised(header, voxels))
        return Checked(False, floating_type(header) is not None)
    finite = True
    for part in _nifti_voxels(path, header, voxels):
        finite = finite and bool(np.isfinite(part).all())
    return Checked(True, not finite)


def nifti_values(path: Path, shape: tuple[int, ...]) -> Shaped[np.ndarray, "z y x"] | None:
    """Returns the voxels of a NIfTI file before rescaling; None where their type has no NaN.

    ITK reads 0 for each NaN and infinite voxel, so this finds them.
    """
    header = read_nifti(path)
    if (kind := floating_type(header)) is None:
        return None
    if path.suffix != ".gz":
        return np.memmap(path, kind, "r", int(header["vox_offset"]), shape)
    return np.concatenate(list(_nifti_voxels(path, header, math.prod(shape)))).reshape(shape)


def _nifti_voxels(path: Path, header: Nifti, voxels: int) -> Iterator[Shaped[np.ndarray, " part"]]:
    """Yields the voxels of a compressed file in their order. Where their type has no NaN, it only checks the stream."""
    kind, skip = floating_type(header), int(header["vox_offset"])
    left, rest = voxels, b""
    for part in _decompressed(path, _promised(header, voxels), 0):
        behind, skip = part[skip:], max(skip - len(part), 0)
        if kind is not None and left:
            rest += behind
            count = min(len(rest) // kind.itemsize, left)
            yield np.frombuffer(rest, kind, count)
            left, rest = left - count, rest[count * kind.itemsize :]


def _promised(header: Nifti, voxels: int) -> int:
    return voxels * voxel_bytes(header) + int(header["vox_offset"])


def _check_length(data: Path, promised: int, exactly: bool = True) -> None:
    actual = data.stat().st_size
    if actual < promised:
        raise DataError(f"truncated {_kind(data)}: the header promises {promised} bytes, {data.name} has {actual}")
    if exactly and actual > promised:
        raise DataError(f"{_kind(data)} must hold the {promised} bytes that the header promises; {data.name} has {actual}")


def _check_stream(data: Path, promised: int, offset: int) -> None:
    """Decompresses once and keeps nothing. Lengths and checksums reveal damage that ITK does not report."""
    for _ in _decompressed(data, promised, offset):
        pass


def _decompressed(data: Path, promised: int, offset: int) -> Iterator[bytes]:
    """Yields the decompressed parts of a file from `offset`, to the promised length and the end of the stream.

    `promised` 0 means any length.
    """
    total, ended = 0, False
    stream = zlib.decompressobj(wbits=47)  # zlib or gzip, as the stream says
    with data.open("rb") as file:
        file.seek(offset)
        while total < promised or not ended:
            chunk = stream.unconsumed_tail or file.read(CHUNK_BYTES)
            if ended:
                chunk = stream.unused_data or chunk  # gzip files may be several streams, one after the other
                stream, ended = zlib.decompressobj(wbits=47), False
            try:
                part = stream.decompress(chunk, CHUNK_BYTES) if chunk else stream.flush()
            except zlib.error as error:
                place = f"near byte {file.tell()} of {data.stat().st_size}"
                raise DataError(f"damaged {_kind(data)}: {data.name} does not decompress {place} ({error})") from error
            total, ended = total + len(part), stream.eof
            yield part
            if not chunk:
                break
    if not ended or total < promised:
        raise DataError(f"truncated {_kind(data)}: the header promises {promised} bytes, {data.name} decompresses to {total}")
    if promised and total > promised:
        raise DataError(
            f"{_kind(data)} must hold the {promised} bytes that the header promises; {data.name} decompresses to {total}"
        )


def _kind(path: Path) -> str:
    return next((suffix for suffix in SUFFIXES if path.name.endswith(suffix)), path.suffix)
