"""Runs several jobs, a few at a time. Each fails alone, and no process is left behind.

A program that stays runs one job after the other; see `gmmae.sweep.processes`. A crash costs the job's attempt and the program.
"""

import select
import signal
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import FrameType
from typing import Literal, NamedTuple

from gmmae.sweep.processes import NOT_STARTED, Answer, Ended, Job, Program, Run
from gmmae.system.errors import InputError, StorageError
from gmmae.system.interrupts import REASONS, Interrupts
from gmmae.system.nvidia import least_used
from gmmae.system.stop_reasons import EXIT_CODES

POLL_S = 0.05
"""Seconds between two checks whether programs have ended or are due to end. Answers are seen at once."""

MAX_GROWTH_GB = 2.0
"""How much more memory than after its first job a staying program may have, where no limit is given."""

GB = 2**30

NO_CRASH = frozenset([*EXIT_CODES.values(), InputError.exit_code, StorageError.exit_code])
"""Exit codes after which a job is not tried again: it would end in the same way."""


Call = Callable[[], None]


def _nothing(*_: object) -> None:
    pass


class Callbacks(NamedTuple):
    """Functions that are called while jobs run, all in the calling thread."""

    on_start: Callable[[Job], None]  # when a job starts, once
    on_end: Callable[[Job, Ended], None]  # once for each job for which `on_start` was called
    on_tick: Callable[[Sequence[tuple[Job, float]]], object] = _nothing  # with running jobs and their seconds so far
    on_retry: Callable[[Job, Ended], None] = _nothing  # when a job is tried again, with the end of the attempt before


def supervise(
    jobs: Sequence[Job],
    callbacks: Callbacks,
    *,
    at_once: int,
    grace_s: float,
    gpus: Sequence[Mapping[str, str]] = (),
    memory_gb: float | Literal["auto"] = "auto",
    tick_s: float = 0.5,
) -> str | None:
    """Runs the jobs in their order, and returns when all have ended.

    A job goes to an idle program of its command and environment, or else to a new one. No idle program stays beside the jobs
    that run, because it would hold memory. A program is replaced after a job when its memory is above the limit.

    A job that crashes or cannot be started is an `Ended` like any other. It is tried again at once, in a new program, if it has
    attempts left. A job past its time limit gets SIGTERM, and SIGKILL `grace_s` later. The limit counts from the moment when
    the job is sent to a program; a new program's start is part of it. SIGTERM goes to the program's own process only. If its
    helpers died first, that would look like a failure of the job. SIGCONT follows, so that a stopped job can still end well.
    Processes of the program's group that outlive it are killed.

    SIGTERM, SIGINT or SIGHUP to this process ends all running jobs in the same way, and no further one starts. A second signal
    sends SIGKILL at once. The handlers are installed while this function runs, and in the main thread only. An exception of a
    callback, KeyboardInterrupt included, also ends all jobs, and is then raised again.

    Args:
      jobs: what to run.
      callbacks: functions that are called when jobs start and end, and at each tick.
      at_once: the maximum number of programs that run at the same time.
      grace_s: seconds from SIGTERM to SIGKILL.
      gpus: environments that select a GPU. A program starts with the one that the fewest programs use.
      memory_gb: the memory above which a staying program is replaced, in units of 2³⁰ bytes. "auto" is what it had after its
        first job and `MAX_GROWTH_GB`.
      tick_s: approximate seconds between two ticks.

    Returns:
      None, or a reason of `gmmae.system.stop_reasons` when it was interrupted.
    """
    with _Signals() as signals:
        places = _Places(jobs, callbacks, at_once, grace_s, gpus, memory_gb)
        try:
            next_tick = time.monotonic() + tick_s
            while places.programs or (places.waiting and signals.reason is None):
                calls = places.wait(signals.count)
                # The next jobs are sent before the callbacks, which take time.
                for call in [*calls, *(places.fill() if signals.reason is None else ())]:
                    call()
                if time.monotonic() >= next_tick:
                    callbacks.on_tick([(run.job, run.seconds) for run in places.running])
                    next_tick = time.monotonic() + tick_s
        finally:
            signals.count = max(signals.count, 1)  # an exception ends the jobs as a signal does
            while places.programs:
                places.wait(signals.count)
        for run in places.waiting:
            if run.crash:  # it was to be tried again
                callbacks.on_end(run.job, run.crash._replace(interrupted=True))
    return signals.reason


