"""The answer of a plan, its table, its JSON and its page, from constructed predictions."""

import json
from dataclasses import replace
from typing import Any

import pytest

from gmmae.planner import answer, page
from gmmae.planner.answer import Plan
from gmmae.planner.prediction import Forecast, Prediction
from gmmae.planner.step_ratios import Ratios
from gmmae.scaling.cost import Cluster, StepTimes
from tests.planner.test_prediction import IDEAL, cells, chosen, forecast, measured

SLOW = Cluster("Slow", "a device", 2, 1e-3, 1e8, 1e-3, 1e8)


def cell(scaling, devices, batch, seconds, **changes):
    values: dict[str, Any] = {"learning_rate": 0.001, "probability_of_failure": 0.04, "expected_s": seconds}
    values |= {"speedup": 1.0, "efficiency": 1.0, "warmup": False, "failed_trial": False}
    for name, of in (("seconds", seconds), ("steps", 300.0)):
        values |= dict.fromkeys((name, f"{name}_low", f"{name}_high"), of)
    return Prediction(scaling=scaling, devices=devices, batch=batch, **values | changes)


ALONE, STRONG, WEAK = cell("strong", 1, 32, 360.0), cell("strong", 4, 32, 240.0), cell("weak", 4, 128, 100.0)
FAILED = cell("linear", 4, 128, 50.0, learning_rate=0.004, failed_trial=True, probability_of_failure=0.6)


def plan_of(*cells, best=None, **changes):
    made = Forecast(IDEAL, [*cells], best or (cells[0] if cells else None), {}, (), 1.0, False)
    values: dict[str, Any] = {"title": "Plan: mine", "measured": measured(0.16), "metric": "loss", "target": 0.01}
    values |= {"basis": "one run", "device_kind": "cpu", "precision": "tf32", "facts": ["a fact"], "warnings": ["a note"]}
    values |= {"forecasts": [made], "content": {"config": "mine"}, "evidence": {"device": "cpu"}}
    return Plan(**values | changes)


def lines(*cells, **changes):
    plan = plan_of(*cells, **changes)
    return answer.answer(plan, plan.forecasts[0])


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        ((ALONE,), "Only one device was planned for."),
        ((STRONG, WEAK), "On 4 devices growing to 128 (weak scaling) takes 42 % of the time ("),
        ((STRONG, WEAK), "Grow on 4 devices."),
        ((STRONG, WEAK._replace(seconds=500.0, expected_s=500.0)), "Keep on 4 devices."),
        ((STRONG, WEAK._replace(seconds=250.0, expected_s=250.0)), "Too close to tell on 4 devices."),
        ((STRONG, WEAK._replace(probability_of_failure=0.6)), "Keep on 4 devices."),
        ((STRONG, WEAK, *(one._replace(devices=8) for one in (STRONG, WEAK))), "Grow on 4 and 8 devices."),
        ((WEAK._replace(devices=64),), "No number of devices can do both"),
        ((STRONG, WEAK, WEAK._replace(devices=64)), "More than 32 devices cannot share 32 samples."),
    ],
)
def test_the_first_line_answers_whether_to_keep_or_grow(cells, words):
    question = lines(*cells)[0]
    assert question.startswith("Keep 32 or grow? ")
    assert words in question


def test_a_step_time_that_was_not_measured_names_no_winner():
    """Strong scaling on 8 devices has 4 samples on each, and a step took 0.045 s at 32 and 0.12 s at 128."""
    numbers = measured(train=StepTimes((32, 128), (0.045, 0.12)), passes=None)
    found = forecast(numbers, "strong", "weak", devices=(1, 8))
    said = lines(measured=numbers, forecasts=[found])
    assert "Too close to tell on 8 devices." in said[0]
    assert ", too close to tell from " in said[1]
    strong = cells(found, "strong")[8]
    assert strong.seconds_high / strong.seconds_low > 1.2 * (strong.steps_high / strong.steps_low)


