import math
from dataclasses import replace

import numpy as np
import pytest

from gmmae.config.schema import changed
from gmmae.sweep.grid import RunKey
from gmmae.sweep.report import cells, tensorboard
from tests import sweeps
from tests.sweep.report.conftest import add_times
from tests.sweeps import FLAT, GRID, TARGET
from tests.training.test_tensorboard import hparams, read

CONFIG = replace(GRID, scaling=("strong", "linear"), devices=(1, 2), seeds=(0,))


def write(config, root):
    return tensorboard.write(cells.read(config, root, [FLAT])[0])


@pytest.fixture
def root(tmp_path):
    for n in (1, 2):
        sweeps.reach(CONFIG, tmp_path, RunKey("strong", n, 0), 10)
    sweeps.add(CONFIG, tmp_path, RunKey("linear", 2, 0), "collapsed", 3, 0.0148)
    return tmp_path


def load(root, name):
    """By tag the triples of a step, seconds since the first event, and a value of a log."""
    events = read(root / "tb" / name)
    by_tag = {tag: events.Scalars(tag) for tag in events.Tags()["scalars"]}
    return {
        tag: [(event.step, event.wall_time - rows[0].wall_time, event.value) for event in rows] for tag, rows in by_tag.items()
    }


def test_each_run_comes_back_with_its_losses_and_its_projected_time(root):
    (root / "tb" / "stale").mkdir(parents=True)
    add_times(root)
    assert write(CONFIG, root) == root / "tb"
    assert not (root / "tb" / "stale").exists()
    names = sorted(path.parent.relative_to(root / "tb").as_posix() for path in (root / "tb").rglob("events*"))
    compared = ["compare/linear_projected", "compare/strong_projected", "compare/target"]
    assert names == [*compared, *(f"{key}/seed0_projected" for key in ("linear/n01", "linear/n02", "strong/n01", "strong/n02"))]
    strong = load(root, "strong/n02/seed0_projected")
    history = cells.read(CONFIG, root, [FLAT])[0].cells["strong", 2].runs[0].history
    # Seconds are those of TensorBoard's axis "Relative".
    expected = [(row.epoch, 21.8 * (row.epoch - 1), row.val_loss) for row in history]
    np.testing.assert_allclose(strong["loss/validation"], expected, rtol=1e-5)
    assert strong["time/projected_s"][2][2] == pytest.approx(3 * 21.8)
    assert strong["result/projected_time_to_target_s"][0][::2] == pytest.approx((10, 218.0))
    assert not strong.keys() & {"result/time_to_target_s", "time/train_s", "time/total_s"}
    missed = load(root, "linear/n02/seed0_projected")
    assert "result/projected_time_to_target_s" not in missed
    assert missed["result/best_val_loss"][0][::2] == pytest.approx((3, 0.0148))


def test_charts_have_the_arms_and_the_target_for_each_number_of_devices(root):
    add_times(root)
    write(CONFIG, root)
    strong, linear, target = (load(root, f"compare/{run}") for run in ("strong_projected", "linear_projected", "target"))
    assert strong.keys() == linear.keys() == target.keys() == {"compare/n01_loss", "compare/n02_loss"}
    # Lines begin where the run does, so that the axis "Relative" has the first epoch too.
    np.testing.assert_allclose(strong["compare/n02_loss"][0], (0, 0.0, math.nan))
    np.testing.assert_allclose(strong["compare/n02_loss"][1][:2], (1, 21.8), rtol=1e-5)
    np.testing.assert_allclose(linear["compare/n02_loss"][-1], (3, 3 * 13.0, 0.0148), rtol=1e-5)
    np.testing.assert_allclose(target["compare/n02_loss"], [(0, 0.0, TARGET), (10, 218.0, TARGET)], rtol=1e-5)


def test_of_several_seeds_the_one_of_the_median_time_is_charted_and_a_miss_is_the_slowest(tmp_path):
    config = replace(CONFIG, mode="measured", scaling=("strong", "weak"), devices=(2,), seeds=(0, 1, 2))
    config = replace(config, run=changed(config.run, stop__target=None))
    for seed, epochs in enumerate((4, 8, 6)):
        sweeps.reach(config, tmp_path, RunKey("strong", 2, seed), epochs)
    sweeps.reach(config, tmp_path, RunKey("weak", 2, 0), 10)
    sweeps.add(config, tmp_path, RunKey("weak", 2, 1), "max_epochs", 5, 0.01)
    write(config, tmp_path)
    ends = [load(tmp_path, f"compare/{scaling}")["compare/n02_loss"][-1][:2] for scaling in ("strong", "weak")]
    assert ends == [(6, 15.0), (5, 12.5)]
    assert load(tmp_path, "compare/target") == {}  # there is none
    measured = load(tmp_path, "strong/n02/seed1")  # with the names of measured times
    assert measured["result/time_to_target_s"][0] == (8, 0.0, 20.0)
    assert measured["time/train_s"][3][2] == 8.0
    assert measured["loss/train"][-1][1] == pytest.approx(7 * 2.5)


def test_hparams_say_which_run_it_is_and_without_times_there_are_none(root):
    write(CONFIG, root)
    assert not (root / "tb" / "compare").exists()
    told = hparams(root / "tb" / "linear/n02/seed0")["_hparams_/session_start_info"].session_start_info.hparams
    assert (told["Strategy"].string_value, told["outcome"].string_value) == ("linear", "collapsed")
    numbers = {"Devices": 2, "Seed": 0, "Batch": 64, "Learning rate": 0.0021}
    assert {name: told[name].number_value for name in numbers} == pytest.approx(numbers)
    assert not [tag for tag in load(root, "linear/n02/seed0") if "time" in tag]


def test_without_histories_there_is_no_board(tmp_path):
    assert write(CONFIG, tmp_path) is None
    assert not (tmp_path / "tb").exists()
