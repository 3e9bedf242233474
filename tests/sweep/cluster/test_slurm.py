"""Requests to Slurm and its answers, with small programs as its commands. `tests/cluster` has a real Slurm."""

import json
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import pytest
from submitit.slurm.slurm import _make_sbatch_string

from gmmae.sweep.cluster import slurm as cluster_slurm
from gmmae.sweep.cluster.slurm import parameters, run_jobs
from gmmae.sweep.grid import SlurmConfig, SweepConfig
from gmmae.sweep.processes import Ended, Job, describe
from gmmae.sweep.supervisor import Callbacks
from gmmae.system.errors import InputError


def options(slurm: SlurmConfig, devices: int, jobs: int = 3, *, timed: bool = False, grace_s: float = 30.0) -> dict[str, str]:
    """Those of sbatch, as submitit writes them."""
    text = _make_sbatch_string("program", "/folder", map_count=jobs, **parameters(slurm, devices, jobs, timed, grace_s))
    lines = [line.removeprefix("#SBATCH --") for line in text.splitlines() if line.startswith("#SBATCH --")]
    found = {key: value.strip("'") for key, _, value in (line.partition("=") for line in lines)}
    assert len(found) == len(lines), "an option twice"
    return {key: value for key, value in found.items() if key not in ("error", "output", "open-mode", "wckey", "job-name")}


ROOT = Path(__file__).parent.parent.parent.parent
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
    assert text.index("\nexport PYTHONPATH=") < text.index("\nmodule load cuda\n") < text.index("\nsrun ")
    assert " --cpu-bind=none --cpus-per-task=16 program" in text


def test_an_extra_option_goes_before_ours_and_an_empty_one_takes_it_away():
    slurm = SlurmConfig(devices_per_node=2, additional_parameters=("exclusive=user", "gpus-per-node=", "nodes=3"))
    found = options(slurm, 4, timed=True)
    assert (found["exclusive"], found["nodes"]) == ("user", "3")
    assert "gpus-per-node" not in found


