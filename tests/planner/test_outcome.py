import json
import math
from dataclasses import replace

import pytest

from gmmae.planner import outcome
from gmmae.planner.prediction import Prediction
from gmmae.plotting.document import Paragraph
from gmmae.plotting.tables import Table
from gmmae.sweep.grid import RunKey, SweepConfig
from gmmae.sweep.report import results
from gmmae.system.errors import InputError
from tests import sweeps
from tests.sweeps import FLAT, GRID, PASSES, STEPS, TARGET


def prediction(scaling, devices, batch, rate, seconds, **changes) -> Prediction:
    """Returns a prediction for a run that takes some seconds, with an interval about them."""
    numbers = dict.fromkeys(("steps", "steps_low", "steps_high", "expected_s", "speedup", "efficiency"), 1.0)
    times = {"seconds": seconds, "seconds_low": 0.8 * seconds, "seconds_high": 1.25 * seconds}
    values = {"probability_of_failure": 0.04, "tested": True, **numbers, **times} | changes
    return Prediction(scaling, devices, batch, rate, **values)


def cluster(cells, best, **changes):
    """Returns what a `plan.json` holds for a cluster."""
    return {
        "cells": [json.loads(json.dumps(cell._asdict()), parse_constant=lambda _: None) for cell in cells],
        "best": best._asdict(),
        "scaled_by_user": False,
    } | changes


RATE, BATCH = GRID.run.optim.learning_rate, GRID.run.optim.batch_size
CELLS = [
    prediction("weak", 1, BATCH, RATE, math.nan, probability_of_failure=math.nan),
    prediction("strong", 2, BATCH, RATE, 200.0),  # 218 s
    prediction("weak", 2, 2 * BATCH, RATE, 300.0),  # 520 s
    prediction("linear", 2, 2 * BATCH, 2 * RATE, 90.0, probability_of_failure=0.7, seconds_high=math.nan),  # collapses
    prediction("linear", 4, 8 * BATCH, 4 * RATE, 90.0),  # of another batch
    prediction("sqrt", 2, 2 * BATCH, 2 * RATE, 90.0),  # not in the sweep
]
BEST = CELLS[2]
FORECAST = cluster(CELLS, BEST)
PLAN = {"target": TARGET, "metric": "loss", "clusters": {"Flat": FORECAST}}


@pytest.fixture
def found(tmp_path):
    sweeps.small(tmp_path)
    sweeps.add_step_times(tmp_path, 1, STEPS, PASSES)
    return results.read(GRID, tmp_path, FLAT)


def written(folder, **changes):
    path = folder / "plan.json"
    path.write_text(json.dumps(PLAN | changes), encoding="utf-8")
    return path


def shown(blocks):
    return [block for block in blocks if isinstance(block, Table)], [b.text for b in blocks if isinstance(b, Paragraph)]


def test_predictions_stand_beside_outcomes_where_batch_and_rate_are_the_runs(found, tmp_path):
    (table,), (text,) = shown(outcome.comparison_blocks([found], written(tmp_path)))
    assert table.rows == (
        ("strong", "2", "200", "160 to 250", "218", "yes", "0 of 3", "4%"),
        ("weak", "1", "–", "–", "100", "–", "0 of 3", "–"),
        ("weak", "2", "300", "240 to 375", "520", "no", "0 of 3", "4%"),
        ("linear", "2", "90.0", "–", "not reached", "–", "3 of 3", "70%"),
    )
    assert table.notes[0].startswith("1 of 2 median times that have an interval lie within it.")
    assert table.title == "Prediction and outcome for Flat (projected)"
    assert text == "**For Flat the plan chose Weak scaling on 2 devices.** It took 5.20 times as long as the fastest cell."


@pytest.mark.parametrize(
    ("scaling", "devices", "ending"),
    [
        ("strong", 1, "chose Strong scaling on 1 device.** No cell was faster."),
        ("linear", 2, "chose Linear rule on 2 devices.** Its median run missed the target."),
        ("best-of-all", 64, "chose best-of-all on 64 devices.** The sweep has no such cell."),
    ],
)
def test_what_the_plan_chose_is_told_with_what_it_cost(found, tmp_path, scaling, devices, ending):
    clusters = {"Flat": cluster(CELLS, BEST._replace(scaling=scaling, devices=devices))}
    assert shown(outcome.comparison_blocks([found], written(tmp_path, clusters=clusters)))[1][0].endswith(ending)


def test_each_cluster_has_its_table_and_others_of_the_plan_none(found, tmp_path):
    fast = results.read(GRID, tmp_path, replace(FLAT, name="Fast", reference_step_s=0.25))
    path = written(tmp_path, clusters={name: FORECAST for name in ("Fast", "Flat", "Slow")})
    made, _ = shown(outcome.comparison_blocks([found, fast], path))
    assert [(table.name, table.title) for table in made] == [
        ("plan_1", "Prediction and outcome for Flat (projected)"),
        ("plan_2", "Prediction and outcome for Fast (projected)"),
    ]
    assert made[0].rows[0][4] == "218"
    assert made[1].rows[0][4] != "218"


