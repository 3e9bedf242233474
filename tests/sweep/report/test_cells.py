import math
from dataclasses import replace

import pytest

from gmmae.config.schema import changed
from gmmae.sweep.grid import RunKey
from gmmae.sweep.report import cells, figures
from gmmae.system.errors import InputError
from tests import sweeps
from tests.sweep.report.conftest import add_times
from tests.sweeps import FLAT, GRID, PASSES

INF = math.inf


def read(config, root, *clusters):
    (found,) = cells.read(config, root, clusters or [FLAT])
    return found


def near(expected):
    return pytest.approx(expected, nan_ok=True, rel=1e-4)


def test_projected_cells_worked_by_hand(projected):
    assert projected.source.short == "projected to Flat, with steps of cpu"
    assert len(projected.runs) == 34  # of 36 one has crashed, which is no miss, and one has no record
    assert projected.cells["linear-warmup", 4].times == {0: INF}
    strong, weak = projected.cells["strong", 2], projected.cells["weak", 2]
    assert strong.runs[0].history is projected.cells["strong", 1].runs[0].history  # of the path that they share
    assert strong.runs[0].elapsed_s[2] == near(3 * 21.8)
    assert strong.times == near({0: 218.0, 1: 218.0, 2: 218.0})
    assert strong.efficiency == near((100 * 100 / (2 * 218), math.nan, math.nan))  # one path a seed does not vary
    assert (strong.compared, strong.batch, strong.learning_rate) == (0, "32", 0.00105)
    assert weak.efficiency == near((100 * 100 / (2 * 520),) * 3)
    assert weak.ratio == near((520 / 218,) * 3)
    assert (weak.compared, weak.slower, weak.p) == (3, 3, 0.25)
    assert weak.p_holm == 1.0  # of six tests
    assert projected.cells["weak", 1].compared == 0  # one device is one strategy
    assert projected.cells["weak", 4].time_s.value == near(680)  # 80 epochs of 8.5 s
    missed = projected.cells["linear-warmup", 2]
    assert missed.times == near({0: 130.0, 1: INF, 2: INF})
    assert (missed.reached, missed.seeds, missed.epochs, missed.slower) == (1, 3, (INF, 10, INF), 2)
    assert missed.time_s == near((INF, 130, INF))
    assert math.isnan(missed.efficiency.value)
    assert projected.cells["linear", 2].time_s == (INF, INF, INF)


def test_figures_draw_the_times_of_all_cells_and_the_median_runs_on_the_most_devices(projected, tmp_path, monkeypatch):
    asked: list = []
    monkeypatch.setattr(figures, "shown", lambda *_: "")
    monkeypatch.setattr(figures.comparison, "time_to_target", lambda lines, y_label, **_: asked.append((y_label, lines)))
    monkeypatch.setattr(figures.loss_curves, "losses_by_devices", lambda lines, x_label, **_: asked.append((x_label, lines)))
    figures.time_to_target(projected, tmp_path)
    figures.losses(projected, tmp_path, "")
    [(times, (strong, _, warmup, _)), (losses, (run, *_))] = asked
    assert (times, strong.median) == ("projected time to target (s)", near((100, 218, 277)))
    assert (warmup.median, warmup.reached) == (near((100, INF, INF)), (3, 1, 0))
    assert (losses, run.time_s[-1], run.val_loss[-1]) == ("projected time (s)", near(277), near(sweeps.TARGET))


@pytest.mark.parametrize(
    ("t1", "tn", "expected"),
    [  # Worked by hand for 4 devices: 100 · 80 / (4 · 40) = 50, and so on.
        ((80.0, 80.0, 80.0), (40.0, 20.0, INF), (50, 0, 100)),
        ((80.0, 80.0, 80.0), (40.0, INF, INF), (math.nan,) * 3),
        ((80.0, 80.0, INF), (40.0, 40.0, 40.0), (50, 50, INF)),
        ((80.0, INF, INF), (40.0, 40.0, 40.0), (math.nan,) * 3),
        ((10.0, 20.0, 40.0, 80.0, 160.0), (8.0, 16.0, 32.0, 64.0, 128.0), (31.25,) * 3),  # each seed has the same quotient
        ((80.0, None, 60.0), (40.0, 20.0), (50, math.nan, math.nan)),  # of the common seed
    ],
)
def test_efficiencies_with_misses_worked_by_hand(tmp_path, t1, tn, expected):
    """Of weak scaling, from measured times of each seed; None: not run."""
    config = replace(GRID, mode="measured", scaling=("weak",), devices=(1, 4), seeds=tuple(range(5)))
    for n, of_seeds in ((1, t1), (4, tn)):
        for seed, time_s in enumerate(of_seeds):
            if time_s:
                outcome, known = ("max_epochs", None) if time_s == INF else ("target_reached", time_s)
                sweeps.add(config, tmp_path, RunKey("weak", n, seed), outcome, 2, time_to_target_s=known)
    assert read(config, tmp_path).cells["weak", 4].efficiency == near(expected)


