"""A plan's measurements: resumable, bounded by a budget, and refused where the base run misses the target."""

import json

import pytest

from gmmae.planner import measurements, trials
from gmmae.planner.measure import PlanRequest, measure
from gmmae.planner.measurements import PlanDir, PlanInterruptedError, claimed
from gmmae.sweep import throughput
from gmmae.system.errors import InputError
from gmmae.system.null_object import IDLE
from gmmae.training import loop, noise_scale
from tests.planner.laboratory import Laboratory
from tests.small import small

REACHED = 0.05
"""A loss that the first epoch of `small` reaches."""


def plan(root, budget_epochs=None, noise_scale=False, tune=False, **changes):
    with claimed(root) as folder:
        request = PlanRequest((1, 2), budget_epochs=budget_epochs, noise_scale=noise_scale, tune=tune)
        return measure(small(**{"stop__target": REACHED} | changes), folder, lambda: IDLE, request)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plan")
    return folder, plan(folder, noise_scale=True, tune=True)


@pytest.mark.slow
def test_measurements_are_stored_and_not_made_again(tuned, monkeypatch):
    folder, first = tuned
    assert set(first.measured.steps) == {8, 2}
    assert first.measured.samples + first.measured.validation == 28
    assert 2.0 in first.measured.progress
    assert first.measured.train.batches[0] == 1
    for batch in (8, 2):  # as the runs themselves took
        rows = PlanDir(folder).run(batch).read_rows()
        took = rows[-1].train_s / rows[-1].steps
        assert first.measured.train.at(batch) == pytest.approx(took, rel=1e-6 if len(rows) == 1 else 0.5)
    assert first.norms is not None
    assert set(first.epochs) == set(first.seconds)
    for module, name in ((trials, "learning_rate_trials"), (noise_scale, "gradient_norms"), (throughput, "measure")):
        monkeypatch.setattr(module, name, lambda *_: pytest.fail("measured again"))
    again = plan(folder, noise_scale=True, tune=True)
    assert again.measured == first.measured
    assert again.epochs == first.epochs


@pytest.mark.slow
def test_rates_are_tuned_batch_by_batch(tuned):
    folder, measurements = tuned
    assert len(measurements.tuned_factors) == 2
    parts = json.loads((folder / "measured.json").read_text())["parts"]
    for factor, devices in zip(measurements.tuned_factors, (1, 2), strict=True):
        losses = {name: loss for name, loss in parts.items() if name.endswith(f"of weak on {devices}")}
        assert len(losses) == 6
        assert min(losses, key=lambda name, losses=losses: losses[name]).startswith(f"{factor:g} times")


def test_a_budget_leaves_out_the_second_run(tmp_path):
    with Laboratory():
        measurements = plan(tmp_path, budget_epochs=11, stop__target=0.5)
    assert sum(measurements.epochs.values()) <= 11
    assert list(measurements.measured.steps) == [8]
    assert "no run at a second batch" in measurements.notes[-1]


@pytest.mark.slow
def test_the_noise_scale_at_an_easier_target_is_that_of_a_fresh_plan(tmp_path):
    """The run has gone on to the harder target, so its newest checkpoint is of a later epoch."""
    plan(tmp_path / "used", stop__target=0.02, stop__max_epochs=20)
    again, fresh = (plan(tmp_path / name, noise_scale=True).norms for name in ("used", "fresh"))
    assert again == fresh


def test_a_target_that_is_not_reached_is_told_with_the_best_value(tmp_path):
    message = r"must reach stop.target, loss 1e-09; got [\d.e-]+ at best in 2 epochs \(max_epochs\)"
    with Laboratory(), pytest.raises(InputError, match=message):
        plan(tmp_path, stop__target=1e-9, stop__max_epochs=2)


@pytest.mark.parametrize("name", ["version of gmmae", "configuration", "data", "device", "workload"])
def test_measurements_of_something_else_are_refused(tmp_path, name):
    with claimed(tmp_path) as folder:
        measurements.Measurements(small(), folder, lambda: IDLE).part("a part", lambda: 1)
    kept = json.loads((tmp_path / "measured.json").read_text())
    kept["shared"][name] = "another"
    (tmp_path / "measured.json").write_text(json.dumps(kept))
    with pytest.raises(InputError, match=f"workdir must be that of a plan of the same {name}; got"):
        plan(tmp_path)


def test_a_plan_of_another_configuration_says_what_differs(tmp_path):
    with claimed(tmp_path) as folder:
        measurements.Measurements(small(), folder, lambda: IDLE).part("a part", lambda: 1)
    with pytest.raises(InputError, match=r'same configuration; got .* where optim.clip_norm was "none", now 0.5: give another'):
        plan(tmp_path, optim__clip_norm=0.5)


@pytest.mark.parametrize("text", ["{", "[]", "3", '{"parts": []}', "[" * 100_000])
def test_a_damaged_file_is_told(tmp_path, text):
    (tmp_path / "measured.json").write_text(text)
    with pytest.raises(InputError, match=r"measured.json must be what a plan has measured"):
        plan(tmp_path)


def test_an_interrupted_run_ends_the_plan(tmp_path, monkeypatch):
    class Ended:
        stop_reason = "sigterm"

    monkeypatch.setattr(loop, "run", lambda *_, **__: Ended())
    with pytest.raises(PlanInterruptedError, match="sigterm"):
        plan(tmp_path)
