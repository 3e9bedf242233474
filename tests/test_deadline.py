"""Processes that stop themselves, and whether the kernel ends them."""

import signal
import subprocess
import sys
import time

import pytest

from gmmae.deadline import Deadline

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="POSIX timers")

PROGRAM = """
import os, signal, time
from gmmae.deadline import Deadline
deadline = Deadline()
deadline.put_off(0.3)
{then}
"""


def run(then: str) -> tuple[int, float]:
    """Exit code and seconds."""
    start = time.monotonic()
    done = subprocess.run([sys.executable, "-c", PROGRAM.format(then=then)], timeout=60, check=False)
    return done.returncode, time.monotonic() - start


def test_a_stopped_process_is_killed():
    assert run("os.kill(os.getpid(), signal.SIGSTOP)")[0] == -signal.SIGKILL


def test_one_that_puts_it_off_lives_as_long_as_it_does_so():
    code, seconds = run("for _ in range(10): deadline.put_off(0.5); time.sleep(0.1)\nos.kill(os.getpid(), signal.SIGSTOP)")
    assert code == -signal.SIGKILL
    assert seconds > 1.0


def test_none_is_left_when_it_is_taken_away():
    assert run("deadline.put_off(0); time.sleep(1)")[0] == 0


def test_without_timers_nothing_happens(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    Deadline().put_off(0.001)
    time.sleep(0.05)
