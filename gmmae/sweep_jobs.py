"""The processes of a sweep: their commands, environments and inputs."""

import json
import os
import sys
from dataclasses import asdict

from gmmae.cells import SweepDir
from gmmae.config import to_toml
from gmmae.grid import Cell, SweepConfig, run_config
from gmmae.records import write_text
from gmmae.supervisor import Job

Request = dict[str, list[int]]
"""What a process is to time: `batches` of a training step, and sample counts of a `validation` pass."""

PROGRAM = (sys.executable, "-m", "gmmae.cell")
"""What a cell's process runs; its arguments follow."""


def training_job(config: SweepConfig, folder: SweepDir, owner: Cell) -> Job:
    """The job that computes a path, by its first cell."""
    workdir = folder.run(owner.name)
    workdir.root.mkdir(parents=True, exist_ok=True)
    wanted = workdir.root / "cell.toml"
    write_text(wanted, to_toml(run_config(config, owner)))
    return _job(config, folder, owner.name, ("train", str(wanted), str(workdir.root)), owner.devices)


def _job(config: SweepConfig, folder: SweepDir, name: str, arguments: tuple[str, ...], devices: int) -> Job:
    environment = {
        "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
        # Only CPUs heed it; a machine with accelerators has the devices that it has.
        "JAX_NUM_CPU_DEVICES": str(1 if config.mode == "virtual" else devices),
        # Cells differ in few programs: seeds share all of theirs.
        "JAX_COMPILATION_CACHE_DIR": os.environ.get("JAX_COMPILATION_CACHE_DIR", str(folder.compiled.absolute())),
    }
    return Job(name, (*PROGRAM, *arguments), folder.log(name), environment, config.cell_time_limit_s)


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
