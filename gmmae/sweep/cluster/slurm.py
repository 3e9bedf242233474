"""Runs the jobs of a sweep on Slurm, through submitit. It is the counterpart of `supervisor.supervise`.

A file lists the submitted jobs, so that a later sweep can take them over. Before a submission the file gets the job's unique
name in Slurm, and afterwards its number. A sweep that is killed at any moment therefore loses no job.

A job that ends leaves its result. A job that left none is missing in the list of `squeue`. `sacct`, which submitit uses, is not
available on every cluster.
"""

import contextlib
import json
import math
import os
import pickle
import re
import shlex
import signal
import subprocess
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from gmmae.sweep.cluster.task import ClusterTask, slurm_answer
from gmmae.sweep.grid import SlurmConfig, SweepConfig
from gmmae.sweep.processes import Ended, Job, import_path, last_line
from gmmae.sweep.supervisor import Callbacks
from gmmae.system import json_files
from gmmae.system.errors import InputError
from gmmae.system.files import whole_file, write_text
from gmmae.system.interrupts import Interrupts

if TYPE_CHECKING:
    from submitit import SlurmJob

MAX_RESULT_DELAY_S = 15.0
"""Seconds until the result of a job that has ended must be visible on the shared file system."""

UNKNOWN = "GONE"
"""The state of a job that Slurm does not list."""

