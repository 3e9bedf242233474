"""Sweeps as jobs of a real Slurm: runs in earnest, and small programs in their place where a job is to be disturbed."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from gmmae.config.toml import to_toml
from gmmae.sweep.cluster.slurm import run_jobs
from gmmae.sweep.grid import RunKey, SlurmConfig, SweepConfig, TimingConfig, run_keys
from gmmae.sweep.processes import Ended, Job, describe
from gmmae.sweep.runs import SweepDir
from gmmae.sweep.supervisor import Callbacks
from gmmae.training.workdir import WorkDir
from tests.small import small
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("slurm")

ROOT = Path(__file__).parent.parent.parent
LONG_S = 400.0
"""More than any of these takes on a busy machine."""

RUN = small(parallel__devices="all", stop__max_epochs=2)
TIMING = TimingConfig(warmup_steps=1, steps=2, blocks=2)

# Notes when it starts and ends. Where told to, it waits until it gets SIGTERM, and does not wait when it is started again. As a
# run does, it takes SIGTERM once: this Slurm sends signals to all of a job's processes, and the job passes its own on.
PROGRAM = """
import os, signal, sys, time
place, wish = sys.argv[1:]
def note(event):
    with open(place, "a") as file:
        file.write(event + os.linesep)
def stop(*_):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    note("checkpoint")
    time.sleep(1.0)
    sys.exit(143)
again = os.path.exists(place)
signal.signal(signal.SIGTERM, stop)
signal.signal(signal.SIGUSR2, signal.SIG_IGN)
note("start")
if wish == "slow":
    time.sleep(10)
if wish == "wait" and not again:
    time.sleep(100)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
note("end")
"""


class Calls:
    """Runs jobs, and keeps what it is called back with; `disturb` is called with Slurm's number of each job that runs."""

    def __init__(self, folder: Path, disturb=lambda *_: None) -> None:
        self.folder = folder
        self.disturb = disturb
        self.ended: dict[str, Ended] = {}
        self.started: list[str] = []

    def job(self, name: str, wish: str = "") -> Job:
        command = (sys.executable, "-S", "-c", PROGRAM, str(self.folder / f"{name}.txt"), wish)
        return Job(name, command, self.folder / f"{name}.log", {}, 0.0)

    def events(self, name: str) -> list[str]:
        path = self.folder / f"{name}.txt"
        return path.read_text().split() if path.exists() else []

    def number(self, name: str) -> str:
        return json.loads((self.folder / "jobs/slurm/submitted.json").read_text())[name]

    def tick(self, running: Sequence[tuple[Job, float]]) -> None:
        for job, _ in running:
            self.disturb(job.name)

    def run(self, *jobs: Job, **slurm) -> str | None:
        return run_jobs(
            jobs,
            Callbacks(
                lambda job: self.started.append(job.name), lambda job, ended: self.ended.update({job.name: ended}), self.tick
            ),
            config=SweepConfig(executor="slurm", grace_s=10.0, slurm=SlurmConfig(**slurm)),
            folder=self.folder / "jobs",
            exclusive=False,
        )


