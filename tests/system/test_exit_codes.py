"""The table of exit codes, and the launch files that go by it; small programs stand for what they start.

In earnest: `tests/cluster`.
"""

import os
import subprocess
import sys

import pytest

from tests.launched import ROOT


@pytest.fixture
def commands(shell_scripts, tmp_path, monkeypatch):
    """Writes shell scripts that go before the commands of their names."""
    monkeypatch.setenv("PYTHON", sys.executable)
    monkeypatch.chdir(tmp_path)
    return shell_scripts


@pytest.fixture
def batch(commands, tmp_path, monkeypatch):
    """Runs the batch script as Slurm does, with a code for srun to end with; its own code, and whether it is queued again."""
    for name in ("SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID", "MAX_RESTARTS"):
        monkeypatch.delenv(name, raising=False)
    queued = tmp_path / "queued"

    def run(code, tasks=2, **environment):
        commands(srun=f"exit {code}", scontrol=f'echo "$*" > {queued}')
        queued.unlink(missing_ok=True)
        environ = os.environ | {"SLURM_JOB_ID": "7", "SLURM_NTASKS": str(tasks)} | environment
        done = subprocess.run(["bash", ROOT / "launch/slurm.sbatch"], env=environ, check=False)
        return done.returncode, queued.read_text().strip() if queued.exists() else ""

    return run


QUEUED = (0, "requeue 7")


@pytest.mark.parametrize(("code", "tasks"), [(0, 2), (1, 2), (2, 2), (3, 1), (74, 2), (127, 2), (130, 2), (137, 1)])
def test_a_job_that_has_come_to_its_end_is_not_queued_again(batch, tmp_path, code, tasks):
    assert batch(143) == QUEUED
    assert batch(code, tasks) == (code, "")
    assert not list(tmp_path.glob("*.ends"))


def test_losses_of_a_job_are_not_counted_with_its_time_limits(batch):
    """srun has the highest code of all: that of a killed process rather than 75."""
    assert [batch(code, MAX_RESTARTS="2") for code in (143, 75, 143, 137, 75, 134)] == [QUEUED] * 6
    assert batch(137) == (75, "")


def test_a_job_stops_after_the_most_restarts(batch):
    assert [batch(143, MAX_RESTARTS="2") for _ in range(3)] == [QUEUED, QUEUED, (143, "")]


def test_one_job_of_an_array_is_queued_again_alone(batch):
    """The number of the array is that of one of its jobs, too."""
    assert batch(143, SLURM_ARRAY_JOB_ID="7", SLURM_ARRAY_TASK_ID="3") == (0, "requeue 7_3")


@pytest.mark.parametrize(
    ("codes", "ended"),
    [
        ((255, 75), 75),
        ((75, 2), 2),
        ((143, 75), 143),
        ((130, 130), 130),
        ((1, 143), 1),
        ((74, 75), 74),
        ((0, 75), 75),
        ((0, 0), 0),
    ],
)
def test_the_code_of_hosts(commands, codes, ended):
    commands(ssh="; ".join(f'[ "$3" = host{i} ] && exit {code}' for i, code in enumerate(codes)))
    done = subprocess.run(["bash", ROOT / "launch/hosts.sh", "host0,host1", "--"], env=os.environ | {"SSH": "ssh"}, check=False)
    assert done.returncode == ended


@pytest.mark.parametrize(("script", "ended"), [("kill -9 $$", 75), ("exit 2", 2), ("exit 143", 143)])
def test_the_code_of_mpirun(commands, script, ended):
    commands(mpirun=script)
    assert subprocess.run(["bash", ROOT / "launch/mpirun.sh", "-np", "2", "--"], check=False).returncode == ended
