"""Jobs and the programs that run them, as their supervisor holds them: started, asked, ended and reaped.

A program runs one job, or stays and runs one after the other. A staying program is called as `COMMAND serve DESCRIPTOR`. It
reads requests as JSON lines on its standard input: `{"log": ..., "command": ..., "arguments": [...]}`. It writes an `Answer`
as a JSON line to the descriptor when a job has ended in a result or in bad input. After any other end it ends itself, and its
exit code is that of the job. The request `null` asks it to end. The end of file on its standard input kills it.

A program leads its own session. Ctrl-C in the terminal therefore reaches the supervisor only. SIGKILL to its process group
also ends the processes that it started, unless they lead their own session. POSIX only.
"""

import json
import math
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, NamedTuple

NOT_STARTED = 127
"""The return code of a job that could not be started, as in a shell."""

TRACEBACK = "Traceback (most recent call last):"

_TAIL_BYTES = 16384
_LINE_LENGTH = 300
_READ_BYTES = 65536


class Job(NamedTuple):
    """Work for a program."""

    name: str
    command: tuple[str, ...]  # the program
    log: Path  # standard output and error are appended; missing folders are created
    environment: Mapping[str, str]  # added to the supervisor's own
    time_limit_s: float  # for all attempts together; 0: none
    devices: int = 1  # devices that the program uses
    arguments: tuple[str, ...] = ()  # of the program: its command and files
    stays: bool = False  # whether the program can stay and run further jobs of the same program and environment
    attempts: int = 1  # how often it is tried in all, if it crashes


class Ended(NamedTuple):
    """How a job ended."""

    name: str
    returncode: int  # negative: the number of the signal that killed it; NOT_STARTED with `error`
    timed_out: bool  # it was ended at its time limit
    seconds: float
    interrupted: bool = False  # it was ended because the supervisor was interrupted
    time_limit_s: float = 0.0
    error: str = ""  # the reason where the return code does not tell: it did not start, or its end was not observed


class Answer(NamedTuple):
    """A staying program's answer to a request."""

    exit_code: int
    memory_bytes: int  # resident memory of the program after the job


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
    return _printable(next(reversed(_last_lines(log)), ""))


def error_line(log: Path) -> str:
    """Returns the error on the last line of a log, whole, as its end says what to do; "" where the line is no error."""
    line = next(reversed(_last_lines(log)), "")
    return line.removeprefix("error: ") if line.startswith("error: ") else ""


def exception_line(log: Path) -> str:
    """Returns the exception of the last traceback of a log as `last_line` does, or the last line where there is no traceback.

    The notes that JAX writes behind a traceback say nothing of the cause.
    """
    lines = _last_lines(log)
    starts = [number for number, line in enumerate(lines, start=1) if line == TRACEBACK]
    exceptions = [line for line in lines[starts[-1] :] if not line.startswith(" ")] if starts else []
    return _printable(exceptions[0]) if exceptions else last_line(log)


