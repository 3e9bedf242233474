"""Computes the runs of a sweep on Slurm, through submitit: each job is a worker, and the runs' locks are their queue."""

import json
import os
import shlex
import subprocess
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gmmae.sweep import workers
from gmmae.sweep.grid import RunKey, SlurmConfig, SweepConfig
from gmmae.sweep.runs import REPLACE, SweepDir
from gmmae.sweep.workers import Signals
from gmmae.system.errors import InputError
from gmmae.system.files import write_text
from gmmae.system.stop_reasons import EXIT_CODES, SIGTERM

if TYPE_CHECKING:
    from submitit.helpers import DelayedSubmission

POLL_S, QUEUE_S = 1.0, 10.0
"""Between two looks at the runs, and between two questions to Slurm."""

VISIBLE_S = 15.0
"""After which what a job has written is visible on the shared file system."""

MAX_TASKS = 1000
"""The most jobs of an array, by Slurm's default."""

GRACE_S = 120
"""How long before its time limit a job is told to end. Slurm may be a minute early or late."""


class Job:
    """Keeps one worker running.

    At SIGUSR2, which Slurm sends before the time limit and at a preemption, submitit calls `checkpoint`, and queues the job
    again.
    """

    def __call__(self, root: str, *arguments: str) -> int:
        """Runs a worker, and another one where it has died at a run."""
        folder = SweepDir(Path(root))
        while True:
            self.worker = workers.start(folder, arguments, {})
            code = self.worker.wait()
            if code == EXIT_CODES[SIGTERM]:
                time.sleep(60)  # cancelled, and soon killed; or preempted: a job that has returned is not queued again
            ended = code in EXIT_CODES.values() or not workers.note_end(folder, self.worker.pid, code)
            if code != REPLACE and (ended or arguments[0] == "run"):  # its others have ended
                return code

    def checkpoint(self, *arguments: str) -> "DelayedSubmission":
        """Ends the worker, which writes a checkpoint, and returns what is to run when the job comes again."""
        from submitit.helpers import DelayedSubmission

        self.worker.terminate()
        with suppress(ChildProcessError):
            os.waitid(os.P_PID, self.worker.pid, os.WEXITED | os.WNOWAIT)  # the interrupted call is in Python's own wait
        return DelayedSubmission(Job(), *arguments)


def at_once(slurm: SlurmConfig, runs: int) -> int:
    """How many of some runs are computed at once."""
    return min(runs, MAX_TASKS, runs if slurm.array_parallelism == "all" else slurm.array_parallelism)


def compute(
    config: SweepConfig,
    folder: SweepDir,
    left: Callable[[], list[str]],
    say: Callable[[str], None],
    signals: Signals,
) -> None:
    """Submits jobs for the runs, and again where jobs are gone before all runs have an end, as long as that gets on.

    Jobs of an earlier call that was killed are waited for first. All nodes must see the folder under the same path.

    Raises:
      InputError: submitit or Slurm is missing, or Slurm refuses the options.
    """
    jobs, before = folder.jobs / "submitted.json", None
    with suppress(OSError, ValueError):
        _wait(json.loads(jobs.read_text(encoding="utf-8")), left, signals)
    while not signals.reason and (names := left()):
        attempts = [folder.read_attempt(name) for name in names]
        state = names, [attempt and (attempt.checkpoint, attempt.deaths) for attempt in attempts]
        if state == before:
            say(f"jobs have ended without getting on; what they have printed is in {folder.jobs} and {folder.workers_log}")
            return
        before, ids = state, list[str]()
        by_devices: dict[int, list[str]] = {}
        for name in names:
            key = RunKey.named(name)
            by_devices.setdefault(1 if config.mode == "virtual" or key is None else key.devices, []).append(name)
        for devices, same in by_devices.items():
            write_text(folder.queue(devices), "\n".join(same))
            tasks = [("runs", str(folder.queue(devices).absolute()))] * at_once(config.slurm, len(same))
            if config.slurm.nodes(devices) > 1:  # the processes of a job join once in their lives
                tasks = [("run", name) for name in same[:MAX_TASKS]]
            ids += submit(config, folder, tasks, devices, exclusive=config.mode != "virtual")
            write_text(jobs, json.dumps(ids))
        _wait(ids, left, signals)


