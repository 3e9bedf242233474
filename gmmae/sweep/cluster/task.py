"""The task that submitit runs for jobs of a sweep: their programs under a supervisor that handles Slurm's signals.

It is pickled, and imported where the job runs.
"""

import json
import math
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import TYPE_CHECKING, Literal, NamedTuple

from gmmae.sweep.cluster.queue import slurm_number, still_running
from gmmae.sweep.processes import Ended, Job
from gmmae.sweep.supervisor import Callbacks, supervise
from gmmae.system.errors import LOST_PEER
from gmmae.system.exit_codes import again, of_run
from gmmae.system.files import write_text
from gmmae.system.stop_reasons import EXIT_CODES, SIGTERM

if TYPE_CHECKING:
    from submitit.helpers import DelayedSubmission

POLL_S = 0.5
"""Seconds between two checks for a signal."""


class _SignalledError(Exception):
    """Leaves `supervise`, which then ends the program."""


class Earlier(NamedTuple):
    """What earlier calls of a task have spent on a job."""

    spent_s: float = 0.0  # which counts for the time limit
    codes: tuple[int, ...] = ()  # exit codes of its program


class ClusterTask:
    """Runs jobs one after the other, appends their output to their logs, and returns how they ended.

    Each of these signals sends SIGTERM to the program once, and SIGKILL `grace_s` later:

    - SIGUSR2 comes from Slurm before a time limit or at a preemption. The program writes its checkpoint. Then submitit
      requeues the task by its protocol of a `checkpoint` method, and the next call goes on with the jobs that have not ended.
    - SIGTERM comes when the task is cancelled or preempted. A cancelled call returns. A preempted one waits for SIGUSR2 or
      Slurm's own requeueing, because Slurm does not requeue a task that has returned.

    Without a signal the program's exit code decides by the table of `exit_codes`. After a lost process the task is requeued.
    A task of several jobs leaves a file for each one that has ended, so that the sweep can report it.

    Args:
      jobs: the jobs, with absolute paths.
      grace_s: seconds from SIGTERM to SIGKILL.
      cwd: the folder in which the programs are started.
      folder: where the ends of jobs are written.
      memory_gb: as of `supervise`.
      earlier: of the jobs that have not ended, by name.
      ended: how the others ended, by name.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        grace_s: float,
        cwd: str,
        folder: Path,
        memory_gb: float | Literal["auto"] = "auto",
        *,
        earlier: Mapping[str, Earlier] = MappingProxyType({}),
        ended: Mapping[str, Ended] = MappingProxyType({}),
    ) -> None:
        self.jobs = jobs
        self.grace_s = grace_s
        self.cwd = cwd
        self.folder = folder
        self.memory_gb: float | Literal["auto"] = memory_gb
        self.earlier = dict(earlier)
        self.ended = dict(ended)
        self._signals: set[int] = set()
        self._running: tuple[Job, float] | None = None  # the job that runs, and when it was started
        self._requeue: Callable[[int, FrameType | None], object] | int | None = None

    def __call__(self) -> list[Ended]:
        """Runs the jobs, or exits to be requeued. Returns how each one ended."""
        os.chdir(self.cwd)
        self.ended |= read_ends(self.folder, slurm_number(), self.jobs)
        callbacks = Callbacks(self._begin, self._end, self._check_signals)
        jobs = [self._remaining(job) for job in self.jobs if job.name not in self.ended]
        with suppress(_SignalledError):
            supervise(jobs, callbacks, at_once=1, grace_s=self.grace_s, memory_gb=self.memory_gb, tick_s=POLL_S)
        if self._running:
            job, started = self._running
            self._spend(job, time.monotonic() - started, -signal.SIGTERM)
        if any(job.name not in self.ended for job in self.jobs):
            if self._signals == {signal.SIGTERM} and still_running():
                while signal.SIGUSR2 not in self._signals:
                    time.sleep(POLL_S)
            if self._signals != {signal.SIGTERM}:
                assert callable(self._requeue)
                self._requeue(signal.SIGUSR2, None)  # exits in the first task, and returns in the others
        return [self.ended.get(job.name) or self._interrupted(job) for job in self.jobs]

    def checkpoint(self) -> "DelayedSubmission":
        """Returns the task that submitit runs after requeueing. Its programs resume from their own checkpoints."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(
            ClusterTask(self.jobs, self.grace_s, self.cwd, self.folder, self.memory_gb, earlier=self.earlier, ended=self.ended)
        )

    def _remaining(self, job: Job) -> Job:
        limit_s = job.time_limit_s
        return job._replace(time_limit_s=max(limit_s - self._earlier(job).spent_s, 1.0) if limit_s else 0.0)

    def _earlier(self, job: Job) -> Earlier:
        return self.earlier.get(job.name, Earlier())

    def _begin(self, job: Job) -> None:
        """Replaces the supervisor's handlers. Slurm may send SIGTERM twice, which the supervisor would answer with SIGKILL."""
        self._running = job, time.monotonic()
        if self._requeue is None:
            self._requeue = signal.signal(signal.SIGUSR2, self._note)
            signal.signal(signal.SIGTERM, self._note)

    def _note(self, number: int, _: FrameType | None) -> None:
        self._signals.add(number)

    def _check_signals(self, _: Sequence[tuple[Job, float]]) -> None:
        if self._signals:
            raise _SignalledError

    def _end(self, job: Job, ended: Ended) -> None:
        """Keeps how a job ended, unless its program is to be started again."""
        self._running = None
        final = ended.timed_out or ended.interrupted or bool(ended.error)
        codes = self._spend(job, ended.seconds, None if final else ended.returncode).codes
        if not final and (codes[-1] in (EXIT_CODES[SIGTERM], LOST_PEER) if self._signals else again(codes, math.inf)):
            return  # submitit counts the time limits
        [limit_s] = (given.time_limit_s for given in self.jobs if given.name == job.name)
        self.ended[job.name] = ended._replace(seconds=self._earlier(job).spent_s, time_limit_s=limit_s)
        if len(self.jobs) > 1:
            with suppress(OSError):  # what this call returns says it too
                write_text(end_file(self.folder, slurm_number(), job), json.dumps(self.ended[job.name]._asdict()))

    def _spend(self, job: Job, seconds: float, code: int | None) -> Earlier:
        """Adds the time and the exit code of a program to what was spent on its job."""
        spent_s, codes = self._earlier(job)
        if code is not None:
            processes = int(os.environ.get("SLURM_STEP_NUM_TASKS", 1))
            codes += (of_run([code if code >= 0 else 128 - code], processes),)
        self.earlier[job.name] = Earlier(spent_s + seconds, codes)
        return self.earlier[job.name]

    def _interrupted(self, job: Job) -> Ended:
        return Ended(job.name, -signal.SIGTERM, False, self._earlier(job).spent_s, interrupted=True)


def end_file(folder: Path, number: str, job: Job) -> Path:
    """Returns the file in which a task of several jobs says how one of them ended.

    Args:
      folder: submitit's folder.
      number: Slurm's number of the task, such as 7, or 7_2 in an array.
      job: the job.
    """
    return folder / f"{number}_{job.name}_ended.json"


def read_ends(folder: Path, number: str, jobs: Sequence[Job]) -> dict[str, Ended]:
    """Returns how those of a task's jobs ended that have left a file, by name. The arguments are those of `end_file`."""
    ends: dict[str, Ended] = {}
    for job in jobs:
        with suppress(OSError, ValueError, TypeError):  # it is not there, or not visible yet
            ends[job.name] = Ended(**json.loads(end_file(folder, number, job).read_text(encoding="utf-8")))
    return ends
