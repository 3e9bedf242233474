"""Workers that stay: the program itself, with small commands in the place of runs, and real runs at the end."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from gmmae.config.schema import Config
from gmmae.config.toml import to_toml
from gmmae.sweep import jobs as sweep_jobs
from gmmae.sweep.processes import Ended, Job, describe, last_line
from gmmae.sweep.supervisor import Callbacks, supervise
from gmmae.training.workdir import WorkDir
from tests.small import fingerprint, small
from tests.waiting import DEADLINE_S, locked, wait_until

ROOT = Path(__file__).parent.parent.parent

# The worker, with commands that need no JAX. It is a file, as the worker is.
PROGRAM_SOURCE = """
import fcntl, os, signal, sys, time, types
from pathlib import Path
from gmmae.sweep import worker
from gmmae.system.errors import InputError, StorageError

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it in what it starts in the background
GB = 2**30


class Commands:
    def __init__(self):
        self.kept = []

    def say(self, *words):
        print(*words)
        sys.stderr.write("error output\\n")
        return 0

    def end(self, code):
        print("ends with", code)
        return int(code)

    def process(self, folder):
        Path(folder, f"{os.getpid()}-{time.monotonic_ns()}").touch()
        return 0

    def leave(self, folder):
        print(os.getcwd())
        os.chdir(folder)
        return 0

    def read(self):
        print(repr(sys.stdin.read()))
        return 0

    def fail(self, kind):
        raise {
            "input": InputError("what must hold; got what came"),
            "storage": StorageError("the disk is full"),
            "bug": ValueError("a bug"),
            "memory": MemoryError("too little"),
            "device": RuntimeError("RESOURCE_EXHAUSTED: out of memory"),
            "exit": SystemExit(5),
        }[kind]

    def crash_once(self, flag):
        if not Path(flag).exists():
            Path(flag).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        print("done")
        return 0

    def fail_after_others(self, folder):
        self.process(folder)
        if self.kept:
            raise MemoryError
        return self.keep()

    def keep(self):
        self.kept.append(1)
        return 0

    def hold(self, path, terminated="143"):
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(int(terminated)))
        file = open(path, "a")
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write("held")
        file.flush()
        time.sleep(120)


sys.modules["gmmae.sweep.worker_commands"] = commands = types.ModuleType("commands")
commands.Commands = Commands
MEMORY = Path(__file__).with_name("memory")
if MEMORY.exists():  # it grows by so much with each command
    calls = []
    worker.resident_bytes = lambda: calls.append(1) or len(calls) * float(MEMORY.read_text()) * GB
