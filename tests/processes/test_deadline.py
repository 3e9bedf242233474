"""Processes that stop themselves, or are stopped with all that is theirs, and whether they are killed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gmmae.processes import deadline

LIMIT_S = 1.0
"""Enough for a process to put it off in time on a busy machine."""
PROGRAM = f"""
import os, signal, sys, time
from gmmae.processes.deadline import Deadline
signal.signal(signal.SIGTERM, lambda *_: None)
deadline = Deadline({LIMIT_S})
{{then}}
"""
STOP = "os.kill(os.getpid(), signal.SIGSTOP)"


def start(then: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROGRAM.format(then=then)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)


def run(then: str) -> tuple[int, float]:
    """Exit code and seconds."""
    begun = time.monotonic()
    with start(then) as process:
        return process.wait(60), time.monotonic() - begun


def test_a_stopped_process_is_killed():
    assert run(STOP)[0] == -signal.SIGKILL


def test_one_that_puts_it_off_lives_as_long_as_it_does_so():
    code, seconds = run(f"for _ in range(10): deadline.put_off({LIMIT_S}); time.sleep(0.1)\n{STOP}")
    assert code == -signal.SIGKILL
    assert seconds > 1.0


def test_none_is_left_when_it_is_taken_away():
    assert run(f"deadline.close(); time.sleep({1.5 * LIMIT_S})")[0] == 0


def test_a_process_that_is_stopped_together_with_its_child_is_not_killed():
    """As `scontrol suspend` stops a job, for several times as long as it has."""
    beat = f"while True: deadline.put_off({LIMIT_S}); print(flush=True); time.sleep(0.05)"
    with start(beat) as process:
        assert process.stdout is not None
        process.stdout.readline()
        os.killpg(process.pid, signal.SIGSTOP)
        time.sleep(3 * LIMIT_S)
        os.killpg(process.pid, signal.SIGCONT)
        time.sleep(1.5 * LIMIT_S)
        alive = process.poll() is None
        os.killpg(process.pid, signal.SIGKILL)
    assert alive


def ignores(pid: int, number: signal.Signals) -> bool:
    ignored = Path(f"/proc/{pid}/status").read_text().partition("SigIgn:")[2].split()[0]
    return bool(int(ignored, 16) >> (number - 1) & 1)


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_a_signal_to_all_processes_of_a_job_leaves_it():
    program = f"import select\nwhile not select.select([0], [], [], 0.05)[0]: deadline.put_off({LIMIT_S})\n{STOP}"
    with start(f"print(deadline._child.pid, flush=True)\n{program}") as process:
        assert process.stdout is not None
        assert process.stdin is not None
        child, until = int(process.stdout.readline()), time.monotonic() + 60
        while not ignores(child, signal.SIGTERM):
            assert time.monotonic() < until
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGTERM)
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.wait(60) == -signal.SIGKILL


def test_a_child_that_is_gone_is_no_error():
    kept = deadline.Deadline(60.0)
    kept._child.kill()
    kept._child.wait()
    kept.put_off(60.0)
    kept.close()
