"""A plan's measurements: resumable, and refused where the base run misses the target."""

import json
import math

import pytest

from gmmae.planner.measure import measure
from gmmae.planner.measurements import claimed
from gmmae.scaling.cost import Cluster
from gmmae.system.errors import InputError
from gmmae.system.null_object import IDLE
from tests.planner.laboratory import Laboratory
from tests.small import small

FAST = Cluster("Fast", "cpu", 8, 1e-9, 1e15, 1e-9, 1e15)


def plan(root, devices=(1, 2), clusters=(), scale=None, **changes):
    options = {"stop__target": 0.5, "stop__max_epochs": 200} | changes
    with claimed(root):
        return measure("mine", small(**options), root, lambda: IDLE, devices, clusters, scale)


def tried_plan(root, **laboratory):
    """A plan on fast devices, and what it recommends."""
    with Laboratory(**laboratory):
        found = plan(root, (2, 4, 8), (FAST,), 1e-3, stop__target=0.1)
    best = found.forecasts[0].best
    assert best
    return found, best


@pytest.mark.parametrize(("target", "short"), [(0.8, True), (0.1, False)])
def test_a_base_run_shorter_than_those_of_the_zoo_is_told(tmp_path, target, short):
    with Laboratory():
        warnings = plan(tmp_path, stop__target=target).warnings
    assert ["takes 1 epoch, fewer than the 2 of " in note for note in warnings if "the base run" in note] == [True] * short


def test_a_target_that_is_not_reached_is_told_with_the_best_value(tmp_path):
    with Laboratory(), pytest.raises(InputError, match=r"loss 1e-09; got [\d.e-]+ at best in 2 epochs \(max_epochs\)"):
        plan(tmp_path, stop__target=1e-9, stop__max_epochs=2)


def test_measurements_are_stored_and_not_made_again(tmp_path):
    with Laboratory() as laboratory:
        first = plan(tmp_path, stop__target=0.3)
        made = laboratory.made
        assert plan(tmp_path, stop__target=0.3) == first
        assert laboratory.made == made > 0


def test_short_runs_tell_what_a_larger_batch_and_learning_rate_bring(tmp_path):
    """In the laboratory the steps at equal loss are those of 1 + 20 / B, over the root of the learning rate."""
    with Laboratory():
        measured = plan(tmp_path, stop__target=0.1, precision="float64").measured
    assert (measured.train and measured.train.batches, measured.gradient_bytes) == ((1, 8, 16, 32), 8000)
    assert measured.ratios.weak == pytest.approx(math.log((1 + 20 / 16) / (1 + 20 / 8)), abs=0.1)
    assert measured.ratios.rate_exponent == pytest.approx(-0.5, abs=0.15)


def test_what_is_recommended_has_been_tried_and_a_failed_trial_gives_way_to_the_next_best(tmp_path):
    """In the laboratory eight times the learning rate diverges, and steps cost next to nothing but their overhead."""
    found, best = tried_plan(tmp_path)
    assert best.attempt not in found.measured.failed_trials
    rate = small().optim.learning_rate
    assert any(tried == pytest.approx(8 * rate) for _, tried, _ in found.measured.failed_trials)
    assert rate < best.learning_rate < 8 * rate
    tried = [name for name in found.evidence["epochs"] if name.startswith("trial of ")]
    assert len(tried) == 1 + len(found.measured.failed_trials)
    assert f"trial of {best.scaling} with batch {best.batch} and " in tried[-1]


def test_a_trial_that_does_not_fit_into_memory_gives_way_to_the_next_best(tmp_path):
    found, best = tried_plan(tmp_path, memory=32)
    assert best.batch <= 32 < max(batch for batch, *_ in found.measured.failed_trials)
    assert any("did not fit into the memory of one device" in fact for fact in found.facts)
    assert tried_plan(tmp_path, memory=32)[0] == found


def test_what_does_not_fit_into_the_memory_of_a_device_is_not_tried(tmp_path):
    found, best = tried_plan(tmp_path, known_memory=4)
    assert best.batch <= 4 * best.devices
    assert any("does not fit; 8 samples on a device need 8 of 4 GB" in fact for fact in found.facts)
    assert all(batch <= 32 for batch in (int(name.split()[5]) for name in found.evidence["epochs"] if name.startswith("trial")))


@pytest.mark.parametrize("name", ["version of gmmae", "configuration", "data", "device"])
def test_measurements_of_something_else_are_refused(tmp_path, name):
    path = tmp_path / "measured.json"
    with Laboratory():
        plan(tmp_path)
        with pytest.raises(InputError, match=r'optim.clip_norm was "none", now 0.5'):
            plan(tmp_path, optim__clip_norm=0.5)
        with pytest.raises(InputError, match="the same spacing of validations; got"):
            plan(tmp_path, stop__validate_every_steps=1)
        kept = json.loads(path.read_text())
        kept["shared"][name] = "another"
        path.write_text(json.dumps(kept))
        with pytest.raises(InputError, match=f"the same {name}; got"):
            plan(tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", "3", '{"seconds": []}', "[" * 100_000])
def test_a_damaged_file_is_told(tmp_path, text):
    (tmp_path / "measured.json").write_text(text)
    with pytest.raises(InputError, match=r"measured.json must be what a plan has measured"):
        plan(tmp_path)


@pytest.mark.parametrize("changes", [{"stop__target": None}, {"optim__batch_size": 101}])
def test_a_refused_plan_leaves_what_was_there_and_nothing_else(tmp_path, changes):
    with Laboratory():
        with pytest.raises(InputError):
            plan(tmp_path / "runs" / "plan", **changes)
        assert not any(tmp_path.iterdir())
        plan(tmp_path)
        kept = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
        with pytest.raises(InputError):
            plan(tmp_path, **changes)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == kept
