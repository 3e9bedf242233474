"""The progress of a sweep: a line for each run that has ended, and on a terminal a bar below them."""

import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from gmmae.config.schema import LOSS
from gmmae.plotting.tables import text_table
from gmmae.sweep.grid import RunKey, SweepConfig
from gmmae.sweep.runs import FAILED, RunRecord
from gmmae.system import stop_reasons

EPOCH_LINES_S = 10.0
"""Between two lines on the epochs of one run."""


def outcome_text(record: RunRecord) -> str:
    """The state of an ended run."""
    run = record.record
    if run is None or record.outcome in FAILED:
        return f"{record.outcome}: {record.message}" if record.message else record.outcome
    if record.outcome == stop_reasons.TARGET_REACHED:
        return f"reached at epoch {run.epochs}"
    return f"{record.outcome} at {value_text(run.monitor, run.final_value)}"


def value_text(metric: str, value: float | None) -> str:
    """A metric's name and value. The loss has no name."""
    text = "?" if value is None else f"{value:.4g}"
    return text if metric == LOSS else f"{metric} {text}"


def duration(seconds: float) -> str:
    """A duration as text.

    >>> duration(1.04), duration(59.4), duration(170), duration(7800)
    ('1.0 s', '59 s', '3 min', '2.2 h')
    """
    if seconds < 90:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


class SweepDisplay:
    """Prints a line for each run that has ended, and where `verbose` for its start and epochs, above the bar of a terminal."""

    def __init__(self, console: Console, verbose: bool = False):
        self.verbose = verbose
        self._console = console
        self.bar = Progress(
            BarColumn(),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            TextColumn("{task.fields[running]}", style="cyan"),
            console=console,
            transient=True,
            disable=not console.is_terminal or console.is_dumb_terminal,
        )
        self._shown: dict[str, str] = {}
        self._next_epochs_s = 0.0

    def start(self, ended: Collection[RunRecord], groups: Mapping[str, Sequence[RunKey]], total: int, at_once: int) -> None:
        """Shows how many runs have ended, and that those in `groups` are to be computed."""
        self._total, self._done, self._failed = total, len(ended), sum(record.outcome in FAILED for record in ended)
        self._width = max(map(len, groups), default=0)
        shared = "" if len(groups) == total - self._done else f", {len(groups)} of them different"
        side_by_side = f", {at_once} at a time" if 1 < at_once < len(groups) else ""
        left = f"{self._done} done, {total - self._done} to compute{shared}{side_by_side}" if groups else "all done"
        self.say(f"{total} run{'s' * (total != 1)}: {left}")
        if groups:
            self.bar.add_task(self._counts(), total=len(groups), left="", running="")

    def running(self, states: Mapping[str, str]) -> None:
        """Shows the runs that are computed, with their states."""
        self.bar.update(self.bar.task_ids[0], running=", ".join(states), refresh=True)
        now = time.monotonic()
        if not self.verbose or (self._shown.keys() == states.keys() and now < self._next_epochs_s):
            return
        self._next_epochs_s = now + EPOCH_LINES_S
        for name, state in states.items():
            if self._shown.get(name) != state:
                self.say(f"{name:<{self._width}}  {state}")
        self._shown = dict(states)

    def ended(self, records: Sequence[RunRecord]) -> None:
        """Shows how a run has ended, with the points of the grid that it stands for."""
        first, task = records[0], self.bar.tasks[0]
        self._done += len(records)
        self._failed += len(records) * (first.outcome in FAILED)
        self.bar.advance(task.id)
        left_s = (task.elapsed or 0.0) / task.completed * (task.remaining or 0.0)
        left = f"about {duration(left_s)} left" if left_s else ""
        self.bar.update(task.id, description=self._counts(), left=left)
        text = outcome_text(first)
        colour = "green" if text.startswith("reached") else "default" if text.startswith(stop_reasons.MAX_EPOCHS) else "red"
        took = f", {duration(first.record.clocks['total_s'])}" if first.record and "total_s" in first.record.clocks else ""
        counts: dict[str, list[str]] = defaultdict(list)
        for record in records[1:]:
            counts[record.key.scaling].append(str(record.key.devices))
        others = "; ".join(f"{scaling} n = {', '.join(devices)}" for scaling, devices in counts.items())
        shared = f" (also {others})" if others else ""
        name, rest = f"{first.key.name:<{self._width}}  ", ", ".join(filter(None, (f"{took}{shared}; {self._counts()}", left)))
        self._console.print(Text.assemble(name, (text, colour), rest), highlight=False, soft_wrap=True)

    def say(self, line: str) -> None:
        """Prints a line as it is."""
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _counts(self) -> str:
        failed = f" ({self._failed} failed)" if self._failed else ""
        return f"{self._done} of {self._total} runs{failed}"


def outcome_table(config: SweepConfig, records: Iterable[RunRecord]) -> str:
    """A row for each strategy, and a column for each number of devices.

    A cell has the range over seeds of the epochs to the target, or without one of the final values, or else the outcome.
    """
    stop = config.run.stop
    goal = stop_reasons.MAX_EPOCHS if stop.target is None else stop_reasons.TARGET_REACHED
    cells: dict[tuple[str, int], list[RunRecord]] = defaultdict(list)
    for record in records:
        cells[record.key[:2]].append(record)

    def cell(found: Sequence[RunRecord]) -> str:
        runs = [record.record for record in found if record.outcome == goal and record.record is not None]
        if not runs:
            outcomes = {record.outcome for record in found}
            return outcomes.pop() if len(outcomes) == 1 else f"0 of {len(found)}" if found else "–"
        values = sorted(run.final_value if stop.target is None else run.epochs for run in runs if run.final_value is not None)
        ends = (f"{value:.4g}" if stop.target is None else str(value) for value in values[:1] + values[-1:])
        text = " to ".join(dict.fromkeys(ends)) or "?"
        return text if len(runs) == len(found) else f"{text} ({len(runs)} of {len(found)})"

    counts, seeds = sorted(config.devices), len(config.seeds)
    rows = [(scaling, *(cell(cells[scaling, n]) for n in counts)) for scaling in config.scaling]
    shown = f"final validation {stop.monitor}" if stop.target is None else "epochs to the target"
    title = f"{shown}, by strategy and number of devices{f', of {seeds} seeds' if seeds > 1 else ''}"
    return f"{title}\n{text_table(('scaling', *(f'n = {n}' for n in counts)), rows)}"
