"""What submitit runs for a job of a sweep: the job's program under a supervisor, which ends it well when the cluster says so.

This is pickled, and imported where the job runs: standard library only, but for submitit.
"""

import math
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType
from typing import Any

from gmmae.sweep.supervisor import Ended, Job, die_with_parent, supervise
from gmmae.system.errors import LOST_PEER
from gmmae.system.exit_codes import again, of_run
from gmmae.system.stop_reasons import EXIT_CODES, SIGTERM

TOLD_S = 0.5
"""Seconds between two looks at whether a signal has come."""


class _ToldToEndError(Exception):
    """Raised amid `supervise`, which then ends the program."""


class ClusterTask:
    """A call runs the job's program, appends what it says to the job's log and returns how it ended.

    Signals, each of which brings the program SIGTERM once, and SIGKILL `grace_s` later:

    - SIGUSR2, from Slurm before a time limit or with a preemption: when the program has written its checkpoint, submitit
      requeues the job, by its protocol of a `checkpoint` method. The next call goes on.
    - SIGTERM, because the job is cancelled: the call returns. Because it is preempted: it waits for what follows, SIGUSR2 or
      Slurm's own requeueing, which a job that had returned would not get.

    Where no signal has come, the program's exit code decides by the table of `exit_codes`: after a loss the job is requeued.

    Args:
      job: with absolute paths.
      grace_s: seconds from SIGTERM to SIGKILL.
      cwd: the folder in which the program is started.
      local: under submitit's local executor: die with the sweep, whose pipe is then the standard input, and see the GPUs that
        the sweep sees.
      spent_s: seconds of earlier calls, which count for the time limit.
      ends: the exit codes of earlier calls' programs.
    """

    def __init__(
        self, job: Job, grace_s: float, cwd: str, local: bool, spent_s: float = 0.0, ends: tuple[int, ...] = ()
    ) -> None:
        self.job = job
        self.grace_s = grace_s
        self.cwd = cwd
        self.local = local
        self.spent_s = spent_s
        self.ends = ends
        self._visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        self._told: set[int] = set()
        self._ended: Ended | None = None
        self._requeue: Any = None

    def __call__(self) -> Ended:
        if self.local:
            die_with_parent()
            self._show_gpus()
        os.chdir(self.cwd)
        began = time.monotonic()
        with suppress(_ToldToEndError):
            supervise(
                [self._remaining()],
                at_once=1,
                grace_s=self.grace_s,
                on_start=self._listen,
                on_end=self._keep,
                on_tick=self._heed,
                tick_s=TOLD_S,
            )
        self.spent_s += time.monotonic() - began
        if not self._goes_on():
            assert self._ended is not None
            return self._ended._replace(seconds=self.spent_s, time_limit_s=self.job.time_limit_s)
        if not self.local:
            if self._told == {signal.SIGTERM} and _runs_on():
                while signal.SIGUSR2 not in self._told:
                    time.sleep(TOLD_S)
            if self._told != {signal.SIGTERM}:
                self._requeue(signal.SIGUSR2, None)  # exits, but in tasks other than the first
        return Ended(self.job.name, -signal.SIGTERM, False, self.spent_s, interrupted=True)

    def checkpoint(self) -> Any:
        """What submitit runs when it has requeued the job: the same again, whose program goes on from its own checkpoint."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(ClusterTask(self.job, self.grace_s, self.cwd, self.local, self.spent_s, self.ends))

    def _goes_on(self) -> bool:
        """Whether the program is to be started again; keeps the code with which it has ended."""
        ended = self._ended
        if ended is not None and (ended.timed_out or ended.interrupted or ended.error):
            return False
        code = -signal.SIGTERM if ended is None else ended.returncode
        processes = int(os.environ.get("SLURM_STEP_NUM_TASKS", 1))
        self.ends += (of_run([code if code >= 0 else 128 - code], processes),)
        if self._told:
            return self.ends[-1] in (EXIT_CODES[SIGTERM], LOST_PEER)
        return not self.local and again(self.ends, math.inf)  # submitit counts the time limits

    def _remaining(self) -> Job:
        limit = self.job.time_limit_s
        return self.job._replace(time_limit_s=max(limit - self.spent_s, 1.0) if limit else 0.0)

    def _listen(self, _: Job) -> None:
        """Takes the signals from the supervisor, for whom a second SIGTERM means SIGKILL: here the same one may come twice."""
        self._requeue = signal.signal(signal.SIGUSR2, self._note)
        signal.signal(signal.SIGTERM, self._note)

    def _note(self, number: int, _: FrameType | None) -> None:
        self._told.add(number)

    def _heed(self, _: Sequence[tuple[Job, float]]) -> None:
        if self._told:
            raise _ToldToEndError

    def _keep(self, _: Job, ended: Ended) -> None:
        self._ended = ended

    def _show_gpus(self) -> None:
        """submitit's local executor hides all GPUs that it was not asked for."""
        if self._visible is None:
            os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        else:
            os.environ["CUDA_VISIBLE_DEVICES"] = self._visible


def _runs_on() -> bool:
    """Whether Slurm still counts this job as running: it is then not being cancelled."""
    job = os.environ.get("SLURM_JOB_ID")
    if array := os.environ.get("SLURM_ARRAY_JOB_ID"):  # a number alone may mean the whole array
        job = f"{array}_{os.environ.get('SLURM_ARRAY_TASK_ID')}"
    command = ("squeue", "--noheader", f"--jobs={job}", "--format=%T")
    try:
        asked = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return asked.stdout.split() == ["RUNNING"]
