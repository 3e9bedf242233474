"""A sweep's jobs in Slurm, through submitit. Which are submitted is kept in a file, so that another sweep can take them over.

Before a job is submitted the file has its name in Slurm, which no other job has, and after that its number: whenever a sweep is
killed, the next one finds what it had submitted.

A job that has ended leaves its result; one that leaves none is missed in `squeue`'s list. `sacct`, which submitit asks, is not
on every cluster.
"""

import contextlib
import json
import math
import os
import re
import subprocess
import time
import uuid
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from gmmae.sweep.cluster.host import Submitted, importable, load_submitit, result_of, task, without_result
from gmmae.sweep.grid import SlurmConfig, SweepConfig
from gmmae.sweep.supervisor import Ended, Job
from gmmae.system import json_files
from gmmae.system.errors import InputError
from gmmae.system.files import whole_file, write_text

LATE_S = 15.0
"""How much later than a Slurm job's end its result may be seen, on a file system that all nodes share."""

GONE = "GONE"
"""The state of a job that Slurm does not know, or not any more."""

OVER = frozenset(["BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "TIMEOUT", GONE])
"""States of jobs that will not run any more; one that was preempted may."""

LOOK_S = 5.0
"""Seconds between two looks at all jobs: one question to Slurm, and one list of the folder of results."""

NAME = "gmmae-"
"""How the names of jobs in Slurm begin; numbers do not."""

ARRAY = 1001
"""Slurm's own limit of an array, where the cluster does not say another."""


class Listed(NamedTuple):
    """This user's jobs as Slurm has them, those that ended in the last minutes too."""

    states: dict[str, str]  # by number, such as 7, or 7_2 in an array
    numbers: dict[str, str]  # by name, with the place in an array: gmmae-1f_2


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
        self._looked = -math.inf

    def submit(self, waiting: deque[Job], current: list[Submitted]) -> None:
        if not waiting:
            return
        taken = {each.job.name: each for each in self._earlier(waiting)}
        current += taken.values()
        fresh = sorted((job for job in waiting if job.name not in taken), key=lambda job: job.devices)
        waiting.clear()
        most = _largest_array() if len(fresh) > 1 else 1
        for devices, group in groupby(fresh, key=lambda job: job.devices):
            before = ""
            for part in _parts(list(group), most):
                submitted = self._submit(devices, part, before)
                before = submitted[0].handle.job_id.partition("_")[0]
                current += submitted

    def _earlier(self, jobs: Iterable[Job]) -> list[Submitted]:
        """Jobs of a sweep that was killed: those that Slurm still has, and those that came to an end of their own."""
        known = self._read()
        if not known:
            return []
        listed = _listed()
        if listed is None and any(number.startswith(NAME) for number in known.values()):
            raise InputError(
                f"squeue must answer where {self._kept} has jobs whose numbers are not known; got no answer: try again later"
            )
        known = {name: listed.numbers.get(number, number) if listed else number for name, number in known.items()}
        self._refresh()
        found: list[Submitted] = []
        for job in jobs:
            number = known.get(job.name, NAME)
            if number.startswith(NAME):  # it never came to be submitted
                continue
            each = Submitted(job, self._submitit.SlurmJob(folder=self._folder, job_id=number))
            ended = self.result(each)
            lives = listed is None or listed.states.get(number, GONE) not in OVER
            if lives if ended is None else not ended.interrupted:
                found.append(each)
        self._write(known)
        for each in found:
            self._leave_program(each)
        return found

    def _leave_program(self, each: Submitted) -> None:
        """Writes what a job is to run, where a sweep was killed before submitit had done so; the job waits a minute for it."""
        place = each.handle.paths.submitted_pickle
        if place.exists():
            return
        program = self._submitit.helpers.DelayedSubmission(task(each.job, self._config.grace_s, local=False))
        program.set_timeout(self._config.slurm.timeout_min, self._config.slurm.timeouts)
        with whole_file(place) as part:
            program.dump(part)

    def _submit(self, devices: int, jobs: list[Job], before: str) -> list[Submitted]:
        """Submits an array, or a job alone; where few may run at once, not before an earlier part of the same has ended."""
        grace_s, slurm = self._config.grace_s, self._config.slurm
        tasks = [task(job, grace_s, local=False) for job in jobs]
        name = f"{NAME}{uuid.uuid4().hex[:12]}"
        asked = parameters(slurm, devices, len(jobs), self._timed, grace_s) | {"job_name": name}
        if before and slurm.array_parallelism:
            asked["dependency"] = f"afterany:{before}"
        try:
            executor = self._submitit.SlurmExecutor(self._folder, max_num_timeout=slurm.timeouts)
            executor.update_parameters(**asked)
            self._keep(jobs, [f"{name}_{i}" for i in range(len(jobs))] if len(jobs) > 1 else [name])
            with importable():
                handles = executor.submit_array(tasks)
        except (OSError, RuntimeError, ValueError) as error:
            reason = str(error).strip().rpartition("\n")[2]
            raise InputError(
                f"executor = slurm must be able to submit jobs; got {reason!r}: mend the section slurm, or use another executor"
            ) from None
        self._keep(jobs, [handle.job_id for handle in handles])
        return [Submitted(job, handle) for job, handle in zip(jobs, handles, strict=True)]

    def look(self, current: Sequence[Submitted]) -> list[Ended | None]:
        now = time.monotonic()
        if now < self._looked + LOOK_S:
            return [None] * len(current)
        listed = _listed()
        self._states = listed.states if listed else self._states
        self._looked = time.monotonic()
        self._refresh()
        left = set(os.listdir(self._folder))
        return [self._end_of(each, left) for each in current]

    def _end_of(self, each: Submitted, left: set[str]) -> Ended | None:
        if each.handle.paths.result_pickle.name in left and (ended := self.result(each)):
            return ended
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
        return result_of(each)

    def _refresh(self) -> None:
        with contextlib.suppress(OSError):
            self._folder.chmod(self._folder.stat().st_mode)  # makes NFS look again

    def end(self, current: Sequence[Submitted]) -> None:
        if not current:
            return
        with contextlib.suppress(KeyboardInterrupt, OSError):
            subprocess.run(["scancel", *(each.handle.job_id for each in current)], capture_output=True, check=False)
            until = time.monotonic() + self._config.grace_s + 60
            while time.monotonic() < until:
                listed = _listed()
                if listed and all(listed.states.get(each.handle.job_id, GONE) in OVER for each in current):
                    break
                time.sleep(self.tick_s)
        self._refresh()
        self.forget(current)

    def forget(self, gone: Iterable[Submitted]) -> None:
        names = {each.job.name for each in gone}
        self._write({name: job_id for name, job_id in self._read().items() if name not in names})

    def _keep(self, jobs: Sequence[Job], numbers: Sequence[str]) -> None:
        self._write(self._read() | {job.name: number for job, number in zip(jobs, numbers, strict=True)})

    def _read(self) -> dict[str, str]:
        try:
            return json_files.read(
                self._kept, "say which jobs are submitted", "look for them with squeue, then delete it", _jobs
            )
        except FileNotFoundError:
            return {}

    def _write(self, submitted: Mapping[str, str]) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        write_text(self._kept, json.dumps(submitted, indent=2) + "\n")


def _jobs(data: dict[str, Any]) -> dict[str, str]:
    for name, job_id in data.items():
        if not isinstance(job_id, str):
            raise ValueError(f"{name} = {job_id!r}, which is no job's id")
    return data


def _listed() -> Listed | None:
    """None where Slurm does not answer."""
    asked = _answer("squeue", "--me", "--array", "--noheader", "--states=all", "--format=%i %T %j")
    if asked is None:
        return None
    lines = [line.split(maxsplit=2) for line in asked.splitlines()]
    states = {number: state for number, state, *_ in lines}
    numbers = {
        name + "".join(number.partition("_")[1:]): number for number, _, name in (line for line in lines if len(line) == 3)
    }
    return Listed(states, numbers)


def _largest_array() -> int:
    """The most jobs that the cluster takes in one array."""
    limit = re.search(r"^MaxArraySize\s*=\s*(\d+)", _answer("scontrol", "show", "config") or "", re.MULTILINE)
    return max(1, int(limit[1])) if limit else ARRAY


def _parts(jobs: Sequence[Job], most: int) -> Iterator[list[Job]]:
    return (list(jobs[i : i + most]) for i in range(0, len(jobs), most))


def _answer(*command: str) -> str | None:
    """What one of Slurm's commands prints; None if it fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None


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
        "partition": slurm.partition,
        "account": slurm.account,
        "qos": slurm.qos,
        "time": slurm.timeout_min,
        "nodes": nodes,
        "ntasks_per_node": 1,
        "gpus_per_node": devices // nodes if slurm.devices_per_node else 0,
        "cpus_per_task": slurm.cpus_per_task,
        "mem": f"{slurm.mem_gb}GB" if slurm.mem_gb else "",
        "exclusive": timed,
    }
    extra = {
        key.replace("-", "_"): value if equals else True
        for key, equals, value in (o.partition("=") for o in slurm.additional_parameters)
    }
    return {key: value for key, value in ours.items() if value and key not in extra} | {
        "array_parallelism": slurm.array_parallelism or jobs,
        # Slurm may signal a minute early or late; then come the program's last epoch, its checkpoint and the requeueing.
        "signal_delay_s": round(grace_s) + 90,
        "setup": list(slurm.setup),
        # One process has all of the node's cores that the job has; since Slurm 22.05 srun does not ask for what sbatch did.
        "srun_args": ["--cpu-bind=none", *([f"--cpus-per-task={slurm.cpus_per_task}"] if slurm.cpus_per_task else [])],
        "additional_parameters": {"requeue": True} | {key: value for key, value in extra.items() if value},
    }