def test_without_a_cluster_or_a_batch_that_was_timed_there_are_epochs_only(tmp_path, projected):
    assert "no cluster is given" in cells.read(GRID, projected.folder.root, [])[0].source.note
    sweeps.small(tmp_path)
    sweeps.add_step_times(tmp_path, 1, {16: 0.3, 32: 0.5}, PASSES)
    found = read(GRID, tmp_path)
    assert found.source.kind == "unknown"
    assert "Flat: device batch must be measured, from 16 to 32; got 8" in found.source.note


def test_a_cell_has_the_batches_of_the_run_that_grew_the_most_and_each_stage_has_its_own_seconds(tmp_path):
    config = replace(GRID, scaling=("strong",), devices=(2,), seeds=(0, 1))
    add_times(tmp_path)
    sweeps.reach(config, tmp_path, RunKey("strong", 2, 0), 5)
    sweeps.add(config, tmp_path, RunKey("strong", 2, 1), "target_reached", 10, growth=[[8, 64]], largest_batch=64)
    cell = read(config, tmp_path).cells["strong", 2]
    assert cell.batch == "32 → 64"
    assert cell.times == near({0: 5 * 21.8, 1: 7 * 21.8 + 3 * 13.0})  # a batch of 64 is that of weak scaling on 2 devices


def test_local_steps_reduce_their_numbers_once_a_round(tmp_path):
    config = replace(GRID, scaling=("local",), devices=(2,), seeds=(0,))
    add_times(tmp_path)
    of_state = {"local_steps": 5, "reduced_numbers": 3 * sweeps.PARAMETERS}
    sweeps.add(config, tmp_path, RunKey("local", 2, 0), "target_reached", 10, **of_state)
    # As strong scaling, but for the 16 s of 16 all-reduces: here four, of three times as many numbers.
    assert read(config, tmp_path).cells["local", 2].times == near({0: 10 * (21.8 - 16 + 12)})


def test_other_devices_speed_up_all_computation_and_float64_doubles_the_gradient(projected):
    def seconds(config, cluster):
        return read(config, projected.folder.root, cluster).cells["strong", 2].times[0]

    # 32 samples in 0.25 s rather than 0.5 s: half of 4.8 and of 1 of an epoch's seconds, and none of its 16 of all-reduce.
    assert seconds(GRID, replace(FLAT, reference_step_s=0.25)) == near(10 * (16 + 2.9))
    assert seconds(replace(GRID, run=replace(GRID.run, precision="float64")), FLAT) == near(10 * (32 + 5.8))
    # Four validations in an epoch of 16 steps.
    assert seconds(replace(GRID, run=changed(GRID.run, stop__validate_every_steps=4)), FLAT) == near(10 * (16 + 4.8 + 4))


@pytest.mark.parametrize("mode", ["virtual", "measured"])
def test_a_time_limit_of_the_simulation_is_no_miss(tmp_path, mode):
    config = replace(GRID, mode=mode, run=changed(GRID.run, stop__time_limit_s=9.0))
    sweeps.add(config, tmp_path, RunKey("weak", 1, 0), "time_limit", 3)
    add_times(tmp_path)
    assert math.isnan(read(config, tmp_path).cells["weak", 1].time_s.value) == (mode == "virtual")


def test_a_missing_history_is_empty_and_a_broken_one_is_named(tmp_path):
    config = replace(GRID, scaling=("strong",), devices=(1,), seeds=(0,))
    sweeps.reach(config, tmp_path, RunKey("strong", 1, 0), 3)
    path = tmp_path / "runs" / "strong-n1-seed0" / "history.csv"
    path.write_text("epoch,steps\n1,2\n")
    with pytest.raises(InputError, match=r"history\.csv must be a history of this version; got the columns epoch, steps"):
        read(config, tmp_path)
    path.unlink()
    assert read(config, tmp_path).runs[0].history == []
