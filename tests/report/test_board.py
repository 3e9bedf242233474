from dataclasses import replace

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import plugin_data_pb2

from gmmae.report import board, results
from gmmae.sweep.grid import Cell
from tests import sweeps
from tests.sweeps import FLAT, GRID, PASSES, STEPS

CONFIG = replace(GRID, arms=("strong", "linear"), devices=(1, 2), seeds=(0,))


@pytest.fixture
def root(tmp_path):
    sweeps.reach(CONFIG, tmp_path, Cell("strong", 1, 0), 10)
    sweeps.reach(CONFIG, tmp_path, Cell("strong", 2, 0), 10)
    sweeps.add(CONFIG, tmp_path, Cell("linear", 2, 0), "collapsed", 3, 0.0148)
    return tmp_path


def load(folder):
    return EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()


def scalars(events, tag):
    return {event.step: event.value for event in events.Scalars(tag)}


def test_each_cell_comes_back_with_its_losses_and_its_projected_time(root):
    sweeps.add_step_times(root, 1, STEPS, PASSES)
    found = results.read(CONFIG, root, FLAT)
    assert board.write(found) == root / "tb"
    names = sorted(path.parent.relative_to(root / "tb").as_posix() for path in (root / "tb").rglob("events*"))
    assert names == [f"{cell}/seed0_projected" for cell in ("linear/n02", "strong/n01", "strong/n02")]
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


def test_hparams_say_which_cell_it_is(root):
    board.write(results.read(CONFIG, root, FLAT))
    events = load(root / "tb" / "linear" / "n02" / "seed0")
    content = events.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    plugin = getattr(plugin_data_pb2, "HParamsPluginData")  # noqa: B009 – protobuf makes it at import
    told = plugin.FromString(content).session_start_info.hparams
    assert (told["arm"].string_value, told["outcome"].string_value) == ("linear", "collapsed")
    assert (told["devices"].number_value, told["global_batch"].number_value) == (2, 64)
    assert not [tag for tag in events.Tags()["scalars"] if "time" in tag]  # there are no step times


def test_measured_times_keep_their_names(tmp_path):
    config = replace(CONFIG, mode="measured")
    sweeps.reach(config, tmp_path, Cell("strong", 2, 0), 10)
    board.write(results.read(config, tmp_path, None))
    events = load(tmp_path / "tb" / "strong" / "n02" / "seed0")
    assert scalars(events, "result/time_to_target_s") == {10: 25.0}
    assert scalars(events, "time/train_s")[4] == 8.0
    first, *_, last = events.Scalars("loss/train")
    assert last.wall_time - first.wall_time == pytest.approx(9 * 2.5)


def test_it_is_made_anew_each_time_and_not_without_histories(root):
    (root / "tb" / "stale").mkdir(parents=True)
    assert board.write(results.read(CONFIG, root, None)) == root / "tb"
    assert not (root / "tb" / "stale").exists()
    empty = root / "empty"
    assert board.write(results.read(CONFIG, empty, None)) is None
    assert not empty.exists()
