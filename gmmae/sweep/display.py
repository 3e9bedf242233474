"""What a person sees of a sweep: the grid with the state of each run on a terminal, plain lines elsewhere."""

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
    """Shows the course of a sweep; entered while runs run."""

    def start(self, config: SweepConfig, done: Mapping[RunKey, str], jobs: int) -> None: ...
    def started(self, name: str) -> None: ...
    def tick(self, running: Mapping[RunKey, str]) -> None: ...
    def ended(self, name: str, keys: Mapping[RunKey, str], seconds: float) -> None: ...
    def say(self, line: str) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *error: object) -> None: ...


def outcome_text(record: RunRecord) -> str:
    """The state of a finished run, short."""
    run = record.record
    if run is None or record.outcome in (CRASHED, TIMED_OUT):
        return record.outcome
    if record.outcome == stop_reasons.TARGET_REACHED:
        return f"reached at epoch {run.epochs}"
    return f"{record.outcome} at {_value_text(run.monitor, run.final_value)}"


def progress_text(last: Epoch, metric: str) -> str:
    """The state of a run that is computed: its last epoch, with the metric that the target is about."""
    return f"epoch {last.epoch}: {_value_text(metric, last.value(metric))}"


def _value_text(metric: str, value: float | None) -> str:
    """A metric's value, short; the loss goes without its name."""
    text = "?" if value is None else f"{value:.4g}"
    return text if metric == LOSS else f"{metric} {text}"


class TimeLeft:
    """How long the jobs that are not done will take, if they take as long as those that are."""

    def __init__(self) -> None:
        self.total = self.done = self.at_once = 0
        self.spent_s = 0.0

    def start(self, total: int, at_once: int) -> None:
        self.total, self.done, self.at_once, self.spent_s = total, 0, at_once, 0.0

    def count(self, seconds: float) -> None:
        self.done += 1
        self.spent_s += seconds

    def text(self) -> str:
        left = self.total - self.done
        if not self.done or not left:
            return ""
        return f", about {duration(self.spent_s / self.done * left / self.at_once)} left"


def duration(seconds: float) -> str:
    """Seconds in words.

    >>> duration(59.4), duration(170), duration(7800)
    ('59 s', '3 min', '2.2 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


class PlainSweep:
    """A line for each start and end, for log files."""

    def __init__(self, console: Console):
        self._console = console
        self._left = TimeLeft()

    def start(self, config: SweepConfig, done: Mapping[RunKey, str], jobs: int) -> None:
        self._left.start(jobs, config.side_by_side(jobs))
        self.say(f"runs done: {len(done)}, jobs to start: {jobs}")

    def started(self, name: str) -> None:
        self.say(f"{name} started")

    def tick(self, running: Mapping[RunKey, str]) -> None:
        pass

    def ended(self, name: str, keys: Mapping[RunKey, str], seconds: float) -> None:
        self._left.count(seconds)
        others = f" (and {len(keys) - 1} more with it)" if len(keys) > 1 else ""
        text = next(iter(keys.values()))
        self.say(f"{name} {text}, {duration(seconds)}{others}; {self._left.done} of {self._left.total}{self._left.text()}")

    def say(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass


class LiveSweep(PlainSweep):
    """The grid as a table that is redrawn: a row for each strategy and seed, a column for each number of devices."""

    def __init__(self, console: Console):
        super().__init__(console)
        self._live = Live(console=console, auto_refresh=False)
        self._states: dict[RunKey, str] = {}
        self._began = time.monotonic()

    def start(self, config: SweepConfig, done: Mapping[RunKey, str], jobs: int) -> None:
        self._left.start(jobs, config.side_by_side(jobs))
        self._config = config
        self._states = dict(done)

    def started(self, name: str) -> None:
        self._refresh()

    def tick(self, running: Mapping[RunKey, str]) -> None:
        self._states |= running
        self._refresh()

    def ended(self, name: str, keys: Mapping[RunKey, str], seconds: float) -> None:
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
    """A table as plain text, whatever the width of the terminal; its first row names the columns.

    rich would take ten seconds for 10,000 rows.
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
    """The display that fits standard output: live on a terminal, plain elsewhere."""
    console = console or standard_output()
    return LiveSweep(console) if console.is_terminal else PlainSweep(console)
