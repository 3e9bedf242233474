"""What is asked of Slurm and made of its answers; small programs stand for its commands. In earnest: `tests/cluster`."""

import json
import os
import pickle
import sys

import pytest
from submitit.slurm.slurm import _make_sbatch_string

from gmmae import cluster_slurm
from gmmae.cluster_jobs import run_jobs
from gmmae.cluster_slurm import parameters
from gmmae.errors import InputError
from gmmae.grid import SlurmConfig, SweepConfig
from gmmae.supervisor import Ended, Job, describe


def options(slurm: SlurmConfig, devices: int, jobs: int = 3, *, timed: bool = False, grace_s: float = 30.0) -> dict[str, str]:
    """Those of sbatch, as submitit writes them."""
    text = _make_sbatch_string("program", "/folder", map_count=jobs, **parameters(slurm, devices, jobs, timed, grace_s))
    lines = [line.removeprefix("#SBATCH --") for line in text.splitlines() if line.startswith("#SBATCH --")]
    found = {key: value.strip("'") for key, _, value in (line.partition("=") for line in lines)}
    assert len(found) == len(lines), "an option twice"
    return {key: value for key, value in found.items() if key not in ("error", "output", "open-mode", "wckey", "job-name")}


LEAST = {"time": "60", "nodes": "1", "ntasks-per-node": "1", "array": "0-2%3", "requeue": "", "signal": "USR2@120"}


def test_what_is_not_configured_is_left_to_the_cluster():
    assert options(SlurmConfig(), 8) == LEAST


def test_what_is_configured_is_asked_for():
    """8 devices, 4 a node; 60 + 90 s for the checkpoint and the requeueing."""
    slurm = SlurmConfig(
        "gpu", "me", "low", 240, 5, 4, 16, 64, 2, ("module load cuda",), ("gres-flags=enforce-binding", "no-kill")
    )
    assert options(slurm, 8, timed=True, grace_s=60.0) == LEAST | {
        "partition": "gpu", "account": "me", "qos": "low", "time": "240", "nodes": "2", "gpus-per-node": "4",
        "cpus-per-task": "16", "mem": "64GB", "array": "0-2%2", "exclusive": "", "signal": "USR2@150",
        "gres-flags": "enforce-binding", "no-kill": "",
    }  # fmt: skip
    assert options(slurm, 1)["gpus-per-node"] == "1"
    text = _make_sbatch_string("program", "/folder", **parameters(slurm, 1, 1, False, 30.0))
    assert text.index("\nmodule load cuda\n") < text.index("\nsrun ")
    assert " --cpu-bind=none --cpus-per-task=16 program" in text


def test_an_extra_option_goes_before_ours_and_an_empty_one_takes_it_away():
    slurm = SlurmConfig(devices_per_node=2, extra=("exclusive=user", "gpus-per-node=", "nodes=3"))
    found = options(slurm, 4, timed=True)
    assert (found["exclusive"], found["nodes"]) == ("user", "3")
    assert "gpus-per-node" not in found


@pytest.fixture
def commands(tmp_path, monkeypatch):
    """Writes shell scripts that are all there is on the path."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def write(**scripts: str) -> None:
        for name, script in scripts.items():
            (folder / name).write_text(f"#!/bin/sh\n{script}\n")
            (folder / name).chmod(0o755)

    return write


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs one job; how it ended."""
    monkeypatch.setattr(cluster_slurm, "LATE_S", 0.5)
    monkeypatch.setattr(cluster_slurm, "ASK_S", 0.1)

    def run():
        ended = []
        reason = run_jobs(
            [Job("a", (sys.executable, "-c", ""), tmp_path / "a.log", {}, 0.0)],
            config=SweepConfig(executor="slurm", slurm=SlurmConfig(partition="gpu"), grace_s=1.0),
            folder=tmp_path / "jobs",
            at_once=1,
            timed=False,
            on_start=lambda job: None,
            on_end=lambda job, end: ended.append(end),
        )
        assert reason is None
        [end] = ended
        assert json.loads((tmp_path / "jobs/slurm/submitted.json").read_text()) == {}
        return end

    return run


