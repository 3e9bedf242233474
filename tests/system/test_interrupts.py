"""Signals to this process."""

import os
import signal

import pytest

from gmmae.system import interrupts as interrupts_module
from gmmae.system.files import stoppable
from gmmae.system.interrupts import Interrupts


def test_the_first_signal_is_the_reason_and_sigterm_may_come_again():
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    with Interrupts() as interrupts:
        assert interrupts.reason is None
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGTERM)
            assert interrupts.reason == "sigterm"
    assert before == [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]


@pytest.fixture
def _handled():
    """Python's own handler of SIGINT, which is not there where the tests were started in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_handled")
@pytest.mark.parametrize(
    ("number", "reason"),
    [(signal.SIGTERM, "sigterm"), (signal.SIGUSR1, "sigterm"), (signal.SIGINT, "sigint"), (signal.SIGHUP, "sighup")],
)
def test_sigint_after_a_signal_acts_as_ever(number, reason, monkeypatch):
    monkeypatch.setattr(interrupts_module, "REPEAT_S", 0.0)
    with Interrupts() as interrupts:
        os.kill(os.getpid(), number)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        assert interrupts.reason == reason


@pytest.mark.usefixtures("_handled")
def test_ctrl_c_that_comes_from_the_terminal_and_from_the_parent_is_one():
    with Interrupts() as interrupts:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
        assert interrupts.reason == "sigint"


@pytest.mark.parametrize("context", [Interrupts, stoppable])
def test_sighup_stays_ignored_as_under_nohup(context):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with context() as interrupts:
            os.kill(os.getpid(), signal.SIGHUP)
            assert interrupts is None or interrupts.reason is None
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
