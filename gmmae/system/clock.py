"""A stopwatch that keeps compiling, training, evaluating and checkpointing apart and survives a resume."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

SECTIONS = ("compile_s", "train_s", "eval_s", "checkpoint_s")


class Clock:
    """Seconds by section, and in total since the beginning of the run.

    The total continues from the saved one. So it does not count the time between two processes of a run, or after a process's
    last checkpoint. Sections measure wall time, so block on the device's result inside them.

    Args:
      saved: what `read` returned before a checkpoint.
      now: a monotonic clock in seconds.
    """

    def __init__(self, saved: Mapping[str, float] | None = None, now: Callable[[], float] = time.perf_counter):
        self._now = now
        self._spent = {section: 0.0 for section in SECTIONS} | {key: saved[key] for key in SECTIONS if saved}
        self._start = now() - (saved["total_s"] if saved else 0.0)

    @contextmanager
    def section(self, name: str) -> Iterator[None]:
        """Adds the time spent inside the `with` block to a section of `SECTIONS`."""
        start = self._now()
        try:
            yield
        finally:
            self.add(name, self._now() - start)

    def add(self, name: str, seconds: float) -> None:
        """Adds seconds that were measured elsewhere to a section."""
        self._spent[name] += seconds

    def read(self) -> dict[str, float]:
        """All sections and `total_s`."""
        return {**self._spent, "total_s": self._now() - self._start}
