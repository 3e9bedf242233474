"""Runs several programs as subprocesses, a few at a time. Each fails alone, and none is left behind.

A job leads its own session. Ctrl-C in the terminal therefore reaches the supervisor only. SIGKILL to the job's process group
also ends the processes that the job started, unless they lead their own session. POSIX only.
"""

import math
import os
import signal
import stat
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from types import FrameType
from typing import NamedTuple

from gmmae.system.errors import InputError
from gmmae.system.interrupts import REASONS, Interrupts
from gmmae.system.nvidia import least_used

NOT_STARTED = 127
"""The return code of a job that could not be started, as in a shell."""

_TAIL_BYTES = 16384
_LINE_LENGTH = 300


class Job(NamedTuple):
    """A program to run."""

    name: str
    command: tuple[str, ...]
    log: Path  # standard output and error are appended; missing folders are created
    environment: Mapping[str, str]  # added to the supervisor's own
    time_limit_s: float  # 0: none
    devices: int = 1  # devices that the program uses


class Ended(NamedTuple):
    """How a job ended."""

    name: str
    returncode: int  # negative: the number of the signal that killed it; NOT_STARTED with `error`
    timed_out: bool  # it was ended at its time limit
    seconds: float
    interrupted: bool = False  # it was ended because the supervisor was interrupted
    time_limit_s: float = 0.0
    error: str = ""  # the reason where the return code does not tell: it did not start, or its end was not observed


class Callbacks(NamedTuple):
    """Functions that are called while jobs run, all in the calling thread."""

    on_start: Callable[[Job], object]  # before a job starts
    on_end: Callable[[Job, Ended], object]  # once for every job for which `on_start` was called
    on_tick: Callable[[Sequence[tuple[Job, float]]], object] = lambda _: None  # with running jobs and their seconds so far


def describe(ended: Ended) -> str:
    """Returns how the job ended, as text.

    >>> describe(Ended("a", -9, False, 1.0)), describe(Ended("a", 3, False, 1.0))
    ('killed by SIGKILL', 'exit code 3')
    >>> describe(Ended("a", -9, True, 61.0, time_limit_s=60.0))
    'killed after its time limit of 60 s'
    """
    if ended.error:
        return ended.error
    if ended.timed_out:
        return f"killed after its time limit of {ended.time_limit_s:.10g} s"
    if ended.returncode >= 0:
        how = f"exit code {ended.returncode}"
    else:
        number = -ended.returncode
        known = number in set(signal.Signals)
        how = f"killed by {signal.Signals(number).name if known else f'signal {number}'}"
    return f"interrupted, {how}" if ended.interrupted else how


def last_lines(log: Path, n: int = 1) -> str:
    """Returns the last `n` lines of a log that are not empty, shortened for messages, or "" for a missing or empty log.

    Unprintable characters become U+FFFD. A line that a progress bar overwrote counts as a line.
    """
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    lines = [line.expandtabs().rstrip() for line in text.splitlines() if line.strip()][-n:]
    cut = (line if len(line) <= _LINE_LENGTH else line[:_LINE_LENGTH] + "…" for line in lines)
    return "\n".join("".join(c if c.isprintable() else "\ufffd" for c in line) for line in cut)


