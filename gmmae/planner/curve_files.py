"""Loss curves of runs that any program made: CSV files, event folders of TensorBoard, and work directories of gmmae.

Event files are read with tensorboardX's message types, because the reader of `tensorboard` needs grpc and a web server.
"""

import csv
import io
import math
import struct
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gmmae.system.errors import InputError
from gmmae.training.workdir import WorkDir

EVENTS = "*tfevents*"


class Columns(NamedTuple):
    """Names of columns, or of TensorBoard's scalars; None is the usual name in that kind of file."""

    step: str | None = None
    loss: str | None = None
    batch: str | None = None
    learning_rate: str | None = None


class Curve(NamedTuple):
    """The loss of one run, or another metric, at increasing steps."""

    name: str  # the path as it was given
    batch: int  # global
    steps: tuple[float, ...]
    values: tuple[float, ...]  # finite
    learning_rate: float | None = None  # the largest in the run; None if it is not known


def read_curves(paths: Sequence[Path], columns: Columns, batches: Sequence[int] = ()) -> list[Curve]:
    """Reads curves of one learning rate. Without `batches`, one for each path, a column has them."""
    if len(paths) < 2:
        raise InputError(f"--curves must be two or more, at different batches; got {len(paths)}: add a run at another batch")
    if batches and len(batches) != len(paths):
        raise InputError(f"--batches must be one for each of the {len(paths)} curves, in their order; got {len(batches)}")
    places = [path.resolve() for path in paths]
    if double := next((path for i, path in enumerate(paths) if places[i] in places[:i]), None):
        raise InputError(f"--curves must be different files; got {double} twice")
    curves = [_read(path, columns, batch) for path, batch in zip(paths, batches or [None] * len(paths), strict=True)]
    rates = [curve for curve in curves if curve.learning_rate is not None]
    for curve in rates:
        if not math.isclose(curve.learning_rate or 0, rates[0].learning_rate or 0, rel_tol=1e-6):
            raise InputError(
                f"curves must have one learning rate, because it changes the steps; got {rates[0].learning_rate:g} in "
                f"{rates[0].name} and {curve.learning_rate:g} in {curve.name}: plan each rate alone"
            )
    return curves


def _read(path: Path, columns: Columns, batch: int | None) -> Curve:
    read = _events if path.is_dir() and not WorkDir(path).history.is_file() else _csv
    series = read(path, columns, batch)
    steps, values, batches, rates = series
    for name, numbers in zip(("steps", "losses", "batches", "learning rates"), series, strict=True):
        if (bad := next((value for value in numbers if not math.isfinite(value)), None)) is not None:
            raise InputError(f"the {name} of {path} must be finite; got {bad}: remove the rows without a finite number")
    if not steps:
        raise InputError(f"{path} must have a loss in one row at least; all are empty: set --loss-column")
    for before, after in zip((-1e-9, *steps), steps, strict=False):
        if after <= before:
            raise InputError(
                f"the steps of {path} must increase from 0 on; got {after:g} after {max(before, 0):g}: give one run in a file"
            )
    sizes = [batch] if batch else sorted(set(batches))
    if len(sizes) != 1 or not (sizes[0] >= 1 and sizes[0] == int(sizes[0])):
        several = ", ".join(f"{size:g}" for size in sizes[:5])
        raise InputError(
            f"a curve must have one batch, a whole number of at least 1; got {several} in {path}: give a file for each, or "
            "--batches"
        )
    return Curve(str(path), int(sizes[0]), tuple(steps), tuple(values), max(rates, default=None))