def test_the_last_line_says_what_fails_and_how_sure_the_steps_are():
    fails = WEAK._replace(scaling="linear", devices=2, probability_of_failure=0.6)
    text = lines(STRONG, fails, FAILED._replace(scaling="sqrt"))[-1]
    assert text.startswith("Will most likely fail: square-root rule from n = 4 on and linear rule from n = 2 on. ")
    assert "The choice takes 300 (300 to 300) steps to loss 0.01, 80 %, " in text
    assert lines(ALONE, STRONG)[-1].startswith("No strategy is likely to fail. ")


def test_a_target_where_the_loss_hardly_falls_may_be_missed_by_another_seed():
    plan = plan_of(STRONG, measured=measured(ratios=Ratios(-0.2, -0.5, 325.0, 0.01)))
    assert "Another seed may miss this target" in answer.answer(plan, plan.forecasts[0])[-1]
    assert "≥ 4 %" in answer.table(plan, plan.forecasts[0], [STRONG])[1][0]
    assert "Another seed" not in lines(STRONG)[-1]


@pytest.mark.parametrize(
    ("seconds", "priced", "words"),
    [
        (181.0, {}, "One device with batch 32 is enough if you can wait 6.0 min: 4 are 2.0 times as fast for 2.0 times the "),
        (179.0, {}, ""),
        (240.0, {"device": "cpu", "price_per_device_hour": "USD 9"}, "4 are 1.5 times as fast for 2.7 times the price."),
        (240.0, {"price_per_device_hour": "USD 9"}, "4 are 1.5 times as fast for 2.7 times the device time."),
    ],
)
def test_one_device_is_named_where_more_are_not_half_as_many_times_as_fast(seconds, priced, words):
    """A price counts where the times are those of the cluster's devices."""
    choice = STRONG._replace(seconds=seconds, expected_s=seconds)
    plan = plan_of(ALONE, choice, best=choice)
    of_cluster = plan.forecasts[0]._replace(cluster=replace(IDEAL, **priced))
    said = answer.answer(plan, of_cluster)
    assert len(said) == 3 + bool(words)
    assert words in said[2]
    assert ("cost (USD)" in answer.table(plan, of_cluster, [choice])[0]) == ("price." in words)


def test_the_table_has_three_runs_for_each_number_of_devices_by_expected_time():
    """The expected time has the failures, and the median has not. Strategies of one run stand once, and the choice for them."""
    risky = WEAK._replace(scaling="sqrt", batch=129, seconds=10.0, expected_s=300.0)
    worst, alike = WEAK._replace(scaling="linear-warmup", batch=130, expected_s=400.0), WEAK._replace(scaling="best-batch")
    plan = plan_of(ALONE, worst, STRONG, risky, WEAK, alike, FAILED, best=alike)
    assert answer.shown(plan.forecasts[0]) == [ALONE, alike, STRONG, risky]


def test_the_page_and_the_json_say_what_the_terminal_says(tmp_path):
    numbers = measured(0.16, ratios=Ratios(None, None))
    clusters = replace(IDEAL, name="Mine", device="cpu"), SLOW  # the first has the device that was measured
    forecasts = [forecast(numbers, "strong", "weak", "linear", "best-batch", cluster=of) for of in clusters]
    printed = page.write(tmp_path, plan_of(measured=numbers, forecasts=forecasts))
    markdown, html = ((tmp_path / name).read_text().replace("\\", "") for name in ("README.md", "index.html"))
    assert markdown.startswith(f"# Plan: mine\n\n- **{printed[0]}**\n- {printed[1]}\n")
    for text in (*printed[:3], *printed[4:7], "a fact", "Warning: a note"):
        assert all(text in said for said in (printed, html, markdown))
    assert html.count("<img ") == 2
    captions = [line for line in markdown.splitlines() if line.startswith(("**Predicted", "Predicted"))]
    assert ["cpu in tf32" in line for line in captions] == [True] * 4
    assert "Mine, steps measured on cpu in tf32" in markdown
    plan = json.loads((tmp_path / "plan.json").read_text())
    assert plan["measured"]["ratios"]["weak"] is None
    best = chosen(forecasts[1])
    assert best != forecasts[1].cells[0]
    assert plan["clusters"]["Slow"]["best"] == best._asdict() | {"device_s": best.devices * best.seconds}
    assert "a / (b B) = 5 on one device" in html
    assert "--optim.best-batches " in html
