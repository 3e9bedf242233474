"""Reads the samples of the next steps from a source in threads, while the devices compute.

The steps of an epoch are divided into blocks of consecutive steps. A program gets a block as arrays, and a row for each slot.
Each device gets only the samples of its own slots.

The threads are a pool of Python's own. google/grain 0.2.18 was tried in their place. Where a
source does not wait, it takes 0.3 ms of CPU for each sample, ten times as much as this module. With waits of 5 ms both are
equally fast. ARCHITECTURE.md has the other reasons.
"""

import math
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, NamedTuple, Self, TypeVar

import jax
import numpy as np
from jaxtyping import Int, Int32

from gmmae.config.schema import ParallelConfig
from gmmae.workloads.interface import Samples
from gmmae.workloads.sources import CheckedSource

BLOCKS = 3
"""The blocks in memory: one that is computed, one that is complete or copied to the devices, and one that is read."""

BLOCKS_PER_EPOCH = 4
"""Least number of blocks of an epoch with as many steps. The devices wait for the first one."""

TASKS_PER_THREAD = 4
"""Tasks of a block for each thread. More would cost time, and fewer would leave threads idle at the end of a block."""

NO_SAMPLE = -1

K = TypeVar("K", bound=Hashable)


class BlockRows(NamedTuple):
    """The samples that each device needs of a block of steps.

    Attributes:
      samples: the position in the data set of the sample in each row of a device; `NO_SAMPLE` for rows at the end.
      rows: the row of the sample of each slot. Slots that the device does not compute have row 0.
    """

    samples: Int32[np.ndarray, "devices rows"]
    rows: Int32[np.ndarray, "devices steps *device_batch"]


def block_rows(
    indices: Int[np.ndarray, "devices steps *device_batch"], length: int, shard_ranges: Int[np.ndarray, "devices 2"] | None
) -> BlockRows:
    """Returns the rows of a block.

    Args:
      indices: positions of the samples of each slot in the data set.
      length: steps of the longest block, which decides on the number of rows.
      shard_ranges: for the exact reduction, whose slots are divided into shards: the first shard and the number of shards of
        each device. None: a device computes all its slots.

    >>> indices = np.array([[[7, 5], [9, 9]], [[6, 7], [9, 9]]])  # two devices, two steps of two slots; the last has padding
    >>> of_block = block_rows(indices, 2, None)
    >>> of_block.samples.tolist(), of_block.rows[0].tolist()
    ([[5, 7, 9, -1], [6, 7, 9, -1]], [[1, 0], [2, 2]])
    """
    devices = len(indices)
    own = [slice(None)] * devices if shard_ranges is None else [slice(first, first + count) for first, count in shard_ranges]
    slots = indices[0, 0, own[0]].size
    samples = np.full((devices, length * slots), NO_SAMPLE, np.int32)
    rows = np.zeros(indices.shape, np.int32)
    for device, part in enumerate(own):
        needed = indices[device, :, part]
        distinct, row = np.unique(needed, return_inverse=True)
        samples[device, : len(distinct)] = distinct
        rows[device, :, part] = row.reshape(needed.shape)
    return BlockRows(samples, rows)


def block_steps(steps: int, step_bytes: int, limit_bytes: float) -> int:
    """Returns the steps of a block.

    Args:
      steps: of an epoch.
      step_bytes: memory of this process for the samples of a step.
      limit_bytes: memory for all blocks. A block has at least one step, whatever its memory.

    >>> block_steps(100, step_bytes=10, limit_bytes=600), block_steps(100, 10, 1e6), block_steps(1, 10, 1)
    (20, 25, 1)
    """
    return max(1, min(int(limit_bytes / (BLOCKS * step_bytes)), math.ceil(steps / BLOCKS_PER_EPOCH)))


def blocks(steps: range, length: int) -> list[range]:
    """Divides steps into blocks.

    >>> blocks(range(3, 8), 2)
    [range(3, 5), range(5, 7), range(7, 8)]
    """
    return [range(first, min(first + length, steps.stop)) for first in range(steps.start, steps.stop, length)]


