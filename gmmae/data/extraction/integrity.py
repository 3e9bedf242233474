"""Whether a volume file holds the voxels that its header promises.

ITK reads wrong voxels from some broken files without a word (a damaged `.zraw` or `.nii.gz`, a truncated `.zraw` whose header
gives no compressed size) and reports others as "No such file or directory". So sizes and compressed streams are checked first.
"""

import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from gmmae.data.volumes import DataError

SUFFIXES = (".mhd", ".mha", ".nii", ".nii.gz", ".nrrd", ".png")
CHUNK_BYTES = 2**20


def data_file(path: Path) -> Path:
    """The file that holds the voxels: the one a `.mhd` header names, otherwise the file itself.

    Raises:
      DataError: the header names no file, or one outside its own folder.
    """
    if path.suffix not in (".mhd", ".mha"):
        return path
    name = _meta_header(path)["ElementDataFile"]
    if name.upper() == "LOCAL":
        return path
    data = Path(os.path.normpath(path.parent / name))
    if not data.is_relative_to(os.path.normpath(path.parent)):
        raise DataError(f"the data must lie beside the header; ElementDataFile is {name!r}")
    return data


def data_file_or_header(path: Path) -> Path:
    """As `data_file`, or the header itself where it cannot be read: extraction then reports the fault."""
    try:
        return data_file(path)
    except (DataError, OSError):
        return path


def check_data(path: Path, data: Path, voxels: int, voxel_bytes: int) -> bool:
    """Compare the data with what the header promises.

    Args:
      path: the file with the header.
      data: the file with the voxels (`data_file`).
      voxels: how many the header promises.
      voxel_bytes: bytes of each.

    Returns:
      Whether the voxels are compressed as one stream.

    Raises:
      DataError: truncated or damaged data; the message gives both lengths.
    """
    promised = voxels * voxel_bytes
    if path.suffix in (".mhd", ".mha"):
        return _check_meta(path, data, promised)
    if path.suffix == ".nrrd":
        return _check_nrrd(path, promised)
    if path.suffix == ".png":
        return True  # it has checksums, and ITK heeds them
    promised = _nifti_bytes(path, voxels)
    if path.suffix == ".gz":
        _check_stream(path, promised, 0)
        return True
    _check_length(path, promised)
    return False


def check_gzip(path: Path) -> None:
    """Whether a `.gz` decompresses at all; other files pass.

    Raises:
      DataError: it does not.
    """
    if path.suffix == ".gz":
        _check_stream(path, 0, 0)


def read_through(path: Path) -> None:
    """Read all bytes of a file and keep none.

    Raises:
      OSError: the file is not there, or the disk or the network fails.
    """
    with path.open("rb") as file:
        while file.read(CHUNK_BYTES):
            pass


def _meta_header(path: Path) -> dict[str, str]:
    """The fields of a MetaImage header; `ElementDataFile` is the last one."""
    fields: dict[str, str] = {}
    with path.open("rb") as file:
        for line in _lines(file):
            key, _, value = line.partition("=")
            fields[key.strip()] = value.strip()
            if key.strip() == "ElementDataFile":
                fields["end"] = str(file.tell())
                return fields
    raise DataError("the header is no MetaImage header: it has no ElementDataFile")


def _lines(file: BinaryIO) -> Iterator[str]:
    for _ in range(200):
        line = file.readline(10_000)
        if not line:
            return
        yield line.decode("latin-1")


def _check_meta(path: Path, data: Path, promised: int) -> bool:
    header = _meta_header(path)
    offset = int(header["end"]) if data == path else 0
    if header.get("CompressedData", "").lower() != "true":
        skipped = header.get("HeaderSize", "0")  # -1: whatever comes before the last bytes
        _check_length(data, promised + offset + (int(skipped) if skipped.isdigit() else 0))
        return False
    stored, there = header.get("CompressedDataSize", ""), data.stat().st_size - offset
    if stored.isdigit() and there < int(stored):
        raise DataError(f"truncated {_kind(data)}: the header promises {stored} compressed bytes, {data.name} has {there}")
    _check_stream(data, promised, offset)
    return True


def _check_nrrd(path: Path, promised: int) -> bool:
    """An attached `.nrrd`: a text header, an empty line, then the voxels, raw or through gzip."""
    encoding = ""
    with path.open("rb") as file:
        for line in _lines(file):
            if line.startswith("encoding:"):
                encoding = line.partition(":")[2].strip()
            if line.lower().startswith(("data file:", "datafile:")):
                raise DataError("a .nrrd must hold its voxels itself; this one names another file: save it attached")
            if not line.strip():
                break
        offset = file.tell()
    if encoding in ("gzip", "gz"):
        _check_stream(path, promised, offset)
    elif encoding == "raw":
        _check_length(path, promised + offset)
    return encoding != "raw"


def _nifti_bytes(path: Path, voxels: int) -> int:
    """The length of a NIfTI file before compression; the type on disk is not the one ITK gives when the header rescales."""
    with path.open("rb") as file:
        start = file.read(4096)
    if path.suffix == ".gz":
        start = zlib.decompressobj(wbits=31).decompress(start, 544)
    for order in "<>":
        length = struct.unpack_from(order + "i", start.ljust(4, b"\0"))[0]
        if length == 348 and len(start) >= 348:
            bits, offset = struct.unpack_from(order + "h", start, 72)[0], int(struct.unpack_from(order + "f", start, 108)[0])
            return voxels * bits // 8 + offset
        if length == 540 and len(start) >= 540:
            bits, offset = struct.unpack_from(order + "h", start, 14)[0], struct.unpack_from(order + "q", start, 168)[0]
            return voxels * bits // 8 + offset
    raise DataError("the header is no NIfTI header")


def _check_length(data: Path, promised: int) -> None:
    there = data.stat().st_size
    if there < promised:
        raise DataError(f"truncated {_kind(data)}: the header promises {promised} bytes, {data.name} has {there}")


def _check_stream(data: Path, promised: int, offset: int) -> None:
    """Decompress once, keeping nothing: lengths and checksums tell what ITK would not."""
    total, ended = 0, False
    stream = zlib.decompressobj(wbits=47)  # zlib or gzip, as the stream says
    with data.open("rb") as file:
        file.seek(offset)
        while total < promised or not ended:
            chunk = stream.unconsumed_tail or file.read(CHUNK_BYTES)
            if ended:
                chunk = stream.unused_data or chunk  # gzip files may be several streams, one after the other
                stream, ended = zlib.decompressobj(wbits=47), False
            if not chunk:
                total += len(stream.flush())
                ended = stream.eof
                break
            try:
                total += len(stream.decompress(chunk, CHUNK_BYTES))
            except zlib.error as error:
                place = f"near byte {file.tell()} of {data.stat().st_size}"
                raise DataError(f"damaged {_kind(data)}: {data.name} does not decompress {place} ({error})") from error
            ended = stream.eof
    if not ended or total < promised:
        raise DataError(f"truncated {_kind(data)}: the header promises {promised} bytes, {data.name} decompresses to {total}")


def _kind(path: Path) -> str:
    return next((suffix for suffix in SUFFIXES if path.name.endswith(suffix)), path.suffix)
