"""Progress of long work: a bar on a terminal, otherwise a line every 10 seconds."""

import sys
import time
from collections.abc import Callable
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

LINE_EVERY_S = 10.0

Say = Callable[[str], None]
"""A function that takes a line for the user."""


class Progress:
    """A context that counts `total` items; the caller calls `advance` after each."""

    def __init__(self, total: int, what: str, say: Say) -> None:
        self.total, self.what, self.say = total, what, say
        self.done = 0
        self.start = self.shown_at = time.monotonic()
        console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self.bar = Bar(*columns, console=console, transient=True) if console.is_terminal and sys.stderr.isatty() else None

    def __enter__(self) -> "Progress":  # noqa: PYI034
        # Not Self, which beartype allows only in classes that it decorates itself.
        if self.bar is not None:
            self.bar.start()
            self.bar.add_task(f"reading {self.what}", total=self.total)
        return self

    def advance(self) -> None:
        """Counts one more."""
        self.done += 1
        now = time.monotonic()
        if self.bar is not None:
            self.bar.advance(self.bar.task_ids[0])
        elif self.done == self.total or now - self.shown_at >= LINE_EVERY_S:
            self.shown_at = now
            self.say(f"{self.done} of {self.total} {self.what} read in {now - self.start:.0f} s")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.bar is not None:
            self.bar.stop()
