import math
from dataclasses import replace

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import plugin_data_pb2

from gmmae.config.schema import changed
from gmmae.sweep.grid import RunKey
from gmmae.sweep.report import results, tensorboard
from tests import sweeps
from tests.sweeps import FLAT, GRID, PASSES, STEPS, TARGET

CONFIG = replace(GRID, scaling=("strong", "linear"), devices=(1, 2), seeds=(0,))


@pytest.fixture
def root(tmp_path):
    sweeps.reach(CONFIG, tmp_path, RunKey("strong", 1, 0), 10)
    sweeps.reach(CONFIG, tmp_path, RunKey("strong", 2, 0), 10)
    sweeps.add(CONFIG, tmp_path, RunKey("linear", 2, 0), "collapsed", 3, 0.0148)
    return tmp_path


def load(folder):
    return EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()


def scalars(events, tag):
    return {event.step: event.value for event in events.Scalars(tag)}


def test_each_run_comes_back_with_its_losses_and_its_projected_time(root):
    sweeps.add_step_times(root, 1, STEPS, PASSES)
    found = results.read(CONFIG, root, FLAT)
    assert tensorboard.write(found) == root / "tb"
    names = sorted(path.parent.relative_to(root / "tb").as_posix() for path in (root / "tb").rglob("events*"))
    compared = ["compare/linear_projected", "compare/strong_projected", "compare/target"]
    assert names == [*compared, *(f"{key}/seed0_projected" for key in ("linear/n02", "strong/n01", "strong/n02"))]
    events = load(root / "tb" / "strong" / "n02" / "seed0_projected")
    first, *_, last = events.Scalars("loss/validation")
    assert last.wall_time - first.wall_time == pytest.approx((last.step - 1) * 21.8)  # TensorBoard's axis "Relative"
    history = found.history(found.group("strong", 2)[0])
    assert scalars(events, "loss/validation") == pytest.approx({row.epoch: row.val_loss for row in history}, rel=1e-6)
    assert scalars(events, "time/projected_s")[3] == pytest.approx(3 * 21.8)
    assert scalars(events, "result/projected_time_to_target_s") == pytest.approx({10: 218.0})
    tags = set(events.Tags()["scalars"])
    assert not tags & {"result/time_to_target_s", "time/train_s", "time/total_s"}
    missed = load(root / "tb" / "linear" / "n02" / "seed0_projected")
    assert "result/projected_time_to_target_s" not in missed.Tags()["scalars"]
    assert scalars(missed, "result/best_val_loss") == pytest.approx({3: 0.0148})


def compared(root, run):
    """The events of a run of the comparison, as triples of a step, seconds and a value, by tag."""
    events = load(root / "tb" / "compare" / run)
    by_tag = {tag: events.Scalars(tag) for tag in events.Tags()["scalars"]}
    return {
        tag: [(event.step, event.wall_time - rows[0].wall_time, event.value) for event in rows] for tag, rows in by_tag.items()
    }


def test_charts_have_the_arms_and_the_target_for_each_number_of_devices(root):
    sweeps.add_step_times(root, 1, STEPS, PASSES)
    found = results.read(CONFIG, root, FLAT)
    tensorboard.write(found)
    strong, linear, target = (compared(root, run) for run in ("strong_projected", "linear_projected", "target"))
    assert strong.keys() == target.keys() == {"compare/n01_loss", "compare/n02_loss"}
    assert linear.keys() == {"compare/n02_loss"}
    # Lines begin where the run does, so that the axis "Relative" has the first epoch too.
    first, *others = strong["compare/n02_loss"]
    assert first[:2] == (0, 0.0)
    assert math.isnan(first[2])
    history = found.history(found.group("strong", 2)[0])
    np.testing.assert_allclose(others, [(row.epoch, 21.8 * row.epoch, row.val_loss) for row in history], rtol=1e-5)
    np.testing.assert_allclose(linear["compare/n02_loss"][-1], (3, 3 * 13.0, 0.0148), rtol=1e-5)
    np.testing.assert_allclose(target["compare/n02_loss"], [(0, 0.0, TARGET), (1, 218.0, TARGET)], rtol=1e-5)


def test_of_several_seeds_the_one_of_the_median_time_is_charted_and_a_miss_is_the_slowest(tmp_path):
    config = replace(CONFIG, mode="measured", scaling=("strong", "weak"), devices=(2,), seeds=(0, 1, 2))
    for seed, epochs in enumerate((4, 8, 6)):
        sweeps.reach(config, tmp_path, RunKey("strong", 2, seed), epochs)
    sweeps.reach(config, tmp_path, RunKey("weak", 2, 0), 10)
    sweeps.add(config, tmp_path, RunKey("weak", 2, 1), "max_epochs", 5, 0.01)
    tensorboard.write(results.read(config, tmp_path, None))
    assert [compared(tmp_path, scaling)["compare/n02_loss"][-1][:2] for scaling in ("strong", "weak")] == [(6, 15.0), (5, 12.5)]


def test_without_a_target_the_arms_are_charted_alone(tmp_path):
    config = replace(CONFIG, mode="measured", run=changed(CONFIG.run, stop__target=None))
    sweeps.reach(config, tmp_path, RunKey("strong", 2, 0), 4)
    tensorboard.write(results.read(config, tmp_path, None))
    assert compared(tmp_path, "target") == {}
    assert len(compared(tmp_path, "strong")["compare/n02_loss"]) == 5


def test_without_times_nothing_is_charted_over_them(root):
    tensorboard.write(results.read(CONFIG, root, None))
    assert not (root / "tb" / "compare").exists()


def test_hparams_say_which_run_it_is(root):
    tensorboard.write(results.read(CONFIG, root, FLAT))
    events = load(root / "tb" / "linear" / "n02" / "seed0")
    content = events.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    plugin = getattr(plugin_data_pb2, "HParamsPluginData")  # noqa: B009 – protobuf makes it at import
    told = plugin.FromString(content).session_start_info.hparams
    assert (told["scaling"].string_value, told["outcome"].string_value) == ("linear", "collapsed")
    assert (told["devices"].number_value, told["global_batch"].number_value) == (2, 64)
    assert not [tag for tag in events.Tags()["scalars"] if "time" in tag]  # there are no step times


def test_measured_times_keep_their_names(tmp_path):
    config = replace(CONFIG, mode="measured")
    sweeps.reach(config, tmp_path, RunKey("strong", 2, 0), 10)
    tensorboard.write(results.read(config, tmp_path, None))
    events = load(tmp_path / "tb" / "strong" / "n02" / "seed0")
    assert scalars(events, "result/time_to_target_s") == {10: 25.0}
    assert scalars(events, "time/train_s")[4] == 8.0
    first, *_, last = events.Scalars("loss/train")
    assert last.wall_time - first.wall_time == pytest.approx(9 * 2.5)


def test_it_is_made_anew_each_time_and_not_without_histories(root):
    (root / "tb" / "stale").mkdir(parents=True)
    assert tensorboard.write(results.read(CONFIG, root, None)) == root / "tb"
    assert not (root / "tb" / "stale").exists()
    empty = root / "empty"
    assert tensorboard.write(results.read(CONFIG, empty, None)) is None
    assert not empty.exists()
