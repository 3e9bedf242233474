"""Several programs run as subprocesses, a few at a time: each fails alone, and none is left behind.

A job leads a session of its own. Ctrl-C in the terminal therefore reaches only the supervisor, and SIGKILL to the job's process
group takes the processes that it started with it, unless they made a session of their own. POSIX only.
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
from gmmae.system.gpus import least_used
from gmmae.system.interrupts import REASONS, Interrupts

NOT_STARTED = 127
"""The return code of a job that could not be started, as in a shell."""

_TAIL_BYTES = 16384
_LINE_LENGTH = 300


class Job(NamedTuple):
    """A program to run."""

    name: str
    command: tuple[str, ...]
    log: Path  # standard output and error are appended; folders are made
    environment: Mapping[str, str]  # added to the supervisor's own
    time_limit_s: float  # 0: none
    devices: int = 1  # that its program computes on


class Ended(NamedTuple):
    """How a job ended."""

    name: str
    returncode: int  # negative: the number of the signal that killed it; NOT_STARTED with `error`
    timed_out: bool  # it was told to end because of its time limit
    seconds: float
    interrupted: bool = False  # it was told to end because the supervisor was
    time_limit_s: float = 0.0
    error: str = ""  # in words, where the return code does not tell: it could not be started, or nobody saw its end


def describe(ended: Ended) -> str:
    """How the job ended, in words.

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
    """The last `n` lines of a log that are not empty, cut to a length fit for messages; "" where there is nothing to read.

    What cannot be printed is shown as U+FFFD, and a line that a progress bar wrote over counts as a line.
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
    *,
    at_once: int,
    grace_s: float,
    on_start: Callable[[Job], None],
    on_end: Callable[[Job, Ended], None],
    on_tick: Callable[[Sequence[tuple[Job, float]]], None] = lambda _: None,
    places: Sequence[Mapping[str, str]] = (),
    tick_s: float = 0.5,
) -> str | None:
    """Run the jobs in their order, and return when all have ended.

    A job that crashes, or cannot be started, is an `Ended` like any other. A job past its time limit gets SIGTERM, and SIGKILL
    `grace_s` later. SIGTERM goes to the job alone, because its helpers dying under it would look like a failure of its own;
    SIGCONT follows, so that a stopped job can still end well. What is left of a job's process group when the job has ended,
    however it did, is killed.

    SIGTERM, SIGINT or SIGHUP to this process ends all running jobs in the same way, and no further one starts; a second signal
    brings SIGKILL at once. The handlers stand while this function runs, and only if it runs in the main thread. An exception
    of a callback, KeyboardInterrupt too, is raised again once all jobs have been ended likewise.

    Args:
      jobs: the programs.
      at_once: the most that run at a time.
      grace_s: seconds from SIGTERM to SIGKILL.
      on_start: called before a job starts, in the calling thread like the others.
      on_end: called once for every job for which `on_start` was called.
      on_tick: called with the running jobs and the seconds since each one's start.
      places: environments, such as that of a GPU; a job is started with the one that the fewest running jobs have.
      tick_s: seconds between two ticks, about; a signal that the system gave to another thread waits for one.

    Returns:
      None, or the reason of `gmmae.training.stopping` when it was interrupted.

    Raises:
      InputError: `at_once`, `tick_s`, `grace_s` or a time limit is out of range.
    """
    _check(jobs, at_once, grace_s, tick_s)
    waiting = deque(jobs)
    children = _Children(grace_s, places)
    with _Signals(children.events) as signals:
        try:
            next_tick = time.monotonic() + tick_s
            while True:
                while waiting and signals.reason is None and len(children.running) < at_once:
                    job = waiting.popleft()
                    on_start(job)
                    if failed := children.start(job):
                        on_end(job, failed)
                if not children.running:
                    break
                if ended := children.next_end(until=next_tick):
                    on_end(*ended)
                if time.monotonic() >= next_tick:
                    on_tick(children.seconds())
                    next_tick = time.monotonic() + tick_s
        finally:
            children.end_all()
    return signals.reason


def die_with_parent() -> None:
    """Called first thing by a job's program: it shall not outlive its supervisor, even one that was killed with SIGKILL.

    The supervisor alone holds the other end of the pipe that is this process's standard input, so its end, however it came, is
    an end of file here. A thread waits for that and then kills the process group, where this process leads it, or else this
    process with exit code 137. It kills, rather than asks to stop, because a successor of the supervisor may start the same job
    in the same work directory at once: two processes must not write there, not even for the time of a last checkpoint.

    Without a pipe as standard input, as in a program started by hand, nothing is done. A job that is stopped (SIGSTOP) when its
    supervisor dies is killed when it is continued.
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
    """A running job. Its process is reaped by `finish` only, so its number cannot come to mean another process before."""

    def __init__(self, job: Job, process: subprocess.Popen[bytes], started: float) -> None:
        self.job = job
        self.process = process
        self.started = started
        self.ended = math.nan
        self.timed_out = False
        self.interrupted = False
        # The next thing to happen if it does not end: SIGTERM, then SIGKILL.
        self.terminate_at = started + job.time_limit_s if job.time_limit_s else math.inf
        self.kill_at = math.inf
        self.told_to_end = False

    def watch(self, events: "SimpleQueue[_Child | None]") -> None:
        """Put this child into the queue when its process has ended; a thread of its own runs this."""
        if hasattr(os, "waitid"):
            with suppress(ChildProcessError):  # the caller's program reaps all its children itself
                os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)
        else:  # macOS before Python 3.13
            self.process.wait()
        self.ended = time.monotonic()
        events.put(self)

    def terminate(self, grace_s: float) -> None:
        self.told_to_end = True
        self.terminate_at, self.kill_at = math.inf, time.monotonic() + grace_s
        for number in (signal.SIGTERM, signal.SIGCONT):
            with suppress(ProcessLookupError):
                os.kill(self.process.pid, number)

    def kill(self) -> None:
        self.terminate_at = self.kill_at = math.inf
        # A group of which only its ended leader is left: no error on Linux, PermissionError on macOS.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def finish(self) -> Ended:
        """Kill what is left of the group and reap the leader."""
        self.kill()
        returncode = self.process.wait()
        assert self.process.stdin is not None
        self.process.stdin.close()
        seconds = self.ended - self.started
        return Ended(self.job.name, returncode, self.timed_out, seconds, self.interrupted, self.job.time_limit_s)


