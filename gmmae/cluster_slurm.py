"""A sweep's jobs in Slurm, through submitit. Which are submitted is kept in a file, so that another sweep can take them over.

A job that has ended leaves its result; one that leaves none is missed in `squeue`'s list. `sacct`, which submitit asks, is not
on every cluster.
"""

import contextlib
import json
import math
import subprocess
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from gmmae.cluster_host import Submitted, importable, load_submitit, result_of, task, without_result
from gmmae.errors import InputError
from gmmae.grid import SlurmConfig, SweepConfig
from gmmae.records import write_text
from gmmae.supervisor import Ended, Job

LATE_S = 15.0
"""How much later than a Slurm job's end its result may be seen, on a file system that all nodes share."""

GONE = "GONE"
"""The state of a job that Slurm does not know, or not any more."""

OVER = frozenset(["BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "TIMEOUT", GONE])
"""States of jobs that will not run any more; one that was preempted may."""

ASK_S = 5.0
"""Seconds between two questions to Slurm."""


class Slurm:
    """Slurm, through submitit; which jobs are submitted is kept in a file until their ends have been told."""

    tick_s = 1.0

    def __init__(self, config: SweepConfig, folder: Path, timed: bool) -> None:
        self._submitit = load_submitit()
        self._config = config
        self._folder = folder
        self._timed = timed
        self._kept = folder / "submitted.json"
        self._states: dict[str, str] | None = None
        self._asked = -math.inf

    def submit(self, waiting: deque[Job], current: list[Submitted]) -> None:
        if not waiting:
            return
        taken = {each.job.name: each for each in self._earlier(waiting)}
        current += taken.values()
        fresh = sorted((job for job in waiting if job.name not in taken), key=lambda job: job.devices)
        waiting.clear()
        for devices, group in groupby(fresh, key=lambda job: job.devices):
            current += self._submit(devices, list(group))

    def _earlier(self, jobs: Iterable[Job]) -> Iterator[Submitted]:
        """Jobs of a sweep that was killed: those that Slurm still has, and those that came to an end of their own."""
        known = self._read()
        states = _states() if known else None
        for job in jobs:
            if job.name in known:
                each = Submitted(job, self._submitit.SlurmJob(folder=self._folder, job_id=known[job.name]))
                ended = self.result(each)
                lives = states is None or states.get(known[job.name], GONE) not in OVER
                if lives if ended is None else not ended.interrupted:
                    yield each

    def _submit(self, devices: int, jobs: list[Job]) -> list[Submitted]:
        grace_s, slurm = self._config.grace_s, self._config.slurm
        tasks = [task(job, grace_s, local=False) for job in jobs]
        try:
            executor = self._submitit.SlurmExecutor(self._folder, max_num_timeout=slurm.timeouts)
            executor.update_parameters(**parameters(slurm, devices, len(jobs), self._timed, grace_s))
            with importable():
                handles = executor.submit_array(tasks)
        except (OSError, RuntimeError, ValueError) as error:
            said = str(error).strip().rpartition("\n")[2]
            raise InputError(
                f"executor = slurm must be able to submit jobs; got {said!r}: mend the section slurm, or use another executor"
            ) from None
        submitted = [Submitted(job, handle) for job, handle in zip(jobs, handles, strict=True)]
        self._write(self._read() | {each.job.name: each.handle.job_id for each in submitted})
        return submitted

    def look(self, each: Submitted) -> Ended | None:
        if ended := self.result(each):
            return ended
        if time.monotonic() >= self._asked + ASK_S:
            answer = _states()
            self._states = self._states if answer is None else answer
            self._asked = time.monotonic()
        if self._states is None:
            return None
        state = self._states.get(each.handle.job_id, GONE)
        each.runs = state == "RUNNING"
        if state not in OVER:
            each.gone = math.nan
        elif math.isnan(each.gone):
            each.gone = time.monotonic()
        elif time.monotonic() > each.gone + LATE_S:
            return without_result(each, state.lower())
        return None

    def result(self, each: Submitted) -> Ended | None:
        place = each.handle.paths.folder
        with contextlib.suppress(OSError):
            place.chmod(place.stat().st_mode)  # makes NFS look again
        return result_of(each)

    def end(self, current: Sequence[Submitted]) -> None:
        if not current:
            return
        with contextlib.suppress(KeyboardInterrupt, OSError):
            subprocess.run(["scancel", *(each.handle.job_id for each in current)], capture_output=True, check=False)
            until = time.monotonic() + self._config.grace_s + 60
            while time.monotonic() < until:
                states = _states()
                if states is not None and all(states.get(each.handle.job_id, GONE) in OVER for each in current):
                    break
                time.sleep(self.tick_s)
        self.forget(current)

    def forget(self, gone: Iterable[Submitted]) -> None:
        names = {each.job.name for each in gone}
        self._write({name: job_id for name, job_id in self._read().items() if name not in names})

    def _read(self) -> dict[str, str]:
        try:
            return json.loads(self._kept.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise InputError(
                f"{self._kept} must say which jobs are submitted; got {error}: look for them with squeue, then delete it"
            ) from error

    def _write(self, submitted: Mapping[str, str]) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        write_text(self._kept, json.dumps(submitted, indent=2) + "\n")


def _states() -> dict[str, str] | None:
    """The states of this user's jobs, those that ended in the last minutes too; None where Slurm does not answer."""
    command = ("squeue", "--me", "--array", "--noheader", "--states=all", "--format=%i %T")
    try:
        asked = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return dict(line.split() for line in asked.stdout.splitlines())


def parameters(slurm: SlurmConfig, devices: int, jobs: int, timed: bool, grace_s: float) -> dict[str, Any]:
    """What submitit is told for the jobs on a number of devices.

    Args:
      slurm: the section.
      devices: of each job.
      jobs: how many they are.
      timed: whether they get whole nodes.
      grace_s: the time that a job's program has for its checkpoint.
    """
    nodes = slurm.nodes(devices)
    ours: dict[str, Any] = {
        "job_name": "gmmae",
        "partition": slurm.partition,
        "account": slurm.account,
        "qos": slurm.qos,
        "time": slurm.time_min,
        "nodes": nodes,
        "ntasks_per_node": 1,
        "gpus_per_node": devices // nodes if slurm.devices_per_node else 0,
        "cpus_per_task": slurm.cpus_per_task,
        "mem": f"{slurm.mem_gb}GB" if slurm.mem_gb else "",
        "exclusive": timed,
    }
    extra = {key.replace("-", "_"): value if equals else True for key, equals, value in (o.partition("=") for o in slurm.extra)}
    return {key: value for key, value in ours.items() if value and key not in extra} | {
        "array_parallelism": slurm.at_once or jobs,
        # Slurm may signal a minute early or late; then come the program's last epoch, its checkpoint and the requeueing.
        "signal_delay_s": round(grace_s) + 90,
        "setup": list(slurm.setup),
        # One process has all of the node's cores that the job has; since Slurm 22.05 srun does not ask for what sbatch did.
        "srun_args": ["--cpu-bind=none", *([f"--cpus-per-task={slurm.cpus_per_task}"] if slurm.cpus_per_task else [])],
        "additional_parameters": {"requeue": True} | {key: value for key, value in extra.items() if value},
    }
