"""Shows the progress of a sweep: a line for each finished run, and on a terminal a progress bar below them."""

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from gmmae.config.schema import LOSS
from gmmae.sweep.grid import RunKey, SweepConfig, run_keys
from gmmae.sweep.progress import INTERRUPTED, SweepProgress
from gmmae.sweep.runs import FAILED, RunRecord
from gmmae.system import stop_reasons
from gmmae.training.records import Epoch
from gmmae.training.terminal import standard_output

COLOURS = {"reached": "green", stop_reasons.MAX_EPOCHS: "default", INTERRUPTED: "yellow"}
"""Colours of finished runs by the first word of their states. All others are red."""

EPOCH_LINES_S = 10.0
"""Seconds between two lines on the epochs of one run in a log."""

SHORT_S = 9.95
"""Seconds below which the duration of a run has a decimal."""

MIN_BAR_WIDTH, MAX_BAR_WIDTH = 5, 40
LINES_ABOVE = 4
"""Lines of a terminal that the running runs leave to the finished ones and the bar."""

MISSING = "–"
"""A cell without a run."""


def outcome_text(record: RunRecord) -> str:
    """Returns the state of a finished run as a short text."""
    run = record.record
    if run is None or record.outcome in FAILED:
        return f"{record.outcome}: {record.message}" if record.message else record.outcome
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
    """Prints a line for each finished run, for log files. It is entered while jobs run.

    Args:
      console: prints the lines.
      verbose: whether the starts and the epochs of the runs are shown too.
    """

    def __init__(self, console: Console, verbose: bool = False):
        self._console = console
        self._verbose = verbose
        self._progress: SweepProgress | None = None
        self._name_width = 0
        self._shown: dict[str, str] = {}
        self._next_epochs_s = 0.0

    def start(self, config: SweepConfig, done: Mapping[RunKey, str], computed: int) -> None:
        """Shows how many runs are done, and how many are to be computed."""
        self._progress = SweepProgress(config, done, computed)
        self._name_width = max(len(key.name) for key in run_keys(config))
        self.say(_start_text(self._progress))

    def started(self, name: str) -> None:
        """Notes that a computed run has started."""
        assert self._progress is not None
        self._progress.start(name)
        self._next_epochs_s = self._next_epochs_s or time.monotonic() + EPOCH_LINES_S
        self._show_start(name)

    def tick(self, running: Mapping[RunKey, str]) -> None:
        """Notes the states of all running runs."""
        assert self._progress is not None
        self._progress.tick(running)
        self._show_running()

    def ended(self, name: str, keys: Mapping[RunKey, str], seconds: float) -> None:
        """Shows how a computed run ended, with the states of the runs that it stands for, and the seconds that it took."""
        assert self._progress is not None
        self._progress.end(name, keys, seconds)
        self._shown.pop(name, None)
        paths: dict[tuple[int, str], list[RunKey]] = {}
        for key, text in keys.items():
            paths.setdefault((key.seed, text), []).append(key)
        for (_, text), (first, *others) in paths.items():
            took = f"{seconds:.1f} s" if seconds < SHORT_S else duration(seconds)
            self._show_end(first, text, f", {took}{_others_text(others)}")

    def say(self, line: str) -> None:
        """Prints a line without markup."""
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def _show_start(self, name: str) -> None:
        if self._verbose:
            self.say(f"{name:<{self._name_width}}  started")

    def _show_running(self) -> None:
        """Prints the epochs of the running runs, seldom enough for a log."""
        assert self._progress is not None
        if not self._verbose or time.monotonic() < self._next_epochs_s:
            return
        self._next_epochs_s = time.monotonic() + EPOCH_LINES_S
        for name, text in self._progress.running.items():
            if self._shown.get(name) != text:
                self.say(f"{name:<{self._name_width}}  {text}")
        self._shown = dict(self._progress.running)

    def _show_end(self, key: RunKey, text: str, rest: str) -> None:
        assert self._progress is not None
        self.say(f"{key.name:<{self._name_width}}  {text}{rest}; {_count_text(self._progress)}{_left_text(self._progress)}")