@pytest.fixture
def commands(shell_scripts, monkeypatch):
    """Writes shell scripts that are all there is on the path. Slurm is asked often."""
    monkeypatch.setenv("PATH", str(shell_scripts.folder))
    monkeypatch.setattr(cluster_slurm, "POLL_S", 0.1)
    monkeypatch.setattr(cluster_slurm, "TICK_S", 0.05)
    return shell_scripts.write


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs one job; how it ended."""
    monkeypatch.setattr(cluster_slurm, "MAX_RESULT_DELAY_S", 0.3)

    def run():
        ended = []
        reason = run_jobs(
            [Job("a", (sys.executable, "-c", ""), tmp_path / "a.log", {}, 0.0)],
            Callbacks(lambda _: None, lambda _, end: ended.append(end)),
            config=SweepConfig(executor="slurm", slurm=SlurmConfig(partition="gpu"), grace_s=1.0),
            folder=tmp_path / "jobs",
            exclusive=False,
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
    rule, mend = "executor = slurm must be able to submit jobs; got ", ": fix the section slurm, or use another executor"
    assert str(caught.value) == f"{rule}{said!r}{mend}"


@pytest.mark.parametrize(("state", "word"), [("7 CANCELLED", "cancelled"), ("8 RUNNING", "gone")])
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
    leave(tmp_path / "jobs/slurm", "success", [Ended("a", 3, False, 9.0)])
    assert run() == Ended("a", 3, False, 9.0)


def test_too_many_time_limits_are_a_failure_with_submitits_reason(commands, run, tmp_path):
    commands(srun="", sbatch="exit 1", squeue="exit 1")
    leave(tmp_path / "jobs/slurm", "error", "Traceback:\n  line\nUncompletedJobError: Job not requeued because: why.\n")
    log = tmp_path / "jobs/slurm/5_0_log.err"
    error = f"job 5 ended without a result, UncompletedJobError: Job not requeued because: why. ({log})"
    assert describe(run()) == error


@pytest.mark.parametrize("left", [[Ended("a", -15, False, 9.0, interrupted=True)], None])
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
    leave(tmp_path / "jobs/slurm", "success", [])
    (tmp_path / "jobs/slurm/submitted.json").write_text("{")
    with pytest.raises(InputError, match=r"submitted\.json must list the submitted jobs; got .*: look for them with squeue"):
        run()


def test_missing_submitit_is_one_line_that_says_what_to_install(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(InputError, match=r"executor must be processes .*; got no submitit: pip install .*\[cluster\]"):
        run()


def test_no_jobs_need_no_slurm(tmp_path):
    assert sweep(tmp_path, []) == {}
    assert not (tmp_path / "jobs").exists()


# Many jobs, and sweeps that are killed


DRIVER = """
import sys
from pathlib import Path
from tests.sweep.cluster.test_slurm import jobs, sweep
sweep(Path(sys.argv[1]), jobs(Path(sys.argv[1]), 3))
"""
# Takes a job as Slurm does, and writes down what was asked for: a file for each array, whose number it gives.
SBATCH = """
number=5; while [ -e "{folder}/$number.sh" ]; do number=$((number + 1)); done
while IFS= read -r line; do echo "$line"; done < "$1" > "{folder}/$number.sh"
{then}
echo Submitted batch job $number
"""


def jobs(folder, count) -> list[Job]:
    return [Job(f"run{i}", (sys.executable, "-c", ""), folder / f"{i}.log", {}, 0.0) for i in range(count)]


def sweep(folder, wanted, on_tick=lambda _: None, **slurm) -> dict[str, Ended]:
    ended = {}
    run_jobs(
        wanted,
        Callbacks(lambda _: None, lambda job, end: ended.update({job.name: end}), on_tick),
        config=SweepConfig(executor="slurm", slurm=SlurmConfig(**slurm), grace_s=1.0),
        folder=folder / "jobs",
        exclusive=False,
    )
    return ended


def asked(folder, option: str) -> list[str]:
    """The values of an option in what was submitted, in that order; empty where it was not given."""
    texts = [path.read_text() for path in sorted(folder.glob("[0-9]*.sh"), key=lambda path: int(path.stem))]
    return [text.partition(f"#SBATCH --{option}=")[2].partition("\n")[0].strip("'") for text in texts]


def succeed(folder, *numbers: str, names: Sequence[str] = [f"run{i}" for i in range(20)]) -> None:
    """Leaves results of tasks, each with the ends of all these jobs."""
    ends = [Ended(name, 0, False, 1.0) for name in names]
    for number in numbers:
        (folder / "jobs/slurm" / f"{number}_0_result.pkl").write_bytes(pickle.dumps(("success", ends)))


@pytest.mark.parametrize("count", [3, 1])
def test_jobs_of_a_sweep_that_is_killed_while_it_submits_are_taken_over(commands, tmp_path, count):
    """Slurm has them, but has not said their number yet."""
    commands(srun="", sbatch=SBATCH.format(folder=tmp_path, then="kill -9 $PPID"), squeue="")
    driver = DRIVER.replace(", 3)", f", {count})")
    done = subprocess.run([sys.executable, "-c", driver, tmp_path], env=os.environ | {"PYTHONPATH": str(ROOT)}, check=False)
    assert done.returncode == -signal.SIGKILL
    [name] = asked(tmp_path, "job-name")
    numbers = [f"5_{i}" for i in range(count)] if count > 1 else ["5"]
    commands(
        sbatch="exit 1",
        squeue="; ".join(["echo 4_0 PENDING gmmae-other", *(f"echo {number} PENDING {name}" for number in numbers)]),
    )
    begun = []

    def on_tick(_):
        if not begun:
            known = json.loads((tmp_path / "jobs/slurm/submitted.json").read_text())
            assert known == {f"run{i}": number for i, number in enumerate(numbers)}
            for i, number in enumerate(numbers):  # they can run: the killed sweep had not left them their programs
                program = pickle.loads((tmp_path / "jobs/slurm" / f"{number}_submitted.pkl").read_bytes())
                [job] = program.function.jobs
                assert (job.name, program._timeout_countdown) == (f"run{i}", 100)
            succeed(tmp_path, *numbers)
            begun.append(True)

    ended = sweep(tmp_path, jobs(tmp_path, count), on_tick)
    assert {name: end.returncode for name, end in ended.items()} == {f"run{i}": 0 for i in range(count)}


def left_by_name(folder) -> None:
    (folder / "jobs/slurm").mkdir(parents=True)
    (folder / "jobs/slurm/submitted.json").write_text('{"run0": "gmmae-0123"}')


def test_a_job_that_never_came_to_be_submitted_is_submitted(commands, tmp_path):
    left_by_name(tmp_path)
    commands(srun="", sbatch=SBATCH.format(folder=tmp_path, then=""), squeue="echo 3 RUNNING gmmae-4567")
    assert sweep(tmp_path, jobs(tmp_path, 1), lambda _: succeed(tmp_path, "5"))["run0"].returncode == 0


def test_nothing_is_submitted_where_it_is_not_known_what_is(commands, tmp_path):
    left_by_name(tmp_path)
    commands(srun="", sbatch=SBATCH.format(folder=tmp_path, then=""), squeue="exit 1")
    with pytest.raises(InputError, match=r"squeue must answer while .*submitted\.json has jobs .*; got no answer: try again"):
        sweep(tmp_path, jobs(tmp_path, 1))
    assert asked(tmp_path, "job-name") == []


def some_end(folder, numbers):
    """Returns a function for each tick, which lets some of the jobs leave their results."""
    waiting = iter(numbers)
    return lambda _: succeed(folder, *islice(waiting, 4))


@pytest.mark.parametrize(
    ("says", "arrays", "at_once"),
    [
        ("echo 'MaxArraySize            = 3'", ["0-2%{}", "0-2%{}", ""], 2),
        ("echo 'MaxArraySize            = 3'", ["0-2%{}", "0-2%{}", ""], None),
        ("echo 'MaxArraySize            = 0'", [""] * 7, None),
        ("exit 1", ["0-6%{}"], None),
    ],
)
def test_arrays_are_divided_at_the_clusters_limit(commands, tmp_path, says, arrays, at_once):
    """And with `at_once`, which holds for all of them, one begins when the one before has ended."""
    commands(srun="", sbatch=SBATCH.format(folder=tmp_path, then=""), squeue="", scontrol=says)
    sizes = [int(text[2]) + 1 if text else 1 for text in arrays]
    numbers = [f"{5 + i}_{j}" if size > 1 else f"{5 + i}" for i, size in enumerate(sizes) for j in range(size)]
    ended = sweep(tmp_path, jobs(tmp_path, 7), some_end(tmp_path, numbers), array_parallelism=at_once or "all")
    assert asked(tmp_path, "array") == [text.format(at_once or size) for text, size in zip(arrays, sizes, strict=True)]
    assert asked(tmp_path, "dependency") == ["", *(f"afterany:{5 + i}" if at_once else "" for i in range(len(arrays) - 1))]
    assert sorted(ended) == [f"run{i}" for i in range(7)]
    assert len(set(asked(tmp_path, "job-name"))) == len(arrays)


# Several jobs in a task


def staying(folder, count) -> list[Job]:
    return [job._replace(stays=True) for job in jobs(folder, count)]


def end(folder, number: str, *names: str, interrupted: bool = False) -> None:
    """Leaves the ends of some of a task's jobs."""
    for name in names:
        ended = Ended(name, 0, False, 1.0, interrupted)
        (folder / "jobs/slurm" / f"{number}_{name}_ended.json").write_text(json.dumps(ended._asdict()))


