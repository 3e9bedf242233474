"""The samples of a workload: arrays, or a source that gives them one by one because they do not fit on a device.

A source is any object with `__len__` and `__getitem__`, such as google/grain's `RandomAccessDataSource` or PyTorch's map-style
`Dataset`. Threads read the samples of the next steps while the devices compute.
"""

import copy
import hashlib
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Int, Int32, PyTree

from gmmae.system.errors import StorageError
from gmmae.system.files import FAILED
from gmmae.workloads.interface import Samples, Source, WorkloadError

SPREAD_SAMPLES = 10
"""By which a source is recognised."""

LARGE = 0.25
"""Arrays above this share of the bytes of the largest one identify a sample: tokens beside their mask, and no labels of an
image."""

NO_SAMPLE = -1


def is_source(samples: object) -> TypeGuard[Source]:
    """Whether these samples are no pytree of arrays."""
    has_items = all(hasattr(type(samples), name) for name in ("__len__", "__getitem__"))
    one = jax.tree.structure(samples) == jax.tree.structure(0)
    return has_items and one and not hasattr(samples, "__array__") and not isinstance(samples, str | bytes)


class CheckedSource:
    """A source whose samples must have the form of the `first`, a pytree of arrays.

    Errors call the samples `name`. Their integers may need `int_bytes`, 4 or 8.
    """

    def __init__(self, source: Source, name: str, int_bytes: int = 4) -> None:
        self._source, self._name, self._int_bytes = source, name, int_bytes
        try:
            self._own = self._count = len(source)
        except (TypeError, ValueError) as error:
            raise WorkloadError(f"{name} must have a length that is an integer; got {error}") from error
        if not self._own:
            raise WorkloadError(f"{name} must be at least 1; got a source of length 0")
        leaves, self._form = self._read(0)
        self.first: Samples = jax.tree.unflatten(self._form[0], leaves)

    def __len__(self) -> int:
        return self._count

    @property
    def size(self) -> int:
        """Numbers in all samples, as of an array; NumPy would read them to know it."""
        return self._count * sum(leaf.size for leaf in jax.tree.leaves(self.first))

    def __getitem__(self, index: int) -> Samples:
        if index >= self._count:
            raise IndexError(index)  # where a loop over the samples ends
        return jax.tree.unflatten(self._form[0], self.leaves(index))

    def leaves(self, index: int) -> list[np.ndarray]:
        """The arrays of a sample, in the order of its pytree. Several threads may call this."""
        index %= self._own
        leaves, of_sample = self._read(index)
        if of_sample != self._form:
            got = f"{form(jax.tree.unflatten(of_sample[0], leaves))} for sample {index}, and {form(self.first)} for sample 0"
            raise WorkloadError(f"{self._name} must all have the same form; got {got}")
        return leaves

    def resized(self, count: int) -> "CheckedSource":
        """At least this number of samples, by repetition."""
        other = copy.copy(self)
        other._count = max(count, self._own)
        return other

    def require_same_length(self) -> None:
        """The order of the samples follows from the length."""
        if (length := len(self._source)) != self._own:
            raise WorkloadError(
                f"{self._name} must keep their number, {self._own}, during a run; got a source of length {length}"
            )

    def _read(self, index: int) -> tuple[list[np.ndarray], tuple[Any, ...]]:
        try:
            with jax.enable_x64(self._int_bytes == 8):  # a thread does not have it from the one that started it
                values, structure = jax.tree.flatten(self._source[index])
            leaves = [np.asanyarray(value) for value in values]  # a masked array stays one
        except MemoryError:
            raise
        except (Exception, SystemExit) as error:  # an exit would end the run with one of gmmae's own codes and no word
            place = traceback.extract_tb(error.__traceback__)[-1]
            words = " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")
            failed_disk = isinstance(error, OSError) and error.errno in FAILED
            raise (StorageError if failed_disk else WorkloadError)(
                f"{self._name} must have an entry for each index from 0 to {self._own - 1}; reading {index} raised "
                f"{words} ({place.filename}, line {place.lineno})"
            ) from error
        require_numbers(leaves, self._name, self._int_bytes)
        return leaves, (structure, [(leaf.shape, leaf.dtype) for leaf in leaves])


