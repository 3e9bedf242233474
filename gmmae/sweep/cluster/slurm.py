"""Runs the jobs of a sweep on Slurm, through submitit. It is the counterpart of `supervisor.supervise`.

A task is a job of Slurm, which runs one or several jobs of the sweep. A file lists the submitted jobs with their tasks, so that
a later sweep can take them over. Before a submission the file gets the task's unique name in Slurm, and afterwards its number.
A sweep that is killed at any moment therefore loses no job.

A task that ends leaves its result, and one of several jobs leaves a file for each that has ended. A task that left no result is
missing in the list of `squeue`. `sacct`, which submitit uses, is not available on every cluster.
"""

import contextlib
import json
import math
import os
import pickle
import shlex
import signal
import subprocess
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from gmmae.sweep.cluster import queue
from gmmae.sweep.cluster.task import ClusterTask, end_file, read_ends
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


@dataclass
class Submitted:
    """A task that Slurm has."""

    jobs: list[Job]  # those whose ends have not been reported, in their order
    handle: "SlurmJob[list[Ended]]"
    running: bool = False
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
        reports = _Reports(callbacks)
        try:
            slurm.submit(jobs, current)
            while current and signals.reason is None:
                for task, ends in zip(list(current), slurm.poll(current), strict=True):
                    for job in reports.ended(task, ends):
                        slurm.forget([job])
                    if not task.jobs:
                        current.remove(task)
                    elif task.running:
                        reports.started(task.jobs[0])
                callbacks.on_tick(reports.running(current))
                if current:
                    time.sleep(TICK_S)
        finally:
            slurm.cancel(current)
        for task in current:
            reports.interrupted(task, slurm.ends(task))
    return signals.reason


class _Reports:
    """Calls the callbacks for the jobs of tasks."""

    def __init__(self, callbacks: Callbacks) -> None:
        self._callbacks = callbacks
        self._started: dict[str, float] = {}  # monotonic times by job

    def started(self, job: Job) -> None:
        """Reports that a job has started, once."""
        if job.name not in self._started:
            self._started[job.name] = time.monotonic()
            self._callbacks.on_start(job)

    def ended(self, task: Submitted, ends: Mapping[str, Ended]) -> list[Job]:
        """Takes the jobs that have ended from their task, and reports them. Returns them."""
        jobs = [job for job in task.jobs if job.name in ends]
        for job in jobs:
            self.started(job)
            task.jobs.remove(job)
            self._callbacks.on_end(job, _as_failure(task, ends[job.name]))
        return jobs

    def interrupted(self, task: Submitted, ends: Mapping[str, Ended]) -> None:
        """Reports the started jobs of a cancelled task, as far as they have left how they ended."""
        for job, seconds in self.running([task]):
            ended = Ended(job.name, -signal.SIGTERM, False, seconds, interrupted=True)
            self._callbacks.on_end(job, ends.get(job.name, ended))

    def running(self, current: Iterable[Submitted]) -> list[tuple[Job, float]]:
        """Returns the running jobs, with their seconds so far."""
        now, started = time.monotonic(), self._started
        return [(job, now - started[job.name]) for task in current for job in task.jobs if job.name in started]


def _as_failure(task: Submitted, ended: Ended) -> Ended:
    """Returns a cancelled job as a failed one: somebody else cancelled it, so the sweep is not interrupted."""
    if not ended.interrupted:
        return ended
    return ended._replace(interrupted=False, error=f"job {task.handle.job_id} was cancelled")


def _result(task: Submitted) -> dict[str, Ended]:
    """Returns the result of a task's first process, which also reports the loss of the others; empty before it is there."""
    try:
        outcome, value = pickle.loads(task.handle.paths.result_pickle.read_bytes())
    except (FileNotFoundError, EOFError):
        return {}
    if outcome != "success":
        return _without_result(task, value.strip().rpartition("\n")[2])
    return {ended.name: ended for ended in value}