@pytest.mark.parametrize(
    ("count", "runs_per_job", "arrays", "numbers"),
    [
        (7, 3, ["0-2%3"], ["5_0"] * 3 + ["5_1"] * 3 + ["5_2"]),
        (2, 5, [""], ["5", "5"]),
        (3, 1, ["0-2%3"], ["5_0", "5_1", "5_2"]),
    ],
)
def test_jobs_are_divided_among_tasks(commands, tmp_path, count, runs_per_job, arrays, numbers):
    commands(srun="", sbatch=SBATCH.format(folder=tmp_path, then=""), squeue="", scontrol="exit 1")
    known = []

    def on_tick(_):
        known.append(json.loads((tmp_path / "jobs/slurm/submitted.json").read_text()))
        succeed(tmp_path, *set(numbers))

    ended = sweep(tmp_path, staying(tmp_path, count), on_tick, runs_per_job=runs_per_job)
    assert asked(tmp_path, "array") == arrays
    assert known[0] == {f"run{i}": number for i, number in enumerate(numbers)}
    assert {name: ended[name].returncode for name in ended} == {f"run{i}": 0 for i in range(count)}
    program = pickle.loads((tmp_path / "jobs/slurm" / f"{numbers[0]}_submitted.pkl").read_bytes())
    assert [job.name for job in program.function.jobs] == [f"run{i}" for i in range(numbers.count(numbers[0]))]


