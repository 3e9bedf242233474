"""`gmmae plan` as a user meets it: the answer first, everything in plan.json, one line for bad input."""

import json
import re

import pytest

from docs import generate
from gmmae.config.schema import OptimConfig
from gmmae.plotting import canvas, comparison
from gmmae.scaling import strategies
from tests.commands import last_refusal, lines_of
from tests.planner.laboratory import Laboratory
from tests.workloads.test_guide import EXAMPLE


@pytest.mark.slow
def test_a_user_s_own_workload_is_planned(tmp_path, capsys):
    mine, place = tmp_path / "mine.py", tmp_path / "plan"
    mine.write_text(EXAMPLE)
    options = "--stop.monitor accuracy --stop.mode max --stop.target 0.9 --devices 1 2 4"
    printed = lines_of(capsys, "plan", "--workload", mine, *options.split(), "--workdir", place)
    answer = next(line for line in printed if line.startswith("On "))
    assert "linked as in H200, NVLink, 400 Gb/s" in answer
    found = json.loads((place / "plan.json").read_text())
    forecast = found["clusters"]["H200, NVLink, 400 Gb/s"]
    assert {cell["devices"] for cell in forecast["cells"]} == {1, 2, 4}
    assert all(cell["seconds_low"] <= cell["seconds"] <= cell["seconds_high"] for cell in forecast["cells"])
    assert answer.split(":")[0] in (place / "index.html").read_text()
    assert (place / "README.md").read_text().startswith("# Plan: mine\n\n- **Keep 32 or grow? ")
    assert set(found) == set(generate.PLAN_KEYS)
    assert set(forecast) == set(generate.CLUSTER_KEYS)


@pytest.fixture
def measured(monkeypatch):
    """A workload of 100 samples whose training takes no time; pages have small pictures, which take most of theirs."""
    blank = canvas.blank(1.0, "")
    monkeypatch.setattr(comparison, "time_to_target", lambda *_, **__: blank)
    with Laboratory() as laboratory:
        yield laboratory


def words_of(workdir, *arguments):
    options = ("--config", "quickstart", "--optim.batch-size", 8, "--stop.target", 0.2, "--workdir", workdir)
    return "plan", *options, *arguments


def small_plan(capsys, workdir, *arguments):
    return "\n".join(lines_of(capsys, *words_of(workdir, *arguments)))


@pytest.mark.parametrize(("scaling", "left_out"), [("weak", False), ("growing", True), ("sde", True), ("local", True)])
def test_a_strategy_that_no_plan_predicts_is_named(measured, tmp_path, capsys, scaling, left_out):
    assert (f"; {scaling} is left out\n" in small_plan(capsys, tmp_path / "plan", "--scaling", scaling)) is left_out


def cells(workdir, scaling):
    (forecast,) = json.loads((workdir / "plan.json").read_text())["clusters"].values()
    return {cell["devices"]: cell for cell in forecast["cells"] if cell["scaling"] == scaling}


def test_devices_without_a_sample_each_are_never_recommended(measured, tmp_path, capsys):
    assert "200 devices are left out: there are 100 training samples" in small_plan(capsys, tmp_path, "--devices", 1, 200)
    assert {cell["devices"] for cell in cells(tmp_path, "best-batch").values()} == {1}
    error = last_refusal(capsys, *words_of(tmp_path, "--devices", 200))
    assert "devices must be at most the 100 training samples, one for each device; got 200" in error


@pytest.mark.parametrize("devices", [(3, 6), (1, 2, 4, 8, 16)])
def test_the_printed_option_gives_the_planned_batches(measured, tmp_path, capsys, devices):
    (batches,) = re.findall(r"--optim\.best-batches ([\d ]+)", small_plan(capsys, tmp_path, "--devices", *devices))
    optim = OptimConfig(batch_size=8, best_batches=tuple(map(int, batches.split())))
    for n, cell in cells(tmp_path, "best-batch").items():
        assert strategies.resolve("best-batch", optim, n, 100).stages[0].batch == cell["batch"]


def test_the_times_of_one_device_are_not_called_those_of_another(measured, tmp_path, capsys):
    """A file's `reference_step_s` names times of a GPU without anybody asking."""
    seconds = []
    for options, words in {
        (): "On 32 devices as fast as the one that measured (cpu in float32), linked as in H200, NVLink, 400 Gb/s: ",
        ("--scale-compute", 0.02): (
            "of H200, NVLink, 400 Gb/s, times scaled by 0.02 from steps measured on cpu in float32 (--scale-compute): "
        ),
        ("--clusters", "k80_1gbe"): "from steps measured on cpu in float32 (reference_step_s in the cluster's file): ",
    }.items():
        assert words in small_plan(capsys, tmp_path, *options)
        seconds.append(cells(tmp_path, "strong")[1]["seconds"])
    assert seconds[1] == pytest.approx(0.02 * seconds[0])
