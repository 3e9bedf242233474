import dataclasses
import io
import math
import re
import time

import pytest
from rich.console import Console

from gmmae.config.schema import changed
from gmmae.sweep.display import SweepDisplay, outcome_table, outcome_text
from gmmae.sweep.grid import RunKey, SweepConfig
from tests.sweep.test_runs import RECORD, cell_record

CONFIG = SweepConfig(scaling=("strong", "weak"), devices=(2, 1), seeds=(0, 5), jobs=2)


def console(terminal):
    file = io.StringIO()
    return Console(file=file, force_terminal=terminal, width=120, height=25, legacy_windows=False, color_system=None)


def text(console):
    return console.file.getvalue()


def run(**changes):
    return dataclasses.replace(RECORD, **changes)


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (cell_record(run(final_val_loss=0.0123456), "max_epochs"), "max_epochs at 0.01235"),
        (cell_record(run(final_val_loss=None), "time_limit"), "time_limit at ?"),
        (cell_record(run(monitor="accuracy", final_metrics={"accuracy": 0.91}), "max_epochs"), "max_epochs at accuracy 0.91"),
        (cell_record(RECORD, "timed_out"), "timed_out"),
    ],
)
def test_a_run_in_words(record, expected):
    assert outcome_text(record) == expected


def groups(*names):
    return {name: [key] for name in names if (key := RunKey.named(name))}


def shown_on(out, verbose=False):
    """A sweep of seven runs, of which one has ended, and three paths are to be computed."""
    shown = SweepDisplay(out, verbose)
    pending = groups("strong-n1-seed0", "weak-n2-seed0", "weak-n2-seed5")
    pending["strong-n1-seed0"].append(RunKey("strong", 2, 0))
    shown.start([cell_record()], pending, 7, 2)
    return shown


def ended(scaling, *counts, outcome="target_reached", **changes):
    record = run(clocks={"total_s": 40.0}, **changes)
    return [cell_record(record, outcome)._replace(key=RunKey(scaling, n, 0)) for n in counts]


def test_a_log_has_a_line_for_each_run_that_has_ended():
    out = console(terminal=False)
    shown = shown_on(out)
    with shown.bar:
        shown.running({"weak-n2-seed0": "", "strong-n1-seed0": ""})
        shown.ended(ended("strong", 1, 2, 4) + ended("weak", 1))
        shown.say("a [line]")
        shown.ended(ended("weak", 2, outcome="diverged", final_val_loss=math.nan))
        shown.ended([cell_record(None, "crashed", "exit code 1: [what] it was (runs/log.txt)")])
    first, strong, said, weak, crashed = text(out).splitlines()
    assert first == "7 runs: 1 done, 6 to compute, 3 of them different, 2 at a time"
    also = r"\(also strong n = 2, 4; weak n = 1\); 5 of 7 runs"
    assert re.fullmatch(rf"strong-n1-seed0  reached at epoch 3, 40 s {also}, about \d\.\d s left", strong)
    assert said == "a [line]"
    assert weak.startswith("weak-n2-seed0    diverged at nan, 40 s; 6 of 7 runs, about ")
    assert crashed == "weak-n2-seed0    crashed: exit code 1: [what] it was (runs/log.txt); 7 of 7 runs (1 failed)"


def test_a_verbose_log_has_starts_and_few_epochs(monkeypatch):
    """A line for each running run in ten seconds, and none if no epoch has ended."""
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    out = console(terminal=False)
    shown = shown_on(out, verbose=True)
    shown.running({"weak-n2-seed0": "started"})
    for i in range(1, 101):
        now += 0.5
        shown.running({"weak-n2-seed0": f"epoch {min(10 * i, 700)}: 0.5"})
    assert text(out).splitlines()[1:] == [
        "weak-n2-seed0    started",
        *(f"weak-n2-seed0    epoch {epoch}: 0.5" for epoch in (200, 400, 600, 700)),
    ]


def test_a_terminal_has_a_bar_that_goes_at_the_end(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    out = console(terminal=True)
    shown = shown_on(out)
    with shown.bar:
        shown.running({"weak-n2-seed0": ""})
        shown.ended(ended("strong", 1, 2))
        shown.running({"weak-n2-seed0": ""})
    assert re.search(r"━.* 3 of 7 runs .*about \d\.\d s left weak-n2-seed0", text(out))
    assert text(out).rstrip().splitlines()[-1].endswith("\x1b[2K")


@pytest.mark.parametrize("target", [0.5, None])
def test_outcomes_are_a_small_table(target):
    def record(scaling, n, seed, outcome, epochs=3, loss=0.25):
        inner = run(epochs=epochs, final_val_loss=loss)
        return cell_record(inner, outcome)._replace(key=RunKey(scaling, n, seed))

    config = dataclasses.replace(CONFIG, run=changed(CONFIG.run, stop__target=target), devices=(1, 2, 4))
    goal = "target_reached" if target else "max_epochs"
    records = [
        record("strong", 1, 0, goal, epochs=12),
        record("strong", 1, 5, goal, epochs=9, loss=0.5),
        record("strong", 2, 0, goal),
        record("strong", 2, 5, "crashed"),
        record("strong", 4, 0, "diverged"),
        record("strong", 4, 5, "crashed"),
        record("weak", 1, 0, "diverged"),
        record("weak", 1, 5, "diverged"),
        record("weak", 2, 0, goal),
        record("weak", 2, 5, goal),
    ]
    several, one = ("9 to 12", "3") if target else ("0.25 to 0.5", "0.25")
    shown = "epochs to the target" if target else "final validation loss"
    first, *rows = outcome_table(config, records).splitlines()
    assert first == f"{shown}, by strategy and number of devices, of 2 seeds"
    assert [re.split(r"  +", row) for row in rows] == [
        ["scaling", "n = 1", "n = 2", "n = 4"],
        ["strong", several, f"{one} (1 of 2)", "0 of 2"],
        ["weak", "diverged", one, "–"],
    ]