class LiveSweep(SweepDisplay):
    """Shows a line for each finished run, and below them a progress bar with the running runs."""

    def __init__(self, console: Console, verbose: bool = False):
        super().__init__(console, verbose)
        self._live = Live(console=console, auto_refresh=False, transient=True)

    def __enter__(self) -> Self:
        self._live.__enter__()
        self._refresh()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.__exit__(None, None, None)

    def _show_start(self, name: str) -> None:
        self._refresh()

    def _show_running(self) -> None:
        self._refresh()

    def _show_end(self, key: RunKey, text: str, rest: str) -> None:
        coloured = Text(text, COLOURS.get(text.split()[0], "red"))
        line = Text.assemble(f"{key.name:<{self._name_width}}  ", coloured, rest)
        # The terminal may wrap a failure, so that its path can be copied.
        self._console.print(line, highlight=False, soft_wrap=text.startswith(FAILED))
        self._refresh()

    def _refresh(self) -> None:
        assert self._progress is not None
        if self._progress.computed:
            self._live.update(Group(self._bar(self._progress), *self._running_lines(self._progress)), refresh=True)

    def _bar(self, progress: SweepProgress) -> Table:
        """Returns the bar, with the number and share of the finished runs, the elapsed time and the time left.

        What does not fit on a narrow terminal is left out, the time left last.
        """
        count, share, left = _count_text(progress), f", {100 * progress.done // progress.total} %", _left_text(progress)
        passed = f", {duration(progress.elapsed_s())} passed"
        texts = (count + share + passed + left, count + passed + left, count + left)
        text = next((text for text in texts if len(text) < self._console.width), texts[-1])
        width = min(self._console.width - len(text) - 2, MAX_BAR_WIDTH)
        shown = [ProgressBar(progress.total, progress.done, width=width)] if width >= MIN_BAR_WIDTH else []
        row = Table.grid(padding=(0, 1, 0, 0))
        row.add_row(*shown, Text(text, no_wrap=True, overflow="ellipsis"))
        return row

    def _running_lines(self, progress: SweepProgress) -> list[Text]:
        running = progress.running
        if not self._verbose:
            texts = [f"{len(running)} running: {', '.join(running)}"] if running else []
        else:
            texts = [f"{name:<{self._name_width}}  {state}" for name, state in running.items()]
            most = max(self._console.height - LINES_ABOVE, 1)
            texts[most:] = [f"and {len(texts) - most} more"] if len(texts) > most else []
        return [Text(text, "cyan", no_wrap=True, overflow="ellipsis") for text in texts]


def _start_text(progress: SweepProgress) -> str:
    left = progress.total - progress.done
    if not left and not progress.computed:
        return f"{_runs_text(progress.total)}: all done"
    shared = "" if progress.computed == left else f", {progress.computed} of them different"
    at_once = f", {progress.concurrent} at a time" if 1 < progress.concurrent < progress.computed else ""
    return f"{_runs_text(progress.total)}: {progress.done} done, {left} to compute{shared}{at_once}"


def _runs_text(count: int) -> str:
    return f"{count} run{'s' * (count != 1)}"


def _count_text(progress: SweepProgress) -> str:
    failed = f" ({progress.failed} failed)" if progress.failed else ""
    return f"{progress.done} of {_runs_text(progress.total)}{failed}"


def _left_text(progress: SweepProgress) -> str:
    """Returns the remaining time as text, which is empty if it is unknown."""
    left_s = progress.left_s()
    return "" if left_s is None else f", about {duration(left_s)} left"


def _others_text(others: Sequence[RunKey]) -> str:
    """Returns the runs that share a path with another run, in parentheses.

    >>> _others_text([RunKey("strong", 2, 0), RunKey("strong", 4, 0), RunKey("weak", 1, 0)])
    ' (also strong n = 2, 4; weak n = 1)'
    """
    counts: dict[str, list[str]] = {}
    for key in others:
        counts.setdefault(key.scaling, []).append(str(key.devices))
    texts = [f"{scaling} n = {', '.join(devices)}" for scaling, devices in counts.items()]
    return f" (also {'; '.join(texts)})" if texts else ""


def outcome_table(config: SweepConfig, records: Iterable[RunRecord]) -> str:
    """Returns the outcomes as a small table: a row for each strategy, and a column for each number of devices.

    A cell has the epochs to the target, from the fewest to the most over the seeds, or the outcome if no run reached it.
    Without a target it has the final value of the monitored metric.
    """
    stop = config.run.stop
    goal = stop_reasons.MAX_EPOCHS if stop.target is None else stop_reasons.TARGET_REACHED
    cells: dict[tuple[str, int], list[RunRecord]] = {}
    for record in records:
        cells.setdefault((record.scaling, record.devices), []).append(record)

    def cell(scaling: str, n: int) -> str:
        found = cells.get((scaling, n), [])
        runs = [record.record for record in found if record.outcome == goal and record.record is not None]
        if not runs:
            outcomes = {record.outcome for record in found}
            return MISSING if not found else outcomes.pop() if len(outcomes) == 1 else f"0 of {len(found)}"
        if stop.target is None:
            values = sorted(run.final_value for run in runs if run.final_value is not None)
            span = list(dict.fromkeys(f"{value:.4g}" for value in (values[:1] + values[-1:])))
        else:
            span = list(dict.fromkeys(str(run.epochs) for run in sorted(runs, key=lambda run: run.epochs)))
        text = " to ".join(dict.fromkeys((span[0], span[-1]))) if span else "?"
        return text if len(runs) == len(found) else f"{text} ({len(runs)} of {len(found)})"

    counts = sorted(config.devices)
    head = ("scaling", *(f"n = {n}" for n in counts))
    rows = [(scaling, *(cell(scaling, n) for n in counts)) for scaling in config.scaling]
    seeds = len(config.seeds)
    metric = "loss" if stop.monitor == LOSS else stop.monitor
    shown = f"final validation {metric}" if stop.target is None else "epochs to the target"
    title = f"{shown}, by strategy and number of devices{f', of {seeds} seeds' if seeds > 1 else ''}"
    return f"{title}\n{grid_table([head, *rows])}"


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


def sweep_display(console: Console | None = None, verbose: bool = False) -> SweepDisplay:
    """Returns the display for standard output: live on a terminal, plain elsewhere."""
    console = console or standard_output()
    live = console.is_terminal and not console.is_dumb_terminal
    return LiveSweep(console, verbose) if live else SweepDisplay(console, verbose)
