"""Sweeps as jobs of a real Slurm."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from gmmae.config.toml import to_toml
from gmmae.sweep.grid import SlurmConfig, SweepConfig, TimingConfig
from gmmae.sweep.runs import SweepDir
from gmmae.training.workdir import WorkDir
from tests.cluster.slurm import command
from tests.launched import ROOT
from tests.small import small
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("slurm")

LONG_S = 400.0
"""More than any of these takes on a busy machine."""

RUN = small(parallel__devices="all", stop__max_epochs=2)
TIMING = TimingConfig(warmup_steps=1, steps=2, blocks=2)


@contextmanager
def begun(config: SweepConfig, root: Path):
    """The command in a process of its own, which is killed when it is left running."""
    file = root.with_suffix(".toml")
    file.write_text(to_toml(config))
    words = ["sweep.py", "--config", file, "--workdir", root, "--executor", "slurm"]
    process = subprocess.Popen([sys.executable, *words], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def jobs():
    """The numbers of this user's jobs that Slurm has."""
    return command("squeue", "--me", "--noheader", "--format=%i").split()


def sweep(config: SweepConfig, root: Path):
    with begun(config, root) as process:
        printed, _ = process.communicate(timeout=LONG_S)
    return process.returncode, printed


@pytest.mark.parametrize("parallel", ["all", 1])
def test_a_sweep_of_real_runs(tmp_path, parallel):
    """Two jobs side by side, or one job that computes both runs."""
    asked = SlurmConfig(array_parallelism=parallel)
    config = SweepConfig(scaling=("strong", "weak"), devices=(1, 2), slurm=asked, timing=TIMING, run=RUN)
    root = tmp_path / "sweep"
    code, printed = sweep(config, root)
    assert code == 0, printed
    assert "4 runs: 4 max_epochs" in printed
    assert {record.outcome for record in SweepDir(root).read_all(config)} == {"max_epochs"}
    assert (SweepDir(root).report / "report.html").exists()
    assert SweepDir(root).step_times(1).exists()
    _, printed = sweep(config, root)
    assert printed.splitlines()[0] == "4 runs: all done"


def test_a_run_and_step_times_on_two_nodes(tmp_path):
    """Acts as with one GPU a node; this Slurm has none to ask for."""
    asked = SlurmConfig(devices_per_node=1, additional_parameters=("gpus_per_node=",))
    config = SweepConfig(mode="measured", scaling=("weak",), devices=(2,), slurm=asked, run=RUN)
    code, printed = sweep(config, tmp_path / "measured")
    assert code == 0, printed
    [found] = SweepDir(tmp_path / "measured").read_all(config)
    assert found.record is not None
    assert (found.record.devices, found.record.processes, found.record.epochs) == (2, 2, 2)
    timing = TimingConfig(device_batches=(2,), global_batches=(4,), warmup_steps=1, steps=2, blocks=2)
    config = SweepConfig(mode="throughput", devices=(2,), slurm=asked, timing=timing, run=RUN)
    code, printed = sweep(config, tmp_path / "throughput")
    assert code == 0, printed
    assert json.loads(SweepDir(tmp_path / "throughput").step_times(2).read_text())["devices"] == 2


LAST = 20


def long(slurm: SlurmConfig | None = None, seeds: tuple[int, ...] = (0,), **changes):
    """Weak runs on two devices. Only the checkpoint of an interruption can save their epochs: the next is after the end."""
    run = small(
        **{"parallel__devices": "all", "data__samples": 4000, "stop__max_epochs": LAST, "checkpoint__every_epochs": 1000}
        | changes
    )
    return SweepConfig(scaling=("weak",), devices=(2,), seeds=seeds, slurm=slurm or SlurmConfig(), timing=TIMING, run=run)


def workdir(root: Path, seed: int = 0):
    return WorkDir(root / f"runs/weak-n2-seed{seed}")


def resumptions(root: Path, seed: int = 0):
    return (workdir(root, seed).root / "log.txt").read_text().count(", resumed after epoch ")