sys.exit(worker.start(sys.argv[1:]))
"""


@pytest.fixture
def script(tmp_path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM_SOURCE)
    return path


@pytest.fixture
def make(tmp_path, script):
    """Makes a job of the program."""

    def make(name: str, *arguments: object, **changes) -> Job:
        words = tuple(map(str, arguments))
        environment = {"PYTHONPATH": str(ROOT)}
        job = Job(name, (sys.executable, "-S", str(script)), tmp_path / f"{name}.log", environment, 0.0, 1, words, True)
        return job._replace(**changes)

    return make


def run(
    *jobs: Job, at_once: int = 1, grace_s: float = 10.0, on_tick=lambda _: None, **more
) -> tuple[dict[str, Ended], list[str]]:
    """Runs jobs. Returns their ends, and the events in their order."""
    ends: dict[str, Ended] = {}
    events: list[str] = []

    def on_end(job, ended):
        assert job.name not in ends
        ends[job.name] = ended
        events.append(f"{job.name} ended")

    callbacks = Callbacks(
        lambda job: events.append(f"{job.name} started"),
        on_end,
        on_tick,
        on_retry=lambda job, ended: events.append(f"{job.name} again: {describe(ended)}"),
    )
    assert supervise(jobs, callbacks, at_once=at_once, grace_s=grace_s, **more) is None
    return ends, events


def processes(folder: Path) -> list[str]:
    """The numbers of the processes in which `process` ran, in order."""
    marks = [path.name.split("-") for path in folder.iterdir()]
    return [process for process, _ in sorted(marks, key=lambda mark: int(mark[1]))]


@pytest.fixture
def marks(tmp_path) -> Path:
    folder = tmp_path / "marks"
    folder.mkdir()
    return folder


# One after the other


def test_jobs_of_one_program_and_environment_share_a_process_and_each_has_its_log(make, marks, tmp_path):
    (tmp_path / "b.log").write_text("before\n")
    jobs = [make("a", "say", "one"), make("b", "say", "two"), make("c", "process", marks), make("d", "process", marks)]
    ends, events = run(*jobs)
    assert [ended.returncode for ended in ends.values()] == [0] * 4
    assert sorted((tmp_path / "a.log").read_text().splitlines()) == ["error output", "one"]
    assert sorted((tmp_path / "b.log").read_text().splitlines()) == ["before", "error output", "two"]
    assert len(set(processes(marks))) == 1
    assert events == [f"{name} {what}" for name in "abcd" for what in ("started", "ended")]


def test_another_environment_gets_another_process(make, tmp_path):
    marks = [tmp_path / name for name in "xyz"]
    for folder in marks:
        folder.mkdir()
    other = {"PYTHONPATH": str(ROOT), "OTHER": "1"}
    ends, _ = run(
        make("a", "process", marks[0]), make("b", "process", marks[1], environment=other), make("c", "process", marks[2])
    )
    assert [ended.returncode for ended in ends.values()] == [0, 0, 0]
    assert len({process for folder in marks for process in processes(folder)}) == 3


@pytest.mark.parametrize("at_once", [1, 2])
def test_there_are_never_more_processes_than_at_once(make, marks, at_once):
    jobs = [make(f"{n}", "process", marks) for n in range(7)]
    run(*jobs, at_once=at_once)
    assert len(processes(marks)) == 7
    assert len(set(processes(marks))) <= at_once


def test_a_program_that_does_not_stay_is_called_with_its_arguments(make, marks):
    ends, _ = run(make("a", "process", marks, stays=False), make("b", "process", marks, stays=False))
    assert [ended.returncode for ended in ends.values()] == [0, 0]
    assert len(set(processes(marks))) == 2


def test_answers_are_not_waited_for_by_the_clock(make):
    """Thirty short jobs would take 1.5 s of waiting alone if answers were looked for every 0.05 s."""
    warm = time.monotonic()
    run(make("first", "say"))
    began = time.monotonic()
    run(*(make(f"{n}", "say") for n in range(30)))
    assert time.monotonic() - began < began - warm + 1.4


# Ends


@pytest.mark.parametrize(
    ("what", "code", "line"),
    [
        (("end", 3), 3, "ends with 3"),
        (("fail", "input"), 2, "error: what must hold; got what came"),
    ],
)
def test_a_result_and_bad_input_leave_the_process(make, marks, tmp_path, what, code, line):
    ends, _ = run(make("a", "process", marks), make("b", *what), make("c", "process", marks))
    assert ends["b"].returncode == code
    assert last_line(tmp_path / "b.log") == line
    assert len(set(processes(marks))) == 1


@pytest.mark.parametrize(
    ("what", "code", "line"),
    [
        (("end", 143), 143, "ends with 143"),
        (("end", 1), 1, "ends with 1"),
        (("fail", "bug"), 1, "ValueError: a bug"),
        (("fail", "storage"), 74, "error: the disk is full"),
        (("fail", "exit"), 5, ""),
    ],
)
def test_any_other_end_is_that_of_its_process_and_the_next_job_gets_a_new_one(make, marks, tmp_path, what, code, line):
    ends, _ = run(make("a", "process", marks), make("b", *what), make("c", "process", marks))
    assert [ended.returncode for ended in ends.values()] == [0, code, 0]
    assert last_line(tmp_path / "b.log") == line
    assert len(set(processes(marks))) == 2


def test_standard_input_is_empty(make, tmp_path):
    """A command must not take the requests of others."""
    ends, _ = run(make("a", "read"), make("b", "say", "two"))
    assert [ended.returncode for ended in ends.values()] == [0, 0]
    assert (tmp_path / "a.log").read_text() == "''\n"


def test_a_command_begins_in_the_folder_of_the_first_one(make, tmp_path):
    run(make("a", "leave", tmp_path), make("b", "leave", tmp_path))
    assert (tmp_path / "a.log").read_text() == (tmp_path / "b.log").read_text() == f"{os.getcwd()}\n"


# Tried again


def test_a_crash_is_tried_again_at_once_in_a_new_process(make, marks, tmp_path):
    jobs = [make("a", "process", marks), make("b", "crash_once", tmp_path / "flag", attempts=2), make("c", "process", marks)]
    ends, events = run(*jobs)
    assert [ended.returncode for ended in ends.values()] == [0, 0, 0]
    assert events[2:5] == ["b started", "b again: killed by SIGKILL", "b ended"]
    assert last_line(tmp_path / "b.log") == "done"
    assert len(set(processes(marks))) == 2


@pytest.mark.parametrize(("attempts", "again"), [(2, 1), (1, 0)])
def test_a_job_that_crashes_in_all_its_attempts_ends_so(make, attempts, again):
    ends, events = run(make("a", "fail", "bug", attempts=attempts), make("b", "say"))
    assert (ends["a"].returncode, ends["b"].returncode) == (1, 0)
    assert [event for event in events if "again" in event] == ["a again: exit code 1"] * again


@pytest.mark.parametrize("what", [("fail", "input"), ("fail", "storage"), ("end", 143), ("end", 3)])
def test_what_is_no_crash_is_not_tried_again(make, what):
    _, events = run(make("a", *what, attempts=2))
    assert events == ["a started", "a ended"]


@pytest.mark.parametrize("kind", ["memory", "device"])
def test_a_full_memory_ends_the_process(make, marks, tmp_path, kind):
    ends, _ = run(make("a", "fail", kind), make("b", "process", marks))
    assert (ends["a"].returncode, ends["b"].returncode) == (2, 0)
    assert "memory must hold" in last_line(tmp_path / "a.log")


def test_a_memory_that_other_jobs_have_filled_costs_a_new_process(make, marks):
    jobs = [make(name, "fail_after_others", marks, attempts=2) for name in "ab"]
    ends, events = run(make("first", "keep"), *jobs)
    assert [ended.returncode for ended in ends.values()] == [0, 0, 0]
    assert [event for event in events if "again" in event] == ["a again: exit code 2", "b again: exit code 2"]
    assert len(set(processes(marks))) == 3


@pytest.mark.parametrize(("memory_gb", "counts"), [("auto", [4, 3]), (1.5, [2, 2, 2, 1]), (100.0, [7])])
def test_a_process_that_has_grown_beyond_the_limit_is_replaced(make, marks, script, memory_gb, counts):
    """1 GB more with each job. Automatically the limit is 1 + 2, so the job that ends with 4 is the last."""
    script.with_name("memory").write_text("1.0")
    run(*(make(f"{n}", "process", marks) for n in range(7)), memory_gb=memory_gb)
    of_jobs = processes(marks)
    assert [of_jobs.count(process) for process in dict.fromkeys(of_jobs)] == counts


# Time limits


def test_a_limit_counts_for_each_job_alone(make, tmp_path):
    lock = tmp_path / "lock"
    limit_s = 3.0
    jobs = [make("a", "hold", lock, time_limit_s=limit_s), make("b", "say", time_limit_s=limit_s)]
    ends, _ = run(*jobs)
    assert (ends["a"].timed_out, ends["a"].returncode) == (True, 143)
    assert describe(ends["a"]) == "killed after its time limit of 3 s"
    assert (ends["b"].timed_out, ends["b"].returncode) == (False, 0)


def test_a_process_that_got_sigterm_takes_no_other_job(make, marks, tmp_path):
    """Also where the job ended with a result."""
    jobs = [make("a", "process", marks), make("b", "hold", tmp_path / "lock", 0, time_limit_s=3.0), make("c", "process", marks)]
    ends, _ = run(*jobs)
    assert (ends["b"].timed_out, ends["b"].returncode) == (True, 0)
    assert len(set(processes(marks))) == 2


def test_the_attempts_of_a_job_share_its_limit(make, tmp_path):
    """The second one has less than a moment."""
    source = "import time; time.sleep(2.0); raise SystemExit(1)"
    job = Job("a", (sys.executable, "-S", "-c", source), tmp_path / "a.log", {}, 3.0, attempts=2)
    ends, events = run(job)
    assert events == ["a started", "a again: exit code 1", "a ended"]
    assert ends["a"].timed_out
    assert 3.0 <= ends["a"].seconds < DEADLINE_S


# The supervisor dies


@contextmanager
def served(script: Path, *, log: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A worker that stays, and the descriptor of its answers."""
    answers, writing = os.pipe()
    with log.open("ab") as file:
        process = subprocess.Popen(
            [sys.executable, "-S", script, "serve", str(writing)],
            stdin=subprocess.PIPE,
            stdout=file,
            stderr=file,
            pass_fds=(writing,),
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
    os.close(writing)
    try:
        yield process, answers
    finally:
        process.kill()
        process.communicate()
        os.close(answers)


def request(process: subprocess.Popen[bytes], log: Path, command: str, *arguments: object) -> None:
    assert process.stdin is not None
    text = json.dumps({"log": str(log), "command": command, "arguments": list(map(str, arguments))})
    process.stdin.write(text.encode() + b"\n")
    process.stdin.flush()


def test_the_end_of_input_kills_in_the_middle_of_a_command(script, tmp_path):
    lock, log = tmp_path / "lock", tmp_path / "log"
    with served(script, log=log) as (process, _):
        request(process, log, "hold", lock)
        wait_until(lambda: lock.exists() and lock.stat().st_size)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(DEADLINE_S) == -signal.SIGKILL
        wait_until(lambda: not locked(lock))


def test_the_end_of_input_kills_between_commands_and_before_the_first(script, tmp_path):
    for commands in (0, 1):
        with served(script, log=tmp_path / "log") as (process, answers):
            for _ in range(commands):
                request(process, tmp_path / "log", "say")
                assert json.loads(os.read(answers, 1000))["exit_code"] == 0
            assert process.stdin is not None
            process.stdin.close()
            assert process.wait(DEADLINE_S) == -signal.SIGKILL


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_between_commands_ends_the_process(script, tmp_path, number):
    with served(script, log=tmp_path / "log") as (process, answers):
        request(process, tmp_path / "log", "say")
        assert os.read(answers, 1000)
        os.kill(process.pid, number)
        process.wait(DEADLINE_S)
    assert "Traceback" not in (tmp_path / "log").read_text()


def test_a_worker_ends_well_when_it_is_asked_to(script, tmp_path):
    with served(script, log=tmp_path / "log") as (process, _):
        assert process.stdin is not None
        process.stdin.write(b"null\n")
        process.stdin.flush()
        assert process.wait(DEADLINE_S) == 0


# Runs in earnest


RUNS = {
    "strong": small(seed=1, log__tensorboard=True),
    "weak": small(scaling="weak", parallel__simulate_devices=2, stop__max_epochs=4),
    "linear-warmup": small(
        scaling="linear-warmup", parallel__simulate_devices=3, optim__warmup_epochs=2, model__latent_dim=4, stop__max_epochs=40
    ),
}
LAST = "linear-warmup"


def training(folder: Path, name: str, config: Config, **changes) -> Job:
    config = replace(config, checkpoint=replace(config.checkpoint, every_epochs=2, keep=1))
    file, root = folder / f"{name}.toml", folder / name
    file.write_text(to_toml(config))
    environment = {"PYTHONPATH": str(ROOT), "JAX_NUM_CPU_DEVICES": "1"}
    words = ("train", str(file), str(root))
    return Job(name, sweep_jobs.PROGRAM, folder / f"{name}.log", environment, 0.0, 1, words, stays=True)._replace(**changes)


def without_seconds(workdir: Path) -> list[tuple[object, ...]]:
    return [
        tuple(value for key, value in row._asdict().items() if not key.endswith("_s")) for row in WorkDir(workdir).read_rows()
    ]


@pytest.fixture(scope="module")
def computed(tmp_path_factory):
    """The runs in a process each, and in one process that is killed in the middle of the third run."""
    new, one = tmp_path_factory.mktemp("new"), tmp_path_factory.mktemp("one")
    ends, _ = run(*(training(new, name, config, stays=False) for name, config in RUNS.items()), at_once=2)
    assert [ended.returncode for ended in ends.values()] == [0] * len(RUNS)
    killed = []

    def kill(running):
        names = [job.name for job, _ in running]
        if names == [LAST] and not killed and len(WorkDir(one / LAST).read_rows()) >= 3:
            killed.append((one / LAST / ".lock.owner").read_text().split()[1])
            os.kill(int(killed[0]), signal.SIGKILL)

    jobs = [training(one, name, config, attempts=2) for name, config in RUNS.items()]
    ends, events = run(*jobs, on_tick=kill, tick_s=0.01)
    return new, one, ends, events


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_runs_of_one_process_are_those_of_new_ones_to_the_bit(computed, name):
    """Nothing of a run reaches the next one, whether it goes on or not."""
    new, one, ends, _ = computed
    assert ends[name].returncode == 0, last_line(one / f"{name}.log")
    assert without_seconds(one / name) == without_seconds(new / name)
    assert len(without_seconds(one / name)) == RUNS[name].stop.max_epochs
    assert fingerprint(RUNS[name], one / name) == fingerprint(RUNS[name], new / name)


@pytest.mark.slow
def test_a_process_that_is_killed_in_its_third_run_costs_a_part_of_that_run(computed):
    _, one, _, events = computed
    names = list(RUNS)
    ends = [f"{name} {what}" for name in names for what in ("started", "ended")]
    assert events == [*ends[:-1], f"{LAST} again: killed by SIGKILL", ends[-1]]
    assert [(one / f"{name}.log").read_text().count("resumed after epoch") for name in names] == [0, 0, 1]
