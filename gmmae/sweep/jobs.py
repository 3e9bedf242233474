"""The jobs of a sweep: their commands, environments and input files, and the executor that runs them."""

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict

from gmmae.config.rules import ConfigError
from gmmae.config.toml import to_toml
from gmmae.multihost import launchers
from gmmae.multihost.environment import device_a_core
from gmmae.sweep.cluster.slurm import run_jobs
from gmmae.sweep.grid import RunKey, SweepConfig, run_config
from gmmae.sweep.processes import Job, import_path
from gmmae.sweep.runs import SweepDir
from gmmae.sweep.supervisor import Callbacks, supervise
from gmmae.system.environment import CPU_DEVICES
from gmmae.system.files import write_text
from gmmae.system.nvidia import places

Request = dict[str, list[int]]
"""The measurements of one job: `batches` of a training step, and sample counts of a `validation` pass."""

PROGRAM = (sys.executable, "-m", "gmmae.sweep.worker")
"""The program of a job. Its arguments follow."""

MAX_ATTEMPTS = 2
"""How often a run is tried in all, if it crashes."""


def execute(
    config: SweepConfig, folder: SweepDir, jobs: Sequence[Job], callbacks: Callbacks, *, at_once: int, timed: bool
) -> str | None:
    """Runs the jobs with the sweep's executor. Returns the reason of an interruption, or None, as `supervise` does."""
    if config.executor == "slurm":
        return run_jobs(jobs, callbacks, config=config, folder=folder.jobs, exclusive=timed)
    gpus = places(at_once) if at_once > 1 else []
    memory_gb = config.worker_memory_gb
    return supervise(jobs, callbacks, at_once=at_once, grace_s=config.grace_s, gpus=gpus, memory_gb=memory_gb)


def training_job(config: SweepConfig, folder: SweepDir, owner: RunKey) -> Job:
    """Returns the job that computes the runs of a group, on behalf of the first."""
    workdir = folder.run(owner.name)
    workdir.root.mkdir(parents=True, exist_ok=True)
    wanted = workdir.root / "run.toml"
    run = run_config(config, owner)
    write_text(wanted, to_toml(run))
    job = worker_job(config, folder, owner.name, ("train", str(wanted), str(workdir.root)), owner.devices)
    if _trains_alone(config, job.devices):
        job = job._replace(stays=True, attempts=MAX_ATTEMPTS)
    if config.mode != "virtual" or config.executor == "slurm":
        return job
    # The run is not timed, so it may use the cores that concurrent runs leave idle.
    return job._replace(environment={**job.environment, CPU_DEVICES: str(device_a_core(run, config.jobs))})


def _trains_alone(config: SweepConfig, devices: int) -> bool:
    """Returns whether a run is computed by one process. Several processes can join once in their lives only."""
    on_slurm = config.executor == "slurm"
    if on_slurm and config.slurm.nodes(devices) > 1:
        return False
    try:
        # Slurm gives its jobs variables of their own.
        return launchers.find(config.run.distributed, {} if on_slurm else os.environ) is None
    except ConfigError:  # the run reports it
        return False


def worker_job(config: SweepConfig, folder: SweepDir, name: str, arguments: tuple[str, ...], devices: int = 1) -> Job:
    """Returns a job of a worker, which computes on a number of devices."""
    count = 1 if config.mode == "virtual" else devices
    nodes = config.slurm.nodes(count) if config.executor == "slurm" else 1
    environment = {
        "PYTHONPATH": import_path(),
        # It sets the number of CPU devices. The number of accelerators is fixed.
        CPU_DEVICES: str(count // nodes),
    }
    return Job(name, PROGRAM, folder.log(name), environment, config.run_time_limit_s or 0.0, count, arguments)


def timing_job(config: SweepConfig, folder: SweepDir, devices: int, request: Request) -> Job:
    """Returns the job that measures step times on a number of devices."""
    name = folder.step_times(devices).stem
    work = folder.log(name).parent
    work.mkdir(parents=True, exist_ok=True)
    folder.step_times(devices).parent.mkdir(exist_ok=True)
    measured = SweepConfig(mode="measured", run=config.run)
    # Weak scaling has a sample for every device. The request, not this batch, is timed.
    write_text(work / "run.toml", to_toml(run_config(measured, RunKey("weak", devices, config.seeds[0]))))
    write_text(work / "request.json", json.dumps(request | {"timing": asdict(config.timing)}))
    arguments = ("time", str(work / "run.toml"), str(work / "request.json"), str(folder.step_times(devices)))
    return worker_job(config, folder, name, arguments, devices)