FINAL_STATES = frozenset(
    ["BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "TIMEOUT", UNKNOWN]
)
"""States of jobs that will not run again. A preempted job may."""

TICK_S = 1.0
"""Seconds between two ticks of `run_jobs`."""

POLL_S = 5.0
"""Seconds between two polls of all jobs. Each costs one question to Slurm and one listing of the results."""

NAME_PREFIX = "gmmae-"
"""The beginning of the jobs' names in Slurm. Numbers never begin like this."""

DEFAULT_MAX_ARRAY_SIZE = 1001
"""Slurm's own limit of an array, for a cluster that does not state another."""


class Listed(NamedTuple):
    """The user's jobs in Slurm, including those that ended in the last minutes."""

    states: dict[str, str]  # by number, such as 7, or 7_2 in an array
    numbers: dict[str, str]  # by name and index in the array, such as gmmae-1f_2


@dataclass
class Submitted:
    """A job that Slurm has."""

    job: Job
    handle: "SlurmJob[Ended]"
    running: bool = False
    started: float = math.nan
    missing_since: float = math.nan  # when it was first seen to have ended without a result


def run_jobs(jobs: Sequence[Job], callbacks: Callbacks, *, config: SweepConfig, folder: Path, exclusive: bool) -> str | None:
    """Submits the jobs, and returns when all have ended.

    SIGTERM or SIGINT to this process cancels the jobs, and they write checkpoints. A further SIGINT ends the wait for them.
    When this process is killed, or its terminal is closed, the jobs go on. The next call takes them over.

    Args:
      jobs: the programs.
      callbacks: as of `supervise`.
      config: the grace period and Slurm's options.
      folder: where submitit's files and the list of submitted jobs are. The nodes see it under the same path.
      exclusive: whether the jobs get whole nodes, because times are measured.

    Returns:
      None, or a reason of `gmmae.system.stop_reasons` when it was interrupted.

    Raises:
      InputError: submitit or Slurm is missing, or Slurm refuses the options.
    """
    if not jobs:
        return None
    with Interrupts(hangup=False) as signals:
        slurm = Slurm(config, folder / "slurm", exclusive)
        current: list[Submitted] = []
        try:
            slurm.submit(jobs, current)
            while current and signals.reason is None:
                for submitted, ended in zip(list(current), slurm.poll(current), strict=True):
                    if math.isnan(submitted.started) and (ended or submitted.running):
                        submitted.started = time.monotonic()
                        callbacks.on_start(submitted.job)
                    if ended:
                        current.remove(submitted)
                        callbacks.on_end(submitted.job, _as_failure(submitted, ended))
                        slurm.forget([submitted])
                now = time.monotonic()
                callbacks.on_tick([(one.job, now - one.started) for one in current if not math.isnan(one.started)])
                if current:
                    time.sleep(TICK_S)
        finally:
            slurm.cancel(current)
        for submitted in current:
            if not math.isnan(submitted.started):
                seconds = time.monotonic() - submitted.started
                interrupted = Ended(submitted.job.name, -signal.SIGTERM, False, seconds, interrupted=True)
                callbacks.on_end(submitted.job, _result(submitted) or interrupted)
    return signals.reason


def _as_failure(submitted: Submitted, ended: Ended) -> Ended:
    """Returns a cancelled job as a failed one: somebody else cancelled it, so the sweep is not interrupted."""
    if not ended.interrupted:
        return ended
    return ended._replace(interrupted=False, error=f"job {submitted.handle.job_id} was cancelled")


def _result(submitted: Submitted) -> Ended | None:
    """Returns the result of a job's first task, which also reports the loss of the others, or None before it is there."""
    try:
        outcome, value = pickle.loads(submitted.handle.paths.result_pickle.read_bytes())
    except (FileNotFoundError, EOFError):
        return None
    return value if outcome == "success" else _without_result(submitted, value.strip().rpartition("\n")[2])


def _without_result(submitted: Submitted, why: str) -> Ended:
    log = submitted.handle.paths.stderr
    last = last_line(log)
    why = why if not last or last in why else f"{why}: {last}"
    text = f"job {submitted.handle.job_id} ended without a result, {why} ({log})"
    return Ended(submitted.job.name, -signal.SIGKILL, False, 0.0, error=text)


def _load_submitit() -> ModuleType:
    try:
        import submitit
    except ImportError as error:
        raise InputError(
            f"executor must be processes where submitit is missing; got no {error.name or 'submitit'}: "
            "pip install -e '.[cluster]', or --executor processes"
        ) from None
    return submitit


class Slurm:
    """Submits, polls and cancels jobs. A file lists the submitted jobs until their ends have been reported."""

    def __init__(self, config: SweepConfig, folder: Path, exclusive: bool) -> None:
        self._submitit = _load_submitit()
        self._config = config
        self._folder = folder
        self._exclusive = exclusive
        self._list = folder / "submitted.json"
        self._states: dict[str, str] | None = None
        self._polled = -math.inf

    def submit(self, jobs: Sequence[Job], current: list[Submitted]) -> None:
        """Adds the jobs to the current ones. Those of an earlier sweep are taken over, and the others are submitted."""
        earlier = {submitted.job.name: submitted for submitted in self._earlier(jobs)}
        current += earlier.values()
        new = sorted((job for job in jobs if job.name not in earlier), key=lambda job: job.devices)
        size = _max_array_size() if len(new) > 1 else 1
        for devices, group in groupby(new, key=lambda job: job.devices):
            same, after = list(group), ""
            for start in range(0, len(same), size):
                array = self._submit(devices, same[start : start + size], after)
                after = array[0].handle.job_id.partition("_")[0]
                current += array

    def _earlier(self, jobs: Iterable[Job]) -> list[Submitted]:
        """Returns the jobs of a killed sweep that Slurm still has, and those that ended without being cancelled."""
        known = self._read()
        if not known:
            return []
        listed = _listed()
        if listed is None and any(number.startswith(NAME_PREFIX) for number in known.values()):
            raise InputError(f"squeue must answer while {self._list} has jobs without a number; got no answer: try again later")
        known = {name: listed.numbers.get(number, number) if listed else number for name, number in known.items()}
        self._refresh()
        earlier: list[Submitted] = []
        for job in jobs:
            number = known.get(job.name, NAME_PREFIX)
            if number.startswith(NAME_PREFIX):  # it was never submitted
                continue
            submitted = Submitted(job, self._submitit.SlurmJob(folder=self._folder, job_id=number))
            ended = _result(submitted)
            alive = listed is None or listed.states.get(number, UNKNOWN) not in FINAL_STATES
            if alive if ended is None else not ended.interrupted:
                earlier.append(submitted)
        self._write(known)
        for submitted in earlier:
            self._write_program(submitted)
        return earlier

    def _write_program(self, submitted: Submitted) -> None:
        """Writes a job's program where a sweep was killed before submitit did. The job waits a minute for it."""
        path = submitted.handle.paths.submitted_pickle
        if path.exists():
            return
        program = self._submitit.helpers.DelayedSubmission(self._task(submitted.job))
        program.set_timeout(self._config.slurm.timeout_min, self._config.slurm.timeouts)
        with whole_file(path) as part:
            program.dump(part)

    def _task(self, job: Job) -> ClusterTask:
        """Returns the task for a job. The nodes see its log and this folder under the same paths."""
        return ClusterTask(job._replace(log=job.log.absolute()), self._config.grace_s, os.getcwd())

    def _submit(self, devices: int, jobs: list[Job], after: str) -> list[Submitted]:
        """Submits one job or an array. If the parallelism is limited, the array waits for the one before it."""
        slurm = self._config.slurm
        name = f"{NAME_PREFIX}{uuid.uuid4().hex[:12]}"
        options = parameters(slurm, devices, len(jobs), self._exclusive, self._config.grace_s) | {"job_name": name}
        if after and slurm.array_parallelism != "all":
            options["dependency"] = f"afterany:{after}"
        try:
            executor = self._submitit.SlurmExecutor(self._folder, max_num_timeout=slurm.timeouts)
            executor.update_parameters(**options)
            self._add(jobs, [f"{name}_{i}" for i in range(len(jobs))] if len(jobs) > 1 else [name])
            handles = executor.submit_array([self._task(job) for job in jobs])
        except (OSError, RuntimeError, ValueError) as error:
            reason = str(error).strip().rpartition("\n")[2]
            raise InputError(
                f"executor = slurm must be able to submit jobs; got {reason!r}: fix the section slurm, or use another executor"
            ) from None
        self._add(jobs, [handle.job_id for handle in handles])
        return [Submitted(job, handle) for job, handle in zip(jobs, handles, strict=True)]

    def poll(self, current: Sequence[Submitted]) -> list[Ended | None]:
        """Returns for each job how it ended, or None while it has not."""
        if time.monotonic() < self._polled + POLL_S:
            return [None] * len(current)
        listed = _listed()
        self._states = listed.states if listed else self._states
        self._polled = time.monotonic()
        self._refresh()
        files = set(os.listdir(self._folder))
        return [self._ended(submitted, files) for submitted in current]

    def _ended(self, submitted: Submitted, files: set[str]) -> Ended | None:
        if submitted.handle.paths.result_pickle.name in files and (ended := _result(submitted)):
            return ended
        if self._states is None:
            return None
        state = self._states.get(submitted.handle.job_id, UNKNOWN)
        submitted.running = state == "RUNNING"
        if state not in FINAL_STATES:
            submitted.missing_since = math.nan
        elif math.isnan(submitted.missing_since):
            submitted.missing_since = time.monotonic()
        elif time.monotonic() > submitted.missing_since + MAX_RESULT_DELAY_S:
            return _without_result(submitted, state.lower())
        return None

    def _refresh(self) -> None:
        with contextlib.suppress(OSError):
            self._folder.chmod(self._folder.stat().st_mode)  # makes NFS read the folder again

    def cancel(self, current: Sequence[Submitted]) -> None:
        """Cancels the jobs, and waits until they have ended. SIGINT ends the wait."""
        if not current:
            return
        with contextlib.suppress(KeyboardInterrupt, OSError):
            subprocess.run(["scancel", *(one.handle.job_id for one in current)], capture_output=True, check=False)
            deadline = time.monotonic() + self._config.grace_s + 60
            while time.monotonic() < deadline:
                listed = _listed()
                if listed and all(listed.states.get(one.handle.job_id, UNKNOWN) in FINAL_STATES for one in current):
                    break
                time.sleep(TICK_S)
        self._refresh()
        self.forget(current)

    def forget(self, ended: Iterable[Submitted]) -> None:
        """Removes jobs from the list of submitted ones."""
        names = {submitted.job.name for submitted in ended}
        self._write({name: number for name, number in self._read().items() if name not in names})

    def _add(self, jobs: Sequence[Job], numbers: Sequence[str]) -> None:
        self._write(self._read() | {job.name: number for job, number in zip(jobs, numbers, strict=True)})

    def _read(self) -> dict[str, str]:
        try:
            change = "look for them with squeue, then delete it"
            return json_files.read(self._list, "list the submitted jobs", change, _numbers_by_name)
        except FileNotFoundError:
            return {}

    def _write(self, submitted: Mapping[str, str]) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        write_text(self._list, json.dumps(submitted, indent=2) + "\n")


def _numbers_by_name(data: Mapping[str, str]) -> dict[str, str]:
    if not all(isinstance(number, str) for number in data.values()):
        raise ValueError("a value that is not a job's number")
    return dict(data)


def _listed() -> Listed | None:
    """Returns the jobs that Slurm lists, or None when it does not answer."""
    text = slurm_answer("squeue", "--me", "--array", "--noheader", "--states=all", "--format=%i %T %j")
    if text is None:
        return None
    lines = [line.split(maxsplit=2) for line in text.splitlines()]
    states = {number: state for number, state, *_ in lines}
    named = (line for line in lines if len(line) == 3)
    return Listed(states, {name + "".join(number.partition("_")[1:]): number for number, _, name in named})


def _max_array_size() -> int:
    """Returns the maximum number of jobs that the cluster accepts in one array."""
    limit = re.search(r"^MaxArraySize\s*=\s*(\d+)", slurm_answer("scontrol", "show", "config") or "", re.MULTILINE)
    return max(1, int(limit[1])) if limit else DEFAULT_MAX_ARRAY_SIZE


def parameters(slurm: SlurmConfig, devices: int, jobs: int, exclusive: bool, grace_s: float) -> dict[str, Any]:
    """Returns the parameters that submitit gets for the jobs on a number of devices.

    Args:
      slurm: the section of the configuration.
      devices: the number of devices of each job.
      jobs: the number of jobs.
      exclusive: whether the jobs get whole nodes.
      grace_s: seconds that a job's program has for its checkpoint.
    """
    nodes = slurm.nodes(devices)
    options = {
        "partition": slurm.partition,
        "account": slurm.account,
        "qos": slurm.qos,
        "time": slurm.timeout_min,
        "nodes": nodes,
        "ntasks_per_node": 1,
        "gpus_per_node": devices // nodes if slurm.devices_per_node else 0,
        "cpus_per_task": slurm.cpus_per_task,
        "mem": f"{slurm.mem_gb}GB" if slurm.mem_gb else "",
        "exclusive": exclusive,
    }
    additional = {
        key.replace("-", "_"): value if equals else True
        for key, equals, value in (option.partition("=") for option in slurm.additional_parameters)
    }
    return {key: value for key, value in options.items() if value and key not in additional} | {
        "array_parallelism": jobs if slurm.array_parallelism == "all" else slurm.array_parallelism,
        # Slurm may signal a minute early or late. The last epoch, its checkpoint and the requeueing follow.
        "signal_delay_s": round(grace_s) + 90,
        "setup": [f"export PYTHONPATH={shlex.quote(import_path())}", *slurm.setup],
        # One process uses all of the job's cores on a node. Since Slurm 22.05 srun does not inherit the number from sbatch.
        "srun_args": ["--cpu-bind=none", *([f"--cpus-per-task={slurm.cpus_per_task}"] if slurm.cpus_per_task else [])],
        "additional_parameters": {"requeue": True} | {key: value for key, value in additional.items() if value},
    }
