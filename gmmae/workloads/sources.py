"""The samples of a workload: arrays, or a source that gives them one by one because they do not fit on a device.

A source is any object with `__len__` and `__getitem__`, such as google/grain's `RandomAccessDataSource` or PyTorch's map-style
`Dataset`. Every sample must have the form of the first one.
"""

import hashlib
import traceback
from collections.abc import Iterable, Sequence
from typing import Any, TypeGuard

import jax
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Int, PyTree

from gmmae.system.errors import StorageError
from gmmae.system.files import FAILED
from gmmae.workloads.interface import Samples, Source, WorkloadError

SPREAD_SAMPLES = 10
"""Samples by which a source is recognised: the first, the last, and eight between them."""

INTEGERS = {"i": (-(2**31), 2**31 - 1), "u": (0, 2**32 - 1)}
"""The least and the largest integer of 32 bits, with and without a sign."""


class SourceError(WorkloadError):
    """A source that cannot be used. The message names the sample."""


def is_source(samples: object) -> TypeGuard[Source]:
    """Returns whether these samples are a source, and not a pytree of arrays.

    >>> is_source({"image": np.zeros((5, 8, 8))}), is_source(range(5))
    (False, True)
    """
    has_items = all(hasattr(type(samples), name) for name in ("__len__", "__getitem__"))
    one = jax.tree.structure(samples) == jax.tree.structure(0)
    return has_items and one and not hasattr(samples, "shape") and not isinstance(samples, str | bytes)


class CheckedSource:
    """A source whose samples are checked when they are read.

    Args:
      source: of the samples.
      name: of the samples, for errors.
      count: the number of samples. A number above that of the source repeats them. None: that of the source.
      int_bytes: of the largest integers that they may need; 4 or 8.

    Attributes:
      first: the first sample, a pytree of arrays.

    Raises:
      SourceError: the source is empty, or its first sample cannot be used.
    """

    def __init__(self, source: Source, name: str, count: int | None = None, int_bytes: int = 4) -> None:
        self._source, self._name, self._int_bytes = source, name, int_bytes
        try:
            self._own = len(source)
        except (TypeError, ValueError) as error:
            raise SourceError(f"{name} must have a length that is an integer; got {error}") from error
        self._count = self._own if count is None else count
        if not self._own:
            raise SourceError(f"{name} must be at least 1; got a source of length 0")
        values, self._structure = jax.tree.flatten(self._read(0))
        leaves = [np.asarray(value) for value in values]
        _require_numbers(leaves, name, int_bytes)
        self._forms = [(leaf.shape, leaf.dtype) for leaf in leaves]
        self.first: Samples = jax.tree.unflatten(self._structure, leaves)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Samples:
        return jax.tree.unflatten(self._structure, self.leaves(index))

    def leaves(self, index: int) -> list[np.ndarray]:
        """Returns the arrays of a sample, in the order of its pytree. Several threads may call this at once.

        Raises:
          SourceError: the source raises an error, or the sample has another form than the first one.
        """
        index %= self._own
        values, structure = jax.tree.flatten(self._read(index))
        leaves = [np.asarray(value) for value in values]
        if structure != self._structure:
            self._refuse(f"{entries(structure)} for sample {index}, and {entries(self._structure)} for sample 0")
        if [(leaf.shape, leaf.dtype) for leaf in leaves] != self._forms:
            self._refuse(f"{form(leaves)} for sample {index}, and {form(jax.tree.leaves(self.first))} for sample 0")
        _require_numbers(leaves, self._name, self._int_bytes)
        return leaves

    def take(self, index: Iterable[int] | Int[np.ndarray, " samples"]) -> Samples:
        """Returns some samples, with the samples along the leading axis of every array."""
        samples = [self.leaves(int(one)) for one in index]
        return jax.tree.unflatten(self._structure, [np.stack(leaves) for leaves in zip(*samples, strict=True)])

    def resized(self, count: int) -> "CheckedSource":
        """Returns a source of at least this number of samples, which repeats its own."""
        return CheckedSource(self._source, self._name, max(count, self._own), self._int_bytes)

    def require_same_length(self) -> None:
        """Refuses a source whose length has changed, because the order of the samples follows from it."""
        if (length := len(self._source)) != self._own:
            raise SourceError(
                f"{self._name} must keep their number, {self._own}, during a run; got a source of length {length}"
            )

    def _read(self, index: int) -> Any:  # noqa: ANN401 a pytree of a user
        try:
            return self._source[index]
        except MemoryError:
            raise
        except (Exception, SystemExit) as error:  # an exit would end the run with one of gmmae's own codes and no word
            place = traceback.extract_tb(error.__traceback__)[-1]
            words = " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")
            failed_disk = isinstance(error, OSError) and error.errno in FAILED
            raise (StorageError if failed_disk else SourceError)(
                f"{self._name} must have an entry for each index from 0 to {self._own - 1}; reading {index} raised "
                f"{words} ({place.filename}, line {place.lineno})"
            ) from error

    def _refuse(self, what: str) -> None:
        raise SourceError(f"{self._name} must all have the same form; got {what}")


