from types import SimpleNamespace

import pytest

from gmmae.system.clock import SECTIONS, Clock
from tests.launched import python


def test_sections_add_up_apart_and_a_resumed_clock_goes_on_from_what_was_saved():
    saved, hand = None, SimpleNamespace()
    for hand.at in (100.0, 7.0):  # another process has another zero
        clock = Clock(saved, lambda: hand.at)
        before = saved or dict.fromkeys([*SECTIONS, "total_s"], 0)
        assert clock.read() == before
        for section, seconds in [("compile_s", 8), ("train_s", 1), ("eval_s", 0.5), ("train_s", 2)]:
            with clock.section(section):
                hand.at += seconds
        hand.at += 4  # between sections
        saved = clock.read()
        spent = {"compile_s": 8, "train_s": 3, "eval_s": 0.5, "total_s": 15.5}
        assert saved == {name: seconds + spent.get(name, 0) for name, seconds in before.items()}
        hand.at += 50  # after the checkpoint: lost with the process


STOPPED = """
import ctypes, os, signal, subprocess, time
from gmmae.system.clock import Clock

clock = Clock()
with clock.section("eval_s"):
    ctypes.PyDLL(None).sleep(3)  # it holds the interpreter, so no other thread runs
pause = f"kill -STOP {os.getpid()}; sleep 3; kill -CONT {os.getpid()}"
with clock.section("train_s"):
    start = time.time()
    subprocess.Popen(["sh", "-c", pause])
    while time.time() < start + 3.5:
        sum(range(10_000))
print(clock.read()["eval_s"], clock.read()["train_s"])
"""


def test_the_seconds_in_which_a_process_is_stopped_do_not_count():
    held, worked = map(float, python("-c", STOPPED).stdout.split())
    assert held == pytest.approx(3, abs=0.5)
    assert worked < 2
