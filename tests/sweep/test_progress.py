"""The time that is left of a sweep, against numbers that were worked out manually."""

import time

import pytest

from gmmae.sweep.grid import RunKey, SweepConfig, run_keys
from gmmae.sweep.progress import INTERRUPTED, SweepProgress

SEEDS = (0, 1, 2)
STRONG = {seed: [RunKey("strong", n, seed) for n in (1, 2)] for seed in SEEDS}


def progress(jobs=9) -> SweepProgress:
    """Three strategies on 1 and 2 devices with three seeds."""
    return SweepProgress(SweepConfig(scaling=("strong", "weak", "linear"), devices=(2, 1), seeds=SEEDS), {}, jobs)


def run(shown: SweepProgress, key: RunKey, seconds: float, *others: RunKey) -> None:
    shown.start(key.name)
    shown.end(key.name, dict.fromkeys([key, *others], "reached at epoch 3"), seconds)


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_nothing_is_known_before_the_first_end():
    shown = progress()
    assert shown.left_s() is None
    shown.start("strong-n1-seed0")
    assert shown.left_s() is None
    shown.end("strong-n1-seed0", dict.fromkeys(STRONG[0], INTERRUPTED), 50.0)
    assert shown.left_s() is None
    assert (shown.done, shown.running) == (0, {})


def test_the_first_run_of_a_worker_counts_only_while_there_is_no_other():
    """Its 12 s have the start of the worker. The second of the nine jobs takes 2 s, so the other seven take 14 s."""
    shown = progress()
    run(shown, RunKey("linear", 2, 2), 12.0)
    assert shown.left_s() == pytest.approx(8 * 12)
    run(shown, RunKey("weak", 2, 2), 2.0)
    assert shown.left_s() == pytest.approx(7 * 2)


def test_a_run_is_expected_to_take_as_long_as_those_of_its_strategy_and_devices():
    """Of each further seed: strong 30 s, weak 60 s, and linear as the mean, 45 s."""
    config = SweepConfig(scaling=("strong", "weak", "linear"), devices=(2,), seeds=SEEDS)
    shown = SweepProgress(config, {}, 9)
    run(shown, RunKey("linear", 2, 0), 500.0)  # the first one, with the worker's start
    run(shown, RunKey("strong", 2, 0), 30.0)
    run(shown, RunKey("weak", 2, 0), 60.0)
    assert shown.left_s() == pytest.approx(2 * (30 + 60 + 45))


def test_runs_that_share_a_job_are_one_duration():
    config = SweepConfig(scaling=("strong",), devices=(1, 2), seeds=SEEDS)
    shown = SweepProgress(config, {}, 3)
    run(shown, STRONG[0][0], 20.0, STRONG[0][1])
    assert shown.left_s() == pytest.approx(2 * 20)
    assert (shown.done, shown.total) == (2, 6)


def test_what_runs_is_expected_to_end_and_the_jobs_at_the_same_time_share_the_rest(clock):
    shown = SweepProgress(SweepConfig(scaling=("weak",), devices=(2,), seeds=tuple(range(4)), jobs=2), {}, 4)
    run(shown, RunKey("weak", 2, 0), 10.0)
    shown.start("weak-n2-seed1")
    shown.start("weak-n2-seed2")
    shown.tick({RunKey("weak", 2, 1): "epoch 1", RunKey("weak", 2, 2): "starting"})
    clock[0] += 4
    assert shown.left_s() == pytest.approx((10 + 6 + 6) / 2)
    clock[0] += 20  # both take longer than the first: one job waits
    assert shown.left_s() == pytest.approx(10)
    shown.end("weak-n2-seed1", {RunKey("weak", 2, 1): "reached at epoch 3"}, 24.0)
    shown.start("weak-n2-seed3")
    clock[0] += 30
    assert shown.left_s() is None, "nothing is known of a run that takes longer than all others"


def test_a_last_job_is_not_divided_among_the_workers():
    config = SweepConfig(scaling=("weak",), devices=(2,), seeds=tuple(range(6)), jobs=4)
    shown = SweepProgress(config, {}, 6)
    for seed in range(5):
        run(shown, RunKey("weak", 2, seed), 10.0)
    assert shown.left_s() == pytest.approx(10)


def test_counts_are_of_the_grid_and_failures_among_them():
    config = SweepConfig(scaling=("weak",), devices=(2,), seeds=(0, 1))
    done = {RunKey("weak", 2, 0): "crashed: exit code 1", RunKey("weak", 64, 0): "reached at epoch 3"}
    shown = SweepProgress(config, done, 1)
    assert (shown.done, shown.failed, shown.total) == (1, 1, len(run_keys(config)))
    shown.start("weak-n2-seed1")
    shown.end("weak-n2-seed1", {RunKey("weak", 2, 1): "timed_out"}, 1.0)
    assert (shown.done, shown.failed, shown.left_s()) == (2, 2, None)
