"""The callable in a process of its own, where a handler stands for submitit's. Under submitit: `tests/cluster`."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from gmmae.sweep.cluster.task import ClusterTask, Earlier, read_ends
from gmmae.sweep.processes import Job

ROOT = Path(__file__).parent.parent.parent.parent
DEADLINE_S = 60.0  # only a failing test comes near it

DRIVER = """
import json, signal, sys
from pathlib import Path
from gmmae.sweep.cluster.task import ClusterTask, Earlier, read_ends
from gmmae.sweep.processes import Job

def requeue(*_):
    again = task.checkpoint().function
    [(spent_s, codes)] = again.earlier.values()
    print(json.dumps(["requeued", again.jobs == task.jobs, 0.0 < spent_s < 60.0, *codes]), flush=True)
    sys.exit(9)

signal.signal(signal.SIGUSR2, requeue)
program, log, cwd, codes = sys.argv[1:]
job = Job("a", (sys.executable, "-S", "-c", program), Path(log), {"ADDED": "1"}, 0.0)
task = ClusterTask([job], 5.0, cwd, Path(cwd), earlier={"a": Earlier(0.0, tuple(json.loads(codes)))})
[ended] = task()
print(json.dumps(["ended", ended.returncode, ended.interrupted]), flush=True)
"""
# Signals its parent, twice as Slurm may, and ends well when it is told to.
SIGNALLING = """
import os, signal, sys, time
def stop(*_):
    print("checkpoint", flush=True)
    time.sleep(1.0)
    sys.exit(143)
signal.signal(signal.SIGTERM, stop)
for _ in range(2):
    os.kill(os.getppid(), signal.{})
time.sleep(60)
"""


@pytest.fixture
def drive(tmp_path):
    """Runs the task around a program; what became of it, and what the program said."""

    def run(program: str, codes: Sequence[int] = (), **environment: str) -> tuple[list[object], list[str]]:
        log = tmp_path / "deep" / "log.txt"
        done = subprocess.run(
            [sys.executable, "-c", DRIVER, program, str(log), str(tmp_path), json.dumps(codes)],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=DEADLINE_S,
            env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
            check=False,
        )
        assert not done.stderr
        return json.loads(done.stdout), log.read_text().splitlines()

    return run


@pytest.fixture
def squeue(tmp_path):
    """A path whose first program of that name says of this job what it is told to, and else what it would of an array."""
    file = tmp_path / "bin" / "squeue"
    file.parent.mkdir()
    file.write_text('#!/bin/sh\n[ "$2" = "--jobs=${ARRAY:-7}" ] && echo "$SAYS" || printf "RUNNING\\nPENDING\\n"\n')
    file.chmod(0o755)
    return f"{file.parent}{os.pathsep}{os.environ['PATH']}"


def test_the_program_has_its_environment_and_folder_and_its_end_is_the_result(drive, tmp_path):
    ended, said = drive("import os; print(os.environ['ADDED'], os.getcwd()); raise SystemExit(3)")
    assert ended == ["ended", 3, False]
    assert said == [f"1 {tmp_path}"]


def test_sigusr2_is_answered_by_submitit_when_the_checkpoint_is_written(drive):
    ended, said = drive(SIGNALLING.format("SIGUSR2"))
    assert ended == ["requeued", True, True, 143]
    assert said == ["checkpoint"]


def test_a_cancelled_job_ends_when_the_checkpoint_is_written(drive, squeue):
    """SIGTERM twice is not taken for the supervisor's second signal, which would kill."""
    ended, said = drive(SIGNALLING.format("SIGTERM"), PATH=squeue, SAYS="COMPLETING", SLURM_JOB_ID="7")
    assert ended in (["ended", -15, True], ["ended", 143, True])  # by who sees its end first
    assert said == ["checkpoint"]