@contextmanager
def begun(config: SweepConfig, root: Path) -> Iterator[subprocess.Popen[str]]:
    """The command in a process of its own, which is killed when it is left running."""
    file = root.with_suffix(".toml")
    file.write_text(to_toml(config))
    command = [sys.executable, "sweep.py", "--config", str(file), "--workdir", str(root), "--executor", "slurm"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def sweep(config: SweepConfig, root: Path) -> tuple[int, str]:
    with begun(config, root) as process:
        printed, _ = process.communicate(timeout=LONG_S)
    return process.returncode, printed


@pytest.mark.parametrize("runs_per_job", [1, 3])
def test_a_sweep_of_real_runs(tmp_path, runs_per_job):
    asked = SlurmConfig(runs_per_job=runs_per_job)
    config = SweepConfig(scaling=("strong", "weak"), devices=(1, 2), slurm=asked, timing=TIMING, run=RUN)
    root = tmp_path / "sweep"
    code, printed = sweep(config, root)
    assert code == 0, printed
    assert "4 runs: 4 max_epochs" in printed
    assert {record.outcome for record in SweepDir(root).read_all(run_keys(config))} == {"max_epochs"}
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
    found = SweepDir(tmp_path / "measured").read(RunKey("weak", 2, 0))
    assert found is not None
    assert found.record is not None
    assert (found.record.devices, found.record.processes, found.record.epochs) == (2, 2, 2)
    timing = TimingConfig(device_batches=(2,), global_batches=(4,), warmup_steps=1, steps=2, blocks=2)
    config = SweepConfig(mode="throughput", devices=(2,), slurm=asked, timing=timing, run=RUN)
    code, printed = sweep(config, tmp_path / "throughput")
    assert code == 0, printed
    assert json.loads(SweepDir(tmp_path / "throughput").step_times(2).read_text())["devices"] == 2


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_preempted_run_goes_on_from_its_checkpoint(tmp_path, nodes):
    """Only the checkpoint that is written on being told to end can save the epochs before: the next would be after the end."""
    root, last = tmp_path / "sweep", 20
    asked = SlurmConfig(devices_per_node=2 // nodes, additional_parameters=("gpus_per_node=",))
    run = small(parallel__devices="all", data__samples=4000, stop__max_epochs=last, checkpoint__every_epochs=1000)
    config = SweepConfig(mode="measured", scaling=("weak",), devices=(2,), slurm=asked, run=run)
    with begun(config, root) as process:
        workdir = WorkDir(root / "runs/weak-n2-seed0")
        wait_until(workdir.read_rows, LONG_S)
        numbers = json.loads((root / "jobs/slurm/submitted.json").read_text())
        done = subprocess.run(["scancel", "--signal=USR2", numbers["weak-n2-seed0"]], check=False)
        printed, _ = process.communicate(timeout=LONG_S)
    assert (done.returncode, process.returncode) == (0, 0), printed
    found = SweepDir(root).read(RunKey("weak", 2, 0))
    assert found is not None
    assert found.record is not None
    assert (found.outcome, found.record.epochs, found.record.processes) == ("max_epochs", last, nodes)
    assert [row.epoch for row in workdir.read_rows()] == list(range(1, last + 1))
    assert f"{workdir.root}, resumed after epoch " in (workdir.root / "log.txt").read_text()


def test_a_preempted_job_of_several_runs_goes_on_with_those_that_have_not_ended(tmp_path):
    """SIGUSR2 comes in the second of three runs, whose checkpoint is the only one."""
    root, last = tmp_path / "sweep", 20
    run = small(parallel__devices="all", data__samples=4000, stop__max_epochs=last, checkpoint__every_epochs=1000)
    asked = SlurmConfig(runs_per_job=3)
    config = SweepConfig(scaling=("weak",), devices=(2,), seeds=(0, 1, 2), slurm=asked, timing=TIMING, run=run)
    with begun(config, root) as process:
        second = WorkDir(root / "runs/weak-n2-seed1")
        wait_until(second.read_rows, LONG_S)
        subprocess.run(["scancel", "--signal=USR2", Calls(root).number("weak-n2-seed1")], check=True)
        wait_until((root / "records/weak-n2-seed0.json").exists, LONG_S)
        assert not (root / "records/weak-n2-seed2.json").exists()  # the first is reported while the job goes on
        printed, _ = process.communicate(timeout=LONG_S)
    assert process.returncode == 0, printed
    assert [record.outcome for record in SweepDir(root).read_all(run_keys(config))] == ["max_epochs"] * 3
    assert [row.epoch for row in second.read_rows()] == list(range(1, last + 1))
    logs = [(root / f"runs/weak-n2-seed{seed}/log.txt").read_text() for seed in (0, 1, 2)]
    assert [log.count(", resumed after epoch ") for log in logs] == [0, 1, 0]


def test_a_job_that_somebody_cancels_is_a_failure_and_writes_its_checkpoint(tmp_path):
    calls = Calls(tmp_path)

    cancelled = []

    def cancel(name):
        if "start" in calls.events(name) and not cancelled:
            subprocess.run(["scancel", calls.number(name)], check=True, timeout=30)
            cancelled.append(name)

    calls.disturb = cancel
    assert calls.run(calls.job("a", "wait")) is None
    assert not calls.ended["a"].interrupted
    assert describe(calls.ended["a"]).startswith("job ")
    assert describe(calls.ended["a"]).endswith(" was cancelled")
    assert calls.events("a") == ["start", "checkpoint"]


def test_ctrl_c_cancels_the_jobs_and_the_next_call_goes_on(tmp_path):
    calls = Calls(tmp_path)
    jobs = calls.job("a", "wait"), calls.job("b", "wait")
    calls.disturb = lambda _: "start" in calls.events("a") and os.kill(os.getpid(), signal.SIGINT)
    assert calls.run(*jobs, array_parallelism=1) == "sigint"
    assert calls.started == ["a"]
    assert calls.ended["a"].interrupted
    assert calls.events("a") == ["start", "checkpoint"]
    assert calls.events("b") == []
    calls.disturb = lambda _: None
    assert calls.run(calls.job("a", "wait"), calls.job("b")) is None
    assert [calls.ended[name].returncode for name in "ab"] == [0, 0]


DRIVER = """
import sys
from pathlib import Path
from tests.cluster.test_sweep import Calls
calls = Calls(Path(sys.argv[1]))
calls.run(calls.job("a", "slow"))
"""


def test_a_killed_sweeps_job_is_taken_over_by_the_next_call(tmp_path):
    calls = Calls(tmp_path)
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(tmp_path)], cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}
    )
    wait_until(lambda: "start" in calls.events("a"), LONG_S)
    number = calls.number("a")
    driver.kill()
    driver.wait()
    calls.disturb = lambda name: None if calls.number(name) == number else pytest.fail("submitted again")
    assert calls.run(calls.job("a", "slow")) is None
    assert calls.events("a") == ["start", "end"]
    assert calls.ended["a"].returncode == 0