def supervise(
    jobs: Sequence[Job],
    callbacks: Callbacks,
    *,
    at_once: int,
    grace_s: float,
    gpus: Sequence[Mapping[str, str]] = (),
    tick_s: float = 0.5,
) -> str | None:
    """Runs the jobs in their order, and returns when all have ended.

    A job that crashes or cannot be started is an `Ended` like any other. A job past its time limit gets SIGTERM, and SIGKILL
    `grace_s` later. SIGTERM goes to the job's own process only. If its helpers died first, that would look like a failure of
    the job. SIGCONT follows, so that a stopped job can still end well. Processes of the job's group that outlive it are killed.

    SIGTERM, SIGINT or SIGHUP to this process ends all running jobs in the same way, and no further one starts. A second signal
    sends SIGKILL at once. The handlers are installed while this function runs, and in the main thread only. An exception of a
    callback, KeyboardInterrupt included, also ends all jobs, and is then raised again.

    Args:
      jobs: the programs.
      callbacks: functions that are called when jobs start and end, and at each tick.
      at_once: the maximum number of jobs that run at the same time.
      grace_s: seconds from SIGTERM to SIGKILL.
      gpus: environments that select a GPU. A job starts with the one that the fewest running jobs use.
      tick_s: approximate seconds between two ticks. A signal that another thread received waits for a tick.

    Returns:
      None, or a reason of `gmmae.system.stop_reasons` when it was interrupted.

    Raises:
      InputError: `at_once`, `tick_s`, `grace_s` or a time limit is out of range.
    """
    _check(jobs, at_once, grace_s, tick_s)
    waiting = deque(jobs)
    children = _Children(grace_s, gpus)
    with _Signals(children.events) as signals:
        try:
            next_tick = time.monotonic() + tick_s
            while True:
                while waiting and signals.reason is None and len(children.running) < at_once:
                    job = waiting.popleft()
                    callbacks.on_start(job)
                    if failed := children.start(job):
                        callbacks.on_end(job, failed)
                if not children.running:
                    break
                if ended := children.next_end(until=next_tick):
                    callbacks.on_end(*ended)
                if time.monotonic() >= next_tick:
                    callbacks.on_tick(children.seconds())
                    next_tick = time.monotonic() + tick_s
        finally:
            children.end_all()
    return signals.reason


def die_with_parent() -> None:
    """Kills this process when its supervisor ends, even by SIGKILL. A job's program calls it first.

    The supervisor alone holds the other end of the pipe that is this process's standard input. Its end is an end of file here.
    A thread waits for that. It then kills the process group if this process leads it, or else exits with code 137. It does not
    ask to stop, because a new supervisor may start the same job in the same work directory at once. Two processes must not
    write there, not even for a last checkpoint.

    Without a pipe as standard input, as in a program started manually, nothing is done. A job that is stopped (SIGSTOP) when
    its supervisor dies is killed when it is continued.
    """
    if stat.S_ISFIFO(os.fstat(0).st_mode):
        threading.Thread(target=_kill_at_end_of_input, name="die_with_parent", daemon=True).start()


def _kill_at_end_of_input() -> None:
    while os.read(0, 1):
        pass
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpgrp(), signal.SIGKILL)
    os._exit(128 + signal.SIGKILL)


def _check(jobs: Sequence[Job], at_once: int, grace_s: float, tick_s: float) -> None:
    if at_once < 1:
        raise InputError(f"at_once must be 1 or more jobs; got {at_once!r}")
    if not 0 < tick_s <= 60:
        raise InputError(f"tick_s must be more than 0 and at most 60 seconds; got {tick_s!r}")
    if not grace_s >= 0:
        raise InputError(f"grace_s must be 0 or more seconds; got {grace_s!r}")
    for job in jobs:
        if not job.time_limit_s >= 0:
            raise InputError(f"time_limit_s of {job.name} must be 0 (none) or more seconds; got {job.time_limit_s!r}")


class _Child:
    """A running job. Only `finish` reaps its process, so the process number cannot be reused before."""

    def __init__(self, job: Job, process: subprocess.Popen[bytes], started: float) -> None:
        self.job = job
        self.process = process
        self.started = started
        self.ended = math.nan
        self.timed_out = False
        self.interrupted = False
        # If it does not end by itself, SIGTERM comes first and SIGKILL next.
        self.terminate_at = started + job.time_limit_s if job.time_limit_s else math.inf
        self.kill_at = math.inf
        self.terminated = False

    def watch(self, events: "SimpleQueue[_Child | None]") -> None:
        """Puts this child into the queue when its process has ended. It runs in a separate thread."""
        if hasattr(os, "waitid"):
            with suppress(ChildProcessError):  # the calling program reaps all its children itself
                os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)
        else:  # macOS before Python 3.13
            self.process.wait()
        self.ended = time.monotonic()
        events.put(self)

    def terminate(self, grace_s: float) -> None:
        self.terminated = True
        self.terminate_at, self.kill_at = math.inf, time.monotonic() + grace_s
        for number in (signal.SIGTERM, signal.SIGCONT):
            with suppress(ProcessLookupError):
                os.kill(self.process.pid, number)

    def kill(self) -> None:
        self.terminate_at = self.kill_at = math.inf
        # If only the ended leader is left of a group, Linux reports no error and macOS PermissionError.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def finish(self) -> Ended:
        """Kills the rest of the group, and reaps the leader."""
        self.kill()
        returncode = self.process.wait()
        assert self.process.stdin is not None
        self.process.stdin.close()
        seconds = self.ended - self.started
        return Ended(self.job.name, returncode, self.timed_out, seconds, self.interrupted, self.job.time_limit_s)