def checked(samples: Samples | Source, name: str, int_bytes: int = 4) -> Samples:
    """A source that checks its samples when they are read, or arrays as they are."""
    if is_source(samples):
        return samples if isinstance(samples, CheckedSource) else CheckedSource(samples, name, int_bytes)
    require_numbers(jax.tree.leaves(samples), name, int_bytes)
    return jax.tree.map(np.asanyarray, samples)  # a column of a table has an index of its own


def require_numbers(leaves: Sequence[ArrayLike], name: str, int_bytes: int) -> None:
    """Refuses text, objects, masked arrays, nothing at all, and integers that JAX would wrap."""
    if any(isinstance(leaf, np.ma.MaskedArray) for leaf in leaves):  # JAX reads what lies below the mask
        raise WorkloadError(f"{name} must be numbers or arrays of them; got a masked array: give its filled() values")
    for leaf in [np.asarray(leaf) for leaf in leaves] or [np.array(None)]:
        kind = leaf.dtype.kind
        wide = kind in "iu" and leaf.size and leaf.dtype.itemsize > int_bytes
        if kind in "OSUMm" or (wide and not np.array_equal(leaf, leaf.astype(f"{kind}4"))):
            what = f"{leaf.min()} to {leaf.max()}" if wide else leaf.dtype if leaves else "nothing"
            raise WorkloadError(f"{name} must be numbers or arrays of them, integers of at most 32 bits; got {what}")


def form(samples: Samples) -> str:
    """Types, shapes and structure of samples in words.

    >>> form(np.zeros((8, 8), np.float32)), form({"label": np.asarray(3)})
    ('float32 8×8', "int64 in {'label': *}")
    """
    leaves, structure = jax.tree.flatten(samples)
    leaves = [leaf if hasattr(leaf, "dtype") else np.asarray(leaf) for leaf in leaves]  # a tracer is no array
    types = " and ".join(f"{leaf.dtype} {'×'.join(map(str, leaf.shape))}".strip() for leaf in leaves) or "nothing"
    of_all = str(structure).removeprefix("PyTreeDef(").removesuffix(")")
    return types if of_all == "*" else f"{types} in {of_all}"


class Fetcher(ThreadPoolExecutor):
    """The threads that read samples, from the first one to the end of this context.

    They are Python's own: google/grain 0.2.18 takes ten times as much of a CPU for each sample.
    """

    def __init__(self, threads: int) -> None:
        super().__init__(threads, thread_name_prefix="gmmae-fetch")
        self.threads, self.closed = threads, False

    def __exit__(self, *_: object) -> None:
        """Each thread finishes the sample that it reads."""
        self.closed = True
        self.shutdown(cancel_futures=True)

    def begin(self, source: CheckedSource, like: Samples, index: Int[np.ndarray, "*rows"]) -> Callable[[], Samples]:
        """Begins to read samples in the types of the sample `like`, and returns a function that waits for them.

        `NO_SAMPLE` in the `index` leaves a row at 0.
        """
        source.require_same_length()
        # New memory each time: on a CPU the arrays of JAX may share it.
        arrays = jax.tree.map(lambda leaf: np.zeros((*index.shape, *leaf.shape), leaf.dtype), like)
        by_row = [array.reshape(index.size, *array.shape[index.ndim :]) for array in jax.tree.leaves(arrays)]
        wanted = iter([(row, sample) for row, sample in enumerate(index.ravel().tolist()) if sample != NO_SAMPLE])

        def fill() -> None:
            for row, sample in wanted:  # each thread takes the next one of the same list
                if self.closed:
                    return
                for array, leaf in zip(by_row, source.leaves(sample), strict=True):
                    array[row] = leaf

        tasks = [self.submit(fill) for _ in range(self.threads)]

        def wait() -> Samples:
            for task in as_completed(tasks):
                task.result()
            return arrays

        return wait


