"""Signals as a request to stop at the end of the epoch."""

import os
import signal
import threading
import time
from types import FrameType
from typing import Self

from gmmae.system.stop_reasons import SIGHUP, SIGINT, SIGTERM

REASONS = {signal.SIGTERM: SIGTERM, signal.SIGUSR1: SIGTERM, signal.SIGINT: SIGINT, signal.SIGHUP: SIGHUP}
"""SIGUSR1 is what mpirun passes on: at SIGTERM it kills."""


REPEAT_S = 1.0
"""A terminal sends SIGINT to a process and to its parent, which passes it on: two within this time are one."""


class Interrupts:
    """While entered, the first of these signals sets `reason`; SIGINT after that acts as if it were not handled.

    The others do not: Slurm sends SIGTERM to all processes of a job, and their parents pass it on. SIGHUP stays ignored where
    it is, as nohup asks. Outside the main thread, where Python has no handlers, `reason` stays None.
    """

    def __init__(self) -> None:
        self.reason: str | None = None
        self._before: dict[signal.Signals, object] = {}
        self._interrupted_s = -REPEAT_S

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in REASONS:
                if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # pyright: ignore[reportArgumentType]

    def _note(self, number: int, _: FrameType | None) -> None:
        if number == signal.SIGINT:
            if time.monotonic() - self._interrupted_s < REPEAT_S:
                return
            self._interrupted_s = time.monotonic()
            if self.reason is not None:
                signal.signal(signal.SIGINT, self._before[signal.SIGINT])  # pyright: ignore[reportArgumentType]
                os.kill(os.getpid(), signal.SIGINT)
                return
        self.reason = self.reason or REASONS[signal.Signals(number)]
