"""The files that a run writes while it goes on, besides its checkpoints: history, record, snapshots and TensorBoard's."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gmmae.system.files import whole_file, write_text
from gmmae.training.records import Epoch, Record, history_line, to_json, write_history
from gmmae.training.validations import Validation, at_end_of, validation_line, write_validations
from gmmae.training.workdir import WorkDir, failed_disk
from gmmae.workloads.interface import Events

if TYPE_CHECKING:
    from gmmae.training.tensorboard import TensorBoard


class RunLogger:
    """Writes a run's progress into its work directory; methods raise `StorageError` where it cannot be written."""

    def __init__(self, workdir: WorkDir, tensorboard: "TensorBoard"):
        self._workdir, self._tensorboard = workdir, tensorboard
        self._keeps_validations = False
        self._of_epoch: list[Validation] = []  # those of the last epoch

    def begin(self, history: Sequence[Epoch], metrics: Sequence[str], validations: Sequence[Validation] | None = None) -> None:
        """Writes the history again without the rows that no checkpoint has. TensorBoard gets its last row again.

        Args:
          history: the epochs so far.
          metrics: the names of the workload's metrics.
          validations: all so far, for a file of their own; None for no such file.
        """
        self._keeps_validations = validations is not None
        with self._storage():
            write_history(self._workdir.history, history, metrics)
            if validations is None:
                self._workdir.validations.unlink(missing_ok=True)
            else:
                write_validations(self._workdir.validations, validations, metrics)
            # TensorBoard drops all points from the last epoch's number on, whether they are by epoch or by step.
            for validation in validations or ():
                if validation.step >= len(history):
                    self._tensorboard.validations([validation], history[validation.epoch - 1])
            for row in history[-1:]:
                self._tensorboard.epoch(row)

    def epoch(self, row: Epoch) -> None:
        """Appends a row to the history, and to the validations."""
        with self._storage():
            _append(self._workdir.history, history_line(row))
            self._tensorboard.epoch(row)
            if self._keeps_validations:
                self.validation(at_end_of(row))
                self._tensorboard.validations(self._of_epoch, row)
                self._of_epoch.clear()

    def validation(self, validation: Validation) -> None:
        """Appends a row to the validations."""
        with self._storage():
            _append(self._workdir.validations, validation_line(validation))
        self._of_epoch.append(validation)

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


def _append(path: Path, line: str) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(line + "\n")


@contextmanager
def storage(place: Path) -> Iterator[None]:
    """Turns an error of the file system into a `StorageError` about the work directory and the file."""
    try:
        yield
    except OSError as error:
        raise failed_disk(error, place, " to go on from the last checkpoint") from error
