"""The plan's answer, its JSON and its page, from constructed measurements."""

import json
import math
from dataclasses import replace

import pytest

from gmmae.planner import page, prediction
from gmmae.planner.measure import PlanMeasurements
from gmmae.planner.prediction import Forecast, batch_rule
from gmmae.scaling.cost import Cluster
from tests.planner.test_outcome import prediction as cell
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


# Several models


def forecast_of(*cells, best=None):
    overheads = dict.fromkeys((cell.devices for cell in cells), 0.0)
    return Forecast(IDEAL, [*cells], best or cells[0], {}, (), overheads, 1.0, False)


ALONE = cell("strong", 1, 32, 0.001, 360.0, expected_s=360.0)
STRONG = cell("strong", 4, 32, 0.001, 240.0, speedup=1.5, expected_s=240.0)
WEAK = cell("weak", 4, 128, 0.001, 100.0, speedup=3.6, expected_s=100.0)
UNTESTED = cell("linear", 4, 128, 0.004, 50.0, speedup=7.2, expected_s=50.0, tested=False)


@pytest.mark.parametrize(
    ("cells", "line"),
    [
        # 4 · 3600 / 360, 3600 / 240 and 3600 / 100.
        (
            (ALONE, STRONG, WEAK, UNTESTED),
            "40.0 models an hour with strong; one after another on all 4: 15.0 with strong, 36.0 with weak",
        ),
        # One device is not planned for; the speed-up of strong scaling has its time.
        ((STRONG,), "40.0 models an hour with strong; one after another on all 4: 15.0 with strong"),
        # The base batch has no sample for each device.
        ((WEAK,), "40.0 models an hour with strong; one after another on all 4: 36.0 with weak"),
        # The best strategy of one device is another one.
        (
            (ALONE, cell("best-batch", 1, 8, 0.001, 180.0, speedup=2.0, expected_s=180.0), STRONG),
            "40.0 models an hour with strong, 80.0 with best-batch; one after another on all 4: 15.0 with strong",
        ),
    ],
)
def test_models_an_hour_side_by_side_stand_beside_those_of_strong_scaling_and_the_best_strategy(cells, line):
    assert page._several(forecast_of(*cells), found()) == (f"4 seeds side by side: {line}",)


def test_more_models_than_side_by_side_have_the_mark_of_their_speed_up():
    fast = STRONG._replace(seconds=72.0, speedup=5.0)
    [line] = page._several(forecast_of(ALONE, fast), found())
    assert line.endswith(f"40.0 models an hour with strong; one after another on all 4: 50.0{page.BATCH_MARK} with strong")


def test_models_an_hour_are_in_the_json_by_strategy():
    hourly = page.hourly_models(forecast_of(ALONE, STRONG, WEAK))
    assert hourly == {
        1: {"side_by_side": {"strong": 10.0}, "one_after_another": {"strong": 10.0}},
        4: {"side_by_side": {"strong": 40.0}, "one_after_another": {"strong": 15.0, "weak": 36.0}},
    }


def test_the_plan_prints_models_an_hour_for_each_number_of_devices_above_one(written):
    folder, lines = written
    hourly = json.loads((folder / "plan.json").read_text())["clusters"]["Slow"]["models_an_hour"]
    assert [*hourly] == [str(n) for n in DEVICES]
    assert hourly["8"]["side_by_side"]["strong"] == pytest.approx(8 * hourly["1"]["one_after_another"]["strong"])
    starts = [line.split(":")[0] for line in lines if "side by side" in line]
    assert starts == [f"{n} seeds side by side" for n in DEVICES[1:]] * 2 + ["Models an hour"]
    text = (folder / "index.html").read_text()
    for line in lines:
        assert line in text or "side by side:" not in line
    assert text.count("For several models") == 2


def test_a_plan_of_one_device_has_no_models_side_by_side(tmp_path):
    assert "side by side" not in "\n".join(page.write(tmp_path, "mine", found(), [IDEAL], (1,)))
    assert "several models" not in (tmp_path / "README.md").read_text()
    plan = json.loads((tmp_path / "plan.json").read_text())
    assert list(plan["clusters"]["Ideal"]["models_an_hour"]) == ["1"]


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