def rows_of(
    indices: Int32[np.ndarray, "shards steps slots"], devices: int
) -> tuple[Int32[np.ndarray, "devices rows"], Int32[np.ndarray, "shards steps slots"]]:
    """The samples that each device needs, each once, and the row of each slot's sample among them.

    Consecutive shards are of one device.

    >>> samples, rows = rows_of(np.array([[[7, 5], [9, 9]], [[6, 7], [9, 9]]]), devices=2)  # two steps of two slots each
    >>> samples.tolist(), rows.tolist()
    ([[5, 7, 9, -1], [6, 7, 9, -1]], [[[1, 0], [2, 2]], [[0, 1], [2, 2]]])
    """
    of_devices = indices.reshape(devices, -1)
    samples, rows = np.full_like(of_devices, NO_SAMPLE), np.empty_like(of_devices)
    for own, needed, row in zip(samples, of_devices, rows, strict=True):
        distinct, row[:] = np.unique(needed, return_inverse=True)
        own[: len(distinct)] = distinct
    return samples, rows.reshape(indices.shape)


def count(samples: Samples, name: str = "samples") -> int:
    """The number of samples."""
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
    """Some samples, as arrays."""
    if isinstance(samples, CheckedSource):
        # A source may give the same memory for each sample.
        return jax.tree.map(lambda *leaves: np.stack(leaves), *(jax.tree.map(np.copy, samples[int(each)]) for each in index))
    return jax.tree.map(lambda array: array[index], samples)


def one_sample(samples: Samples) -> Samples:
    """A sample, for its shapes and types."""
    return samples.first if isinstance(samples, CheckedSource) else jax.tree.map(lambda array: np.asarray(array[0]), samples)


def spread(samples: Samples, most: int = SPREAD_SAMPLES) -> Samples:
    """A few samples, from the first to the last."""
    index = np.linspace(0, count(samples) - 1, min(count(samples), most)).astype(np.int64)
    return take_on_host(samples, index)


def hashes(samples: Samples) -> tuple[list[str], Samples]:
    """Hashes of each sample's `LARGE` arrays, and the other arrays; of a source, those of some samples.

    The arrays follow from their sizes, because a mask may be empty in all samples of one part and not in those of another. Only
    where they are equal in all samples, as a grid is, all arrays are taken.
    """
    if isinstance(samples, CheckedSource):
        samples = spread(samples)
    # The same numbers are the same samples, whether they were saved in 64, 32 or 16 bits, and whatever the sign of zero.
    leaves = [
        leaf.astype(np.float32) + np.float32(0) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf
        for leaf in jax.tree.leaves(samples)
    ]
    least = LARGE * max(leaf.nbytes for leaf in leaves)
    large = [leaf for leaf in leaves if leaf.nbytes > least]
    found = _of_rows(large)
    if len(found) > 1 == len(set(found)):
        large, found = leaves, _of_rows(leaves)
    return found, [leaf for leaf in leaves if not any(leaf is one for one in large)]


def _of_rows(arrays: list[np.ndarray]) -> list[str]:
    kind = " ".join(f"{array.dtype}{array.shape[1:]}" for array in arrays).encode()[:64]  # BLAKE2 takes no more
    rows = zip(*(np.ascontiguousarray(array).reshape(len(array), -1).view(np.uint8) for array in arrays), strict=True)
    return [hashlib.blake2b(b"".join(row), digest_size=8, key=kind).hexdigest() for row in rows]


def digest(arrays: PyTree) -> str:
    """Twelve digits of a SHA-256 of a pytree of arrays."""
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(arrays):
        array = np.asarray(leaf)
        digest.update(f"{array.dtype} {array.shape}\n".encode() + array.tobytes())
    return digest.hexdigest()[:12]
