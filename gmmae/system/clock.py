"""A stopwatch that keeps the parts of a run apart and survives a resume."""

import resource
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache

SECTIONS = ("compile_s", "train_s", "eval_s", "checkpoint_s")

TICK_S = 0.5
PAUSE_S = 2.0
"""A shorter time without a tick counts as running."""

WAKE_UPS_PER_S = 20
"""A thread that waits for the interpreter wakes up more often, every 5 ms; one that was stopped does not."""


class RunningSeconds:
    """The seconds in which this process runs, without those in which it is stopped (SIGSTOP, `scontrol suspend`, a freezer)."""

    def __init__(self) -> None:
        self._paused_s, self._last = 0.0, time.perf_counter()
        threading.Thread(target=self._tick, name="clock", daemon=True).start()

    def __call__(self) -> float:
        """The seconds since some moment."""
        if time.perf_counter() - self._last > PAUSE_S:
            time.sleep(0.01)  # the thread is about to wake up too
        return time.perf_counter() - self._paused_s

    def _tick(self) -> None:
        before = 0
        while True:
            now, waits = time.perf_counter(), resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
            gap_s = now - self._last
            if gap_s > PAUSE_S and waits - before < gap_s * WAKE_UPS_PER_S:
                self._paused_s += gap_s - TICK_S
            self._last, before = now, waits
            time.sleep(TICK_S)


running_seconds = cache(RunningSeconds)


class Clock:
    """Seconds by section, and in total since the beginning of the run.

    The total continues from `saved`, which `read` returned before a checkpoint, so it leaves out the time from that to the next
    process. Block on the device's result inside a section.
    """

    def __init__(self, saved: Mapping[str, float] | None = None, now: Callable[[], float] | None = None):
        self._now = now = now or running_seconds()
        self._spent = {section: saved[section] if saved else 0.0 for section in SECTIONS}
        self._start = now() - (saved["total_s"] if saved else 0.0)

    @contextmanager
    def section(self, name: str) -> Iterator[None]:
        """Adds the time of the block to a section of `SECTIONS`."""
        start = self._now()
        try:
            yield
        finally:
            self._spent[name] += self._now() - start

    def read(self) -> dict[str, float]:
        """All sections and `total_s`."""
        return {**self._spent, "total_s": self._now() - self._start}