class Fetcher:
    """The threads that read the samples of a run. They start with the first block, and end with this context."""

    def __init__(self, parallel: ParallelConfig) -> None:
        self.threads = parallel.fetch_threads
        self._pool = ThreadPoolExecutor(self.threads, thread_name_prefix="gmmae-fetch")
        self._closed = threading.Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the threads. Each one finishes the sample that it reads."""
        self._closed.set()
        self._pool.shutdown(cancel_futures=True)

    def read(self, source: CheckedSource, like: Samples, index: Int32[np.ndarray, "devices rows"]) -> "PendingBlock":
        """Begins to read samples.

        Args:
          source: of the samples.
          like: a sample in the types that the arrays are to have.
          index: positions of the samples; `NO_SAMPLE` leaves a row at 0.
        """
        # New memory for each block: on a CPU the arrays of JAX may share it.
        leaves, structure = jax.tree.flatten(like)
        arrays = [np.zeros((*index.shape, *leaf.shape), leaf.dtype) for leaf in leaves]
        places = np.argwhere(index != NO_SAMPLE)
        cancelled = threading.Event()

        def fill(part: Int[np.ndarray, "samples 2"]) -> None:
            for device, row in part.tolist():
                if cancelled.is_set() or self._closed.is_set():
                    return
                for array, leaf in zip(arrays, source.leaves(int(index[device, row])), strict=True):
                    array[device, row] = leaf

        size = max(1, math.ceil(len(places) / (TASKS_PER_THREAD * self.threads)))
        parts = [places[first : first + size] for first in range(0, len(places), size)]
        return PendingBlock(jax.tree.unflatten(structure, arrays), [self._pool.submit(fill, part) for part in parts], cancelled)


class PendingBlock(NamedTuple):
    """A block that is read."""

    samples: Samples
    tasks: Sequence[Future[None]]
    cancelled: threading.Event

    def wait(self) -> Samples:
        """Returns the samples, or raises the first error of the source."""
        for task in self.tasks:
            task.result()
        return self.samples

    def cancel(self) -> None:
        """Ends the reading."""
        self.cancelled.set()
        for task in self.tasks:
            task.cancel()


class BlockStream(Generic[K]):
    """Blocks in an order that is known beforehand, each of them read before it is needed.

    Args:
      fetcher: the threads.
      source: of the samples.
      like: a sample in the types that the arrays are to have.
      index: the positions of a block's samples, by its key.
      following: the key of the next block; None where there is none.
    """

    def __init__(
        self,
        fetcher: Fetcher,
        source: CheckedSource,
        like: Samples,
        index: Callable[[K], Int32[np.ndarray, "devices rows"]],
        following: Callable[[K], K | None],
    ) -> None:
        self._fetcher, self._source, self._like = fetcher, source, like
        self._index, self._following = index, following
        self._pending: deque[tuple[K, PendingBlock]] = deque()

    def get(self, key: K) -> Samples:
        """Returns a block. If it does not follow the last one, the blocks that are being read are dropped.

        Raises:
          SourceError: as `CheckedSource.leaves`, or the length of the source has changed.
        """
        self._source.require_same_length()
        if not self._pending or self._pending[0][0] != key:
            self.cancel()
            self._begin(key)
        _, block = self._pending.popleft()
        last = self._pending[-1][0] if self._pending else key
        while len(self._pending) < BLOCKS - 2 and (after := self._following(last)) is not None:
            self._begin(after)
            last = after
        return block.wait()

    def cancel(self) -> None:
        """Ends the reading of all blocks."""
        while self._pending:
            self._pending.popleft()[1].cancel()

    def _begin(self, key: K) -> None:
        self._pending.append((key, self._fetcher.read(self._source, self._like, self._index(key))))


def read_in_order(fetcher: Fetcher, source: CheckedSource, like: Samples, batch: int) -> Iterator[tuple[range, Samples]]:
    """Yields all samples in their order, with their positions, a batch at a time. Rows beyond the last sample are 0."""
    parts = blocks(range(len(source)), batch)

    def index(number: int) -> Int32[np.ndarray, "1 batch"]:
        rows = np.full((1, batch), NO_SAMPLE, np.int32)
        rows[0, : len(parts[number])] = parts[number]
        return rows

    def following(number: int) -> int | None:
        return number + 1 if number + 1 < len(parts) else None

    stream = BlockStream(fetcher, source, like, index, following)
    for number, part in enumerate(parts):
        yield part, jax.tree.map(lambda array: array[0], stream.get(number))
