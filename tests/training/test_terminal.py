import io
import math

import pytest
from rich.console import Console

from gmmae.training.records import Epoch
from gmmae.training.terminal import Live, Plain, display

FACTS = {"scaling": "linear, seed 0", "learning rate": "0.0042 [not markup]"}


def row(epoch, val_loss=0.002):
    return Epoch(epoch, 18 * epoch, 574 * epoch, 0.0042, 0.0123456, val_loss, 1.0, 2.0, 0.5, 0.1, 3.64, 32)


def console(terminal):
    return Console(file=io.StringIO(), force_terminal=terminal, width=100, legacy_windows=False)


def text(console):
    return console.file.getvalue()


def test_plain_lines_are_one_a_fact_and_one_an_epoch():
    out = console(terminal=False)
    shown = Plain(out)
    shown.start(FACTS, max_epochs=400, done=0)
    shown.epoch(row(1))
    shown.epoch(row(2, math.nan))
    shown.say("x" * 100)
    shown.close()
    assert text(out).splitlines() == [
        "scaling        linear, seed 0",
        "learning rate  0.0042 [not markup]",
        "epoch 1/400  train 0.01235  validation 0.002  lr 0.0042  3.6 s",
        "epoch 2/400  train 0.01235  validation nan  lr 0.0042  3.6 s",
        "x" * 100,  # never wrapped
    ]


@pytest.mark.parametrize("done", [0, 7])
def test_live_shows_the_table_the_losses_and_the_epoch(done):
    out = console(terminal=True)
    shown = Live(out)
    shown.start(FACTS, max_epochs=400, done=done)
    assert all(word in text(out) for word in ("\x1b[", *FACTS, *FACTS.values()))
    shown.epoch(row(done + 1, math.inf))
    shown.epoch(row(done + 2))
    shown.say("checkpoint [written]")
    shown.close()
    last = [line for line in text(out).splitlines() if "left" in line][-1]  # the bar as it stays on the screen
    assert f"epoch {done + 2}/400" in last
    assert "train 0.01235  validation 0.002" in last
    assert "checkpoint [written]" in text(out)


def test_live_can_be_closed_before_it_started():
    out = console(terminal=True)
    shown = Live(out)
    shown.say("no data")
    shown.close()
    assert "no data" in text(out)


@pytest.mark.parametrize(("terminal", "kind"), [(True, Live), (False, Plain)])
def test_the_display_fits_standard_output(terminal, kind):
    assert type(display(console(terminal))) is kind
