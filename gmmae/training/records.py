"""A run's results for people and programs: `record.json` and `history.csv`."""

import csv
import io
import json
import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

from gmmae.config.schema import LOSS
from gmmae.system.json_files import checked


class Epoch(NamedTuple):
    """One row of `history.csv`: a validation, at the end of an epoch or inside it.

    Steps, samples and clocks are totals since the beginning of the run.
    """

    epoch: int  # counted from 1
    steps: int  # training steps
    samples: int  # training samples
    lr: float  # at the last step
    train_loss: float | None  # mean over the epoch's samples, each before its step's update; empty inside an epoch
    val_loss: float  # after these steps, every validation sample counted once
    compile_s: float  # seconds of compilation
    train_s: float  # seconds of training
    eval_s: float  # seconds of validation
    checkpoint_s: float  # seconds of writing checkpoints
    total_s: float  # seconds since the start, all parts together
    batch: int  # global batch
    metrics: Mapping[str, float] = {}  # the workload's own, after these steps; a column each, as val_NAME

    def value(self, metric: str) -> float:
        """The loss or a metric by name; NaN where there is none."""
        return self.validation.get(metric, math.nan)

    @property
    def validation(self) -> dict[str, float]:
        """The validation metrics by name, the loss first."""
        return {LOSS: self.val_loss, **self.metrics}


PLAIN = Epoch._fields[:-1]
"""The columns of every history."""


class Progress(NamedTuple):
    """How far a run is, for a checkpoint.

    Attributes:
      best_epoch: by the monitored metric; 0 where none was finite.
      rows: number of rows of `history.csv` so far.
      sha256: of the bytes of `history.csv` up to the last of them.
    """

    epoch: int
    best_epoch: int
    clocks: dict[str, float]
    rows: int
    sha256: str


@dataclass(frozen=True)
class Record:
    """One run. NaN and infinity are results; in JSON they are the strings "nan", "inf" and "-inf"."""

    run_id: str  # hash of what determines the run
    scaling: str  # the scaling strategy
    seed: int  # the random seed
    devices: int  # the number that the strategy reckons with
    processes: int  # that trained together
    device_kind: str  # name of the devices
    oversubscribed: bool  # several devices of one CPU share its cores: the times are no measure of scaling
    global_batch: int  # samples of a step, on all devices together
    device_batch: int  # samples of a step on one device
    padding: int  # empty slots of all devices in a full step
    steps_per_epoch: int  # training steps of an epoch
    learning_rate: float  # after any warmup, before any decay
    parameters: int  # of the model
    train_samples: int  # their number
    validation_samples: int  # their number
    target: float | None  # value of the metric to reach
    batch_size: int  # global batch of one device
    wanted_batch: int  # that the strategy asks for: more than `global_batch` where that is clipped to the training set
    monitor: str = LOSS  # the metric of the target and of the best epoch
    mode: str = "min"  # whether lower (min) or higher (max) values of that metric are better
    largest_batch: int = 0  # of a run whose batch grows, at most the training samples; 0 where it does not grow
    growth: list[list[int]] = field(default_factory=list)  # first epoch and global batch of each later stage that has begun
    local_steps: int = 0  # steps of a device between two averages of the states; 0: each step averages the gradient
    reduced_numbers: int = 0  # numbers that such an average is of; 0: an all-reduce is of the gradient
    virtual: bool = False  # fewer devices computed the batch of `devices`: the same losses, but the times are theirs
    stop_reason: str | None = None  # None while the run goes on
    epochs: int = 0  # finished epochs
    final_train_loss: float | None = None  # of the last epoch
    final_val_loss: float | None = None  # after the last epoch
    best_val_loss: float | None = None  # after the best epoch
    best_epoch: int | None = None  # by the metric
    best_metrics: dict[str, float] = field(default_factory=dict)  # the workload's own after that epoch
    final_metrics: dict[str, float] = field(default_factory=dict)  # the workload's own after the last epoch
    target_epoch: int | None = None  # with the first validation at the target; before `epochs` where that was raised since
    target_step: float | None = None  # where the metric crosses the target, linear between two validations
    time_to_target_s: float | None = None  # train_s + eval_s after that epoch; None unless the target was reached
    init_from: dict[str, Any] = field(default_factory=dict)  # whose parameters it began with: run, run_id, epoch, sha256
    data: dict[str, str] = field(default_factory=dict)  # hashes of data and workload; numbers of hashed and of seen samples
    clocks: dict[str, float] = field(default_factory=dict)  # seconds by section
    versions: dict[str, str] = field(default_factory=dict)  # of Python and the libraries
    git_commit: str | None = None  # of the code; None outside of a clone
    machine: str = ""  # the accelerator, or the processor and the cores that the first process may use
    schema_version: int = 1  # version of this format

    @property
    def seen_notes(self) -> list[str]:
        """A sentence if validation samples had been seen."""
        seen = self.data.get("seen validation samples")
        words = f"{seen} of {self.validation_samples} validation samples had been trained on before the run (data.allow_seen)"
        return [words] if seen else []

    @property
    def reached(self) -> bool:
        """Whether the run reached its target."""
        return self.target_epoch is not None

    @property
    def final_value(self) -> float | None:
        """The metric after the last epoch."""
        return self.final_val_loss if self.monitor == LOSS else self.final_metrics.get(self.monitor)

    @property
    def best_value(self) -> float | None:
        """The metric after the best epoch."""
        return self.best_val_loss if self.monitor == LOSS else self.best_metrics.get(self.monitor)

    @property
    def stages(self) -> list[list[int]]:
        """The first epoch and the global batch of each stage."""
        return [[1, self.global_batch], *self.growth]

    def epochs_by_stage(self, epochs: int) -> list[int]:
        """How many of a run's first epochs belong to each stage."""
        firsts = [first for first, _ in self.stages]
        return [max(min(end, epochs + 1) - first, 0) for first, end in zip(firsts, [*firsts[1:], epochs + 1], strict=True)]

    @property
    def steps(self) -> int:
        """The steps of all epochs so far."""
        of_stages = zip(self.stages, self.epochs_by_stage(self.epochs), strict=True)
        return sum(epochs * math.ceil(self.train_samples / batch) for (_, batch), epochs in of_stages)

    @property
    def batch_text(self) -> str:
        """The global batches, with an arrow between the stages."""
        return " → ".join(str(batch) for _, batch in self.stages)

    @property
    def clipped(self) -> bool:
        """Whether the strategy asks for a larger batch than it gets."""
        return self.wanted_batch > max(self.global_batch, self.largest_batch)


