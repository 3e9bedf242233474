"""The plan's answer, its JSON and its page, from constructed measurements."""

import json
import math
from dataclasses import replace

import pytest

from gmmae.planner import page, prediction
from gmmae.planner.measure import PlanMeasurements
from gmmae.planner.prediction import batch_rule
from gmmae.scaling.cost import Cluster
from tests.planner.test_prediction import DEVICES, IDEAL, measured

SLOW = Cluster("Slow", "a device", 2, 1e-3, 1e8, 1e-3, 1e8)


def found(**changes) -> PlanMeasurements:
    values = {"measured": measured(0.16), "device_kind": "cpu", "target": 0.01, "metric": "loss"}
    values |= {"epochs": {"batch 32": 6, "batch 8": 5}, "seconds": {"batch 32": 60.0, "batch 8": 70.0}}
    values |= {"base_epochs": 6, "base_s": 50.0, "curves": {32: [0.02, 0.009]}, "notes": []}
    return PlanMeasurements(**values | changes)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plan")
    return folder, page.write(folder, "mine", found(), [IDEAL, SLOW], DEVICES)


def test_the_answer_comes_first(written):
    first, second = written[1][:2]
    assert first.startswith("On ")
    assert "as fast as the one that measured (cpu), linked as in Ideal: " in first
    assert "linked as in Slow: " in second
    assert "80 %" in first
    assert "the linear rule will most likely fail from n = 4 on" in first


def test_the_json_has_what_others_read(written):
    plan = json.loads((written[0] / "plan.json").read_text())
    assert set(plan) >= {"config", "clusters", "rule", "noise_scale", "target", "metric", "measured"}
    assert set(plan["rule"]) == {"smin", "bn", "power", "overhead_s", "sample_s", "residual"}
    one = plan["clusters"]["Ideal"]
    keys = {"scaling", "devices", "batch", "learning_rate", "steps", "steps_low", "steps_high", "seconds", "seconds_low"}
    keys |= {"seconds_high", "probability_of_failure", "speedup", "efficiency"}
    assert all(set(cell) >= keys for cell in one["cells"])
    assert set(one["best"]) >= {"scaling", "devices", "seconds", "seconds_low", "seconds_high"}
    assert plan["measured"]["steps"]["32"] == pytest.approx(325.0)


def test_the_page_needs_nothing_but_itself(written):
    page = (written[0] / "index.html").read_text()
    assert page.count("<img ") == 3
    assert "The best strategy by overhead" in page
    assert written[1][0] in page
    for place in ("figures/times_1.png", "figures/times_2.svg", "figures/map.png", "README.md"):
        assert (written[0] / place).is_file()


def test_what_it_rests_on_is_said(written):
    text = "\n".join(written[1])
    threshold = 32 / batch_rule(found().measured).bn
    assert "growing the batch wins where (a + c) / (b B) > B / Bn. Here a / (b B) = 5 on one device and " in text
    assert f"B / Bn = {threshold:.2g}." in text
    assert "Measuring took 11 epochs and 2.2 min: 1.8 times the base run's 6 epochs, 2.6 times its 50 s" in text
    assert "--optim.best-batches " in text
    assert "warning" not in text


def test_steps_that_do_not_follow_the_law_are_warned_of(tmp_path):
    wild = found(measured=measured(steps={4: 200.0, 8: 1000.0, 32: 300.0}), notes=["something"])
    text = "\n".join(page.write(tmp_path, "mine", wild, [IDEAL], (1, 2)))
    assert "warning: the steps must follow S(B) = " in text
    assert "warning: something" in text


def test_a_number_that_is_none_is_null(tmp_path):
    """One batch has no residual, and a trial that diverges has no progress."""
    numbers = measured(steps={32: 325.0}, progress={1.0: 1.0, 2.0: math.nan})
    lines = page.write(tmp_path, "mine", found(measured=numbers), [IDEAL], (1, 2))
    assert not any("residual is" in line for line in lines)
    plan = json.loads((tmp_path / "plan.json").read_text())
    assert plan["rule"]["residual"] is None
    assert plan["measured"]["progress"]["2.0"] is None


SCALED = "Mine, times scaled by 0.5 from steps measured on cpu (reference_step_s in the cluster's file)"


@pytest.mark.parametrize(
    ("device", "reference_step_s", "words"),
    [
        ("NVIDIA H200 SXM", 0.0, "devices as fast as the one that measured (cpu), linked as in Mine"),
        ("NVIDIA H200 SXM", 0.096, SCALED),
        ("cpu", 0.0, "Mine, steps measured on cpu"),
        ("cpu", 0.096, SCALED),
    ],
)
def test_times_are_those_of_a_named_device(device, reference_step_s, words):
    cluster = replace(IDEAL, name="Mine", device=device, reference_step_s=reference_step_s)
    forecast = prediction.forecast(measured(0.16), cluster, ("strong",), (1, 2))
    assert page.times_of(forecast, "cpu") == words


def test_a_speed_up_of_another_batch_is_not_called_the_machine_s(tmp_path):
    """Half of a step is overhead, so one device takes a larger batch than the base batch."""
    first = page.write(tmp_path, "mine", found(measured=measured(0.3)), [IDEAL], (1,))[0]
    assert "More than 1-fold comes from a batch and a learning rate that one device did not have." in first
    assert "artefact" not in first
    assert "linear rule" not in first
