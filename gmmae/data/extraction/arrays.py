"""Arrays in files: mapped into memory, decompressed, or in `.npy` and `.npz`, which are never unpickled.

Lengths and checksums are compared, because a header that promises less would give a part of the volume.
"""

import errno
import math
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedIOBase
from pathlib import Path
from typing import IO, Literal

import numpy as np
from jaxtyping import Shaped, UInt8

from gmmae.data.volumes import DataError

VOLUMES_ARRAY, MEDMNIST_ARRAY = "volumes", "train_images"
"""Arrays by which the form of an .npz is known."""

ARRAY_SUFFIXES = (".npy", ".npz")
CHUNK_BYTES = 2**20
GZIP = b"\x1f\x8b"


def content(path: Path, begin: int, compressed: bool) -> UInt8[np.ndarray, " bytes"]:
    """The bytes of a file from one on: decompressed, or mapped, so that only the parts that are used are read.

    Compressed data are zlib, or gzip of one part or several; what comes behind them is not read.
    """
    if not compressed:
        return np.memmap(path, np.uint8, "r", begin) if path.stat().st_size > begin else np.empty(0, np.uint8)
    values, stream = bytearray(), zlib.decompressobj(wbits=47)
    with path.open("rb") as file:
        file.seek(begin)
        while chunk := stream.unused_data or file.read(CHUNK_BYTES):
            if stream.eof and not GZIP.startswith(chunk[:2]):  # perhaps one byte of a next part
                break
            try:
                stream = zlib.decompressobj(wbits=47) if stream.eof else stream
                values += stream.decompress(chunk)
            except zlib.error as error:
                place = f"near byte {file.tell()} of {path.stat().st_size}"
                raise DataError(f"damaged {_kind(path)}: {path.name} does not decompress {place} ({error})") from error
    if not stream.eof:
        raise DataError(
            f"truncated {_kind(path)}: {path.name} ends in the middle of its voxels, after {len(values)} bytes of them"
        )
    return np.frombuffer(values, np.uint8)


def require_length(path: Path, promised: int, actual: int) -> None:
    """Raises DataError if a file's bytes are not as many as its header promises."""
    if actual != promised:
        kind = f"truncated {_kind(path)}:" if actual < promised else _kind(path)
        raise DataError(f"{kind} must hold the {promised} bytes that the header promises; {path.name} has {actual}")


def _kind(path: Path) -> str:
    return ".nii.gz" if path.name.endswith(".nii.gz") else path.suffix


def open_array(path: Path, key: str = "volume") -> Shaped[np.ndarray, "..."]:
    """Opens one array: a memory map of a `.npy`, or in a `.npz` the array `key` or the only array.

    Raises:
      DataError: truncated, damaged, or holding Python objects.
      OSError: the system failed, not the file.
    """
    if path.suffix == ".npz":
        names = array_names(path)
        if key not in names and len(names) != 1:
            raise DataError(f"a .npz must hold an array {key}, or only one; it has {', '.join(names) or 'none'}")
        return member(path, key if key in names else names[0])
    with _faults(path), path.open("rb") as file:
        shape, order, kind = _header(file)
        require_length(path, file.tell() + math.prod(shape) * kind.itemsize, path.stat().st_size)
        return np.memmap(path, kind, "r", file.tell(), shape, order)


def array_names(path: Path) -> tuple[str, ...]:
    """The names of the arrays in a `.npz`; no other file has any."""
    if path.suffix != ".npz":
        return ()
    with _faults(path), zipfile.ZipFile(path) as archive:
        return tuple(name.removesuffix(".npy") for name in archive.namelist())


def array_header(path: Path, key: str) -> tuple[tuple[int, ...], np.dtype]:
    """Shape and type of an array in a `.npz`."""
    with _member(path, key) as file:
        shape, _, kind = _header(file)
        return shape, kind


def member(path: Path, key: str) -> Shaped[np.ndarray, "..."]:
    """Reads an array of a `.npz`, and compares its length and checksum."""
    with _member(path, key) as file:
        shape, order, kind = _header(file)
        data = file.read()
        require_length(path, math.prod(shape) * kind.itemsize, len(data))
        return np.frombuffer(data, kind).reshape(shape, order=order)


@contextmanager
def _member(path: Path, key: str) -> Iterator[IO[bytes]]:
    if key not in (names := array_names(path)):
        raise DataError(f"{path}: must hold an array {key}; it has {', '.join(names) or 'none'}")
    with _faults(path), zipfile.ZipFile(path) as archive, archive.open(f"{key}.npy") as file:
        yield file


def _header(file: IO[bytes] | BufferedIOBase) -> tuple[tuple[int, ...], Literal["C", "F"], np.dtype]:
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, in_columns, kind = read(file)
    if kind.hasobject:
        raise ValueError("arrays must hold numbers or text; this one holds Python objects, which are never unpickled")
    return shape, "F" if in_columns else "C", kind


@contextmanager
def _faults(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, EOFError, KeyError, NotImplementedError, zipfile.BadZipFile, zlib.error) as error:
        # Decoders raise OSError without a number, and broken archives EINVAL.
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise
        raise DataError(f"{path.name} cannot be read as arrays: {error}") from error