def _csv(path: Path, columns: Columns, batch: int | None) -> list[list[float]]:
    """Reads a CSV file, or the history of a work directory, whose metrics have the prefix `val_`.

    A row whose loss is empty has none, as where training and validation share a file.
    """
    if (columns.step or "").casefold() in ("epoch", "epochs"):
        raise InputError(
            f"--step-column must count steps of the optimiser, which the law needs; got {columns.step!r}: add a column of steps"
        )
    if is_run := path.is_dir():
        path = WorkDir(path).history
        columns = columns._replace(step=columns.step or "steps", learning_rate=columns.learning_rate or "lr")
    try:
        text = path.read_text(encoding="utf-8-sig")
        delimiter = max(",;\t", key=text.partition("\n")[0].count)
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
        rows = [(reader.line_num, row) for row in reader if any(map(str.strip, row))]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        reason += ": save it as UTF-8" * isinstance(error, UnicodeDecodeError)
        raise InputError(f"a curve must be a CSV file, an event folder or a work directory; got {path} ({reason})") from error
    if len(rows) < 2:
        raise InputError(f"{path} must have a header and a row for each validation; got {len(rows)} lines")
    names = [name.strip() for name in rows.pop(0)[1]]
    loss = columns.loss or "loss"
    wanted = {
        "--step-column": columns.step or "step",
        "--loss-column": f"val_{loss}" if is_run and f"val_{loss}" in names else loss,
        "--batch-column": None if batch else columns.batch or "batch",
        "--learning-rate-column": columns.learning_rate,
    }
    for option, name in wanted.items():
        if name is not None and names.count(name) != 1:
            way = f"set {option}{', or give --batches' * (option == '--batch-column')}, or mend the line of the names"
            there = ", ".join(map(repr, names))
            raise InputError(f"{path} must have one column {name!r}; it has {names.count(name)} in {there}: {way}")
    series: list[list[float]] = [[], [], [], []]
    for line, row in rows:
        cells = dict(zip(names, [cell.strip() for cell in row] + [""] * len(names), strict=False))
        for name, numbers in zip(wanted.values(), series, strict=True) if cells[wanted["--loss-column"] or ""] else ():
            try:
                numbers += [] if name is None else [float(cells[name])]
            except ValueError:
                raise InputError(
                    f"{path}, line {line}: {name} must be a number; got {cells[name or '']!r}: write decimals with a point and "
                    "no unit, or remove the row"
                ) from None
    return series


def _events(path: Path, columns: Columns, batch: int | None) -> list[list[float]]:
    """Reads scalars of an event folder, whose files are named by time.

    Events of a later file replace those of earlier files from its first step on, as in TensorBoard after a run is resumed.
    """
    if columns.step:
        raise InputError(f"--step-column must be left out for event folders, whose events have steps; got {columns.step!r}")
    if not batch and not columns.batch:
        raise InputError(f"the batch of {path} must be given: set --batches, or --batch-column to a scalar of the folder")
    series: dict[str, list[tuple[int, float]]] = defaultdict(list)
    files = sorted(path.glob(EVENTS))
    if not files:
        raise InputError(f"a curve's folder must hold TensorBoard's event files ({EVENTS}); got {path} without one")
    for file in files:
        found: dict[str, list[tuple[int, float]]] = defaultdict(list)
        for tag, step, value in _scalars(file):
            found[tag].append((step, value))
        for tag, events in found.items():
            series[tag] = [event for event in series[tag] if event[0] < events[0][0]] + events
    tags = (columns.loss or "loss", None if batch else columns.batch, columns.learning_rate)
    if missing := [tag for tag in tags if tag is not None and tag not in series]:
        raise InputError(f"{path} must hold the scalar {missing[0]!r}; it has {', '.join(sorted(series)) or 'none'}")
    values = [[value for _, value in series[tag]] if tag else [] for tag in tags]
    return [[float(step) for step, _ in series[tags[0] or ""]], *values]


def _scalars(file: Path) -> Iterator[tuple[str, int, float]]:
    """Yields tag, step and value of the scalars of an event file, which TensorFlow 2 writes as tensors.

    A record is its length in 8 bytes, the checksum of that in 4, an `Event`, and 4 bytes of checksum. A killed process leaves a
    part of one at the end.
    """
    from google.protobuf.message import DecodeError
    from tensorboardX.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue] made at run time
    from tensorboardX.record_writer import masked_crc32c

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
                    yield value.tag, int(event.step), float(numbers[0])
    except (OSError, ValueError, DecodeError) as error:
        raise InputError(f"{file} must be a readable event file of TensorBoard; got {error}: export a CSV") from error
