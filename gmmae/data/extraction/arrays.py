"""Arrays in `.npy` and `.npz` files, read piece by piece and never unpickled."""

import errno
import math
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Shaped

from gmmae.data.volumes import DataError


@runtime_checkable
class Readable(Protocol):
    """A binary file, or a member of an archive."""

    def read(self, count: int = -1, /) -> bytes:
        """Reads at most `count` bytes."""
        ...


VOLUMES_ARRAY, MEDMNIST_ARRAY = "volumes", "train_images"
"""Arrays of an .npz by which its form is known."""

ARRAY_SUFFIXES = (".npy", ".npz")
CHUNK_BYTES = 2**20


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
        shape, fortran_order, dtype = _header(file)
        promised, actual = file.tell() + math.prod(shape) * dtype.itemsize, path.stat().st_size
        if actual < promised:
            raise DataError(f"truncated .npy: the header promises {promised} bytes, {path.name} has {actual}")
        if actual > promised:
            raise DataError(f".npy must hold the {promised} bytes that the header promises; {path.name} has {actual}")
        return np.memmap(path, dtype, "r", file.tell(), shape, "F" if fortran_order else "C")


def array_names(path: Path) -> tuple[str, ...]:
    """Returns the names of the arrays in a `.npz`."""
    with _faults(path), zipfile.ZipFile(path) as archive:
        return tuple(name.removesuffix(".npy") for name in archive.namelist())


def array_header(path: Path, key: str) -> tuple[tuple[int, ...], np.dtype]:
    """Returns shape and type of an array in a `.npz`."""
    if key not in (names := array_names(path)):
        raise DataError(f"{path}: must hold an array {key}; it has {', '.join(names) or 'none'}")
    with _faults(path), zipfile.ZipFile(path) as archive, archive.open(f"{key}.npy") as file:
        shape, _, dtype = _header(file)
        return shape, dtype


def check_array(path: Path, key: str) -> None:
    """Reads an array in a `.npz` to its end, where the checksum is, and keeps nothing.

    Raises:
      DataError: damaged.
    """
    with _faults(path), zipfile.ZipFile(path) as archive, archive.open(f"{key}.npy") as file:
        while file.read(CHUNK_BYTES):
            pass


def stream(path: Path, key: str, whole: bool = False) -> Iterator[Shaped[np.ndarray, "..."]]:
    """Yields the parts of an array in a `.npz` along the first axis, or the whole array as the only part."""
    with _faults(path), zipfile.ZipFile(path) as archive, archive.open(f"{key}.npy") as file:
        shape, fortran_order, dtype = _header(file)
        if whole or fortran_order:
            array = _take(file, shape, dtype, "F" if fortran_order else "C")
            if file.read(1):  # the checksum is compared at the end
                raise ValueError(f"{key} must hold the bytes that its header promises; it has more")
            yield from [array] if whole else array
            return
        for _ in range(shape[0]):
            yield _take(file, shape[1:], dtype, "C")


def _take(file: Readable, shape: tuple[int, ...], dtype: np.dtype, order: str) -> np.ndarray:
    promised = math.prod(shape) * dtype.itemsize
    data = file.read(promised)
    if len(data) < promised:
        raise ValueError(f"truncated .npz: an array promises {promised} more bytes, {len(data)} are there")
    return np.frombuffer(data, dtype).reshape(shape, order="F" if order == "F" else "C")


def _header(file: Readable) -> tuple[tuple[int, ...], bool, np.dtype]:
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran_order, dtype = read(file)
    if dtype.hasobject:
        raise ValueError("arrays must hold numbers or text; this one holds Python objects, which are never unpickled")
    return shape, fortran_order, dtype


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
