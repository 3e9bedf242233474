"""Real processes throughout. A lock on a file shows that its holder lives: here only death releases it."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from gmmae.sweep.processes import NOT_STARTED, Ended, Job, describe, exception_line, last_line
from gmmae.sweep.supervisor import Callbacks, supervise
from tests.waiting import DEADLINE_S, locked, wait_until

ROOT = Path(__file__).parent.parent.parent

# `hold` takes a lock and says so in the file; sleeping ends by itself, should a test fail.
PRELUDE = """
import fcntl, os, signal, subprocess, sys, time
def hold(path):
    global held
    held = open(path, "a")
    fcntl.flock(held, fcntl.LOCK_EX)
    held.write("held")
    held.flush()
def wait_for(path):
    end = time.monotonic() + 60
    while not (os.path.exists(path) and os.path.getsize(path)):
        assert time.monotonic() < end, path
        time.sleep(0.01)
def deaf():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
"""
HOLD = "hold(sys.argv[1]); time.sleep(120)"
DEAF = "deaf(); " + HOLD
EXIT_7 = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7)); "
POLITE = EXIT_7 + HOLD
# Leads a second process, which ignores SIGTERM and holds the lock, and goes on to what the test appends.
WITH_HELPER = f"""
deaf()
subprocess.Popen([sys.executable, "-c", {PRELUDE + HOLD!r}, sys.argv[1]])
wait_for(sys.argv[1])
"""
BOUND = "from gmmae.sweep.processes import die_with_parent; die_with_parent()\n"


def program(source, *arguments):
    return (sys.executable, "-S", "-c", PRELUDE + source, *map(str, arguments))


def job(folder, name, source, *arguments, time_limit_s=0.0):
    return Job(name, program(source, *arguments), folder / f"{name}.log", {}, time_limit_s)


def held(path):
    """Whether the lock was taken, whatever became of it."""
    return path.exists() and path.stat().st_size > 0


def assert_dies(path):
    assert held(path)
    wait_until(lambda: not locked(path))


class Calls:
    """What was called back, in order."""

    def __init__(self):
        self.started: list[str] = []
        self.ended: dict[str, Ended] = {}

    def on_start(self, job):
        self.started.append(job.name)

    def on_end(self, job, ended):
        assert job.name == ended.name
        assert job.name in self.started
        assert job.name not in self.ended
        self.ended[job.name] = ended


def run(jobs, *, at_once=2, grace_s=0.3, on_tick=lambda _: None, **more):
    calls = Calls()
    callbacks = Callbacks(calls.on_start, calls.on_end, on_tick)
    reason = supervise(jobs, callbacks, at_once=at_once, grace_s=grace_s, **more)
    return reason, calls


# Ends of all kinds


def test_every_job_has_its_own_end_whatever_the_others_do(tmp_path):
    no_core = "import resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); "
    plain = tmp_path / "plain"
    plain.write_text("")
    jobs = [
        job(tmp_path, "fine", "print('done')"),
        job(tmp_path, "exit", "sys.exit(3)"),
        job(tmp_path, "raise", "raise ValueError('what it was')"),
        job(tmp_path, "fault", no_core + "os.kill(os.getpid(), signal.SIGSEGV)"),
        job(tmp_path, "killed", "os.kill(os.getpid(), signal.SIGKILL)"),
        Job("missing", (str(tmp_path / "nowhere"),), tmp_path / "missing.log", {}, 0.0),
        Job("forbidden", (str(plain),), tmp_path / "forbidden.log", {}, 0.0),
        Job("unlogged", program(""), plain / "unlogged.log", {}, 0.0),
        job(tmp_path, "last", ""),
    ]
    reason, calls = run(jobs)
    assert reason is None
    assert calls.started == [each.name for each in jobs]
    codes = {name: ended.returncode for name, ended in calls.ended.items()}
    failed = {"missing": NOT_STARTED, "forbidden": NOT_STARTED, "unlogged": NOT_STARTED}
    assert codes == {"fine": 0, "exit": 3, "raise": 1, "fault": -signal.SIGSEGV, "killed": -9, "last": 0} | failed
    assert not any(ended.timed_out or ended.interrupted for ended in calls.ended.values())
    assert all(0 <= ended.seconds < DEADLINE_S for ended in calls.ended.values())
    assert last_line(tmp_path / "raise.log") == "ValueError: what it was"
    for name, message in {"missing": "No such file", "forbidden": "Permission denied"}.items():
        assert message in describe(calls.ended[name])
        assert last_line(tmp_path / f"{name}.log") == describe(calls.ended[name])
    assert str(plain) in describe(calls.ended["unlogged"])


def test_both_streams_are_appended_to_the_log_and_the_environment_is_added(tmp_path, monkeypatch):
    log = tmp_path / "deep" / "er" / "job.log"
    log.parent.mkdir(parents=True)
    log.write_text("before\n")
    monkeypatch.setenv("GMMAE_TEST_KEPT", "kept")
    source = "print(os.environ['GMMAE_TEST_KEPT'], flush=True); print(os.environ['GMMAE_TEST_ADDED'], file=sys.stderr)"
    again = tmp_path / "new" / "job.log"
    run([Job(str(path), program(source), path, {"GMMAE_TEST_ADDED": "added"}, 0.0) for path in (log, again)])
    assert log.read_text() == "before\nkept\nadded\n"
    assert again.read_text() == "kept\nadded\n"


LIMIT_S, GRACE_S = 3.0, 2.0  # ample to start, and to end well, on a busy machine


@pytest.fixture(scope="module")
def overdue(tmp_path_factory):
    """Jobs that outlast their time limit, and one that keeps it, side by side."""
    folder = tmp_path_factory.mktemp("overdue")
    sources = {
        "deaf": DEAF,
        "stopped": "deaf(); hold(sys.argv[1])\nwhile True: os.kill(os.getpid(), signal.SIGSTOP)",
        "continued": EXIT_7 + "os.kill(os.getpid(), signal.SIGSTOP); time.sleep(120)",
        "helped": WITH_HELPER + "time.sleep(120)",
    }
    jobs = [job(folder, name, source, folder / f"{name}.lock", time_limit_s=LIMIT_S) for name, source in sources.items()]
    jobs.append(job(folder, "in time", "", time_limit_s=DEADLINE_S))
    _, calls = run(jobs, at_once=len(jobs), grace_s=GRACE_S)
    return folder, calls.ended


@pytest.mark.slow
@pytest.mark.parametrize("name", ["deaf", "stopped", "helped"])
def test_what_does_not_heed_sigterm_is_killed_after_the_grace(overdue, name):
    folder, ended = overdue
    assert (ended[name].returncode, ended[name].timed_out, ended[name].interrupted) == (-signal.SIGKILL, True, False)
    assert ended[name].seconds >= LIMIT_S + GRACE_S
    assert describe(ended[name]) == "killed after its time limit of 3 s"
    assert_dies(folder / f"{name}.lock")  # the helper's, in its case


@pytest.mark.parametrize(("name", "returncode", "timed_out"), [("continued", 7, True), ("in time", 0, False)])
def test_a_stopped_job_is_continued_to_end_well_and_a_limit_that_is_kept_has_no_effect(overdue, name, returncode, timed_out):
    _, ended = overdue
    assert (ended[name].returncode, ended[name].timed_out) == (returncode, timed_out)


def test_a_job_that_ended_in_time_is_not_late_because_a_callback_was(tmp_path, monkeypatch):
    """The first `on_end` lasts until the other job has ended too, and then past its limit, by the clock."""
    locks = [tmp_path / f"{name}.lock" for name in "ab"]
    jobs = [job(tmp_path, lock.stem, "hold(sys.argv[1])", lock, time_limit_s=1000.0) for lock in locks]
    calls, clock = Calls(), time.monotonic

    def on_end(job, ended):
        calls.on_end(job, ended)
        if len(calls.ended) == 1:
            wait_until(lambda: all(held(lock) and not locked(lock) for lock in locks))
            monkeypatch.setattr(time, "monotonic", lambda: clock() + 2000.0)

    supervise(jobs, Callbacks(calls.on_start, on_end), at_once=2, grace_s=0.0)
    assert [calls.ended[name].timed_out for name in "ab"] == [False, False]


def test_a_helper_left_by_a_job_that_ended_well_is_killed(tmp_path):
    lock = tmp_path / "lock"
    _, calls = run([job(tmp_path, "a", WITH_HELPER, lock)])
    assert calls.ended["a"].returncode == 0
    assert_dies(lock)


# How many at a time


@pytest.mark.parametrize("at_once", [1, 2])
def test_never_more_than_at_once(tmp_path, at_once):
    """Each job needs a lock of its own for its whole life, and there are `at_once` of them."""
    source = """
