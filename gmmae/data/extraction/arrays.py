"""Arrays in files: mapped into memory, decompressed, or in `.npy` and `.npz`, which are never unpickled.

The length of a file is compared with its header, and checksums with the data. A header that promises less would give a part of
the volume.
"""

import errno
import math
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedIOBase
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import Shaped

from gmmae.data.volumes import DataError

VOLUMES_ARRAY, MEDMNIST_ARRAY = "volumes", "train_images"
"""Arrays of an .npz by which its form is known."""

ARRAY_SUFFIXES = (".npy", ".npz")
CHUNK_BYTES = 2**20


def mapped(
    path: Path, kind: np.dtype, shape: tuple[int, ...], begin: int | None = None, order: Literal["C", "F"] = "C"
) -> np.memmap:
    """Maps the last bytes of a file, from `begin` where that is given. Only the parts that are used are read.

    Raises:
      DataError: the file has another length.
    """
    length, actual = math.prod(shape) * kind.itemsize, path.stat().st_size
    begin = max(actual - length, 0) if begin is None else begin
    _compare(path, begin + length, actual)
    return np.memmap(path, kind, "r", begin, shape, order)


def inflated(path: Path, promised: int, begin: int = 0) -> bytearray:
    """Decompresses what begins at a byte of a file: zlib, or gzip of one part or several, as the stream says.

    Args:
      path: of the file.
      promised: bytes when decompressed; 0: any number, and none is kept.
      begin: first byte.

    Raises:
      DataError: it is damaged, or has another length than promised.
    """
    content, total, stream = bytearray(), 0, zlib.decompressobj(wbits=47)
    with path.open("rb") as file:
        file.seek(begin)
        while total < promised or not stream.eof:
            chunk = stream.unconsumed_tail or stream.unused_data or file.read(CHUNK_BYTES)
            if stream.eof:
                stream = zlib.decompressobj(wbits=47)
            try:
                part = stream.decompress(chunk, CHUNK_BYTES)
            except zlib.error as error:
                place = f"near byte {file.tell()} of {path.stat().st_size}"
                raise DataError(f"damaged {_kind(path)}: {path.name} does not decompress {place} ({error})") from error
            total += len(part)
            if total <= promised:
                content += part
            if not chunk and not part:
                break
    _compare(path, promised, total, "decompresses to", stream.eof)
    return content


def _compare(path: Path, promised: int, actual: int, verb: str = "has", whole: bool = True) -> None:
    if actual < promised or not whole:
        raise DataError(f"truncated {_kind(path)}: the header promises {promised} bytes, {path.name} {verb} {actual}")
    if actual > promised > 0:
        raise DataError(f"{_kind(path)} must hold the {promised} bytes that the header promises; {path.name} {verb} {actual}")


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
        return next(stream(path, key if key in names else names[0], whole=True))
    with _faults(path), path.open("rb") as file:
        shape, order, kind = _header(file)
        return mapped(path, kind, shape, file.tell(), order)


def array_names(path: Path) -> tuple[str, ...]:
    """Returns the names of the arrays in a `.npz`."""
    with _faults(path), zipfile.ZipFile(path) as archive:
        return tuple(name.removesuffix(".npy") for name in archive.namelist())


def array_header(path: Path, key: str) -> tuple[tuple[int, ...], np.dtype]:
    """Returns shape and type of an array in a `.npz`."""
    if key not in (names := array_names(path)):
        raise DataError(f"{path}: must hold an array {key}; it has {', '.join(names) or 'none'}")
    with _faults(path), zipfile.ZipFile(path) as archive, archive.open(f"{key}.npy") as file:
        shape, _, kind = _header(file)
        return shape, kind


def stream(path: Path, key: str, whole: bool = False) -> Iterator[Shaped[np.ndarray, "..."]]:
    """Yields the parts of an array in a `.npz` along the first axis, or the whole array as the only part."""
    with _faults(path), zipfile.ZipFile(path) as archive, archive.open(f"{key}.npy") as file:
        shape, order, kind = _header(file)
        together = whole or order == "F"
        for _ in range(1 if together else shape[0]):
            part = shape if together else shape[1:]
            promised = math.prod(part) * kind.itemsize
            data = file.read(promised)
            if len(data) < promised:
                raise ValueError(f"truncated .npz: an array promises {promised} more bytes, {len(data)} are there")
            array = np.frombuffer(data, kind).reshape(part, order=order)
            yield from [array] if whole or not together else array
        if file.read(1):  # the checksum is compared at the end
            raise ValueError(f"{key} must hold the bytes that its header promises; it has more")


def _header(file: BufferedIOBase) -> tuple[tuple[int, ...], Literal["C", "F"], np.dtype]:
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, in_columns, kind = read(file)
    if kind.hasobject:
        raise ValueError("arrays must hold numbers or text; this one holds Python objects, which are never unpickled")
    return shape, "F" if in_columns else "C", kind


@contextmanager
def _faults(path: Path) -> Iterator[None]:
    """Names the file in the errors of the block."""
    try:
        yield
    except (OSError, ValueError, EOFError, KeyError, NotImplementedError, zipfile.BadZipFile, zlib.error) as error:
        # Decoders raise OSError too, without a number, and a broken archive leads to places that cannot be (EINVAL).
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise
        raise DataError(f"{path.name} cannot be read as arrays: {error}") from error
