"""The launch files under the real srun, sbatch, mpirun and ssh: what runs compute there, how they end, and how they go on."""

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from gmmae.config.schema import Config
from gmmae.config.toml import to_toml
from gmmae.training.workdir import WorkDir
from tests.cluster.slurm import command
from tests.small import finish, losses, small
from tests.waiting import wait_until

LONG_S = 600.0
"""More than any of these takes on a busy machine, ten restarts of a job too."""

SUSPENDED_S = float(os.environ.get("GMMAE_TEST_SUSPENDED_S", "15"))
"""How long a job is suspended: longer than its `distributed.heartbeat_timeout_s`, 4 s."""

LAUNCHERS = {
    "srun": ("slurm", ["srun", "--nodes", "1", "--ntasks", "2", sys.executable, "train.py"]),
    "srun-two-nodes": ("slurm", ["srun", "--nodes", "2", "--ntasks", "2", sys.executable, "train.py"]),
    "mpirun": ("open_mpi", ["launch/mpirun.sh", "-np", "2", "--"]),
    "ssh": ("ssh", ["launch/hosts.sh", "127.0.0.1,localhost", "--"]),
}
"""The fixture, and the words before the options of train.py."""


@pytest.fixture(params=LAUNCHERS)
def launcher(request):
    """Starts two processes of two devices. A test may name some launchers only."""
    fixture, words = LAUNCHERS[request.param]
    request.getfixturevalue(fixture)
    return words


def options(config: Config, workdir: Path):
    """Options of train.py; the configuration is in a file beside the work directory."""
    file = workdir.with_suffix(".toml")
    file.write_text(to_toml(config))
    return ["--config", str(file), "--workdir", str(workdir)]


def long_run(**changes):
    """Ends only when it is told to."""
    return small(parallel__devices="all", data__samples=400, stop__max_epochs=100_000, checkpoint__every_epochs=1, **changes)


def read_rows(workdir: Path):
    return WorkDir(workdir).read_rows()


def record(workdir: Path):
    return json.loads((workdir / "record.json").read_text())


wait_long = partial(wait_until, within_s=LONG_S, tick_s=0.2)


def test_launched_processes_are_one_run(tmp_path, launcher):
    config = small(parallel__devices=4, stop__max_epochs=5, log__tensorboard=True)
    workdir = tmp_path / "run"
    done = subprocess.run([*launcher, *options(config, workdir)], capture_output=True, text=True, timeout=LONG_S, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("max_epochs after 5 epochs") == 1
    _, alone = finish(config, tmp_path / "alone")
    # The same mean of 4 gradients, added up in another order: measured 1e-7.
    np.testing.assert_allclose(losses(read_rows(workdir)), losses(alone.rows), rtol=1e-5)
    assert (record(workdir)["devices"], record(workdir)["processes"]) == (4, 2)
    assert len(list(workdir.glob("events*"))) == 1


# srun itself kills at once; Slurm's way to send SIGTERM is tested with sbatch.
@pytest.mark.parametrize("launcher", ["mpirun", "ssh"], indirect=True)
def test_sigterm_to_the_launcher_ends_the_run_with_a_checkpoint(tmp_path, launcher):
    workdir = tmp_path / "run"
    process = subprocess.Popen([*launcher, *options(long_run(), workdir)], stdout=subprocess.PIPE, text=True)
    wait_long(lambda: len(read_rows(workdir)) >= 2)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=LONG_S)
    assert process.returncode == 143
    assert "checkpoint written; to resume" in out
    assert record(workdir)["stop_reason"] == "sigterm"
    assert (workdir / "checkpoints" / str(len(read_rows(workdir)))).is_dir()


def test_a_run_that_fails_ends_the_launcher_with_its_code(tmp_path, launcher):
    (tmp_path / "file").touch()
    done = subprocess.run(
        [*launcher, *options(small(), tmp_path / "run"), "--workdir", str(tmp_path / "file")],
        capture_output=True,
        text=True,
        timeout=LONG_S,
        check=False,
    )
    assert done.returncode == 2
    assert "error: workdir must be a folder that can be written" in done.stderr