for path in sys.argv[1:]:
    lock = open(path, "a")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        continue
    time.sleep(0.1)
    sys.exit(0)
sys.exit(9)
"""
    locks = [tmp_path / f"{n}.lock" for n in range(at_once)]
    _, calls = run([job(tmp_path, f"{n}", source, *locks) for n in range(5)], at_once=at_once)
    assert [ended.returncode for ended in calls.ended.values()] == [0] * 5


def test_ticks_name_the_running_jobs_and_their_seconds(tmp_path):
    """The jobs end only because both were seen together in a tick, then one alone."""
    seen: list[list[tuple[str, float]]] = []

    def on_tick(running):
        seen.append([(job.name, seconds) for job, seconds in running])
        names = [name for name, _ in seen[-1]]
        if names:
            (tmp_path / "".join(names)).write_text("seen")

    wait = "wait_for(sys.argv[1])"
    jobs = [job(tmp_path, "a", wait, tmp_path / "ab"), job(tmp_path, "b", wait, tmp_path / "b")]
    _, calls = run(jobs, on_tick=on_tick, tick_s=0.02)
    assert [calls.ended[name].returncode for name in "ab"] == [0, 0]
    times = [seconds for running in seen for name, seconds in running if name == "b"]
    assert times == sorted(times)
    assert 0 < times[0] < times[-1] <= calls.ended["b"].seconds


# Interrupted

DRIVER = """
import json, os, signal, sys
from pathlib import Path
from gmmae.sweep.processes import Job
from gmmae.sweep.supervisor import Callbacks, supervise

