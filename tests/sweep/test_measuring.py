"""A plan's measurements: resumable, bounded by a budget, and refused where the base run misses the target."""

import json

import pytest

from gmmae.base.errors import InputError
from gmmae.base.idle import IDLE
from gmmae.sweep import measuring
from gmmae.sweep.measuring import PlanDir, measure
from gmmae.training import loop
from tests.small import small

REACHED = 0.05
"""A loss that the first epoch of `small` reaches."""


def plan(root, **changes):
    arguments = {"devices": (1, 2), "budget_epochs": changes.pop("budget_epochs", 0)}
    return measure(small(stop__target=REACHED, **changes), root, lambda: IDLE, **arguments)


def test_a_target_must_be_given(tmp_path):
    with pytest.raises(InputError, match=r"stop.target must be given, because a plan is one of reaching it; got 0"):
        measure(small(), tmp_path, lambda: IDLE, devices=(1,))


@pytest.mark.slow
def test_what_is_measured_is_not_measured_again(tmp_path, monkeypatch):
    found = plan(tmp_path)
    assert set(found.measured.steps) == {8, 2}
    assert found.measured.samples + found.measured.validation == 28
    assert 2.0 in found.measured.progress
    assert found.measured.train.batches[0] == 1
    for batch in (8, 2):  # as the runs themselves took
        rows = PlanDir(tmp_path).run(batch).read_rows()
        took = rows[-1].train_s / rows[-1].steps
        assert found.measured.train.at(batch) == pytest.approx(took, rel=1e-6 if len(rows) == 1 else 0.5)
    assert set(found.epochs) == set(found.seconds)
    monkeypatch.setattr(measuring.probes, "trials", None)
    monkeypatch.setattr(measuring.probes, "gradient_norms", None)
    monkeypatch.setattr(measuring.throughput, "measure", None)
    again = plan(tmp_path)
    assert again.measured == found.measured
    assert again.epochs == found.epochs


@pytest.mark.slow
def test_a_budget_leaves_out_the_second_run(tmp_path):
    found = plan(tmp_path, budget_epochs=1)
    assert list(found.measured.steps) == [8]
    assert "no second batch was run" in found.notes[-1]


@pytest.mark.slow
def test_a_target_that_is_not_reached_is_told_with_what_was(tmp_path):
    with pytest.raises(
        InputError, match=r"must reach stop.target, loss 1e-09; got [\d.e-]+ at best in 2 epochs \(max_epochs\)"
    ):
        measure(small(stop__target=1e-9, stop__max_epochs=2), tmp_path, lambda: IDLE, devices=(1,))


def test_another_plan_s_folder_is_refused(tmp_path):
    (tmp_path / "measured.json").write_text(json.dumps({"run_id": "another"}))
    with pytest.raises(InputError, match="workdir must be that of a plan of the same configuration"):
        plan(tmp_path)


def test_a_damaged_file_is_told(tmp_path):
    (tmp_path / "measured.json").write_text("{")
    with pytest.raises(InputError, match=r"measured.json must be what a plan has measured"):
        plan(tmp_path)


def test_an_interrupted_run_ends_the_plan(tmp_path, monkeypatch):
    class Ended:
        stop_reason = "sigterm"

    monkeypatch.setattr(loop, "run", lambda *_: Ended())
    with pytest.raises(measuring.Interrupted, match="sigterm"):
        plan(tmp_path)


@pytest.mark.slow
def test_rates_are_tuned_batch_by_batch(tmp_path):
    found = measure(small(stop__target=REACHED), tmp_path, lambda: IDLE, devices=(1, 2), tune=True)
    assert len(found.tuned_factors) == 2
    tried = json.loads((tmp_path / "measured.json").read_text())["parts"]
    for factor, batch in zip(found.tuned_factors, (8, 16), strict=True):
        of_batch = tried[f"rates at batch {batch}"]
        assert of_batch[str(factor)] == min(of_batch.values())


def test_paths_lie_below_the_folder(tmp_path):
    assert PlanDir(tmp_path).run(8).root == tmp_path / "runs" / "batch_8"