class _Children:
    """The running jobs, and the queue of what happens: a child that ended, or None for a signal to this process."""

    def __init__(self, grace_s: float, places: Sequence[Mapping[str, str]]) -> None:
        self.grace_s = grace_s
        self.places = places
        self.running: list[_Child] = []
        self.events: SimpleQueue[_Child | None] = SimpleQueue()
        self.ending = False

    def start(self, job: Job) -> Ended | None:
        """Start a job; how it ended if it could not be started."""
        started = time.monotonic()
        place = least_used(self.places, [child.job.environment for child in self.running])
        try:
            self.running.append(_start(job._replace(environment={**job.environment, **place}), started, self.events))
        except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: no more threads
            return Ended(
                job.name,
                NOT_STARTED,
                False,
                time.monotonic() - started,
                False,
                job.time_limit_s,
                f"could not be started: {error}",
            )
        return None

    def next_end(self, until: float) -> tuple[Job, Ended] | None:
        """Wait for one thing to happen, or for the time; the job that ended, if it was that."""
        due = min(until, *(min(child.terminate_at, child.kill_at) for child in self.running))
        try:
            event = self.events.get(timeout=max(0.0, due - time.monotonic()))
        except Empty:
            # Only now, so that a job that ended in time is not taken for late because a callback took long.
            self._escalate()
            return None
        if event is None:
            self._interrupt()
            return None
        self.running.remove(event)
        return event.job, event.finish()

    def seconds(self) -> list[tuple[Job, float]]:
        """The running jobs and the time since each one's start."""
        now = time.monotonic()
        return [(child.job, now - child.started) for child in self.running]

    def end_all(self) -> None:
        """End what still runs, and call nobody back."""
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
            if not child.told_to_end:
                child.interrupted = True
                child.terminate(self.grace_s)


def _start(job: Job, started: float, events: "SimpleQueue[_Child | None]") -> _Child:
    job.log.parent.mkdir(parents=True, exist_ok=True)
    with job.log.open("ab") as log:
        try:
            process = subprocess.Popen(
                job.command,
                # Never written to: see `die_with_parent`. Python closes this end on exec, so no other job inherits it.
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

    Unlike its base's, a second signal is handled too: this process would die before its jobs.
    """

    def __init__(self, events: "SimpleQueue[_Child | None]") -> None:
        super().__init__()
        self._events = events
        self._handler = self._note  # nobody passes Ctrl-C on to this process: two are two

    def _note(self, number: int, _: FrameType | None) -> None:
        self.reason = self.reason or REASONS[signal.Signals(number)]
        self._events.put(None)  # a SimpleQueue may be put into amid its own methods