def measure(config: SweepConfig, folder: SweepDir, arguments: tuple[str, ...], devices: int, signals: Signals) -> int:
    """Measures step times in a job of their own. Returns 0 where they were written, or else 1."""
    file = folder.step_times(devices)
    before = file.stat().st_mtime_ns if file.exists() else None

    def left() -> list[str]:
        return [] if file.exists() and file.stat().st_mtime_ns != before else [file.stem]

    _wait(submit(config, folder, [arguments], devices, exclusive=True), left, signals)
    return len(left())


def submit(config: SweepConfig, folder: SweepDir, tasks: Sequence[tuple[str, ...]], devices: int, exclusive: bool) -> list[str]:
    """Submits a job for each task, the arguments of a worker, and returns Slurm's numbers of the jobs."""
    try:
        from submitit import SlurmExecutor
    except ImportError as error:
        raise InputError(
            f"executor must be processes where submitit is missing; got no {error.name or 'submitit'}: "
            "pip install -e '.[cluster]', or --executor processes"
        ) from None
    slurm, root = config.slurm, str(folder.root.absolute())
    nodes = slurm.nodes(devices)
    given = (option.partition("=") for option in slurm.additional_parameters)
    additional = {key.replace("-", "_"): value if equals else True for key, equals, value in given}
    options: dict[str, Any] = {
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
    variables = f"PYTHONPATH={shlex.quote(workers.import_path())} JAX_NUM_CPU_DEVICES={devices // nodes}"
    try:
        executor = SlurmExecutor(folder.jobs, max_num_timeout=slurm.timeouts)
        executor.update_parameters(
            **{key: value for key, value in options.items() if value and key not in additional},
            job_name="gmmae",
            array_parallelism=at_once(slurm, len(tasks)),
            signal_delay_s=GRACE_S,
            setup=[f"export {variables}", *slurm.setup],
            # One process uses all of the job's cores on a node. Since Slurm 22.05 srun does not inherit the number.
            srun_args=["--cpu-bind=none", *([f"--cpus-per-task={slurm.cpus_per_task}"] if slurm.cpus_per_task else [])],
            additional_parameters={"requeue": True} | {key: value for key, value in additional.items() if value},
        )
        if len(tasks) == 1:
            return [executor.submit(Job(), root, *tasks[0]).job_id]
        return [job.job_id for job in executor.map_array(Job(), *zip(*((root, *task) for task in tasks), strict=True))]
    except (OSError, RuntimeError, ValueError) as error:
        reason = str(error).strip().rpartition("\n")[2]
        raise InputError(
            f"executor = slurm must be able to submit jobs; got {reason!r}: fix the section slurm, or use another executor"
        ) from None


def _wait(ids: Sequence[str], left: Callable[[], Collection[str]], signals: Signals) -> None:
    cancelled, asked, gone = False, time.monotonic(), None
    while ids and (left() or cancelled) and signals.count < 3:
        if signals.reason and not cancelled:
            subprocess.run(["scancel", *ids], check=False, capture_output=True)
            cancelled = True
        now = time.monotonic()
        if now - asked > QUEUE_S or cancelled:
            asked = now
            command = ["squeue", "--me", "--noheader", "--array", "--format=%i", f"--jobs={','.join(ids)}"]
            listed = subprocess.run(command, capture_output=True, text=True, check=False)
            # A cluster that knows none of the jobs any more says that their numbers are invalid.
            empty = not listed.stdout.split() if listed.returncode == 0 else "nvalid job id" in listed.stderr
            gone = (gone or now) if empty else None
        if gone and now - gone > (0 if cancelled else VISIBLE_S):
            return
        time.sleep(POLL_S)