def checked(samples: Samples | Source, name: str, int_bytes: int = 4) -> Samples:
    """Returns arrays as they are, and a source that checks its samples when they are read.

    Args:
      samples: arrays or a source.
      name: of the samples, for errors.
      int_bytes: of the largest integers that they may need; 4 or 8.

    Raises:
      WorkloadError: they are no numbers, or integers that JAX would wrap.
    """
    if isinstance(samples, CheckedSource):
        return samples
    if is_source(samples):
        return CheckedSource(samples, name, int_bytes=int_bytes)
    _require_numbers(jax.tree.leaves(samples), name, int_bytes)
    return samples


def _require_numbers(leaves: Sequence[ArrayLike], name: str, int_bytes: int) -> None:
    """Refuses text, objects, nothing at all, and integers that JAX would wrap."""
    arrays = [np.asarray(leaf) for leaf in leaves]
    for leaf in arrays or [np.array(None)]:
        low, high = INTEGERS.get(leaf.dtype.kind, (0, 0))
        wide = high and leaf.size and leaf.dtype.itemsize > int_bytes
        if leaf.dtype.kind in "OSUMm" or (wide and not low <= leaf.min() <= leaf.max() <= high):
            what = f"{leaf.min()} to {leaf.max()}" if wide else form(arrays)
            raise SourceError(f"{name} must be numbers or arrays of them, integers of at most 32 bits; got {what}")


def form(leaves: Sequence[np.ndarray | Array]) -> str:
    """Returns the types and shapes of a sample's arrays in words.

    >>> form([np.zeros((8, 8), np.float32), np.asarray(3)])
    'float32 8×8 and int64'
    """
    return " and ".join(f"{leaf.dtype} {'×'.join(map(str, leaf.shape))}".strip() for leaf in leaves) or "nothing"


def entries(structure: object) -> str:
    """Returns the structure of a sample in words, with a `*` for each array.

    >>> entries(jax.tree.structure({"image": 0, "label": (0, 0)}))
    "{'image': *, 'label': (*, *)}"
    """
    return str(structure).removeprefix("PyTreeDef(").removesuffix(")")


def count(samples: Samples, name: str = "samples") -> int:
    """Returns the number of samples in a pytree of arrays, or in a source that `registry.build` has checked.

    Args:
      samples: arrays with the samples along their leading axis, or a `CheckedSource`.
      name: of the samples, for the error.

    Raises:
      WorkloadError: there are none, or the arrays differ in their number.
    """
    if isinstance(samples, CheckedSource):
        return len(samples)
    shapes = [getattr(leaf, "shape", ()) for leaf in jax.tree.leaves(samples)]
    sizes = {shape[0] if shape else 0 for shape in shapes}
    if len(sizes) != 1 or 0 in sizes:
        raise WorkloadError(
            f"{name} must be arrays with the same number of samples, at least 1, along their leading axes, or one source; got "
            f"shapes {', '.join(map(str, shapes)) or 'none'}"
        )
    return sizes.pop()


def take_on_host(samples: Samples, index: Int[np.ndarray, " samples"]) -> Samples:
    """Returns some samples of arrays or of a source as arrays."""
    return samples.take(index) if isinstance(samples, CheckedSource) else jax.tree.map(lambda array: array[index], samples)


def one_sample(samples: Samples) -> Samples:
    """Returns a sample, for its shapes and types."""
    return samples.first if isinstance(samples, CheckedSource) else jax.tree.map(lambda array: np.asarray(array[0]), samples)


def spread(samples: Samples, most: int = SPREAD_SAMPLES) -> Samples:
    """Returns a few samples, from the first to the last."""
    index = np.linspace(0, count(samples) - 1, min(count(samples), most)).astype(np.int64)
    return take_on_host(samples, index)


def hashes(samples: Samples) -> tuple[list[str], Samples]:
    """Returns a hash of the largest array of each sample, and the other arrays. Of a source they are of some samples."""
    if isinstance(samples, CheckedSource):
        samples = spread(samples)
    leaves = jax.tree.leaves(samples)
    largest = np.ascontiguousarray(leaves.pop(np.argmax([leaf.nbytes for leaf in leaves])))
    kind = f"{largest.dtype}{largest.shape[1:]}".encode()[:64]  # BLAKE2 takes no more
    rows = largest.reshape(len(largest), -1).view(np.uint8)
    return [hashlib.blake2b(row.data, digest_size=8, key=kind).hexdigest() for row in rows], leaves


def digest(arrays: PyTree) -> str:
    """Returns twelve hexadecimal digits of a SHA-256 of a pytree of arrays."""
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(arrays):
        array = np.asarray(leaf)
        digest.update(f"{array.dtype} {array.shape}\n".encode() + array.tobytes())
    return digest.hexdigest()[:12]
