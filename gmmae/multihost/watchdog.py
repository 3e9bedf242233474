"""A watchdog process for each process that trains, which may hang, be stopped or die.

The watchdog is the process that was started. It forks before any large import. The child, the worker, goes on as the program,
and the watchdog waits, without threads and without JAX. It

- passes signals on, and ends as its worker has ended: by the same exit code or the same signal;
- kills a worker that misses a deadline, and prints why;
- prints the worker's exit message where JAX's C++ has aborted it, and ends with the message's exit code.

The worker dies with its watchdog. Deadlines and messages come through a pipe and not through a file, because a file system may
be stuck. Both sides count the seconds in which they run, not those of a clock. So no process is killed because the whole job
was suspended (`scontrol suspend`, Ctrl-Z, a paused container).
"""

import json
import math
import os
import resource
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, NoReturn

from gmmae.system.errors import LOST_PEER, write_error

TICK_S = 0.5
PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
KILL_TIMEOUT_S = 10.0
"""Seconds to wait for the end of a killed worker. One that waits for a dead file system does not end."""


class ExitMessage(NamedTuple):
    """One line about an end, and its exit code. An empty line is not printed."""

    line: str
    code: int


class Watchdog:
    """The worker's connection to its watchdog. Without descriptors, as in a program that calls `gmmae.train`, there is none."""

    def __init__(self, tell: int = -1, life: int = -1) -> None:
        self._tell, self._life = tell, life
        self._lock = threading.Lock()
        self._patience_s, self._stopped = 0.0, ""
        self.on_parent_death: Callable[[], None] = lambda: None
        """Called when the watchdog has ended, before this process is killed."""
        if life >= 0:
            os.set_blocking(tell, False)
            threading.Thread(target=self._guard, name="watchdog", daemon=True).start()

    @property
    def pid(self) -> int:
        """The number of the process that was started."""
        return os.getppid() if self._life >= 0 else os.getpid()

    def watch_each_other(self, seconds: float, line: str = "") -> None:
        """Lets worker and watchdog kill each other when the other one is stopped; 0 ends this.

        Args:
          seconds: of the one, in which the other one is silent.
          line: printed about a killed worker.
        """
        with self._lock:
            self._patience_s, self._stopped = seconds, line
            self.extend_deadline("alive", seconds or math.inf, line)

    def extend_deadline(self, deadline: str, seconds: float, line: str) -> None:
        """Sets a deadline. A worker that does not extend it in time is killed, and the line is printed.

        Args:
          deadline: its name.
          seconds: from now; infinity removes the deadline.
          line: for standard error.
        """
        with suppress(BlockingIOError):  # the watchdog is stopped
            self._send("deadline", deadline, seconds, line)

    def set_abort_message(self, words: ExitMessage) -> None:
        """Sets the message for the case that JAX aborts this process."""
        self._send("aborted", *words)

    def end(self, words: ExitMessage) -> NoReturn:
        """Ends this process at once with a message, even if it is aborted in this moment."""
        if self._life < 0:
            write_error(words.line)
        self.set_exit_message(words)
        os._exit(words.code)

    def set_exit_message(self, words: ExitMessage) -> None:
        """Sets the message for any end that comes now."""
        self._send("end", *words)

    def _send(self, *message: object) -> None:
        if self._tell >= 0:
            with suppress(BrokenPipeError):
                os.write(self._tell, json.dumps(message).encode() + b"\n")

    def _guard(self) -> None:
        silent_s = 0.0
        while True:
            time.sleep(TICK_S)
            silent_s += TICK_S
            if select.select([self._life], [], [], 0.0)[0]:
                silent_s = 0.0
                if not os.read(self._life, 2**12):
                    self.on_parent_death()
                    os.kill(os.getpid(), signal.SIGKILL)
            with self._lock:
                if self._patience_s:
                    self.extend_deadline("alive", self._patience_s, self._stopped)
                    if silent_s > self._patience_s:
                        os.kill(os.getppid(), signal.SIGKILL)


NO_WATCHDOG = Watchdog()