class _Children:
    """The running jobs, and the queue of events: a child that ended, or None for a signal to this process."""

    def __init__(self, grace_s: float, gpus: Sequence[Mapping[str, str]]) -> None:
        self.grace_s = grace_s
        self.gpus = gpus
        self.running: list[_Child] = []
        self.events: SimpleQueue[_Child | None] = SimpleQueue()
        self.ending = False

    def start(self, job: Job) -> Ended | None:
        """Starts a job. Returns how it ended if it could not be started."""
        started = time.monotonic()
        gpu = least_used(self.gpus, [child.job.environment for child in self.running])
        try:
            self.running.append(_start(job._replace(environment={**job.environment, **gpu}), started, self.events))
        except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: no more threads
            seconds = time.monotonic() - started
            return Ended(job.name, NOT_STARTED, False, seconds, False, job.time_limit_s, f"could not be started: {error}")
        return None

    def next_end(self, until: float) -> tuple[Job, Ended] | None:
        """Waits for an event, at most until a time. Returns the job that ended, if that was the event."""
        due = min(until, *(min(child.terminate_at, child.kill_at) for child in self.running))
        try:
            event = self.events.get(timeout=max(0.0, due - time.monotonic()))
        except Empty:
            # Limits are checked only here: a job that ended in time is not late because a callback took long.
            self._escalate()
            return None
        if event is None:
            self._interrupt()
            return None
        self.running.remove(event)
        return event.job, event.finish()

    def seconds(self) -> list[tuple[Job, float]]:
        """Returns the running jobs and the seconds since each one's start."""
        now = time.monotonic()
        return [(child.job, now - child.started) for child in self.running]

    def end_all(self) -> None:
        """Ends the running jobs, without callbacks."""
        self._terminate_all()
        while self.running:
            self.next_end(until=time.monotonic() + 1.0)

    def _escalate(self) -> None:
        now = time.monotonic()
        for child in self.running:
            if child.terminate_at <= now:
                child.timed_out = True
                child.terminate(self.grace_s)
            elif child.kill_at <= now:
                child.kill()

    def _interrupt(self) -> None:
        if self.ending:
            for child in self.running:
                child.kill()
        self._terminate_all()

    def _terminate_all(self) -> None:
        self.ending = True
        for child in self.running:
            if not child.terminated:
                child.interrupted = True
                child.terminate(self.grace_s)


def _start(job: Job, started: float, events: "SimpleQueue[_Child | None]") -> _Child:
    job.log.parent.mkdir(parents=True, exist_ok=True)
    with job.log.open("ab") as log:
        try:
            process = subprocess.Popen(
                job.command,
                # Nothing is written to it: see `die_with_parent`. Python closes this end on exec, so no other job inherits it.
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **job.environment},
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            log.write(f"could not be started: {error}\n".encode())
            raise
    child = _Child(job, process, started)
    try:
        threading.Thread(target=child.watch, args=(events,), daemon=True).start()
    except BaseException:
        child.finish()
        raise
    return child


class _Signals(Interrupts):
    """While entered, the first signal of `REASONS` sets `reason`, and each one puts None into the queue.

    A second signal is handled too, unlike in the base class. Otherwise this process would die before its jobs.
    """

    def __init__(self, events: "SimpleQueue[_Child | None]") -> None:
        super().__init__()
        self._events = events
        self._handler = self._note  # no other process passes Ctrl-C on, so a second SIGINT counts

    def _note(self, number: int, _: FrameType | None) -> None:
        self.reason = self.reason or REASONS[signal.Signals(number)]
        self._events.put(None)  # SimpleQueue.put is reentrant
