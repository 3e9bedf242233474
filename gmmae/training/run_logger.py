"""The files that a run writes besides its checkpoints: history, record, snapshots and TensorBoard's."""

import hashlib
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from pathlib import Path

import numpy as np

from gmmae.config.schema import LOSS
from gmmae.system.errors import InputError
from gmmae.system.files import csv_text, whole_file, write_text
from gmmae.training.records import PLAIN, Epoch, Record, first_rows, to_json
from gmmae.training.workdir import OTHER_HISTORY, WorkDir, storage
from gmmae.workloads.interface import Events

SCALARS = {
    "loss/train": "train_loss",
    "loss/validation": "val_loss",
    "optimiser/learning_rate": "lr",
    "optimiser/global_batch": "batch",
}
RESULTS = {
    "result/reached": "reached",
    "result/epochs": "epochs",
    "result/time_to_target_s": "time_to_target_s",
    "result/best_val_loss": "best_val_loss",
}
FLUSH_S = 1
"""Seconds between flushes of the event file."""
TIMES = {f"time/{name}": name for name in ("train_s", "eval_s", "total_s")}


def training_s(row: Epoch) -> float:
    """Seconds of training and validation up to a row, as in a time to the target."""
    return row.train_s + row.eval_s


class TensorBoard:
    """Events of one run under a folder.

    Events carry the run's own clock, so TensorBoard's axis "Relative" shows seconds of training, without compiling and pauses.

    Args:
      parameters: for the HParams tab, which sorts them by name and shows the first five: those with capitals.
      start: the epoch to resume from. Later events are purged, whether they count epochs or steps, so all rows must be written
        again; those that are still there are left out.
      metric: of the target; a workload's own has columns in the HParams tab.
      times: tags of an epoch's clocks, each with its field of `Epoch`.
      results: tags of the outcome, each with its field of `Record`.
      clock: seconds since the start at a row; None: when events are written.
    """

    def __init__(
        self,
        folder: Path,
        parameters: Mapping[str, object],
        start: int = 0,
        metric: str = LOSS,
        times: Mapping[str, str] = TIMES,
        results: Mapping[str, str] = RESULTS,
        clock: Callable[[Epoch], float] | None = training_s,
    ):
        from gmmae.system import tensorboardx  # its import takes a quarter of a second

        begun = (float(path.name.split(".")[3]) for path in folder.glob("events.out.tfevents.[0-9]*"))
        self._start = min(begun, default=time.time())  # of the run's first process
        self._clock, self._now = clock, None
        self._first, self._by_step = start, False
        own = {} if metric == LOSS else {f"result/best_{metric}": "best_value"}
        self._epoch_tags, self._result_tags = {**SCALARS, **times}, {**results, **own}
        folder.mkdir(parents=True, exist_ok=True)
        # The flush of a SummaryWriter does not wait for its thread.
        self._file = tensorboardx.EventsWriter(str(folder / "events"))
        self._make, self._event = tensorboardx.summary, tensorboardx.Event
        purging = tensorboardx.SessionLog(status=tensorboardx.SessionLog.START)
        self._file.write_event(self._event(step=start, session_log=purging, wall_time=time.time()))
        self._next_flush = 0.0
        plain = {key: value if isinstance(value, bool | int | float | str) else str(value) for key, value in parameters.items()}
        columns = [*self._result_tags, *SCALARS, *(f"metric/{metric}" for _ in own)]  # the first five are shown
        self._write(0, {}, *self._make.hparams(plain, dict.fromkeys(columns, 0.0)))

    def row(self, row: Epoch) -> None:
        """Writes a row's scalars, on disk about a second later; from the first row inside an epoch on also `steps/NAME`."""
        self._now = self._start + self._clock(row) if self._clock else None
        self._by_step |= row.train_loss is None
        if self._by_step and row.steps >= self._first:
            self._write(row.steps, {f"steps/{name}": value for name, value in row.validation.items()})
        if row.train_loss is not None and row.epoch >= self._first:
            scalars = dict(zip(self._epoch_tags, attrgetter(*self._epoch_tags.values())(row), strict=True))
            for name, value in row.metrics.items():
                scalars[f"metric/{name}"] = value
            self._write(row.epoch, scalars)
        if time.monotonic() >= self._next_flush:  # it takes longer than a short epoch
            self._file.flush()
            self._next_flush = time.monotonic() + FLUSH_S

    def events(self, epoch: int, events: Events) -> None:
        """Writes the workload's events, without histograms of values that are not finite."""
        histograms = [
            self._make.histogram(tag, values, 30)  # as many bins as TensorBoard shows
            for tag, values in events.histograms.items()
            if values.size and np.isfinite(values).all()
        ]
        images = [
            self._make.image(tag, image, dataformats="HW" if image.ndim == 2 else "HWC") for tag, image in events.images.items()
        ]
        self._write(epoch, events.scalars, *histograms, *images)
        self.flush()

    def result(self, record: Record) -> None:
        """Writes the outcome of a run, for the columns of the HParams tab."""
        self._write(record.epochs, {tag: getattr(record, name) for tag, name in self._result_tags.items()})

    def flush(self) -> None:
        """Brings all events to the disk."""
        self._file.flush()

    def close(self) -> None:
        """Closes the event file."""
        self._file.close()

    def _write(self, step: int, scalars: Mapping[str, float | None], *summaries: object) -> None:
        event = self._event(step=step, wall_time=time.time() if self._now is None else self._now)
        for tag, value in scalars.items():
            if value is not None:
                event.summary.MergeFrom(self._make.scalar(tag, value))
        for summary in summaries:
            event.summary.MergeFrom(summary)
        self._file.write_event(event)