def _last_lines(log: Path) -> list[str]:
    """Returns the last lines of a log that are not empty."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    return [line.expandtabs().rstrip() for line in text.splitlines() if line.strip()]


def _printable(line: str) -> str:
    shown = line if len(line) <= _LINE_LENGTH else line[:_LINE_LENGTH] + "…"
    return "".join(character if character.isprintable() else "\ufffd" for character in shown)


def import_path() -> str:
    """Returns the value of PYTHONPATH with which a program imports everything that this process can."""
    return os.pathsep.join(path or os.getcwd() for path in sys.path)


def die_with_parent(requests: int | None = None) -> None:
    """Kills this process when its supervisor ends, even by SIGKILL. A job's program calls it first.

    The supervisor alone holds the other end of the pipe that is this process's standard input. Its end is an end of file here.
    A thread waits for that. It then kills the process group if this process leads it, or else exits with code 137. It does not
    ask to stop, because a new supervisor may start the same job in the same work directory at once. Two processes must not
    write there, not even for a last checkpoint.

    Without a pipe as standard input, as in a program started manually, nothing is killed. A job that is stopped (SIGSTOP) when
    its supervisor dies is killed when it is continued.

    Standard input is empty afterwards, so that nothing that this process runs takes requests.

    Args:
      requests: a descriptor to which the thread passes on what it reads. It is closed at the end of file.
    """
    bound = stat.S_ISFIFO(os.fstat(0).st_mode)
    if bound or requests is not None:
        source, nowhere = os.dup(0), os.open(os.devnull, os.O_RDONLY)
        os.dup2(nowhere, 0)
        os.close(nowhere)
        threading.Thread(target=_read_to_end, args=(source, bound, requests), name="die_with_parent", daemon=True).start()


def _read_to_end(source: int, bound: bool, requests: int | None) -> None:
    while data := os.read(source, _READ_BYTES):
        while requests is not None and data:
            data = data[os.write(requests, data) :]
    if bound and os.getpgrp() == os.getpid():
        os.killpg(os.getpgrp(), signal.SIGKILL)
    if bound:
        os._exit(128 + signal.SIGKILL)
    if requests is not None:
        os.close(requests)


@dataclass
class Run:
    """A job on its way through its attempts."""

    job: Job
    tried: int = 0  # attempts that have crashed
    spent_s: float = 0.0  # in earlier attempts
    needs_new_program: bool = False
    crash: Ended | None = None  # the end of the last attempt
    started: float = field(default=math.nan, init=False)  # the monotonic time of this attempt
    timed_out: bool = field(default=False, init=False)
    interrupted: bool = field(default=False, init=False)

    @property
    def seconds(self) -> float:
        """The time of all attempts so far."""
        return self.spent_s + time.monotonic() - self.started

    @property
    def is_due(self) -> bool:
        """Whether the time limit has passed."""
        return 0.0 < self.job.time_limit_s <= self.seconds

    def ended(self, returncode: int) -> Ended:
        """Returns how this attempt ended."""
        return Ended(self.job.name, returncode, self.timed_out, self.seconds, self.interrupted, self.job.time_limit_s)

    def again(self, crash: Ended, tried: int) -> "Run":
        """Returns the next attempt. It gets a new program."""
        return Run(self.job, tried, crash.seconds, needs_new_program=True, crash=crash)


class Program:
    """A program that runs. Only `reap` reaps its process, so the process number cannot be reused before."""

    def __init__(self, run: Run, gpu: Mapping[str, str]) -> None:
        """Starts the program of a run, and sends it the run.

        Raises:
          OSError, ValueError: it cannot be started. Its log has the reason, if there can be a log.
        """
        job = run.job
        self.run: Run | None = run
        self.jobs_done = 0
        self.memory_limit_bytes = math.inf
        self.first = job
        self.environment = {**job.environment, **gpu}
        self.kill_at = math.inf  # SIGKILL comes then, if it was asked to end or got SIGTERM, and has not ended
        self._received = b""
        self._answers = -1
        run.started = time.monotonic()
        with _opened(job.log) as log:
            try:
                self._start(job, log.fileno())
            except (OSError, ValueError) as error:
                log.write(f"could not be started: {error}\n".encode())
                raise
        if job.stays:
            with suppress(OSError):  # it has ended already, which will be seen
                self._send(_request(job))

    def _start(self, job: Job, log: int) -> None:
        arguments, writing = job.arguments, -1
        if job.stays:
            self._answers, writing = os.pipe()
            os.set_blocking(self._answers, False)
            arguments = ("serve", str(writing))
        try:
            self._process = subprocess.Popen(
                (*job.command, *arguments),
                # See `die_with_parent`. Python closes this end on exec: no other program inherits it.
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self.environment},
                pass_fds=(writing,) if job.stays else (),
                start_new_session=True,
            )
        except (OSError, ValueError):
            self._close_answers()
            raise
        finally:
            if job.stays:
                os.close(writing)

    @property
    def answers(self) -> list[int]:
        """The descriptor of the answers, until it has ended."""
        return [self._answers] if self._answers >= 0 else []

    @property
    def is_leaving(self) -> bool:
        """Whether it was asked to end, or got SIGTERM."""
        return self.kill_at < math.inf

    @property
    def is_idle(self) -> bool:
        """Whether it can be sent a run."""
        return self.run is None and not self.is_leaving

    def fits(self, job: Job) -> bool:
        """Returns whether the program can run a job, too: it stays, and command and environment are equal."""
        return job.stays and (job.command, job.environment) == (self.first.command, self.first.environment)

    def send(self, run: Run) -> None:
        """Sends a run to the idle program.

        Raises:
          OSError: the program has ended, or the log of the job cannot be written.
        """
        with _opened(run.job.log):
            pass
        self._send(_request(run.job))
        self.run = run
        run.started = time.monotonic()

    def receive(self) -> Answer | None:
        """Returns the answer to the request, or None while there is none."""
        while self._answers >= 0:
            try:
                data = os.read(self._answers, _READ_BYTES)
            except BlockingIOError:
                break
            if not data:
                self._close_answers()
            self._received += data
        line, end, rest = self._received.partition(b"\n")
        if not end:
            return None
        self._received = rest
        self.jobs_done += 1
        return Answer(**json.loads(line))

    def ask_to_end(self, grace_s: float) -> None:
        """Asks an idle program to end. It gets SIGKILL after the grace period."""
        self.kill_at = min(self.kill_at, time.monotonic() + grace_s)
        with suppress(OSError):
            self._send(None)

    def has_ended(self) -> bool:
        """Returns whether the process has ended. It is not reaped."""
        try:
            return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None
        except ChildProcessError:  # the calling program reaps all its children itself
            return True

    def end_if_due(self, grace_s: float, signals: int) -> None:
        """Sends SIGTERM at the time limit or after a signal to this process, and SIGKILL later or after a second signal."""
        if self.is_leaving:
            if signals > 1 or self.kill_at <= time.monotonic():
                self.kill()
        elif self.run is None:
            if signals:
                self.ask_to_end(grace_s)
        elif signals or self.run.is_due:
            self.run.timed_out = self.run.is_due
            self.run.interrupted = not self.run.timed_out
            self.kill_at = time.monotonic() + grace_s
            for number in (signal.SIGTERM, signal.SIGCONT):
                with suppress(ProcessLookupError):
                    os.kill(self._process.pid, number)

    def kill(self) -> None:
        """Kills the process and its group."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def reap(self) -> int:
        """Kills the rest of the group, and reaps the leader. Returns its return code."""
        self.kill()
        returncode = self._process.wait()
        self._close_answers()
        assert self._process.stdin is not None
        with suppress(OSError):  # a request that it did not read
            self._process.stdin.close()
        return returncode

    def _send(self, request: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()

    def _close_answers(self) -> None:
        if self._answers >= 0:
            os.close(self._answers)
        self._answers = -1


def _request(job: Job) -> dict[str, object]:
    command, *arguments = job.arguments
    return {"log": str(job.log), "command": command, "arguments": arguments}


def _opened(log: Path) -> IO[bytes]:
    """Opens a log to append to it."""
    log.parent.mkdir(parents=True, exist_ok=True)
    return log.open("ab")
