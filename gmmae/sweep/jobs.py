"""The jobs of a sweep: their commands, environments and inputs, and who runs them."""

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict

from gmmae.config.toml import to_toml
from gmmae.multihost.environment import device_a_core
from gmmae.sweep.cluster.jobs import run_jobs
from gmmae.sweep.grid import Cell, SweepConfig, run_config
from gmmae.sweep.runs import SweepDir
from gmmae.sweep.supervisor import Ended, Job, supervise
from gmmae.system.environment import CPU_DEVICES
from gmmae.system.files import write_text
from gmmae.system.gpus import places

Request = dict[str, list[int]]
"""What a process is to time: `batches` of a training step, and sample counts of a `validation` pass."""

PROGRAM = (sys.executable, "-m", "gmmae.sweep.worker")
"""What a cell's process runs; its arguments follow."""


def execute(
    config: SweepConfig,
    folder: SweepDir,
    jobs: Sequence[Job],
    *,
    at_once: int,
    timed: bool,
    on_start: Callable[[Job], None],
    on_end: Callable[[Job, Ended], None],
    on_tick: Callable[[Sequence[tuple[Job, float]]], None] = lambda _: None,
) -> str | None:
    """Runs the jobs with the sweep's executor; arguments and result as of `supervise` and `run_jobs`."""
    here = places(at_once) if at_once > 1 and config.executor != "slurm" else []
    if config.executor == "processes":
        return supervise(
            jobs, at_once=at_once, grace_s=config.grace_s, on_start=on_start, on_end=on_end, on_tick=on_tick, places=here
        )
    return run_jobs(
        jobs,
        config=config,
        folder=folder.jobs,
        at_once=at_once,
        timed=timed,
        on_start=on_start,
        on_end=on_end,
        on_tick=on_tick,
        places=here,
    )


def training_job(config: SweepConfig, folder: SweepDir, owner: Cell) -> Job:
    """The job that computes a path, by its first cell."""
    workdir = folder.run(owner.name)
    workdir.root.mkdir(parents=True, exist_ok=True)
    wanted = workdir.root / "cell.toml"
    run = run_config(config, owner)
    write_text(wanted, to_toml(run))
    job = _job(config, folder, owner.name, ("train", str(wanted), str(workdir.root)), owner.devices)
    if config.mode != "virtual" or config.executor == "slurm":
        return job
    # No times are taken from the run, so it may use what the cells beside it leave.
    return job._replace(environment={**job.environment, CPU_DEVICES: str(device_a_core(run, config.jobs))})


def _job(config: SweepConfig, folder: SweepDir, name: str, arguments: tuple[str, ...], devices: int) -> Job:
    count = 1 if config.mode == "virtual" else devices
    nodes = config.slurm.nodes(count) if config.executor == "slurm" else 1
    environment = {
        "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
        # Only CPUs heed it; a machine with accelerators has the devices that it has.
        CPU_DEVICES: str(count // nodes),
    }
    return Job(name, (*PROGRAM, *arguments), folder.log(name), environment, config.cell_time_limit_s, count)


def timing_job(config: SweepConfig, folder: SweepDir, devices: int, request: Request) -> Job:
    """The job that measures step times on a number of devices."""
    name = folder.step_times(devices).stem
    work = folder.log(name).parent
    work.mkdir(parents=True, exist_ok=True)
    folder.step_times(devices).parent.mkdir(exist_ok=True)
    measured = SweepConfig(mode="measured", run=config.run)
    # Weak, because its batch has a sample for every device; the batches that are timed are the request's.
    write_text(work / "cell.toml", to_toml(run_config(measured, Cell("weak", devices, config.seeds[0]))))
    write_text(work / "request.json", json.dumps(request | {"timing": asdict(config.timing)}))
    arguments = ("time", str(work / "cell.toml"), str(work / "request.json"), str(folder.step_times(devices)))
    return _job(config, folder, name, arguments, devices)
