"""The display of a run: a table, then a progress bar on a terminal, plain lines elsewhere."""

import sys
from collections.abc import Mapping
from typing import TextIO, cast

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from gmmae.system.streams import Outlasting
from gmmae.training.records import Epoch


class Plain:
    """Prints one line for each epoch, for log files."""

    def __init__(self, console: Console):
        self._file, self._max_epochs = console.file, 0  # not through rich, which takes as long as a short epoch

    def start(self, facts: Mapping[str, str], *, max_epochs: int, done: int) -> None:
        """Shows the start table; `done` epochs are behind the run."""
        self._max_epochs = max_epochs
        width = max(map(len, facts))
        for name, value in facts.items():
            self.say(f"{name:<{width}}  {value}")

    def epoch(self, row: Epoch) -> None:
        """Shows an epoch."""
        self.say(f"epoch {row.epoch}/{self._max_epochs}  {losses_text(row)}  lr {row.lr:.3g}  {row.total_s:.1f} s")

    def say(self, line: str) -> None:
        """Shows a line."""
        self._file.write(line + "\n")
        self._file.flush()

    def close(self) -> None:
        """Ends the display."""


class Live(Plain):
    """Shows a table and a progress bar, for terminals."""

    def __init__(self, console: Console):
        self._console = console
        self._progress = Progress(
            TextColumn("epoch {task.completed}/{task.total}"),
            BarColumn(bar_width=None),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            TextColumn("at most"),
            TimeRemainingColumn(compact=True),
            TextColumn("left"),
            console=console,
        )
        self._task = self._progress.add_task("", total=None, start=False)

    def start(self, facts: Mapping[str, str], *, max_epochs: int, done: int) -> None:
        """Shows the start table and the bar."""
        table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
        table.add_column(style="bold", no_wrap=True)
        table.add_column(overflow="fold")
        for name, value in facts.items():
            table.add_row(name, Text(value))
        self._console.print(table, highlight=False)
        self._progress.reset(self._task, total=max_epochs, completed=done, description="compiling")
        self._progress.start()

    def epoch(self, row: Epoch) -> None:
        """Moves the bar."""
        self._progress.update(self._task, completed=row.epoch, description=losses_text(row))

    def say(self, line: str) -> None:
        """Shows a line above the bar."""
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Takes the bar away."""
        self._progress.stop()


def losses_text(row: Epoch) -> str:
    """The losses of an epoch in a few words.

    >>> losses_text(Epoch(1, 1, 32, 0.1, 0.0123456, float("nan"), 0, 0, 0, 0, 0, 32))
    'train 0.01235  validation nan'
    """
    metrics = "".join(map("  {} {:.4g}".format, row.metrics, row.metrics.values()))
    return f"train {row.train_loss:.4g}  validation {row.val_loss:.4g}{metrics}"


def standard_output() -> Console:
    """Standard output, which goes on in silence when its reader ends."""
    return Console(file=cast(TextIO, Outlasting(sys.stdout)))


def display(console: Console | None = None) -> Plain:
    """Live on a terminal, plain elsewhere."""
    console = console or standard_output()
    return Live(console) if console.is_terminal else Plain(console)
