"""Shows the progress of a sweep: on a terminal as a table of all runs, elsewhere as plain lines."""

import time
from collections.abc import Mapping, Sequence
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from gmmae.config.schema import LOSS
from gmmae.sweep.grid import RunKey, SweepConfig
from gmmae.sweep.runs import FAILED, RunRecord
from gmmae.system import stop_reasons
from gmmae.training.records import Epoch
from gmmae.training.terminal import standard_output

COLOURS = {"reached": "green", "starting": "cyan", "epoch": "cyan", "waiting": "dim", "interrupted": "yellow"}


def outcome_text(record: RunRecord) -> str:
    """Returns the state of a finished run as a short text."""
    run = record.record
    if run is None or record.outcome in FAILED:
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


def duration(seconds: float) -> str:
    """Returns a duration as text.

    >>> duration(59.4), duration(170), duration(7800)
    ('59 s', '3 min', '2.2 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


class SweepDisplay:
    """Prints a line for each start and end of a job, for log files. It is entered while jobs run."""

    def __init__(self, console: Console):
        self._console = console
        self._jobs = 0
        self._concurrent = 1
        self._durations_s: list[float] = []

    def start(self, config: SweepConfig, done: Mapping[RunKey, str], jobs: int) -> None:
        """Shows the states of finished runs, and the number of jobs that follow."""
        self._jobs, self._concurrent = jobs, config.concurrent(jobs)
        self.say(f"runs done: {len(done)}, jobs to start: {jobs}")

    def started(self, name: str) -> None:
        """Shows that a job has started."""
        self.say(f"{name} started")

    def tick(self, running: Mapping[RunKey, str]) -> None:
        """Shows the states of running runs."""

    def ended(self, name: str, keys: Mapping[RunKey, str], seconds: float) -> None:
        """Shows how a job ended, with the states of the runs that it computed."""
        self._durations_s.append(seconds)
        others = f" (and {len(keys) - 1} more with it)" if len(keys) > 1 else ""
        text = next(iter(keys.values()))
        self.say(f"{name} {text}, {duration(seconds)}{others}; {len(self._durations_s)} of {self._jobs}{self._time_left()}")

    def say(self, line: str) -> None:
        """Prints a line without markup."""
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def _time_left(self) -> str:
        """Returns the remaining time as text, from the mean duration of the ended jobs. It is empty where none is known."""
        done = len(self._durations_s)
        if not done or done == self._jobs:
            return ""
        return f", about {duration(sum(self._durations_s) / done * (self._jobs - done) / self._concurrent)} left"


class LiveSweep(SweepDisplay):
    """Redraws the grid as a table: a row for each strategy and seed, a column for each number of devices."""

    def __init__(self, console: Console):
        super().__init__(console)
        self._live = Live(console=console, auto_refresh=False)
        self._states: dict[RunKey, str] = {}
        self._began = time.monotonic()

    def start(self, config: SweepConfig, done: Mapping[RunKey, str], jobs: int) -> None:
        """Sets the states of the finished runs."""
        self._jobs, self._concurrent = jobs, config.concurrent(jobs)
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
        self._durations_s.append(seconds)
        self.tick(keys)

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._refresh()
        self._live.__exit__(None, None, None)

    def _refresh(self) -> None:
        passed = f"{duration(time.monotonic() - self._began)} passed"
        line = f"{len(self._durations_s)} of {self._jobs} runs, {passed}{self._time_left()}"
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
    return LiveSweep(console) if console.is_terminal else SweepDisplay(console)
