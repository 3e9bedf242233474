"""The plan's answer, its JSON and its page, from constructed measurements."""

import json
import math
import re

import pytest

from gmmae.planner import page, plan_content
from gmmae.planner.measure import PlanMeasurements
from gmmae.planner.prediction import batch_rule
from gmmae.planner.step_ratios import Ratios
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
    return folder, write(folder, found(), (IDEAL, SLOW))


def write(folder, measurements, clusters=(IDEAL,), devices=DEVICES, precision="float32") -> list[str]:
    return page.write(folder, "mine", measurements, clusters, devices, precision=precision)


def test_three_lines_for_each_cluster_come_first(written):
    first, empty, second = written[1][:3], written[1][3], written[1][4:7]
    assert empty == written[1][7] == ""
    for lines, name in ((first, "Ideal"), (second, "Slow")):
        choice, growth, doubts = lines
        assert choice.startswith("On ")
        assert f"as fast as the one that measured (cpu in float32), linked as in {name}: " in choice
        assert "80 %" in choice
        assert growth.startswith("Growing the batch with the devices ")
        assert "fail" in doubts
        assert re.search(r"The choice takes \d+ steps \(\d+ to \d+, 80 %\), (by a run|predicted from a run)", doubts)
    assert first[2].startswith("The linear rule will most likely fail from n = 4 on, ")


def test_the_page_and_the_markdown_begin_with_the_same_lines(written):
    answer = [line for line in written[1][:7] if line]
    markdown, html = ((written[0] / name).read_text() for name in ("README.md", "index.html"))
    plain = markdown.replace("\\", "").replace("**", "")
    assert plain.startswith("# Plan: mine\n\n- " + "\n- ".join(answer[:3]) + "\n\n- " + "\n- ".join(answer[3:]) + "\n\n")
    place = 0
    for line in answer:  # two clusters may have the same third line
        place = html.index(line.replace("&", "&amp;"), place + 1)
    assert place < html.index("<figure") < html.index("<details")
    assert plain.index("\n## Details\n") > plain.index("(figures/times_2.png)")
    assert "<details" not in markdown
    for title in ("All strategies, Ideal", "Several models, Slow", "Evidence"):
        assert f"<summary><h2>{title}</h2></summary>" in html
        assert f"**{title}**" in markdown


def test_the_keys_of_the_plan_are_those_that_the_reference_lists(written):
    plan = json.loads((written[0] / "plan.json").read_text())
    assert list(plan) == list(plan_content.KEYS)
    assert {tuple(cluster) for cluster in plan["clusters"].values()} == {tuple(plan_content.CLUSTER_KEYS)}


def test_every_predicted_time_has_its_precision_and_device(tmp_path):
    write(tmp_path, found(), precision="tf32")
    page_text, plan = (tmp_path / "README.md").read_text(), json.loads((tmp_path / "plan.json").read_text())
    starts = r"\*\*The best 3|\*\*All strategies:|Times of|Predicted for"
    captions = [line for line in page_text.splitlines() if re.match(starts, line)]
    assert len(captions) == 4
    assert all("cpu" in line and "tf32" in line for line in captions)
    assert plan["precision"] == plan["measured"]["precision"] == "tf32"
    assert "cpu in tf32" in plan["clusters"]["Ideal"]["times_of"]
    assert "cpu in tf32" in plan["clusters"]["Ideal"]["answer"][0]
    assert "float32" not in page_text


def test_the_json_has_what_others_read(written):
    plan = json.loads((written[0] / "plan.json").read_text())
    assert set(plan) >= {"config", "clusters", "rule", "target", "metric", "measured"}
    assert set(plan["rule"]) == {"smin", "bn", "overhead_s", "sample_s"}
    one = plan["clusters"]["Ideal"]
    keys = {"scaling", "devices", "batch", "learning_rate", "steps", "steps_low", "steps_high", "seconds", "seconds_low"}
    keys |= {"seconds_high", "probability_of_failure", "speedup", "efficiency"}
    assert all(set(cell) >= keys for cell in one["cells"])
    assert set(one["best"]) >= {"scaling", "devices", "seconds", "seconds_low", "seconds_high"}
    assert plan["measured"]["steps"]["32"] == pytest.approx(325.0)


def test_the_page_needs_nothing_but_itself(written):
    page = (written[0] / "index.html").read_text()
    assert page.count("<img ") == 2
    assert written[1][0] in page
    for place in ("figures/times_1.png", "figures/times_2.svg", "README.md"):
        assert (written[0] / place).is_file()


def test_what_it_rests_on_is_said(written):
    text = "\n".join(written[1])
    threshold = 32 / batch_rule(found().measured).bn
    assert "growing the batch wins where (a + c) / (b B) > B / Bn. Here a / (b B) = 5 on one device and " in text
    assert f"B / Bn = {threshold:.2g}." in text
    assert "Measuring took 11 epochs and 2.2 min: 1.8 times the base run's 6 epochs, 2.6 times its 50 s" in text
    assert "--optim.best-batches " in text
    assert "warning" not in text


def test_short_runs_and_notes_are_told(tmp_path):
    text = "\n".join(write(tmp_path, found(notes=["something"]), devices=(1, 2)))
    assert "Steps at equal loss: twice the batch takes 0.81 of the base run's." in text
    assert "Twice the learning rate takes 0.71 of the steps, by the second short run." in text
    assert "warning: something" in text


def test_a_number_that_is_none_is_null(tmp_path):
    """A short run may give no number, and a trial that diverges has no progress."""
    numbers = measured(ratios=Ratios(None, None), progress={1.0: 1.0, 2.0: math.nan})
    lines = write(tmp_path, found(measured=numbers), devices=(1, 2))
    assert not any("Steps at equal loss" in line for line in lines)
    plan = json.loads((tmp_path / "plan.json").read_text())
    assert (plan["measured"]["ratios"]["weak"], plan["measured"]["ratios"]["rate_exponent"]) == (None, None)
    assert plan["measured"]["progress"]["2.0"] is None


def test_the_page_has_models_an_hour_for_each_number_of_devices_above_one(written):
    folder, lines = written
    hourly = json.loads((folder / "plan.json").read_text())["clusters"]["Slow"]["models_an_hour"]
    assert [*hourly] == [str(n) for n in DEVICES]
    assert hourly["8"]["side_by_side"]["strong"] == pytest.approx(8 * hourly["1"]["one_after_another"]["strong"])
    assert "side by side" not in "\n".join(lines)
    starts = re.findall(r"^- (\d+) seeds side by side: ", (folder / "README.md").read_text(), re.MULTILINE)
    assert starts == [str(n) for n in DEVICES[1:]] * 2


def test_a_plan_of_one_device_has_no_models_side_by_side(tmp_path):
    assert "side by side" not in "\n".join(write(tmp_path, found(), devices=(1,)))
    assert "Several models" not in (tmp_path / "README.md").read_text()
    plan = json.loads((tmp_path / "plan.json").read_text())
    assert list(plan["clusters"]["Ideal"]["models_an_hour"]) == ["1"]