def end(process: subprocess.Popen[str], config: SweepConfig, root: Path):
    """Waits for a command whose sweep ends as if nothing had been."""
    printed, _ = process.communicate(timeout=LONG_S)
    assert process.returncode == 0, printed
    records = SweepDir(root).read_all(config)
    assert [record.outcome for record in records] == ["max_epochs"] * len(config.seeds)
    for seed in config.seeds:
        assert [row.epoch for row in workdir(root, seed).read_rows()] == list(range(1, LAST + 1))


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_preempted_run_goes_on_from_its_checkpoint(tmp_path, nodes):
    asked = SlurmConfig(devices_per_node=2 // nodes, additional_parameters=("gpus_per_node=",))
    config = dataclasses.replace(long(asked), mode="measured")
    with begun(config, tmp_path / "sweep") as process:
        wait_until(workdir(tmp_path / "sweep").read_rows, LONG_S)
        command("scancel", "--signal=USR2", *jobs())
        end(process, config, tmp_path / "sweep")
    [found] = SweepDir(tmp_path / "sweep").read_all(config)
    assert found.record is not None
    assert (found.record.epochs, found.record.processes) == (LAST, nodes)
    assert resumptions(tmp_path / "sweep")


def test_a_preempted_job_of_several_runs_goes_on_with_those_that_have_not_ended(tmp_path):
    """SIGUSR2 comes in the second of three runs."""
    config = long(SlurmConfig(array_parallelism=1), seeds=(0, 1, 2))
    with begun(config, tmp_path / "sweep") as process:
        wait_until(workdir(tmp_path / "sweep", 1).read_rows, LONG_S)
        command("scancel", "--signal=USR2", *jobs())
        end(process, config, tmp_path / "sweep")
    assert [resumptions(tmp_path / "sweep", seed) for seed in config.seeds] == [0, 1, 0]


def test_ctrl_c_cancels_the_jobs_and_the_next_call_goes_on(tmp_path):
    """The run that had begun writes its checkpoint; the other waits in the queue."""
    root, config = tmp_path / "sweep", long(SlurmConfig(array_parallelism=1), seeds=(0, 1))
    with begun(config, root) as process:
        wait_until(workdir(root).read_rows, LONG_S)
        process.send_signal(signal.SIGINT)
        printed, _ = process.communicate(timeout=LONG_S)
    assert process.returncode == 130, printed
    assert list(workdir(root).checkpoints.iterdir())
    assert jobs() == []
    with begun(config, root) as process:
        end(process, config, root)
    assert resumptions(root)


def test_a_killed_sweeps_jobs_are_waited_for_by_the_next_call(tmp_path):
    root, config = tmp_path / "sweep", long()
    with begun(config, root):
        wait_until(workdir(root).read_rows, LONG_S)
    before = jobs()
    assert len(before) == 1
    with begun(config, root) as process:
        assert set(jobs()) <= set(before)
        end(process, config, root)
    assert resumptions(root) == 0


def test_a_run_whose_worker_is_killed_goes_on_in_the_same_job(tmp_path):
    root, config = tmp_path / "sweep", long(checkpoint__every_epochs=1, checkpoint__min_interval_s=0.0)
    with begun(config, root) as process:
        wait_until(lambda: len(workdir(root).read_rows()) > 4, LONG_S)
        attempt = SweepDir(root).read_attempt("weak-n2-seed0")
        assert attempt is not None
        os.kill(attempt.pid, signal.SIGKILL)
        end(process, config, root)
    assert resumptions(root)


def test_options_that_slurm_refuses_are_one_line(tmp_path):
    config = SweepConfig(scaling=("weak",), devices=(2,), slurm=SlurmConfig(partition="nowhere"), timing=TIMING, run=RUN)
    code, printed = sweep(config, tmp_path / "sweep")
    assert code == 2
    assert "executor = slurm must be able to submit jobs; got" in printed.splitlines()[-1]
