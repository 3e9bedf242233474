import json
import re
from dataclasses import replace

import pytest

from gmmae.planner.prediction import Prediction
from gmmae.sweep.grid import RunKey
from gmmae.sweep.report import outcome, page
from tests import sweeps
from tests.commands import one_line
from tests.sweeps import GRID, TARGET

RATE, BATCH = GRID.run.optim.learning_rate, GRID.run.optim.batch_size


def planned(scaling, devices, batch, rate, seconds, **changes):
    """A prediction as `plan.json` has it, with an interval about its seconds."""
    interval = (0.8 * seconds, 1.25 * seconds) if seconds else (None, None)
    values = (scaling, devices, batch, rate, seconds, *interval, 0.04)
    return dict(zip(outcome.Planned._fields, values, strict=True)) | changes


CELLS = [
    planned("weak", 1, BATCH, RATE, None, probability_of_failure=None),
    planned("strong", 2, BATCH, RATE, 200.0),  # 218 s
    planned("weak", 2, 2 * BATCH, RATE, 300.0),  # 520 s
    planned("linear", 2, 2 * BATCH, 2 * RATE, 90.0, probability_of_failure=0.7, seconds_high=None),  # collapses
    planned("linear", 4, 8 * BATCH, 4 * RATE, 90.0),  # of another batch
    planned("weak", 4, 4 * BATCH, 2 * RATE, 90.0),  # of another rate
    planned("sqrt", 2, 2 * BATCH, 2 * RATE, 90.0),  # not in the sweep
]
FORECAST = {"cells": CELLS, "best": CELLS[2], "scaled_by_user": False}
PLAN = {"target": TARGET, "metric": "loss", "clusters": {"Flat": FORECAST}}


def compared(found, folder, **changes):
    path = folder / "plan.json"
    path.write_text(json.dumps(PLAN | changes))
    return outcome.comparison(found, path, "Table 2")


def test_a_plan_has_what_is_compared():
    assert set(outcome.Planned._fields) <= set(Prediction._fields)


@pytest.mark.parametrize(("place", "ratio"), [(("strong", 1), "1.00"), (("linear", 2), "∞"), (("best-of-all", 64), "–")])
def test_what_the_plan_chose_is_told_with_what_it_cost(projected, tmp_path, place, ratio):
    best = dict(zip(("scaling", "devices"), place, strict=True))
    text = compared([projected], tmp_path, clusters={"Flat": FORECAST | {"best": best}})
    assert text.partition("\n")[0].endswith(f"n = {place[1]}. Its time here over the fastest: {ratio}.")


def test_other_clusters_and_times_that_the_user_has_scaled_are_not_compared(projected, tmp_path):
    nothing = compared([projected], tmp_path, clusters={"Slow": FORECAST})
    assert "The plan is for Slow; times here are of Flat." in nothing
    scaled = compared([projected], tmp_path, clusters={"Flat": FORECAST | {"scaled_by_user": True}})
    assert "no comparison" in scaled
    assert "|" not in scaled


def test_measured_times_stand_beside_all_clusters_and_a_report_takes_the_plan_that_it_is_given(tmp_path):
    config = replace(GRID, mode="measured", scaling=("strong",), devices=(2,), seeds=(0,))
    sweeps.reach(config, tmp_path, RunKey("strong", 2, 0), 10)
    path = tmp_path / "elsewhere.json"
    path.write_text(json.dumps(PLAN | {"clusters": dict.fromkeys(("Fast", "Slow"), FORECAST)}))
    page.write(config, tmp_path, [], path)
    for name in ("Fast", "Slow"):
        row = f"| {name} | strong | 2 | 200 (160 to 250) | 25.0 | no | 0 of 1 | 4% |"
        assert row in (tmp_path / "report" / "report.md").read_text()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"clusters": {"Flat": {"cells": [{"scaling": "strong"}]}}},
            "a plan that .*; got no 'devices': plan again",
        ),
        ({"target": 0.01}, "for the sweep's target, loss 0.0016384; got one for loss 0.01: plan again"),
        ({"clusters": {"Flat": FORECAST | {"cells": CELLS[4:]}}}, "for the sweep's batches and learning rates"),
    ],
)
def test_a_damaged_or_foreign_plan_is_one_line(projected, tmp_path, changes, message):
    assert re.search(rf"plan\.json must be .*{message}", one_line(compared, [projected], tmp_path, **changes))
    missing = one_line(outcome.comparison, [projected], tmp_path / "none.json", "Table 2")
    assert re.search(r"none\.json must be a plan that .* got .*No such file", missing)
