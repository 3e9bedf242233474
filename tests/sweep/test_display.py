import dataclasses
import io
import math
import re
import time

import pytest
from rich.console import Console

from gmmae.config.schema import changed
from gmmae.sweep.display import (
    LiveSweep,
    SweepDisplay,
    duration,
    grid_table,
    outcome_table,
    outcome_text,
    progress_text,
    sweep_display,
)
from gmmae.sweep.grid import RunKey, SweepConfig, run_keys
from gmmae.training.records import Epoch
from tests.sweep.test_runs import RECORD, cell_record

CONFIG = SweepConfig(scaling=("strong", "weak"), devices=(2, 1), seeds=(0, 5), jobs=2)
ONE, TWO = RunKey("weak", 1, 0), RunKey("weak", 2, 0)


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
        (cell_record(), "reached at epoch 3"),
        (cell_record(run(final_val_loss=0.0123456), "max_epochs"), "max_epochs at 0.01235"),
        (cell_record(run(final_val_loss=math.nan), "diverged"), "diverged at nan"),
        (cell_record(run(final_val_loss=None), "time_limit"), "time_limit at ?"),
        (cell_record(run(monitor="accuracy", final_metrics={"accuracy": 0.91}), "max_epochs"), "max_epochs at accuracy 0.91"),
        (cell_record(RECORD, "timed_out"), "timed_out"),
        (cell_record(None, "crashed"), "crashed"),
    ],
)
def test_a_run_in_words(record, expected):
    assert outcome_text(record) == expected


@pytest.mark.parametrize(("metric", "value"), [("loss", "0.01235"), ("accuracy", "accuracy 0.91")])
def test_a_running_run_shows_the_metric_of_its_target(metric, value):
    row = Epoch(4, 8, 64, 0.1, 0.02, 0.0123456, 0, 0, 0, 0, 0, 32, metrics={"accuracy": 0.91})
    assert progress_text(row, metric) == f"epoch 4: {value}"


def test_durations():
    assert [duration(s) for s in (0, 89.4, 90, 5399, 5400, 360000)] == ["0 s", "89 s", "2 min", "90 min", "1.5 h", "100.0 h"]


STRONG = [RunKey("strong", n, 0) for n in (1, 2)]


def test_a_log_has_a_line_for_each_computed_run():
    out = console(terminal=False)
    shown = SweepDisplay(out)
    shown.start(CONFIG, {ONE: "reached at epoch 3"}, 4)
    with shown:
        shown.started("weak-n2-seed0")
        shown.tick({TWO: "epoch 1: 0.02"})
        shown.ended("weak-n2-seed0", {TWO: "diverged at nan"}, 10.0)
        shown.started("strong-n1-seed0")
        shown.ended("strong-n1-seed0", dict.fromkeys(STRONG, "crashed: killed by SIGKILL"), 110.0)
        shown.say("[not markup] " + "x" * 150)
        for name in ("weak-n1-seed5", "weak-n2-seed5"):
            shown.ended(name, {RunKey("weak", int(name[6]), 5): "reached at epoch 7"}, 2.0)
    assert text(out).splitlines() == [
        "8 runs: 1 done, 7 to compute, 4 of them different, 2 at a time",
        "weak-n2-seed0    diverged at nan, 10 s; 2 of 8 runs, about 15 s left",  # 10 · 3 / 2: two jobs at once
        "strong-n1-seed0  crashed: killed by SIGKILL, 2 min (also strong n = 2); 4 of 8 runs (2 failed), about 60 s left",
        "[not markup] " + "x" * 150,  # never wrapped
        "weak-n1-seed5    reached at epoch 7, 2.0 s; 5 of 8 runs (2 failed), about 2 s left",  # without the workers' first runs
        "weak-n2-seed5    reached at epoch 7, 2.0 s; 6 of 8 runs (2 failed)",
    ]


def test_runs_of_one_job_with_other_outcomes_or_seeds_have_lines_of_their_own():
    out = console(terminal=False)
    shown = SweepDisplay(out)
    shown.start(CONFIG, {}, 1)
    shown.ended("weak-n2-seed0", {TWO: "a", RunKey("weak", 2, 5): "a", RunKey("strong", 2, 0): "b"}, 1.0)
    assert [line.split(",")[0].split() for line in text(out).splitlines()[1:]] == [
        ["weak-n2-seed0", "a"],
        ["weak-n2-seed5", "a"],
        ["strong-n2-seed0", "b"],
    ]


@pytest.mark.parametrize(
    ("done", "jobs", "line"),
    [
        ({}, 8, "8 runs: 0 done, 8 to compute, 2 at a time"),
        ({}, 1, "8 runs: 0 done, 8 to compute, 1 of them different"),
        (dict.fromkeys(run_keys(CONFIG), "diverged at nan"), 0, "8 runs: all done"),
    ],
)
def test_a_sweep_begins_with_what_is_left(done, jobs, line):
    out = console(terminal=False)
    SweepDisplay(out).start(CONFIG, done, jobs)
    assert text(out).splitlines() == [line]


def test_a_verbose_log_has_starts_and_few_epochs(monkeypatch):
    """A line for each running run in ten seconds, and none if no epoch has ended."""
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    out = console(terminal=False)
    shown = SweepDisplay(out, verbose=True)
    shown.start(CONFIG, {}, 8)
    now = 1.0
    shown.started("weak-n2-seed0")
    for i in range(1, 101):
        now += 0.5
        shown.tick({TWO: f"epoch {min(10 * i, 700)}: 0.5"})
    assert text(out).splitlines()[1:] == [
        "weak-n2-seed0    started",
        *(f"weak-n2-seed0    epoch {epoch}: 0.5" for epoch in (200, 400, 600, 700)),
    ]