LAST_OF_AN_ARRAY = {"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "3", "ARRAY": "7_3"}
"""The number of an array is that of one of its jobs, too."""


@pytest.mark.slow
@pytest.mark.parametrize("array", [{}, LAST_OF_AN_ARRAY], ids=["alone", "array"])
def test_a_preempted_job_waits_for_what_follows_sigterm(drive, squeue, array):
    """Only Slurm's state tells it from a cancelled one. A second process sends SIGUSR2 after the program has ended."""
    later = "import os, signal, sys, time; time.sleep(4); os.kill(int(sys.argv[1]), signal.SIGUSR2)"
    start = f"import os, subprocess, sys; subprocess.Popen([sys.executable, '-S', '-c', {later!r}, str(os.getppid())]"
    program = f"{start}, start_new_session=True)\n{SIGNALLING.format('SIGTERM')}"
    began = time.monotonic()
    ended, said = drive(program, PATH=squeue, SAYS="RUNNING", SLURM_JOB_ID="7", **array)
    assert time.monotonic() > began + 4
    assert ended == ["requeued", True, True, 143]
    assert said == ["checkpoint"]


KILLED = "import os; os.kill(os.getpid(), 9)"
ENDS = {
    "lost another one": ("raise SystemExit(75)", "1", (), ["requeued", True, True, 75]),
    "killed among several": (KILLED, "2", (143,), ["requeued", True, True, 143, 75]),
    "SIGTERM to the program alone": ("raise SystemExit(143)", "1", (), ["requeued", True, True, 143]),
    "lost too often": ("raise SystemExit(75)", "2", (75, 75, 75), ["ended", 75, False]),
    "killed alone": (KILLED, "1", (), ["ended", -9, False]),
    "bad input": ("raise SystemExit(2)", "2", (75,), ["ended", 2, False]),
    "work directory": ("raise SystemExit(74)", "2", (), ["ended", 74, False]),
}


@pytest.mark.parametrize(("program", "tasks", "before", "wanted"), ENDS.values(), ids=ENDS)
def test_an_end_is_followed_by_a_requeueing_as_the_table_of_exit_codes_says(drive, program, tasks, before, wanted):
    assert drive(program, codes=before, SLURM_STEP_NUM_TASKS=tasks)[0] == wanted


# Several jobs

SEVERAL = """
import json, signal, sys
from pathlib import Path
from gmmae.sweep.cluster.task import ClusterTask
from gmmae.sweep.processes import Job

def requeue(*_):
    again = task.checkpoint().function
    print(json.dumps(["requeued", sorted(again.ended), sorted(again.earlier)]), flush=True)
    sys.exit(9)

signal.signal(signal.SIGUSR2, requeue)
folder, *names = sys.argv[1:]
command = (sys.executable, "-S", str(Path(folder, "program.py")))
jobs = [Job(name, command, Path(folder, f"{name}.log"), {}, 0.0, arguments=("do", name), stays=True) for name in names]
task = ClusterTask(jobs, 5.0, folder, Path(folder))
print(json.dumps(["ended", *([end.name, end.returncode] for end in task())]), flush=True)
"""
# A program that stays. Its first job ends well, a "bad" one does not, and a "long" one ends when it is told to.
STAYING = """
import json, os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
for line in sys.stdin:
    request = json.loads(line)
    if request is None:
        break
    with open(request["log"], "a") as file:
        print(os.getpid(), file=file)
    name = request["arguments"][0]
    if name == "long":
        os.kill(os.getppid(), signal.SIGUSR2)
        time.sleep(60)
    os.write(int(sys.argv[2]), json.dumps({"exit_code": 2 if name == "bad" else 0, "memory_bytes": 1}).encode() + b"\\n")
"""


@pytest.fixture
def several(tmp_path):
    """Runs a task of several jobs; what became of it."""
    (tmp_path / "program.py").write_text(STAYING)

    def run(*names: str) -> list[object]:
        done = subprocess.run(
            [sys.executable, "-c", SEVERAL, str(tmp_path), *names],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=DEADLINE_S,
            env={**os.environ, "PYTHONPATH": str(ROOT), "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "3"},
            check=False,
        )
        assert not done.stderr
        return json.loads(done.stdout)

    return run


def ends(folder: Path) -> dict[str, int]:
    return {name: end.returncode for name, end in read_ends(folder, "7_3", [job(name) for name in "abc"]).items()}


def job(name: str) -> Job:
    return Job(name, (), Path("log"), {}, 0.0)


def test_jobs_share_a_process_and_each_leaves_its_end(several, tmp_path):
    assert several("a", "bad", "c") == ["ended", ["a", 0], ["bad", 2], ["c", 0]]
    assert ends(tmp_path) == {"a": 0, "c": 0}
    assert (tmp_path / "a.log").read_text() == (tmp_path / "c.log").read_text()


def test_a_requeued_task_goes_on_with_the_jobs_that_have_not_ended(several, tmp_path):
    """The second call is Slurm's own after the loss of a node: it knows of the first one by its files only."""
    assert several("a", "long", "c") == ["requeued", ["a"], ["a", "long"]]
    assert ends(tmp_path) == {"a": 0}
    first = (tmp_path / "a.log").read_text()
    assert several("a", "b", "c") == ["ended", ["a", 0], ["b", 0], ["c", 0]]
    assert (tmp_path / "a.log").read_text() == first


def test_a_single_job_leaves_its_result_only(several, tmp_path):
    assert several("a") == ["ended", ["a", 0]]
    assert ends(tmp_path) == {}


def test_the_time_limit_counts_what_was_spent_before_a_requeue(tmp_path):
    def remaining(limit_s, spent_s):
        job = Job("a", (), tmp_path / "log", {}, limit_s)
        return ClusterTask([job], 1.0, "/", tmp_path, earlier={"a": Earlier(spent_s)})._remaining(job).time_limit_s

    assert (remaining(100.0, 0.0), remaining(100.0, 60.0), remaining(100.0, 200.0), remaining(0.0, 200.0)) == (100, 40, 1, 0)
