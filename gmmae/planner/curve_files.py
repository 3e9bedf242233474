"""Loss curves of runs that any program made, from the logs that it writes.

`_table` and `_events` bring each form of a log to rows of named values; `NAMES` and `_losses` know the names of columns.
docs/curves.md has a table of them.

Event files are read with tensorboardX's message types: `tensorboard` needs grpc and a web server.
"""

import csv
import io
import json
import math
import re
import struct
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gmmae.system.errors import InputError
from gmmae.training.workdir import WorkDir

EVENTS = "*tfevents*"

LOGS = ("history.csv", EVENTS, "metrics.csv", "training_log_*.txt", "trainer_state.json", "*.csv", "*.log")
"""Names in a folder. The first of these that is there is read."""

EPOCHS = ("epoch", "epochs")

NAMES = {
    "step": ("step", "global_step", "trainer/global_step", "train/global_step", "_step", "steps", *EPOCHS),
    "batch": ("batch", "batch_size", "train_batch_size"),
    "clock": ("_runtime", "train_runtime", "wall time"),
}
"""What programs call a column, whatever its case. The first one that is there is read."""

RATE = re.compile("(train/)?(learning_rate|lr)|lr-.*", re.IGNORECASE)
"""Lightning adds the optimiser's name, and that of a group of parameters."""

VALIDATION = {"val", "valid", "validation", "eval", "evaluation", "dev"}
"""Words in the name of a loss that is preferred."""

EMPTY = ("", "NA", None)  # NA is Keras' word

NNUNET_EPOCH = re.compile(
    r": Epoch (\d+)\s.*?(?:: Current learning rate: (\S+).*?)?: train_loss (\S+).*?: val_loss (\S+)"
    r".*?(?:: Pseudo dice \[(.*?)\].*?)?: Epoch time: (\S+)",
    re.DOTALL,
)

ROUNDED = 1e-3
"""Relative error of what a log of Hugging Face rounds."""

SAME_RATE = 0.1
"""A schedule has begun to fall when a log has its first rate."""

NNUNET_STEPS = 250
"""Of an epoch, whatever its batch and number of cases."""

Rows = list[tuple[int, dict[Any, Any]]]
"""Lines with their values by name."""


class Columns(NamedTuple):
    """Names of columns, or of TensorBoard's scalars; None is the usual name in that kind of file."""

    step: str | None = None
    loss: str | None = None
    batch: str | None = None
    learning_rate: str | None = None
    clock: str | None = None  # seconds since any moment


class Curve(NamedTuple):
    """The loss of one run, or another metric, at increasing steps."""

    name: str  # the path as it was given
    batch: int  # global
    steps: tuple[float, ...]
    values: tuple[float, ...]  # finite
    learning_rate: float | None = None  # the largest in the run; None if it is not known
    has_schedule: bool = False  # the learning rate falls to less than half
    metric: str = "loss"
    step_s: float | None = None  # seconds of a step by the log's clock; None without one


class Log(NamedTuple):
    """What a program wrote of a run, and where its curve is in that."""

    name: str
    names: list[str]  # of columns
    rows: Rows
    columns: Columns
    in_epochs: bool  # whether the column of the step counts epochs
    metric: str


def read_curves(
    paths: Sequence[Path],
    columns: Columns,
    batches: Sequence[int] = (),
    samples: int | None = None,
    different_rates: bool = False,
) -> list[Curve]:
    """Reads curves, of one learning rate unless `different_rates`. Without `batches`, one for each curve, a column has them.

    The number of training samples turns epochs into steps, where a log counts epochs only.
    """
    places = [path.resolve() for path in paths]
    if double := next((path for i, path in enumerate(paths) if places[i] in places[:i]), None):
        raise InputError(f"--curves must be different files; got {double} twice")
    logs = [log for path in paths for log in _logs(path, columns)]
    if len(logs) < 2:
        raise InputError(f"--curves must be two or more, at different batches; got {len(logs)}: add a run at another batch")
    if batches and len(batches) != len(logs):
        order = "; ".join(log.name for log in logs)
        raise InputError(
            f"--batches must be one for each of the {len(logs)} curves, in their order; got {len(batches)} for {order}"
        )
    if log := next((log for log in logs if samples is None and log.in_epochs), None):
        raise InputError(
            f"--step-column must count steps of the optimiser, which the law needs; got {log.columns.step!r} in {log.name}: "
            "give --samples, of which an epoch has ceil(samples / batch) steps, or add a column of steps"
        )
    if len({log.metric for log in logs}) > 1:
        there = ", ".join(f"{log.metric!r} in {log.name}" for log in logs)
        raise InputError(f"curves must be of one metric; got {there}: set --loss-column")
    curves = [_curve(log, batch, samples) for log, batch in zip(logs, batches or [None] * len(logs), strict=True)]
    rates = [curve for curve in curves if curve.learning_rate is not None and not different_rates]
    for curve in rates:
        if not math.isclose(curve.learning_rate or 0, rates[0].learning_rate or 0, rel_tol=SAME_RATE):
            raise InputError(
                f"curves must have one learning rate, because it changes the steps; got {rates[0].learning_rate:g} in "
                f"{rates[0].name} and {curve.learning_rate:g} in {curve.name}: train one of these batches at the other's rate, "
                "or give --different-rates, to plan batch and rate together"
            )
    return curves