def to_json(record: Record) -> str:
    """The record as strict JSON."""
    return json.dumps(plain(record), indent=2, allow_nan=False) + "\n"


def plain(record: Record) -> dict[str, Any]:
    """The record as a dictionary of values that strict JSON has."""
    return json.loads(json.dumps(asdict(record)), parse_constant=lambda constant: str(float(constant)))


def from_plain(data: dict[str, Any]) -> Record:
    """Inverts `plain`, without keys of newer schema versions; a missing field or another type is a ValueError."""
    known = {item.name: data[item.name] for item in fields(Record) if item.name in data}
    results = [key for key in known if key.endswith(("_loss", "_metrics"))]
    return checked(Record, known | {key: _number(known[key]) for key in results}, any_number=results)


def _number(value: object) -> object:
    if isinstance(value, dict):
        return {key: _number(entry) for key, entry in value.items()}
    return float(value) if isinstance(value, str) else value


def read_history(path: Path, most: int = sys.maxsize) -> list[Epoch]:
    """The first rows of a `history.csv`, by default all, but for a last one without an end of line, which was never finished.

    Raises:
      OSError: it cannot be read.
      ValueError, TypeError, KeyError: it has another form.
    """
    text = first_rows(path, most).decode()
    text = text[: text.rfind("\n") + 1]
    return parse_history(text) if text else []


def parse_history(text: str) -> list[Epoch]:
    """The rows of a `history.csv` of this text; raises as `read_history`."""
    rows, reader = [], csv.DictReader(io.StringIO(text))
    names = tuple(reader.fieldnames or ())
    if names[: len(PLAIN)] != PLAIN or not all(name.startswith("val_") for name in names[len(PLAIN) :]):
        raise ValueError(f"the columns {', '.join(names)}")
    for row in reader:
        values: dict[str, Any] = {}
        for key in PLAIN:
            kind = Epoch.__annotations__[key]
            values[key] = None if kind == float | None and not row[key] else (int if kind is int else float)(row[key])
        if None in row:
            raise ValueError("a row of more cells than columns")
        rows.append(Epoch(**values, metrics={key.removeprefix("val_"): float(row[key]) for key in row if key not in PLAIN}))
    return rows


def epoch_ends(rows: Iterable[Epoch]) -> list[Epoch]:
    """The rows at the ends of epochs."""
    return [row for row in rows if row.train_loss is not None]


def first_rows(path: Path, count: int) -> bytes:
    """The bytes of a `history.csv`'s header and first rows."""
    return b"".join(path.read_bytes().splitlines(keepends=True)[: count + 1])