def test_programs_that_do_not_stay_have_a_task_each(commands, tmp_path):
    commands(srun="", sbatch=SBATCH.format(folder=tmp_path, then=""), squeue="", scontrol="exit 1")
    sweep(tmp_path, jobs(tmp_path, 3), lambda _: succeed(tmp_path, "5_0", "5_1", "5_2"), runs_per_job=3)
    assert asked(tmp_path, "array") == ["0-2%3"]


def test_a_job_of_several_is_reported_when_it_ends_and_the_next_one_has_started(commands, tmp_path):
    commands(srun="", sbatch=SBATCH.format(folder=tmp_path, then=""), squeue="echo 5 RUNNING", scontrol="exit 1")
    events = []

    def on_tick(running):
        names = [job.name for job, _ in running]
        if names == ["run0"]:
            end(tmp_path, "5", "run0")
        if names == ["run1"]:
            assert json.loads((tmp_path / "jobs/slurm/submitted.json").read_text()) == {"run1": "5"}
            succeed(tmp_path, "5", names=["run0", "run1"])

    run_jobs(
        staying(tmp_path, 2),
        Callbacks(lambda job: events.append(f"{job.name} started"), lambda job, _: events.append(f"{job.name} ended"), on_tick),
        config=SweepConfig(executor="slurm", slurm=SlurmConfig(runs_per_job=2), grace_s=1.0),
        folder=tmp_path / "jobs",
        exclusive=False,
    )
    assert events == ["run0 started", "run0 ended", "run1 started", "run1 ended"]


def test_a_task_of_several_jobs_is_taken_over_and_what_it_lost_is_submitted_again(commands, tmp_path):
    """Task 4 still runs. Task 3 was lost after the first of its jobs, and task 2 was cancelled in the second."""
    folder = tmp_path / "jobs/slurm"
    folder.mkdir(parents=True)
    of_task = {"run0": "4", "run1": "4", "run2": "3", "run3": "3", "run4": "2", "run5": "2"}
    (folder / "submitted.json").write_text(json.dumps(of_task))
    end(tmp_path, "3", "run2")
    ends = [Ended("run4", 0, False, 1.0), Ended("run5", -15, False, 1.0, interrupted=True)]
    (folder / "2_0_result.pkl").write_bytes(pickle.dumps(("success", ends)))
    commands(
        srun="", sbatch=SBATCH.format(folder=tmp_path, then=""), squeue="echo 4 RUNNING; echo 5 RUNNING", scontrol="exit 1"
    )
    ended = sweep(tmp_path, staying(tmp_path, 6), lambda _: succeed(tmp_path, "4", "5"), runs_per_job=2)
    assert {name: end.returncode for name, end in ended.items()} == {f"run{i}": 0 for i in range(6)}
    program = pickle.loads((folder / "5_submitted.pkl").read_bytes())
    assert [job.name for job in program.function.jobs] == ["run3", "run5"]
    assert asked(tmp_path, "array") == [""]


def test_all_jobs_are_looked_at_together(commands, tmp_path, monkeypatch):
    """What is waited for costs nothing: no file is opened but the results that are there."""
    opened, read = [], Path.read_bytes
    monkeypatch.setattr(cluster_slurm, "POLL_S", 0.5)
    monkeypatch.setattr(cluster_slurm, "TICK_S", 0.1)
    monkeypatch.setattr(Path, "read_bytes", lambda path: (opened.append(path.name), read(path))[1])
    calls = tmp_path / "calls"
    waits = "; ".join(f"echo 5_{i} PENDING" for i in range(20))
    commands(srun="", sbatch=SBATCH.format(folder=tmp_path, then=""), squeue=f"echo >> {calls}; {waits}", scontrol="exit 1")
    ticks = []

    def on_tick(_):
        ticks.append(len(calls.read_text().splitlines()) if calls.exists() else 0)
        if ticks[-1] == 3:
            succeed(tmp_path, *(f"5_{i}" for i in range(20)))

    assert len(sweep(tmp_path, jobs(tmp_path, 20), on_tick)) == 20
    assert len(ticks) > 2 * ticks[-1]  # Slurm is not asked at each tick
    assert sorted(opened) == sorted(f"5_{i}_0_result.pkl" for i in range(20))