SUBMITS = {"srun": "", "scancel": "", "sbatch": "echo Submitted batch job 7"}
REFUSALS = {
    "no Slurm": ({}, 'Could not detect "srun", are you indeed on a slurm cluster?'),
    "no sbatch": ({"srun": ""}, "[Errno 2] No such file or directory: 'sbatch'"),
    "refused": (
        {"srun": "", "sbatch": "echo sbatch: error: first >&2; echo sbatch: error: no >&2; exit 1"},
        "sbatch: error: no",
    ),
    "not understood": ({"srun": "", "sbatch": "echo hello"}, "(you may however set the job job_id manually if needed)"),
}


@pytest.mark.parametrize(("scripts", "said"), REFUSALS.values(), ids=REFUSALS.keys())
def test_a_failed_submission_is_one_line(commands, run, scripts, said):
    commands(**scripts)
    with pytest.raises(InputError) as caught:
        run()
    rule, mend = "executor = slurm must be able to submit jobs; got ", ": mend the section slurm, or use another executor"
    assert str(caught.value) == f"{rule}{said!r}{mend}"


@pytest.mark.parametrize(("state", "word"), [("7 CANCELLED", "cancelled"), ("8 RUNNING", "gone"), ("", "gone")])
def test_a_job_that_is_over_without_a_result_is_a_failure(commands, run, tmp_path, state, word):
    commands(**SUBMITS, squeue=f"echo -n {state}")
    log = tmp_path / "jobs/slurm/7_0_log.err"
    log.parent.mkdir(parents=True)
    log.write_text("what it said\n")
    assert describe(run()) == f"job 7 ended without a result, {word}: what it said ({log})"


def leave(folder, outcome, value) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "submitted.json").write_text('{"a": "5"}')
    (folder / "5_0_result.pkl").write_bytes(pickle.dumps((outcome, value)))


def test_a_result_that_an_earlier_call_did_not_see_is_taken(commands, run, tmp_path):
    commands(srun="", sbatch="exit 1", squeue="echo 5 COMPLETED")
    leave(tmp_path / "jobs/slurm", "success", Ended("a", 3, False, 9.0))
    assert run() == Ended("a", 3, False, 9.0)


def test_too_many_time_limits_are_a_failure_with_submitits_reason(commands, run, tmp_path):
    commands(srun="", sbatch="exit 1", squeue="exit 1")
    leave(tmp_path / "jobs/slurm", "error", "Traceback:\n  line\nUncompletedJobError: Job not requeued because: why.\n")
    log = tmp_path / "jobs/slurm/5_0_log.err"
    error = f"job 5 ended without a result, UncompletedJobError: Job not requeued because: why. ({log})"
    assert describe(run()) == error


@pytest.mark.parametrize("left", [Ended("a", -15, False, 9.0, interrupted=True), None])
def test_a_job_that_was_cancelled_or_lost_between_two_calls_is_submitted_again(commands, run, tmp_path, left):
    commands(**SUBMITS, squeue="echo 5 CANCELLED; echo 7 FAILED")
    leave(tmp_path / "jobs/slurm", "success", left)
    if left is None:
        os.unlink(tmp_path / "jobs/slurm/5_0_result.pkl")
    assert describe(run()).startswith("job 7 ended")


def test_slurm_that_does_not_answer_is_asked_again(commands, run, tmp_path):
    """The first answer fails."""
    flag = tmp_path / "flag"
    commands(**SUBMITS, squeue=f"if [ -e {flag} ]; then echo 7 FAILED; else : > {flag}; exit 1; fi")
    assert describe(run()).startswith("job 7 ended without a result, failed")


def test_a_broken_list_of_submitted_jobs_is_refused(commands, run, tmp_path):
    commands(**SUBMITS, squeue="")
    leave(tmp_path / "jobs/slurm", "success", None)
    (tmp_path / "jobs/slurm/submitted.json").write_text("{")
    with pytest.raises(
        InputError, match=r"submitted\.json must say which jobs are submitted; got .*: look for them with squeue"
    ):
        run()
