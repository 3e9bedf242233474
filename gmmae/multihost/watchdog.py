"""A parent beside each process that trains, for what a process cannot do that hangs, is stopped or dies.

The parent is the process that was started. It forks before anything large is imported; the child, the worker, goes on as the
program, and the parent waits. It has neither threads nor JAX. It

- passes on the signals that it gets, and ends as its worker has ended: by the same exit code or the same signal;
- kills a worker that has let a deadline pass, and says why;
- says the worker's last words where JAX's C++ has aborted it, and gives the exit code that they have.

The worker dies with its parent. Deadlines and last words come through a pipe and not through a file: a file system may be what
is stuck. Both sides count the seconds in which they run themselves, not those of a clock: where the whole job is suspended
(`scontrol suspend`, Ctrl-Z, a paused container) nobody is killed for it.
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

from gmmae.system.errors import LOST_PEER

TICK_S = 0.5
PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
KILLED_S = 10.0
"""How long the end of a killed worker is awaited: one that waits for a dead file system does not come to it."""


class Words(NamedTuple):
    """What is to be said of an end, as one line, and its exit code; without a line nothing is said."""

    line: str
    code: int


class Parent:
    """What a worker has of its parent. Without descriptors, as in a program that has called `gmmae.train`, there is none."""

    def __init__(self, tell: int = -1, life: int = -1) -> None:
        self._tell, self._life = tell, life
        self._lock = threading.Lock()
        self._patience_s, self._stopped = 0.0, ""
        self.orphaned: Callable[[], None] = lambda: None
        """Called when the parent has ended, before this process is killed."""
        if life >= 0:
            os.set_blocking(tell, False)
            threading.Thread(target=self._guard, name="parent", daemon=True).start()

    @property
    def pid(self) -> int:
        """Of the process that was started."""
        return os.getppid() if self._life >= 0 else os.getpid()

    def watch_each_other(self, seconds: float, line: str = "") -> None:
        """Lets worker or parent, when it has been stopped for so long, be killed by the other one; 0: leaves them alone.

        Args:
          seconds: in which the other one runs.
          line: said of the worker.
        """
        with self._lock:
            self._patience_s, self._stopped = seconds, line
            self.put_off("alive", seconds or math.inf, line)

    def put_off(self, deadline: str, seconds: float, line: str) -> None:
        """Lets this process be killed, and the line be said, unless the deadline of this name is put off again in time.

        Args:
          deadline: its name.
          seconds: from now; infinity takes it away.
          line: for standard error.
        """
        with suppress(BlockingIOError):  # the parent is stopped
            self._send("deadline", deadline, seconds, line)

    def if_aborted(self, words: Words) -> None:
        """Leaves words for the case that JAX aborts this process."""
        self._send("aborted", *words)

    def end(self, words: Words) -> NoReturn:
        """Ends this process at once; also if it is aborted in this moment, its end is this one."""
        if self._life < 0:
            _say(words.line)
        self.last_words(words)
        os._exit(words.code)

    def last_words(self, words: Words) -> None:
        """Leaves words for whatever end comes now."""
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
                    self.orphaned()
                    os.kill(os.getpid(), signal.SIGKILL)
            with self._lock:
                if self._patience_s:
                    self.put_off("alive", self._patience_s, self._stopped)
                    if silent_s > self._patience_s:
                        os.kill(os.getppid(), signal.SIGKILL)


NO_PARENT = Parent()


def accompanied(beforehand: Callable[[], None] = lambda: None) -> Parent:
    """Makes this process the parent of a worker, in which alone the call returns. No thread may have been started before.

    Args:
      beforehand: called in the parent.
    """
    heard, tell = os.pipe()
    life, live = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    worker = os.fork()
    if worker == 0:
        os.close(heard)
        os.close(live)
        from gmmae.system.interrupts import twice_as_once  # the parent does without

        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # where it is ignored it stays so
            signal.signal(signal.SIGINT, twice_as_once(signal.default_int_handler))
        os.read(life, 1)  # the parent passes signals on from now on; or it is gone, which the thread will see
        return Parent(tell, life)
    os.close(tell)
    os.close(life)
    beforehand()
    _Watch(worker, heard, live).run()


class _Deadline(NamedTuple):
    left_s: float
    words: Words


class _Watch:
    """The parent's part."""

    def __init__(self, worker: int, heard: int, live: int) -> None:
        self._worker, self._heard, self._live = worker, heard, live
        self._rest = b""
        self._deadlines: dict[str, _Deadline] = {}
        self._aborted: Words | None = None
        self._end: Words | None = None
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
        """Takes in what the worker has said, all of it once it has ended."""
        os.set_blocking(self._heard, False)
        with suppress(BlockingIOError):
            while data := os.read(self._heard, 2**16):
                self._rest += data
            time.sleep(0.01)  # the worker has closed its end: it is about to be gone
        *lines, self._rest = self._rest.split(b"\n")
        for line in lines:
            match json.loads(line):
                case ["deadline", name, seconds, text]:
                    self._deadlines[name] = _Deadline(seconds, Words(text, LOST_PEER))
                case ["aborted", text, code]:
                    self._aborted = Words(text, code)
                case ["end", text, code]:
                    self._end = Words(text, code)

    def _count(self, seconds: float) -> None:
        self._deadlines = {
            name: each._replace(left_s=each.left_s - seconds) for name, each in self._deadlines.items() if self._end is None
        }
        for each in self._deadlines.values():
            if each.left_s <= 0:
                self._kill(each.words)

    def _kill(self, words: Words) -> NoReturn:
        os.kill(self._worker, signal.SIGKILL)
        until = time.monotonic() + KILLED_S
        while self._status() is None and time.monotonic() < until:
            time.sleep(0.01)
        _finish(0, words, None)


def _say(line: str) -> None:
    with suppress(OSError):  # the terminal may be closed
        sys.stderr.write(line)
        sys.stderr.flush()


def _finish(status: int, end: Words | None, aborted: Words | None) -> NoReturn:
    code = os.waitstatus_to_exitcode(status)
    words = end or (aborted if code == -signal.SIGABRT else None)
    if words is not None:
        _say(words.line)
        os._exit(words.code)
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # one core file is enough
        with suppress(OSError, ValueError):  # of SIGKILL
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code if code >= 0 else 128 - code)
