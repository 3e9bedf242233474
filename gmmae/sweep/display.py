"""Shows the progress of a sweep: on a terminal as a table of all runs, elsewhere as plain lines."""

import time
from collections.abc import Mapping, Sequence
from typing import Protocol, Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from gmmae.config.schema import LOSS
from gmmae.sweep.grid import RunKey, SweepConfig
from gmmae.sweep.runs import CRASHED, TIMED_OUT, RunRecord
from gmmae.system import stop_reasons
from gmmae.training.records import Epoch
from gmmae.training.terminal import standard_output

COLOURS = {"reached": "green", "starting": "cyan", "epoch": "cyan", "waiting": "dim", "interrupted": "yellow"}


class SweepDisplay(Protocol):
    """Shows the progress of a sweep. It is entered while jobs run."""

    def start(self, config: SweepConfig, done: Mapping[RunKey, str], jobs: int) -> None:
        """Shows the states of finished runs, and the number of jobs that follow."""

    def started(self, name: str) -> None:
        """Shows that a job has started."""

    def tick(self, running: Mapping[RunKey, str]) -> None:
        """Shows the states of running runs."""

    def ended(self, name: str, keys: Mapping[RunKey, str], seconds: float) -> None:
        """Shows how a job ended, with the states of the runs that it computed."""

    def say(self, line: str) -> None:
        """Prints a line."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *error: object) -> None: ...


def outcome_text(record: RunRecord) -> str:
    """Returns the state of a finished run as a short text."""
    run = record.record
    if run is None or record.outcome in (CRASHED, TIMED_OUT):
        return record.outcome
    if record.outcome == stop_reasons.TARGET_REACHED:
        return f"reached at epoch {run.epochs}"
    return f"{record.outcome} at {_value_text(run.monitor, run.final_value)}"


def progress_text(last: Epoch, metric: str) -> str:
    """Returns the state of a running run: its last epoch and the monitored metric."""
    return f"epoch {last.epoch}: {_value_text(metric, last.value(metric))}"


def _value_text(metric: str, value: float | None) -> str:
    """Returns a metric's name and value. The loss has no name."""
    text = "?" if value is None else f"{value:.4g}"
    return text if metric == LOSS else f"{metric} {text}"


class TimeLeft:
    """Estimates the remaining time from the mean duration of the finished jobs."""

    def __init__(self, total: int = 0, concurrent: int = 1) -> None:
        self.total = total
        self.concurrent = concurrent
        self.done = 0
        self.spent_s = 0.0

    def count(self, seconds: float) -> None:
        """Counts a finished job and its duration."""
        self.done += 1
        self.spent_s += seconds

    def text(self) -> str:
        """Returns the estimate as text, or nothing where there is none."""
        left = self.total - self.done
        if not self.done or not left:
            return ""
        return f", about {duration(self.spent_s / self.done * left / self.concurrent)} left"


def duration(seconds: float) -> str:
    """Returns a duration as text.

    >>> duration(59.4), duration(170), duration(7800)
    ('59 s', '3 min', '2.2 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


class PlainSweep(SweepDisplay):
    """Prints a line for each start and end, for log files."""

    def __init__(self, console: Console):
        self._console = console
        self._left = TimeLeft()

    def start(self, config: SweepConfig, done: Mapping[RunKey, str], jobs: int) -> None:
        """Starts the estimate of the remaining time."""
        self._left = TimeLeft(jobs, config.concurrent(jobs))
        self.say(f"runs done: {len(done)}, jobs to start: {jobs}")

    def started(self, name: str) -> None:
        """Reports a job that has started."""
        self.say(f"{name} started")

    def tick(self, running: Mapping[RunKey, str]) -> None:
        """Shows nothing."""

    def ended(self, name: str, keys: Mapping[RunKey, str], seconds: float) -> None:
        """Reports how a job ended, and how many jobs are left."""
        self._left.count(seconds)
        others = f" (and {len(keys) - 1} more with it)" if len(keys) > 1 else ""
        text = next(iter(keys.values()))
        self.say(f"{name} {text}, {duration(seconds)}{others}; {self._left.done} of {self._left.total}{self._left.text()}")

    def say(self, line: str) -> None:
        """Prints a line without markup."""
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass


class LiveSweep(PlainSweep):
    """Redraws the grid as a table: a row for each strategy and seed, a column for each number of devices."""

    def __init__(self, console: Console):
        super().__init__(console)
        self._live = Live(console=console, auto_refresh=False)
        self._states: dict[RunKey, str] = {}
        self._began = time.monotonic()

    def start(self, config: SweepConfig, done: Mapping[RunKey, str], jobs: int) -> None:
        """Sets the states of the finished runs."""
        self._left = TimeLeft(jobs, config.concurrent(jobs))
        self._config = config
        self._states = dict(done)

    def started(self, name: str) -> None:
        """Redraws the table."""
        self._refresh()

    def tick(self, running: Mapping[RunKey, str]) -> None:
        """Redraws the table with new states."""
        self._states |= running
        self._refresh()

    def ended(self, name: str, keys: Mapping[RunKey, str], seconds: float) -> None:
        """Redraws the table with the final states."""
        self._left.count(seconds)
        self._states |= keys
        self._refresh()

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._refresh()
        self._live.__exit__(None, None, None)

    def _refresh(self) -> None:
        passed = f"{duration(time.monotonic() - self._began)} passed"
        line = f"{self._left.done} of {self._left.total} runs, {passed}{self._left.text()}"
        self._live.update(Group(self._table(), Text(line)), refresh=True)

    def _table(self) -> Table:
        table = Table(box=None, padding=(0, 2, 0, 0))
        table.add_column("scaling", no_wrap=True)
        table.add_column("seed", justify="right")
        counts = sorted(self._config.devices)
        for n in counts:
            table.add_column(f"n = {n}")
        for seed in self._config.seeds:
            for scaling in self._config.scaling:
                states = (self._states.get(RunKey(scaling, n, seed), "waiting") for n in counts)
                table.add_row(scaling, str(seed), *(Text(text, COLOURS.get(text.split()[0], "red")) for text in states))
        return table


def grid_table(rows: Sequence[tuple[str, ...]]) -> str:
    """Returns a table as plain text, independent of the terminal's width. The first row has the column names.

    Rich would need ten seconds for 10,000 rows.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    last = len(widths) - 1

    def line(row: tuple[str, ...]) -> str:
        texts = (
            text.ljust(width) if place in (0, last) else text.rjust(width)
            for place, (text, width) in enumerate(zip(row, widths, strict=True))
        )
        return "  ".join(texts).rstrip()

    return "\n".join(map(line, rows))


def sweep_display(console: Console | None = None) -> SweepDisplay:
    """Returns the display for standard output: live on a terminal, plain elsewhere."""
    console = console or standard_output()
    return LiveSweep(console) if console.is_terminal else PlainSweep(console)
