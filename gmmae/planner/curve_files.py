"""Loss curves of runs that any program made: CSV files, event folders of TensorBoard, and work directories of gmmae."""

import csv
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from gmmae.planner import event_files
from gmmae.system.errors import InputError
from gmmae.training.workdir import WorkDir

DELIMITERS = ",;\t"
"""The delimiters of a CSV file. The most frequent one in the header is taken."""


class Columns(NamedTuple):
    """Names of columns, or of TensorBoard's scalars. None is the name that the kind of file has by itself."""

    step: str | None = None
    loss: str | None = None
    batch: str | None = None
    learning_rate: str | None = None


class Curve(NamedTuple):
    """The loss of one run, or another metric, at increasing steps."""

    name: str  # the path as it was given
    batch: int  # samples of a step, of all devices together
    steps: tuple[float, ...]
    values: tuple[float, ...]  # finite
    learning_rate: float | None = None  # the largest in the run; None if it is not known


class Series(NamedTuple):
    """The columns of a file, each as long as `steps`. An absent column is empty."""

    steps: tuple[float, ...]
    values: tuple[float, ...]
    batches: tuple[float, ...]
    rates: tuple[float, ...]


def read_curves(paths: Sequence[Path], columns: Columns, batches: Sequence[int] = ()) -> list[Curve]:
    """Reads curves.

    Args:
      paths: CSV files and folders.
      columns: names of columns. Each kind of file has its own defaults.
      batches: the batch of each path. Without them it is a column.

    Raises:
      InputError: a path cannot be read as a curve; the message names it.
    """
    if len(paths) < 2:
        raise InputError(f"--curves must be two or more, at different batches; got {len(paths)}: add a run at another batch")
    if batches and len(batches) != len(paths):
        raise InputError(f"--batches must be one for each of the {len(paths)} curves, in their order; got {len(batches)}")
    places = [path.resolve() for path in paths]
    if double := next((path for i, path in enumerate(paths) if places[i] in places[:i]), None):
        raise InputError(f"--curves must be different files; got {double} twice")
    given = list(batches) or [None] * len(paths)
    return [read_curve(path, columns, batch) for path, batch in zip(paths, given, strict=True)]


def read_curve(path: Path, columns: Columns, batch: int | None = None) -> Curve:
    """Reads one curve. Raises as `read_curves`."""
    if path.is_dir():
        read = _workdir_series if WorkDir(path).history.is_file() else _event_series
        series = read(path, columns, batch)
    else:
        own = Columns(columns.step or "step", columns.loss or "loss", columns.batch or "batch", columns.learning_rate)
        series = _csv_series(path, own, batch)
    _check(path, series)
    return Curve(
        name=str(path),
        batch=batch or _single_batch(path, series.batches),
        steps=series.steps,
        values=series.values,
        learning_rate=max(series.rates, default=None),
    )


def _workdir_series(path: Path, columns: Columns, batch: int | None) -> Series:
    """Reads the history of a work directory of gmmae, whose metrics are columns with the prefix `val_`."""
    history = WorkDir(path).history
    names = _rows(history)[0]
    loss = columns.loss or "val_loss"
    loss = f"val_{loss}" if loss not in names and f"val_{loss}" in names else loss
    rate = columns.learning_rate or "lr" * ("lr" in names) or None
    return _csv_series(history, Columns(columns.step or "steps", loss, columns.batch or "batch", rate), batch)


def _csv_series(path: Path, columns: Columns, batch: int | None) -> Series:
    """Reads a CSV file with a header. A row whose loss is empty has none, as where training and validation share a file."""
    if (columns.step or "").casefold() in ("epoch", "epochs"):
        raise InputError(
            f"--step-column must count steps of the optimiser, which the law needs; got {columns.step!r}: add a column of steps"
        )
    names, rows = _rows(path)
    wanted = {
        "--step-column": columns.step,
        "--loss-column": columns.loss,
        "--batch-column": None if batch else columns.batch,
        "--learning-rate-column": columns.learning_rate,
    }
    for option, name in wanted.items():
        if name is not None and name not in names:
            ways = f"{option}{', or give --batches' * (option == '--batch-column')}"
            if names[0].startswith("#"):
                ways += ", or remove the lines above the header"
            raise InputError(f"{path} must have a column {name!r}; it has {', '.join(map(repr, names))}: set {ways}")
        if name is not None and (count := names.count(name)) > 1:
            raise InputError(f"{path} must have one column {name!r}; it has {count}: rename one, or set {option}")
    place = {option: names.index(name) for option, name in wanted.items() if name is not None}
    kept = [(line, row) for line, row in rows if len(row) > place["--loss-column"] and row[place["--loss-column"]].strip()]

    def numbers(option: str) -> tuple[float, ...]:
        if option not in place:
            return ()
        return tuple(_cell(path, line, names[place[option]], row, place[option]) for line, row in kept)

    return Series(*map(numbers, wanted))