def _without_result(task: Submitted, why: str) -> dict[str, Ended]:
    log = task.handle.paths.stderr
    last = last_line(log)
    why = why if not last or last in why else f"{why}: {last}"
    text = f"job {task.handle.job_id} ended without a result, {why} ({log})"
    return {job.name: Ended(job.name, -signal.SIGKILL, False, 0.0, error=text) for job in task.jobs}


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
    """Submits, polls and cancels tasks. A file lists the submitted jobs until their ends have been reported."""

    def __init__(self, config: SweepConfig, folder: Path, exclusive: bool) -> None:
        self._submitit = _load_submitit()
        self._config = config
        self._folder = folder
        self._exclusive = exclusive
        self._list = folder / "submitted.json"
        self._states: dict[str, str] | None = None
        self._polled = -math.inf

    def submit(self, jobs: Sequence[Job], current: list[Submitted]) -> None:
        """Adds tasks to the current ones. Those of an earlier sweep are taken over, and the other jobs are submitted."""
        current += self._earlier(jobs)
        taken = {job.name for task in current for job in task.jobs}
        kind = attrgetter("devices", "stays")
        new = sorted((job for job in jobs if job.name not in taken), key=kind)
        tasks = [task for _, same in groupby(new, key=kind) for task in self._divide(list(same))]
        size = queue.max_array_size() if len(tasks) > 1 else 1
        for devices, group in groupby(tasks, key=lambda task: task[0].devices):
            same, after = list(group), ""
            for start in range(0, len(same), size):
                array = self._submit(devices, same[start : start + size], after)
                after = array[0].handle.job_id.partition("_")[0]
                current += array

    def _divide(self, jobs: list[Job]) -> list[list[Job]]:
        """Divides jobs among tasks. Only programs that stay are worth a common one."""
        size = self._config.slurm.runs_per_job if jobs[0].stays else 1
        return [jobs[start : start + size] for start in range(0, len(jobs), size)]

    def _earlier(self, jobs: Iterable[Job]) -> list[Submitted]:
        """Returns the tasks of a killed sweep that Slurm still has, and those that ended without being cancelled."""
        known = self._read()
        if not known:
            return []
        listed = queue.listed()
        if listed is None and any(number.startswith(NAME_PREFIX) for number in known.values()):
            raise InputError(f"squeue must answer while {self._list} has jobs without a number; got no answer: try again later")
        known = {name: listed.numbers.get(number, number) if listed else number for name, number in known.items()}
        self._refresh()
        by_number: dict[str, list[Job]] = {}
        for job in jobs:
            number = known.get(job.name, NAME_PREFIX)
            if not number.startswith(NAME_PREFIX):  # it was submitted
                by_number.setdefault(number, []).append(job)
        earlier: list[Submitted] = []
        for number, same in by_number.items():
            task = Submitted(same, self._submitit.SlurmJob(folder=self._folder, job_id=number))
            alive = listed is None or listed.states.get(number, UNKNOWN) not in FINAL_STATES
            if (result := _result(task)) or not alive:  # jobs that were interrupted or lost are submitted again
                ends = result or self.ends(task)
                task.jobs = [job for job in same if job.name in ends and not ends[job.name].interrupted]
            if task.jobs:
                earlier.append(task)
        self._write(known)
        for task in earlier:
            self._write_program(task)
        return earlier

    def _write_program(self, task: Submitted) -> None:
        """Writes a task's program where a sweep was killed before submitit did. The task waits a minute for it."""
        path = task.handle.paths.submitted_pickle
        if path.exists():
            return
        program = self._submitit.helpers.DelayedSubmission(self._task(task.jobs))
        program.set_timeout(self._config.slurm.timeout_min, self._config.slurm.timeouts)
        with whole_file(path) as part:
            program.dump(part)

    def _task(self, jobs: Sequence[Job]) -> ClusterTask:
        """Returns the task for some jobs. The nodes see their logs and this folder under the same paths."""
        absolute = [job._replace(log=job.log.absolute()) for job in jobs]
        config = self._config
        return ClusterTask(absolute, config.grace_s, os.getcwd(), self._folder.absolute(), config.worker_memory_gb)

    def _submit(self, devices: int, tasks: list[list[Job]], after: str) -> list[Submitted]:
        """Submits one task or an array. If the parallelism is limited, the array waits for the one before it."""
        slurm = self._config.slurm
        name = f"{NAME_PREFIX}{uuid.uuid4().hex[:12]}"
        options = parameters(slurm, devices, len(tasks), self._exclusive, self._config.grace_s) | {"job_name": name}
        if after and slurm.array_parallelism != "all":
            options["dependency"] = f"afterany:{after}"
        try:
            executor = self._submitit.SlurmExecutor(self._folder, max_num_timeout=slurm.timeouts)
            executor.update_parameters(**options)
            self._add(tasks, [f"{name}_{i}" for i in range(len(tasks))] if len(tasks) > 1 else [name])
            handles = executor.submit_array([self._task(jobs) for jobs in tasks])
        except (OSError, RuntimeError, ValueError) as error:
            reason = str(error).strip().rpartition("\n")[2]
            raise InputError(
                f"executor = slurm must be able to submit jobs; got {reason!r}: fix the section slurm, or use another executor"
            ) from None
        self._add(tasks, [handle.job_id for handle in handles])
        return [Submitted(jobs, handle) for jobs, handle in zip(tasks, handles, strict=True)]

    def poll(self, current: Sequence[Submitted]) -> list[dict[str, Ended]]:
        """Returns for each task how those of its jobs ended that have, by name."""
        if time.monotonic() < self._polled + POLL_S:
            return [{}] * len(current)
        listed = queue.listed()
        self._states = listed.states if listed else self._states
        self._polled = time.monotonic()
        self._refresh()
        files = set(os.listdir(self._folder))
        return [self._poll(task, files) for task in current]

    def _poll(self, task: Submitted, files: set[str]) -> dict[str, Ended]:
        if task.handle.paths.result_pickle.name in files and (ends := _result(task)):
            return ends
        number = task.handle.job_id
        if any(end_file(self._folder, number, job).name in files for job in task.jobs):
            return self.ends(task)
        if self._states is None:
            return {}
        state = self._states.get(number, UNKNOWN)
        task.running = state == "RUNNING"
        if state not in FINAL_STATES:
            task.missing_since = math.nan
        elif math.isnan(task.missing_since):
            task.missing_since = time.monotonic()
        elif time.monotonic() > task.missing_since + MAX_RESULT_DELAY_S:
            return _without_result(task, state.lower())
        return {}

    def ends(self, task: Submitted) -> dict[str, Ended]:
        """Returns how a task's jobs ended, of those that have left a result or a file."""
        return read_ends(self._folder, task.handle.job_id, task.jobs) | _result(task)

    def _refresh(self) -> None:
        with contextlib.suppress(OSError):
            self._folder.chmod(self._folder.stat().st_mode)  # makes NFS read the folder again

    def cancel(self, current: Sequence[Submitted]) -> None:
        """Cancels the tasks, and waits until they have ended. SIGINT ends the wait."""
        if not current:
            return
        with contextlib.suppress(KeyboardInterrupt, OSError):
            subprocess.run(["scancel", *(one.handle.job_id for one in current)], capture_output=True, check=False)
            deadline = time.monotonic() + self._config.grace_s + 60
            while time.monotonic() < deadline:
                listed = queue.listed()
                if listed and all(listed.states.get(one.handle.job_id, UNKNOWN) in FINAL_STATES for one in current):
                    break
                time.sleep(TICK_S)
        self._refresh()
        self.forget([job for task in current for job in task.jobs])

    def forget(self, ended: Iterable[Job]) -> None:
        """Removes jobs from the list of submitted ones."""
        names = {job.name for job in ended}
        self._write({name: number for name, number in self._read().items() if name not in names})

    def _add(self, tasks: Sequence[Sequence[Job]], numbers: Sequence[str]) -> None:
        self._write(self._read() | {job.name: number for jobs, number in zip(tasks, numbers, strict=True) for job in jobs})

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
