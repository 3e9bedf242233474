"""The files that a run writes while it goes on, besides its checkpoints: history, record, snapshots and TensorBoard's."""

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gmmae.system.files import whole_file, write_text
from gmmae.training.records import Epoch, Record, first_rows, history_line, to_json, write_history
from gmmae.training.workdir import WorkDir, failed_disk
from gmmae.workloads.interface import Events

if TYPE_CHECKING:
    from gmmae.training.tensorboard import TensorBoard


class RunLogger:
    """Writes a run's progress into its work directory; methods raise `StorageError` where it cannot be written."""

    def __init__(self, workdir: WorkDir, tensorboard: "TensorBoard"):
        self._workdir, self._tensorboard, self._sha256 = workdir, tensorboard, hashlib.sha256()

    def begin(self, rows: Sequence[Epoch], metrics: Sequence[str]) -> None:
        """Cuts the history after the rows so far, or begins it with a column for each of the workload's metrics."""
        history = self._workdir.history
        with self._storage():
            if rows:  # never written again: a power cut could take what a checkpoint counts on
                os.truncate(history, len(first_rows(history, len(rows))))
            else:
                write_history(history, [], metrics)
            self._sha256.update(history.read_bytes())
            for row in rows:
                self._tensorboard.row(row)

    def row(self, row: Epoch) -> None:
        """Appends a row to the history."""
        line = history_line(row)
        with self._storage():
            with self._workdir.history.open("a", encoding="utf-8") as file:
                file.write(line)
            self._sha256.update(line.encode())
            self._tensorboard.row(row)

    def sha256(self) -> str:
        """Returns the SHA-256 of the history, as a checkpoint keeps it; all of it is on the disk then."""
        with self._storage(), self._workdir.history.open("rb") as file:
            os.fsync(file.fileno())
        return self._sha256.hexdigest()

    def events(self, epoch: int, events: Events) -> None:
        """Writes a workload's events for TensorBoard."""
        with self._storage():
            self._tensorboard.events(epoch, events)

    def snapshot(self, epoch: int, val_loss: float, arrays: Mapping[str, np.ndarray]) -> None:
        """Writes the arrays of the shown validation samples."""
        with self._storage():
            path = self._workdir.snapshots / f"epoch_{epoch:06d}.npz"
            scalars = {"epoch": np.int64(epoch), "val_loss": np.float64(val_loss)}
            with whole_file(path) as part, part.open("wb") as file:
                np.savez_compressed(file, **scalars, **arrays)  # pyright: ignore[reportArgumentType]

    def record(self, record: Record) -> None:
        """Writes the record."""
        with self._storage():
            write_text(self._workdir.record, to_json(record))

    def end(self, record: Record) -> None:
        """Writes the result for TensorBoard and closes its file."""
        with self._storage():
            self._tensorboard.result(record)
            self._tensorboard.close()

    def _storage(self) -> AbstractContextManager[None]:
        return storage(self._workdir.root)


@contextmanager
def storage(place: Path) -> Iterator[None]:
    """Turns an error of the file system into a `StorageError` about the work directory and the file."""
    try:
        yield
    except OSError as error:
        raise failed_disk(error, place, " to go on from the last checkpoint") from error