class Batch:
    """A job of `launch/slurm.sbatch`."""

    def __init__(self, tmp_path: Path, before: list[str], after: list[str]):
        self.log = tmp_path / "job-%a.log" if "--array" in before else tmp_path / "job.log"
        words = ["--parsable", "--output", str(self.log), *before, "launch/slurm.sbatch", *after]
        self.id = command("sbatch", *words).strip()

    def state(self):
        """Slurm's name of the state: PENDING, RUNNING, COMPLETED ..."""
        return command("scontrol", "show", "job", self.id).partition("JobState=")[2].split()[0]

    def wait(self):
        wait_long(lambda: self.state() in ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"))
        return self.state()

    def restarts(self):
        return self.log.read_text().count("queued again")


def has_no_gap(workdir: Path):
    return [row.epoch for row in read_rows(workdir)] == list(range(1, len(read_rows(workdir)) + 1))


def test_a_job_at_its_time_limit_goes_on_until_it_is_finished(tmp_path, slurm):
    """The run's own limit counts over restarts, and one job cannot reach it.

    Slurm looks for time limits every 30 s and gives its notice up to 30 s early: after 60 to 90 s of these jobs' 120 s.
    """
    workdir = tmp_path / "run"
    config = long_run(stop__time_limit_s=100.0)
    job = Batch(tmp_path, ["--nodes", "2", "--time", "2", "--signal", "TERM@30"], options(config, workdir))
    assert job.wait() == "COMPLETED", job.log.read_text()
    assert job.restarts() >= 1
    assert record(workdir)["stop_reason"] == "time_limit"
    assert has_no_gap(workdir)


def test_a_job_that_slurm_queues_again_goes_on_and_a_cancelled_one_does_not(tmp_path, slurm):
    workdir = tmp_path / "run"
    job = Batch(tmp_path, ["--nodes", "2"], options(long_run(), workdir))
    wait_long(lambda: len(read_rows(workdir)) >= 2)
    command("scontrol", "requeue", job.id)
    wait_long(lambda: "resumed after epoch" in job.log.read_text())
    wait_long(lambda: has_no_gap(workdir) and record(workdir)["stop_reason"] is None)
    command("scancel", job.id)
    assert job.wait() == "CANCELLED"
    wait_long(lambda: record(workdir)["stop_reason"] == "sigterm")
    assert job.restarts() == 0
    assert has_no_gap(workdir)


def test_an_array_gives_each_job_its_number(tmp_path, slurm):
    after = options(small(parallel__devices="all", stop__max_epochs=1), tmp_path / "run")
    job = Batch(tmp_path, ["--array", "3,5"], [*after, "--seed", "%a", "--workdir", f"{tmp_path}/run_%a"])
    wait_long(lambda: all((tmp_path / f"run_{i}" / "record.json").exists() for i in (3, 5)))
    wait_long(lambda: all(record(tmp_path / f"run_{i}")["stop_reason"] == "max_epochs" for i in (3, 5)))
    assert [record(tmp_path / f"run_{i}")["seed"] for i in (3, 5)] == [3, 5]
    assert job.wait() == "COMPLETED"


def processes_of(workdir: Path):
    """Those of a run, by their command lines."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            words = (place / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"train.py" in words and str(workdir).encode() in words and b"python" in words[0]:
            found.append(int(place.name))
    return sorted(found)


@pytest.mark.parametrize("launcher", ["mpirun", "ssh"], indirect=True)
def test_a_killed_process_is_a_loss_by_the_launchers_code(tmp_path, launcher):
    workdir = tmp_path / "run"
    process = subprocess.Popen([*launcher, *options(long_run(), workdir)])
    wait_long(lambda: len(read_rows(workdir)) >= 2)
    os.kill(processes_of(workdir)[-1], signal.SIGKILL)
    assert process.wait(LONG_S) == 75


def test_a_job_goes_on_after_the_loss_of_a_process_and_after_a_suspension_longer_than_its_patience(tmp_path, slurm):
    workdir = tmp_path / "run"
    config = long_run(distributed__heartbeat_timeout_s=4.0)
    job = Batch(tmp_path, ["--nodes", "2"], options(config, workdir))
    wait_long(lambda: len(read_rows(workdir)) >= 2)
    os.kill(processes_of(workdir)[-1], signal.SIGKILL)
    wait_long(lambda: "code 75: queued again" in job.log.read_text())
    wait_long(lambda: "resumed after epoch" in job.log.read_text() and job.state() == "RUNNING")
    command("scontrol", "suspend", job.id)
    wait_long(lambda: job.state() == "SUSPENDED")
    before = len(read_rows(workdir))
    time.sleep(SUSPENDED_S)
    command("scontrol", "resume", job.id)
    wait_long(lambda: len(read_rows(workdir)) >= before + 2)  # JAX has aborted the processes, and the job was queued again
    command("scancel", job.id)
    assert job.wait() == "CANCELLED"
    assert has_no_gap(workdir)