def _logs(path: Path, columns: Columns) -> list[Log]:
    is_run = WorkDir(path).history.is_file()
    files = next((found for name in LOGS if (found := sorted(path.glob(name)))), []) if path.is_dir() else [path]
    if files and files[0].match(EVENTS) and path.suffix != ".csv":
        if columns.step:
            raise InputError(f"--step-column must be left out for event folders, whose events have steps; got {columns.step!r}")
        names, rows = _named(_events(files))
    elif len(files) == 1:
        names, rows = _table(files[0])
    else:
        raise InputError(f"a curve's folder must hold one log, {' or '.join(LOGS)}; got {len(files)} in {path}: name the file")
    usual = Columns(
        learning_rate=next((name for name in names if RATE.fullmatch(_metric(name))), None),
        **{
            kind: next((name for word in words for name in names if name.casefold() == word), words[0])
            for kind, words in NAMES.items()
        },
    )
    loss = f"val_{columns.loss}" if is_run and f"val_{columns.loss}" in names else columns.loss
    losses = [name for name in names if loss in (name, _metric(name))] or [loss] if loss else _losses(path, names)
    columns = Columns(*(given or name for given, name in zip(columns, usual, strict=True)))
    # Hugging Face and Keras, which count epochs, call that of training so.
    of_training = "training loss" if "train_batch_size" in names or columns.step in EPOCHS else "loss"
    return [
        Log(
            str(path) if len(losses) == 1 else f"{path}, {one}",
            names,
            rows,
            columns._replace(loss=one),
            (columns.step or "").casefold() in EPOCHS,
            columns.loss or ("loss" if is_run else of_training if one == "loss" else _metric(one)),
        )
        for one in losses
    ]


def _metric(name: str) -> str:
    """A column without the run, which W&B's exports put before it."""
    return name.rpartition(" - ")[2]


def _losses(path: Path, names: Sequence[str]) -> list[str]:
    """The column of the validation loss, or else of another one: that of the fewest words, and not of single steps.

    Keras' `epoch_loss` is at epochs; what counts steps has another name.
    """
    words = {name: re.findall("[a-z0-9]+", _metric(name).casefold()) for name in names}
    ranks = {
        name: (VALIDATION.isdisjoint(some), "step" in some, len(some))
        for name, some in words.items()
        if "loss" in some and some[0] != "epoch"
    }
    losses = [name for name, rank in ranks.items() if rank == min(ranks.values())]
    if len({_metric(name) for name in losses}) > 1:
        raise InputError(f"{path} must have one loss to read; it has {', '.join(map(repr, losses))}: set --loss-column")
    if not (losses := losses or [name for name in names if name.casefold() == "value"]):
        there = ", ".join(map(repr, names))
        raise InputError(
            f"{path} must have a column of a loss; it has {there}: set --loss-column, or mend the line of the names"
        )
    return losses


def _curve(log: Log, batch: int | None, samples: int | None) -> Curve:
    """Steps and losses are those of rows with a loss. The batch and the learning rate may be in others."""
    path, columns = log.name, log.columns._replace(batch=None) if batch else log.columns
    options = ("--step-column", "--loss-column", "--batch-column", "--learning-rate-column")
    for option, name in zip(options, columns, strict=False):
        if name is not None and log.names.count(name) != 1:
            way = f"set {option}{', or give --batches' * (option == '--batch-column')}, or mend the line of the names"
            there = ", ".join(map(repr, log.names))
            raise InputError(f"{path} must have one column {name!r}; it has {log.names.count(name)} in {there}: {way}")
    series = [_numbers(log, columns.step, columns.loss), *(_numbers(log, name, name) for name in columns[1:4])]
    steps, values, batches, rates = series
    for name, numbers in zip(("steps", "losses", "batches", "learning rates"), series, strict=True):
        if (bad := next((value for value in numbers if not math.isfinite(value)), None)) is not None:
            raise InputError(f"the {name} of {path} must be finite; got {bad}: remove the rows without a finite number")
    if not steps:
        raise InputError(f"{path} must have a loss in one row at least; all are empty: set --loss-column")
    pairs = dict.fromkeys(zip(steps, values, strict=True))  # an evaluation after the training repeats the last one
    steps, values = zip(*pairs, strict=True)
    for before, after in zip((-1e-9, *steps), steps, strict=False):
        if after <= before:
            raise InputError(
                f"the steps of {path} must increase from 0 on; got {after:g} after {max(before, 0):g}: give one run in a file, "
                "and of a resumed one only the rows that count"
            )
    sizes = [batch] if batch else sorted(set(batches))
    if len(sizes) != 1 or not (sizes[0] >= 1 and sizes[0] == int(sizes[0])):
        several = ", ".join(f"{size:g}" for size in sizes[:5]) or "none"
        raise InputError(
            f"a curve must have one batch, a whole number of at least 1; got {several} in {path}: give a file for each, or "
            "--batches"
        )
    step_s = _step_s(log)
    if log.in_epochs:
        steps, step_s = _in_steps(log, steps, math.ceil((samples or 0) / sizes[0])), None
    return Curve(path, int(sizes[0]), tuple(steps), values, *_rate(log, rates), log.metric, step_s)