def run_with_watchdog(beforehand: Callable[[], None] = lambda: None) -> Watchdog:
    """Makes this process the watchdog of a worker, and returns in the worker alone. No thread may run before the call.

    Args:
      beforehand: called in the watchdog.
    """
    heard, tell = os.pipe()
    life, live = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    worker = os.fork()
    if worker == 0:
        os.close(heard)
        os.close(live)
        from gmmae.system.interrupts import twice_as_once  # the watchdog does without

        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # where it is ignored it stays so
            signal.signal(signal.SIGINT, twice_as_once(signal.default_int_handler))
        os.read(life, 1)  # the watchdog passes signals on from now on, or it is gone, which the thread will see
        return Watchdog(tell, life)
    os.close(tell)
    os.close(life)
    beforehand()
    _Supervision(worker, heard, live).run()


class _Deadline(NamedTuple):
    left_s: float
    words: ExitMessage


class _Supervision:
    """The watchdog's part."""

    def __init__(self, worker: int, heard: int, live: int) -> None:
        self._worker, self._heard, self._live = worker, heard, live
        self._rest = b""
        self._deadlines: dict[str, _Deadline] = {}
        self._aborted: ExitMessage | None = None
        self._end: ExitMessage | None = None
        os.set_blocking(live, False)
        for number in PASSED_ON:
            if signal.getsignal(number) is not signal.SIG_IGN:  # as of SIGHUP under nohup
                signal.signal(number, self._pass_on)

    def run(self) -> NoReturn:
        os.write(self._live, b".")
        before = time.monotonic()
        while (status := self._status()) is None:
            if select.select([self._heard], [], [], TICK_S)[0]:
                self._listen()
            now = time.monotonic()
            if now - before >= TICK_S / 2:
                with suppress(BlockingIOError, BrokenPipeError):  # the worker is stopped, or has ended
                    os.write(self._live, b".")
                self._count(min(now - before, TICK_S))  # time in which this process was stopped counts for nothing
                before = now
        self._listen()
        _finish(status, self._end, self._aborted)

    def _pass_on(self, number: int, _: object) -> None:
        with suppress(ProcessLookupError):
            os.kill(self._worker, number)

    def _status(self) -> int | None:
        pid, status = os.waitpid(self._worker, os.WNOHANG)
        return status if pid else None

    def _listen(self) -> None:
        """Reads the worker's messages, all of them once it has ended."""
        os.set_blocking(self._heard, False)
        with suppress(BlockingIOError):
            while data := os.read(self._heard, 2**16):
                self._rest += data
            time.sleep(0.01)  # the worker has closed its end: it is about to be gone
        *lines, self._rest = self._rest.split(b"\n")
        for line in lines:
            match json.loads(line):
                case ["deadline", name, seconds, text]:
                    self._deadlines[name] = _Deadline(seconds, ExitMessage(text, LOST_PEER))
                case ["aborted", text, code]:
                    self._aborted = ExitMessage(text, code)
                case ["end", text, code]:
                    self._end = ExitMessage(text, code)

    def _count(self, seconds: float) -> None:
        self._deadlines = {
            name: deadline._replace(left_s=deadline.left_s - seconds)
            for name, deadline in self._deadlines.items()
            if self._end is None
        }
        for deadline in self._deadlines.values():
            if deadline.left_s <= 0:
                self._kill(deadline.words)

    def _kill(self, words: ExitMessage) -> NoReturn:
        os.kill(self._worker, signal.SIGKILL)
        until = time.monotonic() + KILL_TIMEOUT_S
        while self._status() is None and time.monotonic() < until:
            time.sleep(0.01)
        _finish(0, words, None)


def _finish(status: int, end: ExitMessage | None, aborted: ExitMessage | None) -> NoReturn:
    code = os.waitstatus_to_exitcode(status)
    words = end or (aborted if code == -signal.SIGABRT else None)
    if words is not None:
        write_error(words.line)
        os._exit(words.code)
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # one core file is enough
        with suppress(OSError, ValueError):  # of SIGKILL
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code if code >= 0 else 128 - code)
