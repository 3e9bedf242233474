"""Everything that a run writes while it goes on, besides its checkpoints: history, record, snapshots and the board."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

import numpy as np

from gmmae.base.errors import StorageError
from gmmae.base.records import Epoch, Record, history_line, to_json, write_history, write_text
from gmmae.base.workdir import WorkDir
from gmmae.training.writers import Board, Details


class Journal(Protocol):
    """What the loop tells of a run's course."""

    def begin(self, history: Sequence[Epoch]) -> None: ...
    def epoch(self, row: Epoch) -> None: ...
    def board_details(self, epoch: int, details: Details) -> None: ...
    def snapshot(self, epoch: int, val_loss: float, details: Details) -> None: ...
    def record(self, record: Record) -> None: ...
    def end(self, record: Record) -> None: ...


class NoJournal:
    """That of every process but the first: nothing is written."""

    def begin(self, history: Sequence[Epoch]) -> None:
        pass

    def epoch(self, row: Epoch) -> None:
        pass

    def board_details(self, epoch: int, details: Details) -> None:
        pass

    def snapshot(self, epoch: int, val_loss: float, details: Details) -> None:
        pass

    def record(self, record: Record) -> None:
        pass

    def end(self, record: Record) -> None:
        pass


class WorkDirJournal:
    """The journal in a work directory; every method raises `StorageError` where that cannot be written any more."""

    def __init__(self, workdir: WorkDir, board: Board):
        self._workdir, self._board = workdir, board

    def begin(self, history: Sequence[Epoch]) -> None:
        """Writes the history anew: rows that no checkpoint has are dropped. The board takes up its last row again."""
        with self._storage():
            write_history(self._workdir.history, history)
            for row in history[-1:]:
                self._board.epoch(row)

    def epoch(self, row: Epoch) -> None:
        with self._storage():
            with self._workdir.history.open("a", encoding="utf-8") as file:
                file.write(history_line(row) + "\n")
            self._board.epoch(row)

    def board_details(self, epoch: int, details: Details) -> None:
        with self._storage():
            self._board.details(epoch, details)

    def snapshot(self, epoch: int, val_loss: float, details: Details) -> None:
        with self._storage():
            place = self._workdir.snapshots / f"epoch_{epoch:06d}.npz"
            np.savez_compressed(place, epoch=epoch, val_loss=val_loss, **details._asdict())

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
