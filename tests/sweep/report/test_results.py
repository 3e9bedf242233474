import math
from dataclasses import replace

import pytest

from gmmae.sweep.grid import RunKey
from gmmae.sweep.report import results, strategy_tables
from gmmae.sweep.report.efficiency import Interval, TimeSummary
from gmmae.sweep.report.findings import headline
from gmmae.sweep.runs import TIMED_OUT
from gmmae.system.errors import InputError
from tests import sweeps
from tests.sweeps import FLAT, GRID, PASSES, STEPS

INF = math.inf


def test_projected_times_are_epochs_times_the_seconds_of_one(projected):
    assert projected.clock.kind == "projected"
    assert projected.times("strong", 2) == pytest.approx({0: 218.0, 1: 218.0, 2: 218.0})
    assert projected.times("weak", 4) == pytest.approx({0: 680.0, 1: 680.0, 2: 680.0})  # 80 epochs of 8.5 s
    assert projected.times("linear-warmup", 2) == pytest.approx({0: 130.0, 1: INF, 2: INF})


def test_a_crashed_process_is_no_miss(projected):
    assert projected.times("linear-warmup", 4) == {0: INF}
    assert [record.key for record in projected.failed] == [RunKey("linear-warmup", 4, 1)]
    # 36 runs, one crashed, one without a record.
    assert (len(projected.runs), projected.total) == (34, 36)


def with_stopped(root, mode):
    """Six seeds of strong scaling on one device. On two the limit stops the three slow ones."""
    config = replace(GRID, mode=mode, scaling=("strong", "weak"), devices=(1, 2), seeds=tuple(range(6)))
    sweeps.add_step_times(root, 1, STEPS, PASSES)
    for seed in config.seeds:
        sweeps.reach(config, root, RunKey("strong", 1, seed), 10)
        if seed < 3:
            sweeps.reach(config, root, RunKey("weak", 2, seed), 10)
        else:
            sweeps.add(config, root, RunKey("weak", 2, seed), TIMED_OUT)
    return results.read(config, root, FLAT)


def test_a_run_that_the_limit_stopped_is_slower_than_all_where_times_are_measured(tmp_path):
    found = with_stopped(tmp_path, "measured")
    assert list(found.times("weak", 2).values()) == [25.0] * 3 + [INF] * 3
    assert found.seconds("weak", 2) == TimeSummary(INF, Interval(25.0, INF), reached=3, runs=6)
    rows = {row[:2]: row[2:] for row in strategy_tables.endings(found).rows}
    assert rows["weak", "2"][2:] == ("3 of 6", "not reached (10 to not reached)", "3 of 6 stopped by the time limit")


def test_a_cell_with_a_stopped_run_has_no_times_where_the_limit_is_of_the_simulation(tmp_path):
    found = with_stopped(tmp_path, "virtual")
    assert (found.seconds("weak", 2), found.efficiency("weak", 2), strategy_tables.paired(found)) == (None, None, None)
    rows = {row[:2]: row[2:] for row in strategy_tables.endings(found).rows}
    assert rows["weak", "2"][2:4] == ("3 of 6", "3 of 6 stopped by the time limit")
    assert headline(found).startswith("**Fastest: Strong scaling on 1 device")


def test_summaries_and_efficiencies(projected):
    found = projected.seconds("linear-warmup", 2)
    assert (found.median, found.reached, found.runs) == (INF, 1, 3)
    assert projected.efficiency("strong", 2).percent == pytest.approx(100 * 100 / (2 * 218))
    assert math.isnan(projected.efficiency("linear", 2).percent)
    assert projected.efficiency("strong", 8) is None
    assert projected.seconds("strong", 8) is None


def test_a_shared_path_has_one_history_and_each_run_its_own_time(projected):
    one, two = projected.group("strong", 1)[0], projected.group("strong", 2)[0]
    assert one.path == two.path == "strong-n1-seed0"
    rows = projected.history(two)
    assert len(rows) == 10
    assert projected.elapsed_s(one, rows[2]) == pytest.approx(30.0)
    assert projected.elapsed_s(two, rows[2]) == pytest.approx(3 * 21.8)


def test_without_a_cluster_or_step_times_there_are_no_times(tmp_path, projected):
    assert "no cluster is given" in results.read(GRID, projected.folder.root, None).clock.note
    found = results.read(sweeps.small(tmp_path), tmp_path, FLAT)
    assert found.clock.kind == "unknown"
    assert "step times have not been measured yet" in found.clock.note
    assert math.isnan(found.times("strong", 2)[0])
    assert found.times("linear", 2)[0] == INF  # a miss is one by any clock
    assert found.seconds("strong", 2) is None
    assert found.efficiency("strong", 2) is None


def test_step_times_that_do_not_reach_give_no_times_and_say_why(tmp_path):
    sweeps.small(tmp_path)
    sweeps.add_step_times(tmp_path, 1, {16: 0.3, 32: 0.5}, PASSES)
    found = results.read(GRID, tmp_path, FLAT)
    assert "Flat: device batch must be measured, from 16 to 32; got 8" in found.clock.note
    assert found.clock.kind == "unknown"


def test_measured_times_are_the_runs_own(tmp_path):
    config = sweeps.small(tmp_path, replace(GRID, mode="measured"))
    found = results.read(config, tmp_path, FLAT)
    assert found.clock == ("measured", "", "", "")
    assert found.times("strong", 2) == {0: 25.0, 1: 25.0, 2: 25.0}  # 10 epochs of 2 + 0.5 s
    run = found.group("weak", 2)[0]
    assert run.epoch == pytest.approx((2.0, None, 0.5))
    row = found.history(run)[3]
    assert found.elapsed_s(run, row) == row.train_s + row.eval_s == 10.0


def test_oversubscribed_devices_are_told(tmp_path):
    config = replace(GRID, mode="measured", scaling=("strong",), seeds=(0,), devices=(1, 2))
    sweeps.reach(config, tmp_path, RunKey("strong", 1, 0), 10)
    assert results.read(config, tmp_path, None).clock.short == ""
    sweeps.add(config, tmp_path, RunKey("strong", 2, 0), "target_reached", 10, oversubscribed=True)
    clock = results.read(config, tmp_path, None).clock
    assert clock.short == "oversubscribed: n virtual devices share this machine's cores, so this does not measure scaling"
    assert clock.titled("Losses") == f"Losses ({clock.short})"
    assert clock.captioned("A caption.") == f"A caption. O{clock.short[1:]}."


def test_a_missing_history_is_empty_and_a_broken_one_is_named(tmp_path):
    config = replace(GRID, scaling=("strong",), devices=(1,), seeds=(0,))
    assert results.read(config, tmp_path, FLAT).runs == ()
    sweeps.reach(config, tmp_path, RunKey("strong", 1, 0), 3)
    found = results.read(config, tmp_path, FLAT)
    path = found.folder.run("strong-n1-seed0").history
    path.write_text("epoch,steps\n1,2\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"history\.csv must be a run's history; got KeyError\('samples'"):
        found.history(found.runs[0])
    path.unlink()
    assert found.history(found.runs[0]) == []