def _in_steps(log: Log, epochs: Sequence[float], an_epoch: int) -> list[float]:
    first = _numbers(log, log.columns.step, log.columns.step)[0]
    if first > 1:
        raise InputError(
            f"the epochs of {log.name} must be counted from 0 or 1; got {first:g} in its first row: put the rows before it "
            "back, or add a column of steps"
        )
    return [an_epoch * (epoch + (first == 0)) for epoch in epochs]


def _rate(log: Log, rates: Sequence[float]) -> tuple[float | None, bool]:
    """The largest learning rate, and whether it falls to less than half.

    One that has begun to fall in its first row, and not by a jump, is followed back to the first step.
    """
    rate = max(rates, default=None)
    if rate is None or min(rates[rates.index(rate) :]) >= rate / 2:
        return rate, False
    steps = _numbers(log, log.columns.step, log.columns.learning_rate, log.columns.step)
    if rate == rates[0] > rates[1] > rate / 2 and len(steps) == len(rates) and steps[1] > steps[0]:
        rate += (rate - rates[1]) * steps[0] / (steps[1] - steps[0])
    return rate, True


def _step_s(log: Log) -> float | None:
    """The lower quartile over pairs of successive rows with a time, the least of several kinds of rows.

    Some pairs have a validation between them.
    """
    names, kinds = (log.columns.step, log.columns.clock), defaultdict(list)
    for line, row in log.rows:
        kinds[frozenset(name for name, cell in row.items() if cell not in EMPTY)].append((line, row))
    several = [_pairs_s(log._replace(rows=rows), *names) for rows in kinds.values()]
    usual = [seconds for seconds in several if len(seconds) > 1] or [_pairs_s(log, *names)]
    return min((float(np.quantile(seconds, 0.25)) for seconds in usual if seconds), default=None)


def _pairs_s(log: Log, *names: str | None) -> list[float]:
    pairs = pairwise(zip(*(_numbers(log, name, *names) for name in names), strict=True))
    return [(time - earlier) / (step - last) for (last, earlier), (step, time) in pairs if step > last and time > earlier]


def _numbers(log: Log, name: str | None, *needed: str | None) -> list[float]:
    numbers = []
    for line, row in log.rows:
        try:
            numbers += [float(row[name])] if all(row.get(one) not in EMPTY for one in needed) else []
        except (TypeError, ValueError, KeyError):
            raise InputError(
                f"{log.name}, line {line}: {name} must be a number; got {row.get(name)!r}: write decimals with a point and "
                "no unit, or remove the row"
            ) from None
    return numbers


def _named(rows: Sequence[dict[str, Any]]) -> tuple[list[str], Rows]:
    return list(dict.fromkeys(name for row in rows for name in row)), list(enumerate(rows, start=1))