def screen(out):
    """The lines that the terminal shows in the end, where nothing was scrolled."""
    lines, row = [""], 0
    for token in re.split(r"(\x1b\[[0-9;?]*[A-Za-z]|\r|\n)", text(out)):
        if token == "\n":
            row += 1
            lines += [""] * (row == len(lines))
        elif token == "\x1b[2K":
            lines[row] = ""
        elif re.fullmatch(r"\x1b\[\d*A", token):
            row -= int(token[2:-1] or 1)
        elif token and token[0] not in "\x1b\r":
            lines[row] += token
    return [line.rstrip() for line in lines if line.strip()]


@pytest.mark.parametrize("verbose", [False, True])
def test_a_terminal_has_lines_that_scroll_above_one_bar(verbose):
    out = console(terminal=True)
    shown = LiveSweep(out, verbose)
    shown.start(CONFIG, {ONE: "reached at epoch 3"}, 4)
    with shown:
        shown.started("weak-n2-seed0")
        shown.started("strong-n1-seed0")
        shown.tick({TWO: "epoch 1: 0.02"})
        shown.ended("strong-n1-seed0", dict.fromkeys(STRONG, "reached at epoch 9"), 40.0)
        shown.say("a [line] above")
        shown.tick({TWO: "epoch 7: 0.01"})
        first, ended, said, bar, *running = screen(out)
        assert (first, said) == ("8 runs: 1 done, 7 to compute, 4 of them different, 2 at a time", "a [line] above")
        assert ended == "strong-n1-seed0  reached at epoch 9, 40 s (also strong n = 2)"
        assert re.fullmatch(r"━+.* 3 of 8 runs, 37 %, 0 s passed, about 60 s left", bar)  # (40 + 2 · 40) / 2
        assert running == (["weak-n2-seed0    epoch 7: 0.01"] if verbose else ["1 running: weak-n2-seed0"])
        shown.ended("weak-n2-seed0", {TWO: "diverged at nan"}, 50.0)
    assert screen(out)[1:] == [ended, said, "weak-n2-seed0    diverged at nan, 50 s"], "no bar is left behind"


def test_before_the_first_end_no_time_is_told():
    out = console(terminal=True)
    shown = LiveSweep(out)
    shown.start(CONFIG, {}, 4)
    with shown:
        shown.started("weak-n2-seed0")
        assert screen(out)[1].endswith("0 of 8 runs, 0 %, 0 s passed")


def test_a_narrow_terminal_leaves_out_the_bar_and_then_the_share():
    def bar(width):
        out = Console(file=io.StringIO(), force_terminal=True, width=width, legacy_windows=False, color_system=None)
        shown = LiveSweep(out)
        shown.start(CONFIG, {}, 4)
        with shown:
            shown.ended("weak-n2-seed0", {TWO: "crashed"}, 3000.0)
            return screen(out)[-1]

    assert re.fullmatch(r"━+ +1 of 8 runs \(1 failed\), 12 %, 0 s passed, about 75 min left", bar(80))
    assert bar(60) == "1 of 8 runs (1 failed), 12 %, 0 s passed, about 75 min left"
    assert bar(58) == "1 of 8 runs (1 failed), 0 s passed, about 75 min left"
    assert bar(45) == "1 of 8 runs (1 failed), about 75 min left"


def test_many_running_runs_leave_room_for_the_lines_above():
    out = console(terminal=True)
    shown = LiveSweep(out, verbose=True)
    config = SweepConfig(scaling=("weak",), devices=(2,), seeds=tuple(range(50)), jobs=50)
    shown.start(config, {}, 50)
    with shown:
        for key in run_keys(config):
            shown.started(key.name)
        lines = screen(out)
    assert len(lines) == 1 + 1 + 21 + 1  # the first line, the bar, and 25 − 4 runs
    assert lines[-1] == "and 29 more"


def test_the_live_display_of_a_sweep_without_work_has_no_bar():
    out = console(terminal=True)
    shown = LiveSweep(out)
    shown.start(SweepConfig(scaling=("weak",), devices=(1,)), {ONE: "crashed"}, 0)
    with shown:
        pass
    assert screen(out) == ["1 run: all done"]


def test_an_interrupted_run_is_not_done_and_tells_nothing_about_the_time():
    out = console(terminal=False)
    shown = SweepDisplay(out)
    shown.start(CONFIG, {}, 4)
    shown.started("weak-n2-seed0")
    shown.ended("weak-n2-seed0", {TWO: "interrupted"}, 5.0)
    assert text(out).splitlines()[1] == "weak-n2-seed0    interrupted, 5.0 s; 0 of 8 runs"


@pytest.mark.parametrize("target", [0.5, None])
def test_outcomes_are_a_small_table(target):
    def record(scaling, n, seed, outcome, epochs=3, loss=0.25):
        inner = run(epochs=epochs, final_val_loss=loss)
        return dataclasses.replace(cell_record(inner, outcome), scaling=scaling, devices=n, seed=seed)

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


def test_a_grid_is_a_table_with_its_first_row_as_names():
    rows = [("run", "batch", "same path as"), ("weak-n2-seed0", "64", ""), ("strong-n2-seed0", "32", "a")]
    assert grid_table(rows).splitlines() == [
        "run              batch  same path as",
        "weak-n2-seed0       64",
        "strong-n2-seed0     32  a",
    ]


@pytest.mark.parametrize(("terminal", "kind"), [(True, LiveSweep), (False, SweepDisplay)])
def test_the_display_fits_standard_output(terminal, kind, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    assert type(sweep_display(console(terminal))) is kind


def test_a_terminal_that_cannot_move_its_cursor_gets_lines(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    assert type(sweep_display(console(terminal=True))) is SweepDisplay
