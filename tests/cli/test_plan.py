"""`gmmae plan` as a user meets it: the answer first, everything in plan.json, one line for bad input."""

import json
import re

import pytest

from docs import generate
from gmmae.config.schema import OptimConfig
from gmmae.plotting import canvas, comparison
from gmmae.scaling import strategies
from tests.commands import run_gmmae
from tests.planner.laboratory import Laboratory
from tests.workloads.test_guide import EXAMPLE


def plan(capsys, *arguments):
    code = run_gmmae("plan", *arguments)
    return code, *capsys.readouterr()


@pytest.mark.slow
def test_a_user_s_own_workload_is_planned(tmp_path, capsys):
    (tmp_path / "mine.py").write_text(EXAMPLE)
    options = ("--stop.monitor", "accuracy", "--stop.mode", "max", "--stop.target", "0.9", "--devices", "1", "2", "4")
    code, out, _ = plan(capsys, "--workload", tmp_path / "mine.py", *options, "--workdir", tmp_path / "plan")
    assert code == 0
    answer = next(line for line in out.splitlines() if line.startswith("On "))
    assert "linked as in H200, NVLink, 400 Gb/s" in answer
    found = json.loads((tmp_path / "plan" / "plan.json").read_text())
    cells = found["clusters"]["H200, NVLink, 400 Gb/s"]["cells"]
    assert {cell["devices"] for cell in cells} == {1, 2, 4}
    assert all(cell["seconds_low"] <= cell["seconds"] <= cell["seconds_high"] for cell in cells)
    page = (tmp_path / "plan" / "index.html").read_text()
    assert answer.split(":")[0] in page
    assert (tmp_path / "plan" / "README.md").read_text().startswith("# Plan: mine\n\n- **Keep 32 or grow? ")
    assert set(found) == set(generate.PLAN_KEYS)
    assert set(found["clusters"]["H200, NVLink, 400 Gb/s"]) == set(generate.CLUSTER_KEYS)


@pytest.fixture
def measured(monkeypatch):
    """A workload of 100 samples whose training takes no time; pages have small pictures, which take most of theirs."""
    blank = canvas.blank(1.0, "")
    monkeypatch.setattr(comparison, "time_to_target", lambda *_, **__: blank)
    with Laboratory() as laboratory:
        yield laboratory


def small_plan(capsys, workdir, *arguments, target="0.2"):
    options = ("--config", "quickstart", "--optim.batch-size", 8, "--stop.target", target, "--workdir", workdir)
    return plan(capsys, *options, *arguments)


@pytest.mark.parametrize(("scaling", "left_out"), [("weak", False), ("growing", True), ("sde", True), ("local", True)])
def test_a_strategy_that_no_plan_predicts_is_named(measured, tmp_path, capsys, scaling, left_out):
    code, out, _ = small_plan(capsys, tmp_path / "plan", "--scaling", scaling)
    assert code == 0
    assert (f"; {scaling} is left out\n" in out) is left_out


def cells(workdir, scaling):
    (forecast,) = json.loads((workdir / "plan.json").read_text())["clusters"].values()
    return {cell["devices"]: cell for cell in forecast["cells"] if cell["scaling"] == scaling}


def test_devices_without_a_sample_each_are_never_recommended(measured, tmp_path, capsys):
    code, out, _ = small_plan(capsys, tmp_path, "--devices", 1, 200)
    assert code == 0
    assert "200 devices are left out: there are 100 training samples" in out
    assert {cell["devices"] for cell in cells(tmp_path, "best-batch").values()} == {1}
    code, _, err = small_plan(capsys, tmp_path, "--devices", 200)
    assert code == 2
    assert "devices must be at most the 100 training samples, one for each device; got 200" in err


@pytest.mark.parametrize("devices", [(3, 6), (1, 2, 4, 8, 16)])
def test_the_printed_option_gives_the_planned_batches(measured, tmp_path, capsys, devices):
    _, out, _ = small_plan(capsys, tmp_path, "--devices", *devices)
    (batches,) = re.findall(r"--optim\.best-batches ([\d ]+)", out)
    optim = OptimConfig(batch_size=8, best_batches=tuple(map(int, batches.split())))
    for n, cell in cells(tmp_path, "best-batch").items():
        assert strategies.resolve("best-batch", optim, n, 100).stages[0].batch == cell["batch"]


def test_the_times_of_one_device_are_not_called_those_of_another(measured, tmp_path, capsys):
    """A file's `reference_step_s` names times of a GPU without anybody asking."""
    _, out, _ = small_plan(capsys, tmp_path)
    assert "On 32 devices as fast as the one that measured (cpu in float32), linked as in H200, NVLink, 400 Gb/s: " in out
    plain = cells(tmp_path, "strong")[1]["seconds"]
    _, out, _ = small_plan(capsys, tmp_path, "--scale-compute", 0.02)
    assert "of H200, NVLink, 400 Gb/s, times scaled by 0.02 from steps measured on cpu in float32 (--scale-compute): " in out
    assert cells(tmp_path, "strong")[1]["seconds"] == pytest.approx(0.02 * plain)
    _, out, _ = small_plan(capsys, tmp_path, "--clusters", "k80_1gbe")
    assert "from steps measured on cpu in float32 (reference_step_s in the cluster's file): " in out