def _table(path: Path) -> tuple[list[str], Rows]:
    """A row whose loss is empty has none, as where training and validation share a file."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        if text.lstrip().startswith("{"):
            return _named(_trainer_state(json.loads(text)))
        if ": Epoch time: " in text and (found := NNUNET_EPOCH.findall(text)):
            batch = re.search(r"'batch_size': (\d+)", text)
            epochs = {int(epoch): values for epoch, *values in found}  # a continued run repeats some
            times = accumulate(float(seconds) for *_, seconds in epochs.values())
            rates = [{"step": NNUNET_STEPS * epoch, "learning_rate": rate} for epoch, (rate, *_) in epochs.items()]
            rows = [
                {
                    "step": NNUNET_STEPS * (epoch + 1),
                    "train_loss": train,
                    "val_loss": validation,
                    "Pseudo dice": np.nanmean([float(x) for x in re.findall(r"\d*\.\d+|nan", dice)]) if dice else "",
                    "_runtime": time,
                }
                for (epoch, (_, train, validation, dice, _)), time in zip(epochs.items(), times, strict=True)
            ]
            return _named([{"batch": batch and batch[1]}, *rates, *rows])
        delimiter = max(",;\t", key=text.partition("\n")[0].count)
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
        lines = [(reader.line_num, row) for row in reader if any(map(str.strip, row))]
    except (OSError, ValueError, LookupError, TypeError, ArithmeticError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        reason += ": save it as UTF-8" * isinstance(error, UnicodeDecodeError)
        raise InputError(
            f"a curve must be a CSV file, an event folder or another log of docs/curves.md; got {path} ({reason})"
        ) from error
    if len(lines) < 2:
        raise InputError(f"{path} must have a header and a row for each validation; got {len(lines)} lines")
    names = [name.strip() for name in lines.pop(0)[1]]
    return names, [
        (line, dict(zip(names, [cell.strip() for cell in row] + [""] * len(names), strict=False))) for line, row in lines
    ]


def _trainer_state(state: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of a Hugging Face trainer, after one with its batch.

    Its `train_batch_size` is of one process and without accumulated gradients. Only the throughput at the end says how many of
    these are in a step, and not in an epoch of few. The time of a step of several is unknown.
    """
    rows, batch, parts, seconds = state["log_history"], state.get("train_batch_size"), 0, 0.0
    place, end = next(((i, row) for i, row in enumerate(rows) if "train_samples_per_second" in row), (0, {}))
    if end and batch:
        size = end["train_samples_per_second"] * end["train_runtime"] / state["max_steps"] / batch
        an_epoch = state["max_steps"] / state.get("num_train_epochs", 1)
        least, most = size * an_epoch / (an_epoch + 1), size * an_epoch / max(an_epoch - 1, 1e-6)
        fits = range(max(1, math.ceil(least * (1 - ROUNDED))), math.floor(most * (1 + ROUNDED)) + 1)
        parts = fits[0] if len(fits) == 1 else 0
        # A resumed run has the time of its last part only, and sometimes that is less than all validations took.
        seconds = end["train_runtime"] - sum(row.get("eval_runtime", 0) for row in rows[:place])
    times = {"train_runtime": seconds} if parts == 1 and seconds > 0 else {}
    rows = [
        {name: value for name, value in row.items() if name != "train_runtime"} | (times if row is end else {}) for row in rows
    ]
    return [{"step": 0, "train_batch_size": parts * batch if parts and batch else None, "train_runtime": 0}, *rows]


def _events(files: Sequence[Path]) -> list[dict[str, Any]]:
    """The scalars of event files, which are named by time.

    Those of a later file replace earlier ones from its first step on, as in TensorBoard.
    """
    series: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for file in files:
        found: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for tag, step, value, time in _scalars(file):
            found[tag].append({tag: value, "step": step, "wall time": time})
        for tag, events in found.items():
            series[tag] = [event for event in series[tag] if event["step"] < events[0]["step"]] + events
    return [event for events in series.values() for event in events]


def _scalars(file: Path) -> Iterator[tuple[str, int, float, float]]:
    """Yields tag, step, value and time of the scalars of an event file, which TensorFlow 2 writes as tensors.

    A record is its length in 8 bytes, that one's checksum in 4, an `Event`, and its checksum in 4. The last may be cut short.
    """
    from google.protobuf.message import DecodeError

    from gmmae.system.tensorboardx import Event, masked_crc32c

    try:
        data, place = file.read_bytes(), 0
        while place + 12 <= len(data):
            length, checksum = struct.unpack_from("<QI", data, place)
            if masked_crc32c(data[place : place + 8]) != checksum:
                raise ValueError("a record with a wrong checksum")
            begin, place = place + 12, place + 16 + length
            event = Event.FromString(data[begin : place - 4]) if place <= len(data) else Event()
            for value in event.summary.value:
                kind, tensor = value.WhichOneof("value"), value.tensor
                numbers = [value.simple_value] if kind == "simple_value" else [*tensor.float_val, *tensor.double_val]
                if kind == "tensor" and tensor.dtype in (1, 2):  # TensorFlow's numbers of float and double
                    numbers += np.frombuffer(tensor.tensor_content, "<f4" if tensor.dtype == 1 else "<f8").tolist()
                if len(numbers) == 1:
                    yield value.tag, int(event.step), float(numbers[0]), event.wall_time
    except (OSError, ValueError, DecodeError) as error:
        raise InputError(f"{file} must be a readable event file of TensorBoard; got {error}: export a CSV") from error
