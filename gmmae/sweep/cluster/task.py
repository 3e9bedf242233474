"""The task that submitit runs for a job of a sweep: the job's program under a supervisor that handles Slurm's signals.

It is pickled, and imported where the job runs.
"""

import math
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import FrameType
from typing import TYPE_CHECKING

from gmmae.sweep.processes import Ended, Job
from gmmae.sweep.supervisor import Callbacks, supervise
from gmmae.system.errors import LOST_PEER
from gmmae.system.exit_codes import again, of_run
from gmmae.system.stop_reasons import EXIT_CODES, SIGTERM

if TYPE_CHECKING:
    from submitit.helpers import DelayedSubmission

POLL_S = 0.5
"""Seconds between two checks for a signal."""


class _SignalledError(Exception):
    """Leaves `supervise`, which then ends the program."""


class ClusterTask:
    """Runs a job's program, appends its output to the job's log, and returns how it ended.

    Each of these signals sends SIGTERM to the program once, and SIGKILL `grace_s` later:

    - SIGUSR2 comes from Slurm before a time limit or at a preemption. The program writes its checkpoint. Then submitit
      requeues the job by its protocol of a `checkpoint` method, and the next call goes on.
    - SIGTERM comes when the job is cancelled or preempted. A cancelled call returns. A preempted one waits for SIGUSR2 or
      Slurm's own requeueing, because Slurm does not requeue a job that has returned.

    Without a signal the program's exit code decides by the table of `exit_codes`. After a lost process the job is requeued.

    Args:
      job: the job, with absolute paths.
      grace_s: seconds from SIGTERM to SIGKILL.
      cwd: the folder in which the program is started.
      spent_s: seconds of earlier calls, which count for the time limit.
      codes: the exit codes of earlier calls' programs.
    """

    def __init__(self, job: Job, grace_s: float, cwd: str, spent_s: float = 0.0, codes: tuple[int, ...] = ()) -> None:
        self.job = job
        self.grace_s = grace_s
        self.cwd = cwd
        self.spent_s = spent_s
        self.codes = codes
        self._signals: set[int] = set()
        self._ended: Ended | None = None
        self._requeue: Callable[[int, FrameType | None], object] | int | None = None

    def __call__(self) -> Ended:
        """Runs the program, or exits to be requeued. Returns how the program ended."""
        os.chdir(self.cwd)
        started = time.monotonic()
        callbacks = Callbacks(self._handle_signals, self._keep, self._check_signals)
        with suppress(_SignalledError):
            supervise([self._remaining()], callbacks, at_once=1, grace_s=self.grace_s, tick_s=POLL_S)
        self.spent_s += time.monotonic() - started
        if not self._continues():
            assert self._ended is not None
            return self._ended._replace(seconds=self.spent_s, time_limit_s=self.job.time_limit_s)
        if self._signals == {signal.SIGTERM} and _still_running():
            while signal.SIGUSR2 not in self._signals:
                time.sleep(POLL_S)
        if self._signals != {signal.SIGTERM}:
            assert callable(self._requeue)
            self._requeue(signal.SIGUSR2, None)  # exits in the first task, and returns in the others
        return Ended(self.job.name, -signal.SIGTERM, False, self.spent_s, interrupted=True)

    def checkpoint(self) -> "DelayedSubmission":
        """Returns the task that submitit runs after requeueing. Its program resumes from its own checkpoint."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(ClusterTask(self.job, self.grace_s, self.cwd, self.spent_s, self.codes))

    def _continues(self) -> bool:
        """Returns whether the program is to be started again, and stores its exit code."""
        ended = self._ended
        if ended is not None and (ended.timed_out or ended.interrupted or ended.error):
            return False
        code = -signal.SIGTERM if ended is None else ended.returncode
        processes = int(os.environ.get("SLURM_STEP_NUM_TASKS", 1))
        self.codes += (of_run([code if code >= 0 else 128 - code], processes),)
        if self._signals:
            return self.codes[-1] in (EXIT_CODES[SIGTERM], LOST_PEER)
        return again(self.codes, math.inf)  # submitit counts the time limits

    def _remaining(self) -> Job:
        limit_s = self.job.time_limit_s
        return self.job._replace(time_limit_s=max(limit_s - self.spent_s, 1.0) if limit_s else 0.0)

    def _handle_signals(self, _: Job) -> None:
        """Replaces the supervisor's handlers. Slurm may send SIGTERM twice, which the supervisor would answer with SIGKILL."""
        self._requeue = signal.signal(signal.SIGUSR2, self._note)
        signal.signal(signal.SIGTERM, self._note)

    def _note(self, number: int, _: FrameType | None) -> None:
        self._signals.add(number)

    def _check_signals(self, _: Sequence[tuple[Job, float]]) -> None:
        if self._signals:
            raise _SignalledError

    def _keep(self, _: Job, ended: Ended) -> None:
        self._ended = ended


def _still_running() -> bool:
    """Returns whether Slurm lists this job as running, so that it is not being cancelled."""
    job = os.environ.get("SLURM_JOB_ID")
    if array := os.environ.get("SLURM_ARRAY_JOB_ID"):  # a number alone may mean the whole array
        job = f"{array}_{os.environ.get('SLURM_ARRAY_TASK_ID')}"
    states = slurm_answer("squeue", "--noheader", f"--jobs={job}", "--format=%T")
    return states is not None and states.split() == ["RUNNING"]


def slurm_answer(*command: str) -> str | None:
    """Returns the output of one of Slurm's commands, or None if it fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