def _rows(path: Path) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """Returns the names of the columns, and the rows that are not empty with their line numbers."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        header = text.partition("\n")[0]
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=max(DELIMITERS, key=header.count), strict=True)
        rows = [(reader.line_num, row) for row in reader if any(map(str.strip, row))]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        reason += ": save it as UTF-8" * isinstance(error, UnicodeDecodeError)
        raise InputError(f"a curve must be a CSV file, an event folder or a work directory; got {path} ({reason})") from error
    if len(rows) < 2:
        raise InputError(f"{path} must have a header and a row for each validation; got {len(rows)} line{'s' * (not rows)}")
    return [name.strip() for name in rows[0][1]], rows[1:]


def _cell(path: Path, line: int, name: str, row: Sequence[str], place: int) -> float:
    text = row[place].strip() if place < len(row) else ""
    try:
        return float(text)
    except ValueError:
        way = "write decimals with a point, and no unit" if text else "fill it in, or remove the row"
        raise InputError(f"{path}, line {line}: {name} must be a number; got {text!r}: {way}") from None


def _event_series(path: Path, columns: Columns, batch: int | None) -> Series:
    """Reads scalars of an event folder. A scalar of the batch or of the learning rate has one event or more."""
    if columns.step:
        raise InputError(f"--step-column must be left out for event folders, whose events have steps; got {columns.step!r}")
    tags = {"loss": columns.loss or "loss", "batch": None if batch else columns.batch, "rate": columns.learning_rate}
    if not batch and not columns.batch:
        raise InputError(f"the batch of {path} must be given: set --batches, or --batch-column to a scalar of the folder")
    scalars = event_files.read_scalars(path, tuple(filter(None, tags.values())))

    def values(key: str) -> tuple[float, ...]:
        return tuple(value for _, value in scalars.get(tags[key] or "", ()))

    steps = tuple(float(step) for step, _ in scalars[tags["loss"] or ""])
    return Series(steps, values("loss"), values("batch"), values("rate"))


def _check(path: Path, series: Series) -> None:
    for name, values in (("steps", series.steps), ("losses", series.values), ("learning rates", series.rates)):
        bad = [place for place, value in enumerate(values) if not math.isfinite(value)]
        if bad:
            way = f"remove the {'rows from there on' if bad[-1] == len(values) - 1 else 'rows without a finite number'}"
            raise InputError(f"the {name} of {path} must be finite; got {values[bad[0]]}: {way}")
    if not series.steps:
        raise InputError(f"{path} must have a loss in one row at least; all are empty: set --loss-column")
    if series.steps[0] < 0:
        raise InputError(f"the steps of {path} must be at least 0; got {series.steps[0]:g}")
    for before, after in zip(series.steps, series.steps[1:], strict=False):
        if after <= before:
            raise InputError(f"the steps of {path} must increase; got {after:g} after {before:g}: give one run in a file")


def _single_batch(path: Path, batches: Sequence[float]) -> int:
    values = sorted(set(batches))
    if len(values) != 1:
        several = ", ".join(f"{value:g}" for value in values[:5])
        raise InputError(f"a curve must have one batch; got {several} in {path}: give a file for each, or --batches")
    if not (values[0] >= 1 and values[0] == int(values[0])):
        raise InputError(f"the batch of {path} must be a whole number of at least 1; got {values[0]:g}")
    return int(values[0])


def common_learning_rate(curves: Sequence[Curve]) -> float | None:
    """Returns the learning rate of all curves, None if no curve tells it.

    Raises:
      InputError: the learning rates differ. The law of the steps is that of one learning rate.
    """
    rates: Mapping[str, float] = {curve.name: curve.learning_rate for curve in curves if curve.learning_rate is not None}
    first = next(iter(rates), None)
    if first is None:
        return None
    other = next((name for name, rate in rates.items() if not math.isclose(rate, rates[first], rel_tol=1e-6)), None)
    if other is not None:
        raise InputError(
            f"curves must have one learning rate, because it changes the steps; got {rates[first]:g} in {first} and "
            f"{rates[other]:g} in {other}: plan each rate alone"
        )
    return rates[first]
