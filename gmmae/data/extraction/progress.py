"""Progress of long work: a bar on a terminal, otherwise a line every 10 seconds."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from rich.console import Console
from rich.progress import track

LINE_EVERY_S = 10.0

Say = Callable[[str], None]
"""Takes a line for the user."""

T = TypeVar("T")


def progress(items: Iterable[T], total: int, what: str, say: Say) -> Iterator[T]:
    """Yields the items, and shows how many of them are done."""
    if sys.stderr.isatty():
        yield from track(items, f"reading {what}", total, console=Console(stderr=True), transient=True)
        return
    start = shown_at = time.monotonic()
    for done, item in enumerate(items, start=1):
        yield item
        now = time.monotonic()
        if done == total or now - shown_at >= LINE_EVERY_S:
            shown_at = now
            say(f"{done} of {total} {what} read in {now - start:.0f} s")
