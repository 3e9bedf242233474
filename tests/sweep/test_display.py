import dataclasses
import io
import math

import pytest
from rich.console import Console

from gmmae.sweep.display import LiveSweep, SweepDisplay, duration, grid_table, outcome_text, progress_text, sweep_display
from gmmae.sweep.grid import RunKey, SweepConfig
from gmmae.training.records import Epoch
from tests.sweep.test_runs import RECORD, cell_record

CONFIG = SweepConfig(scaling=("strong", "weak"), devices=(2, 1), seeds=(0, 5), jobs=2)
ONE, TWO = RunKey("weak", 1, 0), RunKey("weak", 2, 0)


def console(terminal):
    return Console(file=io.StringIO(), force_terminal=terminal, width=120, legacy_windows=False, color_system=None)


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
    row = Epoch(4, 8, 64, 0.1, 0.02, 0.0123456, 0, 0, 0, 0, 0, {"accuracy": 0.91})
    assert progress_text(row, metric) == f"epoch 4: {value}"


def test_durations():
    assert [duration(s) for s in (0, 89.4, 90, 5399, 5400, 360000)] == ["0 s", "89 s", "2 min", "90 min", "1.5 h", "100.0 h"]


def test_plain_lines_are_one_a_start_and_one_an_end():
    out = console(terminal=False)
    shown = SweepDisplay(out)
    shown.start(CONFIG, {ONE: "reached at epoch 3"}, 4)
    with shown:
        shown.started("weak-n2-seed0")
        shown.tick({TWO: "epoch 1: 0.02"})
        shown.ended("weak-n2-seed0", {TWO: "diverged at nan"}, 10.0)
        shown.ended("strong-n1-seed0", {RunKey("strong", n, 0): "crashed" for n in (1, 2)}, 110.0)
        shown.say("[not markup] " + "x" * 150)
        for _ in range(2):
            shown.ended("weak-n1-seed5", {TWO: "crashed"}, 1.0)
    assert text(out).splitlines() == [
        "runs done: 1, jobs to start: 4",
        "weak-n2-seed0 started",
        "weak-n2-seed0 diverged at nan, 10 s; 1 of 4, about 15 s left",  # 10 · 3 / 2: two jobs at once
        "strong-n1-seed0 crashed, 2 min (and 1 more with it); 2 of 4, about 60 s left",  # 60 · 2 / 2
        "[not markup] " + "x" * 150,  # never wrapped
        "weak-n1-seed5 crashed, 1 s; 3 of 4, about 20 s left",
        "weak-n1-seed5 crashed, 1 s; 4 of 4",
    ]


def table(out):
    """The table as it was drawn last: a list of words a row."""
    lines = text(out).splitlines()
    head, end = (max(i for i, line in enumerate(lines) if part in line) for part in ("n = 1", " passed"))
    return [[part.strip() for part in line.split("  ") if part.strip()] for line in lines[head : end + 1]]


def test_the_live_table_has_a_row_for_each_strategy_and_seed_and_the_state_of_every_run():
    out = console(terminal=True)
    shown = LiveSweep(out)
    shown.start(CONFIG, {ONE: "reached at epoch 3"}, 2)
    with shown:
        shown.started("weak-n2-seed0")
        shown.tick({TWO: "epoch 1: 0.02"})
        assert "epoch 1: 0.02" in text(out)
        shown.ended("weak-n2-seed0", {TWO: "diverged at nan"}, 40.0)
        shown.say("a [line] above")
    head, *rows, last = table(out)
    assert [word for word in head if word.startswith("n =")] == ["n = 1", "n = 2"]
    assert rows == [
        ["strong", "0", "waiting", "waiting"],
        ["weak", "0", "reached at epoch 3", "diverged at nan"],
        ["strong", "5", "waiting", "waiting"],
        ["weak", "5", "waiting", "waiting"],
    ]
    assert last[0].startswith("1 of 2 runs, 0 s passed, about 20 s left")  # 40 · 1 / 2
    assert "a [line] above" in text(out)


def test_the_live_display_of_a_sweep_without_work_shows_its_states():
    out = console(terminal=True)
    shown = LiveSweep(out)
    shown.start(SweepConfig(scaling=("weak",), devices=(1,)), {ONE: "crashed"}, 0)
    with shown:
        pass
    assert table(out)[1] == ["weak", "0", "crashed"]
    assert "0 of 0 runs" in text(out)


def test_a_grid_is_a_table_with_its_first_row_as_names():
    rows = [("run", "batch", "same path as"), ("weak-n2-seed0", "64", ""), ("strong-n2-seed0", "32", "a")]
    assert grid_table(rows).splitlines() == [
        "run              batch  same path as",
        "weak-n2-seed0       64",
        "strong-n2-seed0     32  a",
    ]


@pytest.mark.parametrize(("terminal", "kind"), [(True, LiveSweep), (False, SweepDisplay)])
def test_the_display_fits_standard_output(terminal, kind):
    assert type(sweep_display(console(terminal))) is kind