def say(*words):
    print(json.dumps(words), flush=True)

before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
jobs = [Job(name, tuple(command), Path(log), {}, 0.0) for name, command, log in json.loads(sys.argv[1])]
reason = supervise(
    jobs,
    Callbacks(
        lambda job: say("start", job.name),
        lambda job, ended: say("end", job.name, ended.returncode, ended.interrupted),
    ),
    at_once=2,
    grace_s=float(sys.argv[2]),
)
assert before == [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    say("no child left")
say("reason", reason)
"""


@contextmanager
def driver(jobs, grace_s):
    """A process that supervises the jobs and tells what it is called back with, a line each."""
    text = json.dumps([(job.name, job.command, str(job.log)) for job in jobs])
    process = subprocess.Popen(
        [sys.executable, "-c", DRIVER, text, str(grace_s)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def told(process):
    output, _ = process.communicate(timeout=DEADLINE_S)
    return [json.loads(line) for line in output.splitlines()]


@pytest.mark.parametrize(("number", "reason"), [(signal.SIGTERM, "sigterm"), (signal.SIGHUP, "sighup")])
def test_a_signal_to_the_supervisor_ends_all_and_starts_no_more(tmp_path, number, reason):
    locks = {name: tmp_path / f"{name}.lock" for name in ("polite", "deaf", "never")}
    sources = {"polite": POLITE, "deaf": DEAF, "never": HOLD}
    with driver([job(tmp_path, name, sources[name], locks[name]) for name in sources], grace_s=GRACE_S) as process:
        wait_until(lambda: held(locks["polite"]) and held(locks["deaf"]))
        process.send_signal(number)
        assert told(process) == [
            ["start", "polite"],
            ["start", "deaf"],
            ["end", "polite", 7, True],
            ["end", "deaf", -signal.SIGKILL, True],
            ["no child left"],
            ["reason", reason],
        ]
        assert process.returncode == 0
    assert not locked(locks["polite"])
    assert not locked(locks["deaf"])
    assert not locks["never"].exists()


def test_a_second_signal_kills_at_once(tmp_path):
    locks = {name: tmp_path / f"{name}.lock" for name in ("polite", "deaf")}
    jobs = [job(tmp_path, "polite", POLITE, locks["polite"]), job(tmp_path, "deaf", DEAF, locks["deaf"])]
    with driver(jobs, grace_s=1000.0) as process:
        wait_until(lambda: all(map(held, locks.values())))
        process.send_signal(signal.SIGINT)
        assert process.stdout is not None
        first = [json.loads(process.stdout.readline()) for _ in range(3)]
        assert first[-1] == ["end", "polite", 7, True]  # the first signal has come through
        process.send_signal(signal.SIGINT)
        assert told(process) == [["end", "deaf", -signal.SIGKILL, True], ["no child left"], ["reason", "sigint"]]
    assert not locked(locks["deaf"])


def test_two_signals_at_once_are_an_interruption_too(tmp_path):
    lock = tmp_path / "deaf.lock"
    with driver([job(tmp_path, "deaf", DEAF, lock)], grace_s=1000.0) as process:
        wait_until(lambda: held(lock))
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGHUP)
        assert ["end", "deaf", -signal.SIGKILL, True] in told(process)
    assert not locked(lock)


def test_bound_jobs_die_with_a_supervisor_that_is_killed(tmp_path):
    locks = {name: tmp_path / f"{name}.lock" for name in ("deaf", "helped")}
    sources = {"deaf": BOUND + DEAF, "helped": BOUND + WITH_HELPER + "time.sleep(120)"}
    with driver([job(tmp_path, name, sources[name], locks[name]) for name in sources], grace_s=1000.0) as process:
        wait_until(lambda: all(map(held, locks.values())))
        assert all(map(locked, locks.values()))
        process.kill()
        process.wait()
        for lock in locks.values():
            assert_dies(lock)


def test_without_a_group_of_its_own_a_bound_process_dies_alone():
    source = BOUND + "print('bound', flush=True); time.sleep(120)"
    with subprocess.Popen(program(source), stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"bound\n"
        process.stdin.close()
        assert process.wait(DEADLINE_S) == 137


def test_a_program_started_by_hand_is_not_bound():
    source = "import threading\n" + BOUND + "print(threading.active_count())"
    result = subprocess.run(program(source), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True, cwd=ROOT)
    assert result.stdout == "1\n"


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_exception_of_a_callback_leaves_no_job_behind(tmp_path, error):
    lock, before = tmp_path / "lock", signal.getsignal(signal.SIGTERM)

    def on_tick(_):
        if held(lock):
            raise error

    with pytest.raises(error):
        run([job(tmp_path, "a", DEAF, lock), job(tmp_path, "b", HOLD, tmp_path / "b.lock")], on_tick=on_tick, tick_s=0.02)
    assert not locked(lock)
    assert signal.getsignal(signal.SIGTERM) is before


# Words


@pytest.mark.parametrize(
    ("ended", "words"),
    [
        (Ended("a", -1000, False, 1.0), "killed by signal 1000"),
        (Ended("a", 0, True, 61.0, time_limit_s=0.5), "killed after its time limit of 0.5 s"),
        (Ended("a", -15, False, 1.0, interrupted=True), "interrupted, killed by SIGTERM"),
        (Ended("a", NOT_STARTED, False, 0.0, error="nobody knows"), "nobody knows"),
        (Ended("a", NOT_STARTED, False, 0.0), "exit code 127"),  # a shell's own
    ],
)
def test_descriptions(ended, words):
    assert describe(ended) == words


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"\n \n\t\n", ""),
        (b"one\ntwo\n\n  \n", "two"),
        (b"10%\r20%\r30%\r", "30%"),
        (b"a\n\xff\x00\x1b[1mb\n", "\ufffd\ufffd\ufffd[1mb"),
        (b"  in\tdent  \n", "  in    dent"),  # to the next multiple of 8
        (b"lost\n" + b"x" * 100_000, "x" * 300 + "…"),
        (b"y" * 300, "y" * 300),
        ("ρ = 0,5 – fein".encode(), "ρ = 0,5 – fein"),
    ],
)
def test_the_last_line_of_a_log(tmp_path, content, expected):
    (tmp_path / "log").write_bytes(content)
    assert last_line(tmp_path / "log") == expected


HEAD, NOTE = (
    "Traceback (most recent call last):\n",
    "--------------------\nFor simplicity, JAX has removed its internal frames.\n",
)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (f"epoch 1\n{HEAD}  File 'a'\nRuntimeError: 15 samples\nsecond line\n{NOTE}", "RuntimeError: 15 samples"),
        (f"{HEAD}KeyError: 1\n\n{HEAD}  b\nValueError\n", "ValueError"),
        (f"{HEAD}  cut off", "  cut off"),
        ("epoch 1\n", "epoch 1"),
        ("", ""),
    ],
)
def test_the_exception_of_a_log(tmp_path, content, expected):
    (tmp_path / "log").write_text(content)
    assert exception_line(tmp_path / "log") == expected


def test_a_log_that_cannot_be_read_has_no_last_line(tmp_path):
    assert last_line(tmp_path / "missing") == last_line(tmp_path) == ""