class _Places:
    """The programs that run, and the runs that wait for one. Its methods return the callbacks to call, in their order."""

    def __init__(
        self,
        jobs: Sequence[Job],
        callbacks: Callbacks,
        at_once: int,
        grace_s: float,
        gpus: Sequence[Mapping[str, str]],
        memory_gb: float | Literal["auto"],
    ) -> None:
        self.waiting = deque(map(Run, jobs))
        self.programs: list[Program] = []
        self._callbacks = callbacks
        self._at_once = at_once
        self._grace_s = grace_s
        self._gpus = gpus
        self._memory_gb = memory_gb

    @property
    def running(self) -> list[Run]:
        """The runs that programs compute."""
        return [program.run for program in self.programs if program.run]

    def wait(self, signals: int) -> list[Call]:
        """Waits for an answer or a moment. Takes the runs that have ended from their programs, and ends what is due."""
        if self.programs:
            select.select([answers for program in self.programs for answers in program.answers], [], [], POLL_S)
        ended = [program for program in self.programs if program.has_ended()]
        calls: list[Call] = []
        for program in list(self.programs):
            if answer := program.receive():  # of an ended program, too
                calls.append(self._take_answer(program, answer))
            if program not in ended:
                program.end_if_due(self._grace_s, signals)
                continue
            self.programs.remove(program)
            returncode = program.reap()
            if program.run:
                calls.append(self._take_end(program, program.run, returncode))
        return calls

    def fill(self) -> list[Call]:
        """Sends waiting runs to programs, in their order, and ends programs that would be idle."""
        calls: list[Call] = []
        while self.waiting:
            run = self.waiting[0]
            idle = [program for program in self.programs if program.is_idle]
            fitting = [program for program in idle if program.fits(run.job) and not run.needs_new_program]
            if not fitting and len(self.programs) >= self._at_once:
                if idle and not any(program.is_leaving for program in self.programs):
                    idle[0].ask_to_end(self._grace_s)
                return calls
            start: list[Call] = [] if run.crash else [partial(self._callbacks.on_start, run.job)]
            try:
                if fitting:
                    fitting[0].send(run)
                else:
                    used = [program.environment for program in self.programs]
                    self.programs.append(Program(run, least_used(self._gpus, used)))
            except BrokenPipeError:  # it has ended while it was idle
                fitting[0].ask_to_end(self._grace_s)
                continue
            except (OSError, ValueError) as error:
                ended = run.ended(NOT_STARTED)._replace(seconds=run.spent_s, error=f"could not be started: {error}")
                start.append(partial(self._callbacks.on_end, run.job, ended))
            self.waiting.popleft()
            calls += start
        for program in self.programs:
            if program.is_idle:
                program.ask_to_end(self._grace_s)
        return calls

    def _take_answer(self, program: Program, answer: Answer) -> Call:
        run, program.run = program.run, None
        assert run is not None
        if program.jobs_done == 1:
            grown_gb = answer.memory_bytes / GB + MAX_GROWTH_GB
            program.memory_limit_bytes = GB * (grown_gb if isinstance(self._memory_gb, str) else self._memory_gb)
        if program.is_leaving or answer.memory_bytes > program.memory_limit_bytes:
            program.ask_to_end(self._grace_s)
        return partial(self._callbacks.on_end, run.job, run.ended(answer.exit_code))

    def _take_end(self, program: Program, run: Run, returncode: int) -> Call:
        """Takes a run from a program that has ended without an answer."""
        ended = run.ended(returncode)
        tried = run.tried + (returncode not in NO_CRASH)
        # A program that stays answers bad input. It ends by this code where memory was full, maybe because of earlier runs.
        memory_was_full = returncode == InputError.exit_code and program.jobs_done > 0
        if (memory_was_full or run.tried < tried < run.job.attempts) and not (ended.timed_out or ended.interrupted):
            self.waiting.appendleft(run.again(ended, tried))
            return partial(self._callbacks.on_retry, run.job, ended)
        return partial(self._callbacks.on_end, run.job, ended)


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