def write_history(path: Path, rows: Iterable[Epoch], metrics: Iterable[str] = ()) -> None:
    """Writes a `history.csv` with a column for each metric."""
    write_text(path, csv_text((), [*PLAIN, *(f"val_{name}" for name in metrics)]) + "".join(map(history_line, rows)))


def history_line(row: Epoch) -> str:
    """One row as a line, every float to the last digit."""
    return ",".join(map(repr, (*row[:-1], *row.metrics.values()))).replace("None", "") + "\n"


class RunLogger:
    """Writes a run's progress into its work directory; raises `StorageError` where it cannot."""

    def __init__(self, workdir: WorkDir, tensorboard: TensorBoard):
        self._workdir, self._tensorboard, self._sha256 = workdir, tensorboard, hashlib.sha256()

    def begin(self, rows: Sequence[Epoch], metrics: Sequence[str]) -> None:
        """Cuts the history after the rows so far, which must have these metrics, or begins it."""
        history = self._workdir.history
        if rows and [*rows[-1].metrics] != [*metrics]:  # the workload of another version may have others
            began, now = (", ".join(names) or "none" for names in (rows[-1].metrics, metrics))
            raise InputError(
                f"{history} must have the metrics that the workload gives; it has {began}, and the workload {now}: "
                f"{OTHER_HISTORY}"
            )
        with storage(self._workdir.root):
            if rows:  # never written again: a power cut could take rows that a checkpoint counts on
                os.truncate(history, len(first_rows(history, len(rows))))
            else:
                write_history(history, [], metrics)
            self._sha256.update(history.read_bytes())
            for row in rows:
                self._tensorboard.row(row)

    def row(self, row: Epoch) -> None:
        """Appends a row to the history."""
        line = history_line(row)
        with storage(self._workdir.root):
            with self._workdir.history.open("r+", encoding="utf-8") as file:  # "a" would begin one where the folder has gone
                file.seek(0, os.SEEK_END)
                file.write(line)
            self._sha256.update(line.encode())
            self._tensorboard.row(row)

    def sha256(self) -> str:
        """Brings the history to the disk and returns its SHA-256, for a checkpoint, after which no event is written again."""
        with storage(self._workdir.root), self._workdir.history.open("rb") as file:
            os.fsync(file.fileno())
            self._tensorboard.flush()
        return self._sha256.hexdigest()

    def events(self, epoch: int, events: Events) -> None:
        """Writes a workload's events for TensorBoard."""
        with storage(self._workdir.root):
            self._tensorboard.events(epoch, events)

    def snapshot(self, epoch: int, val_loss: float, arrays: Mapping[str, np.ndarray]) -> None:
        """Writes the arrays of the shown validation samples."""
        with storage(self._workdir.root):
            path = self._workdir.snapshots / f"epoch_{epoch:06d}.npz"
            scalars = {"epoch": np.int64(epoch), "val_loss": np.float64(val_loss)}
            with whole_file(path) as part, part.open("wb") as file:
                np.savez_compressed(file, **scalars, **arrays)  # pyright: ignore[reportArgumentType]

    def record(self, record: Record) -> None:
        """Writes the record."""
        with storage(self._workdir.root):
            write_text(self._workdir.record, to_json(record))

    def end(self, record: Record) -> None:
        """Ends TensorBoard's file with the result."""
        with storage(self._workdir.root):
            self._tensorboard.result(record)
            self._tensorboard.close()
