"""Real workers with their parents, without JAX: how both end."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.faults.runs import gone

ROOT = Path(__file__).parent.parent.parent
LIMIT_S = 1.5
"""Enough for a process to put a deadline off in time on a busy machine; more than a tick."""
LONG_S = 60.0
PROGRAM = f"""
import os, signal, sys, threading, time
signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell ignores it in what it starts in the background
from gmmae.multihost.watchdog import ExitMessage, run_with_watchdog
parent = run_with_watchdog()
def extend_deadline(seconds={LIMIT_S}):
    parent.extend_deadline("alive", seconds, "error: it was stopped\\n")
def say(text):
    print(text, os.getpid(), flush=True)
{{then}}
"""
STOP = f"parent.watch_each_other({LIMIT_S}, 'error: it was stopped\\n'); os.kill(os.getpid(), signal.SIGSTOP)"
ABORT = "import resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); os.abort()"
SLEEP = f"say('ready'); time.sleep({LONG_S})"


@contextmanager
def started(then: str) -> Iterator[subprocess.Popen[str]]:
    """The parent; with the group that it leads, it is killed in the end."""
    command = [sys.executable, "-c", PROGRAM.format(then=then)]
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def ended(then: str) -> tuple[int, str]:
    """Exit code and standard error."""
    with started(then) as process:
        _, error = process.communicate(timeout=LONG_S)
        return process.returncode, error


def worker_of(process: subprocess.Popen[str]) -> int:
    """The number of the worker, when it says that it is ready."""
    assert process.stdout is not None
    return int(process.stdout.readline().split()[1])


@pytest.mark.parametrize(
    ("then", "code"),
    [
        ("sys.exit(3)", 3),
        ("", 0),
        ("os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        (ABORT, -signal.SIGABRT),
    ],
)
def test_a_parent_ends_as_its_worker_has_ended(then, code):
    assert ended(then) == (code, "")


@pytest.mark.parametrize(
    ("then", "expected"),
    [
        (ABORT, (75, "error: lost\n")),
        ("sys.exit(0)", (0, "")),
        ("parent.end(ExitMessage('error: x\\n', 2))", (2, "error: x\n")),
        (f"parent.set_exit_message(ExitMessage('error: x\\n', 74)); {ABORT}", (74, "error: x\n")),
        (f"parent.set_exit_message(ExitMessage('', 2)); {ABORT}", (2, "")),
    ],
)
def test_last_words_are_said_by_the_parent_and_their_code_is_its_own(then, expected):
    assert ended(f"parent.set_abort_message(ExitMessage('error: lost\\n', 75)); {then}") == expected


def test_one_that_runs_is_not_killed():
    start = time.monotonic()
    assert ended(f"parent.watch_each_other({LIMIT_S}); time.sleep(2.5); {STOP}") == (75, "error: it was stopped\n")
    assert time.monotonic() - start > 2.5


def test_deadlines_can_be_taken_away():
    then = f"""
extend_deadline()
extend_deadline(float("inf"))
parent.watch_each_other({LIMIT_S})
parent.watch_each_other(0.0)
time.sleep({2 * LIMIT_S})
"""
    assert ended(then) == (0, "")


def test_one_that_works_and_makes_no_progress_is_killed():
    """Other deadlines are extended, as in a stuck collective operation."""
    then = "parent.extend_deadline('epoch', 2.0, 'error: stuck\\n')\nwhile True: extend_deadline(); time.sleep(0.1)"
    assert ended(then) == (75, "error: stuck\n")


@pytest.mark.slow
def test_who_is_stopped_together_with_the_parent_is_not_killed():
    """Both are stopped, as by `scontrol suspend`, for several times the deadline."""
    beat = "parent.watch_each_other(2.0)\nsay('ready')\nwhile True: extend_deadline(); time.sleep(0.05)"
    with started(beat) as process:
        worker_of(process)
        os.killpg(process.pid, signal.SIGSTOP)
        time.sleep(3 * LIMIT_S)
        os.killpg(process.pid, signal.SIGCONT)
        time.sleep(2 * LIMIT_S)
        assert process.poll() is None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1])
def test_signals_reach_the_worker(number):
    with started(f"signal.signal({int(number)}, lambda *_: sys.exit(7)); {SLEEP}") as process:
        worker_of(process)
        process.send_signal(number)
        assert process.wait(LONG_S) == 7


def test_a_worker_dies_with_its_parent_and_is_told_before(tmp_path):
    place = tmp_path / "on_parent_death"
    with started(f"parent.on_parent_death = lambda: open({str(place)!r}, 'w').close(); {SLEEP}") as process:
        worker = worker_of(process)
        process.kill()
        assert gone(worker)
    assert place.exists()


def test_a_stopped_parent_is_killed_and_its_worker_with_it():
    with started(f"parent.watch_each_other({LIMIT_S}); {SLEEP}") as process:
        worker = worker_of(process)
        process.send_signal(signal.SIGSTOP)
        assert process.wait(LONG_S) == -signal.SIGKILL
        assert gone(worker)


def test_a_program_without_a_parent_ends_with_its_words_too():
    program = (
        "from gmmae.multihost.watchdog import NO_WATCHDOG, ExitMessage\n"
        "NO_WATCHDOG.extend_deadline('a', 1.0, 'b')\n"
        "NO_WATCHDOG.end(ExitMessage('x\\n', 75))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (75, "x\n")


def test_a_parent_imports_nothing_large():
    probe = "import sys, gmmae.cli.main\nassert not {'jax', 'numpy', 'tyro', 'rich'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", probe], check=True, cwd=ROOT)
