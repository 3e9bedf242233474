"""Everything that a run writes while it goes on, besides its checkpoints: history, record, snapshots and the board."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import numpy as np

from gmmae.system.errors import StorageError
from gmmae.system.files import whole_file, write_text
from gmmae.training.records import Epoch, Record, history_line, to_json, write_history
from gmmae.training.tensorboard import TensorBoard
from gmmae.training.workdir import WorkDir
from gmmae.workloads.interface import Events


class Journal:
    """What the loop tells of a run's course, in a work directory; methods raise `StorageError` where it cannot be written."""

    def __init__(self, workdir: WorkDir, board: TensorBoard):
        self._workdir, self._board = workdir, board

    def begin(self, history: Sequence[Epoch], metrics: Sequence[str]) -> None:
        """Writes the history anew: rows that no checkpoint has are dropped. The board takes up its last row again."""
        with self._storage():
            write_history(self._workdir.history, history, metrics)
            for row in history[-1:]:
                self._board.epoch(row)

    def epoch(self, row: Epoch) -> None:
        with self._storage():
            with self._workdir.history.open("a", encoding="utf-8") as file:
                file.write(history_line(row) + "\n")
            self._board.epoch(row)

    def events(self, epoch: int, events: Events) -> None:
        with self._storage():
            self._board.events(epoch, events)

    def snapshot(self, epoch: int, val_loss: float, arrays: Mapping[str, np.ndarray]) -> None:
        with self._storage():
            place = self._workdir.snapshots / f"epoch_{epoch:06d}.npz"
            facts = {"epoch": np.int64(epoch), "val_loss": np.float64(val_loss)}
            with whole_file(place) as part, part.open("wb") as file:
                np.savez_compressed(file, **facts, **arrays)  # pyright: ignore[reportArgumentType]

    def record(self, record: Record) -> None:
        with self._storage():
            write_text(self._workdir.record, to_json(record))

    def end(self, record: Record) -> None:
        """The record once more, for the board, which is closed."""
        with self._storage():
            self._board.result(record)
            self._board.close()

    def _storage(self) -> AbstractContextManager[None]:
        return storage(self._workdir.root)


@contextmanager
def storage(place: Path) -> Iterator[None]:
    """Within it, an error of the system is a `StorageError` about the work directory, and about that place in it."""
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"workdir must stay a folder that can be written; writing {error.filename or place} failed "
            f"({error.strerror or error}): see to it, and run the same command again to go on from the last checkpoint"
        ) from error
