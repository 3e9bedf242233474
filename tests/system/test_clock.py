import subprocess
import sys

import pytest

from gmmae.system.clock import SECTIONS, Clock


class Hand:
    """A clock that moves when told to."""

    def __init__(self, at):
        self.at = at

    def __call__(self):
        return self.at


def spend(clock, hand, section, seconds):
    with clock.section(section):
        hand.at += seconds


def test_sections_add_up_apart_and_the_total_counts_what_is_between():
    hand = Hand(100.0)
    clock = Clock(now=hand)
    for section, seconds in [("compile_s", 8), ("train_s", 1), ("eval_s", 0.5), ("train_s", 2), ("checkpoint_s", 0.25)]:
        spend(clock, hand, section, seconds)
    hand.at += 4
    assert clock.read() == {"compile_s": 8, "train_s": 3, "eval_s": 0.5, "checkpoint_s": 0.25, "total_s": 15.75}


def test_a_resumed_clock_goes_on_from_what_was_saved():
    hand = Hand(100.0)
    clock = Clock(now=hand)
    spend(clock, hand, "train_s", 3)
    saved = clock.read()
    hand.at += 50  # after the checkpoint: lost with the process

    later = Hand(7.0)  # another process, another zero
    resumed = Clock(saved, later)
    assert resumed.read() == saved
    spend(resumed, later, "train_s", 2)
    spend(resumed, later, "eval_s", 1)
    assert resumed.read() == dict.fromkeys(SECTIONS, 0) | {"train_s": 5, "eval_s": 1, "total_s": 6}


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
    held, worked = map(float, subprocess.check_output([sys.executable, "-c", STOPPED], text=True).split())
    assert held == pytest.approx(3, abs=0.5)
    assert worked < 2