def test_a_plan_for_other_clusters_says_so(found, tmp_path):
    path = written(tmp_path, clusters={"Slow": FORECAST})
    made, (text,) = shown(outcome.comparison_blocks([found], path))
    assert not made
    assert text == "The plan is for Slow; times here are of Flat. `gmmae report --clusters` names others."
    assert "times here are of no cluster" in shown(outcome.comparison_blocks([results.read(GRID, tmp_path, None)], path))[1][0]


def test_measured_times_stand_beside_all_clusters_of_the_plan(tmp_path):
    config = replace(GRID, mode="measured", scaling=("strong",), devices=(2,), seeds=(0,))
    sweeps.reach(config, tmp_path, RunKey("strong", 2, 0), 10)
    path = written(tmp_path, clusters={name: FORECAST for name in ("Fast", "Slow")})
    made, _ = shown(outcome.comparison_blocks([results.read(config, tmp_path, None)], path))
    names = ("Fast", "Slow")
    assert [table.title for table in made] == [f"Prediction and outcome for {name} (measured here)" for name in names]
    assert made[0].rows == (("strong", "2", "200", "160 to 250", "25.0", "no", "0 of 1", "4%"),)
    assert "one model of the cluster" not in " ".join(made[0].notes)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "must be a plan that `gmmae plan` has written; got Expecting property name"),
        ("[" * 100_000, "must be a plan that .*; got JSON that is nested too deep"),
        ("[]", "must be a plan that .*; got a JSON value that is no object"),
        ("{}", "must be a plan that .*; got no 'target': plan again, or move it away"),
        (
            json.dumps(PLAN | {"clusters": {"Flat": {"cells": [{"scaling": "strong"}]}}}),
            "must be a plan that .*; got .* missing .*'devices', 'batch'",
        ),
        (json.dumps(PLAN | {"clusters": []}), "must be a plan that .*; got 'list' object has no attribute 'items'"),
        (
            json.dumps(PLAN | {"target": 0.01}),
            "for the sweep's target, loss 0.0016384; got one for loss 0.01: plan for the same",
        ),
        (json.dumps(PLAN | {"metric": "dice"}), "for the sweep's target, loss 0.0016384; got one for dice 0.0016384"),
        (
            json.dumps(PLAN | {"clusters": {"Flat": cluster(CELLS[4:], BEST)}}),
            "for the sweep's batches and learning rates; got none of them: plan with the sweep's configuration, or move it",
        ),
    ],
)
def test_a_damaged_or_foreign_plan_is_one_line(found, tmp_path, text, message):
    path = tmp_path / "plan.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=rf"plan\.json must be .*{message.removeprefix('must be ')}") as error:
        outcome.comparison_blocks([found], path)
    assert "\n" not in str(error.value)
    with pytest.raises(InputError, match=r"none\.json must be a plan that .* got .*No such file"):
        outcome.comparison_blocks([found], tmp_path / "none.json")


def test_a_report_takes_the_plan_in_the_sweeps_folder_or_the_one_it_is_given(tmp_path):
    config = replace(GRID, scaling=("strong",), devices=(2,), seeds=(0,))
    sweeps.add_step_times(tmp_path, 1, STEPS, PASSES)
    sweeps.reach(config, tmp_path, RunKey("strong", 2, 0), 10)
    outcome.write_report(config, tmp_path, [FLAT])
    report = tmp_path / "report" / "report.md"
    assert "Prediction" not in report.read_text(encoding="utf-8")
    path = written(tmp_path)
    outcome.write_report(config, tmp_path, [FLAT])
    text = report.read_text(encoding="utf-8")
    assert text.index("Table III") < text.index("<h2>Prediction and outcome</h2>") < text.index("<h2>Tables</h2>")
    assert (tmp_path / "report" / "tables" / "plan_1.csv").exists()
    elsewhere = path.rename(tmp_path / "elsewhere.json")
    outcome.write_report(config, tmp_path, [FLAT], elsewhere)
    assert "| strong | 2 | 200 | 160 to 250 | 218 | yes | 0 of 1 | 4% |" in report.read_text(encoding="utf-8")


def test_step_times_alone_are_no_outcome_of_a_plan(tmp_path):
    with pytest.raises(InputError, match=r"--plan needs a sweep that trains to a target; got .* leave it out"):
        outcome.write_report(SweepConfig(mode="throughput"), tmp_path, [], tmp_path / "plan.json")


def test_times_by_a_factor_that_the_sweep_does_not_know_are_not_compared(found, tmp_path):
    clusters = {"Flat": cluster(CELLS, BEST, scaled_by_user=True)}
    tables, texts = shown(outcome.comparison_blocks([found], written(tmp_path, clusters=clusters)))
    assert not tables
    assert texts == ["The plan's times for Flat are those of --scale-compute; the sweep's are not: no comparison."]


def test_a_failure_that_was_not_tried_is_called_untested(found, tmp_path):
    untested = cluster([cell._replace(tested=False) for cell in CELLS], BEST)
    (table,), _ = shown(outcome.comparison_blocks([found], written(tmp_path, clusters={"Flat": untested})))
    assert {row[-1] for row in table.rows} == {"untested"}
