"""Runs several programs as subprocesses, a few at a time. Each fails alone, and none is left behind.

A job leads its own session. Ctrl-C in the terminal therefore reaches the supervisor only. SIGKILL to the job's process group
also ends the processes that the job started, unless they lead their own session. POSIX only.
"""

import math
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from gmmae.system.interrupts import REASONS, Interrupts
from gmmae.system.nvidia import least_used

NOT_STARTED = 127
"""The return code of a job that could not be started, as in a shell."""

POLL_S = 0.05
"""Seconds between two checks whether jobs have ended or are due to end."""

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


def last_line(log: Path) -> str:
    """Returns the last line of a log that is not empty, shortened for messages, or "" for a missing or empty log.

    Unprintable characters become U+FFFD. A line that a progress bar overwrote counts as a line.
    """
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    line = next((line.expandtabs().rstrip() for line in reversed(text.splitlines()) if line.strip()), "")
    shown = line if len(line) <= _LINE_LENGTH else line[:_LINE_LENGTH] + "…"
    return "".join(character if character.isprintable() else "\ufffd" for character in shown)


def import_path() -> str:
    """Returns the value of PYTHONPATH with which a program imports everything that this process can."""
    return os.pathsep.join(path or os.getcwd() for path in sys.path)


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
      tick_s: approximate seconds between two ticks.

    Returns:
      None, or a reason of `gmmae.system.stop_reasons` when it was interrupted.
    """
    waiting, running = deque(jobs), list[_Child]()
    with _Signals() as signals:
        try:
            next_tick = time.monotonic() + tick_s
            while running or (waiting and signals.reason is None):
                while waiting and signals.reason is None and len(running) < at_once:
                    job = waiting.popleft()
                    callbacks.on_start(job)
                    gpu = least_used(gpus, [child.job.environment for child in running])
                    try:
                        running.append(_Child(job._replace(environment={**job.environment, **gpu})))
                    except (OSError, ValueError) as error:
                        message = f"could not be started: {error}"
                        callbacks.on_end(job, Ended(job.name, NOT_STARTED, False, 0.0, False, job.time_limit_s, message))
                for child in _wait(running, grace_s, signals.count):
                    running.remove(child)
                    callbacks.on_end(child.job, child.finish())
                if time.monotonic() >= next_tick:
                    now = time.monotonic()
                    callbacks.on_tick([(child.job, now - child.started) for child in running])
                    next_tick = now + tick_s
        finally:
            signals.count = max(signals.count, 1)  # an exception ends the jobs as a signal does
            while running:
                for child in _wait(running, grace_s, signals.count):
                    running.remove(child)
                    child.finish()
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


class _Child:
    """A running job. Only `finish` reaps its process, so the process number cannot be reused before."""

    def __init__(self, job: Job) -> None:
        """Starts the job.

        Raises:
          OSError, ValueError: it cannot be started. Its log has the reason, if there can be a log.
        """
        self.job = job
        self.started = time.monotonic()
        self.timed_out = False
        self.interrupted = False
        # If it does not end by itself, SIGTERM comes first and SIGKILL next.
        self.terminate_at = self.started + job.time_limit_s if job.time_limit_s else math.inf
        self.kill_at = math.inf
        job.log.parent.mkdir(parents=True, exist_ok=True)
        with job.log.open("ab") as log:
            try:
                self.process = subprocess.Popen(
                    job.command,
                    # Nothing is written to it: see `die_with_parent`. Python closes this end on exec: no other job inherits it.
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **job.environment},
                    start_new_session=True,
                )
            except (OSError, ValueError) as error:
                log.write(f"could not be started: {error}\n".encode())
                raise

    def has_ended(self) -> bool:
        if not hasattr(os, "waitid"):  # macOS before Python 3.13
            return self.process.poll() is not None
        try:
            return os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None
        except ChildProcessError:  # the calling program reaps all its children itself
            return True

    def end_if_due(self, grace_s: float, signals: int) -> None:
        """Sends SIGTERM at the time limit or after a signal to this process, and SIGKILL later or after a second signal."""
        now = time.monotonic()
        if self.timed_out or self.interrupted:  # it has got SIGTERM
            if signals > 1 or self.kill_at <= now:
                self.kill()
        elif signals or self.terminate_at <= now:
            self.timed_out = self.terminate_at <= now
            self.interrupted = not self.timed_out
            self.kill_at = now + grace_s
            for number in (signal.SIGTERM, signal.SIGCONT):
                with suppress(ProcessLookupError):
                    os.kill(self.process.pid, number)

    def kill(self) -> None:
        # If only the ended leader is left of a group, Linux reports no error and macOS PermissionError.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def finish(self) -> Ended:
        """Kills the rest of the group, and reaps the leader."""
        seconds = time.monotonic() - self.started
        self.kill()
        returncode = self.process.wait()
        assert self.process.stdin is not None
        self.process.stdin.close()
        return Ended(self.job.name, returncode, self.timed_out, seconds, self.interrupted, self.job.time_limit_s)


def _wait(running: Sequence[_Child], grace_s: float, signals: int) -> list[_Child]:
    """Waits a moment. Returns the children that have ended, and ends the others that are due."""
    time.sleep(POLL_S)
    ended = [child for child in running if child.has_ended()]
    for child in running:
        if child not in ended:
            child.end_if_due(grace_s, signals)
    return ended


class _Signals(Interrupts):
    """While entered, counts the signals of `REASONS`, of which the first one sets `reason`.

    A second signal is handled too, unlike in the base class. Otherwise this process would die before its jobs.
    """

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self._handler = self._note  # no other process passes Ctrl-C on, so a second SIGINT counts

    def _note(self, number: int, _: FrameType | None) -> None:
        self.reason = self.reason or REASONS[signal.Signals(number)]
        self.count += 1
