"""Runs that train together: each as it would be alone, with its own end, files and resumption."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from gmmae.system.errors import InputError
from gmmae.training import loop, population
from gmmae.training.parallel import Devices
from gmmae.training.population import measure_speed, run_together
from gmmae.training.records import read_history, to_json
from gmmae.training.run_cache import RunCache
from tests.small import Recorder, interrupt, losses, small

# The first reaches the target, the second diverges, and the others go on: so the program gives up places on the way.
RATES = (0.002, 1e30, 0.0002, 0.0001)
OPTIONS = {"stop__max_epochs": 7, "stop__target": 0.0062, "model__activation": "silu"}


@pytest.fixture(scope="module")
def cache() -> RunCache:
    return RunCache()


def configs(**changes):
    return [small(seed=seed, optim__learning_rate=rate, **OPTIONS | changes) for seed, rate in enumerate(RATES)]


@pytest.fixture(scope="module")
def alone(tmp_path_factory, cache):
    root = tmp_path_factory.mktemp("alone")
    return [loop.run(config, root / str(i), Recorder(), cache=cache) for i, config in enumerate(configs())]


def together(root, cache, display: Callable[[], Recorder] = Recorder, **changes):
    return run_together([(config, root / str(i), display()) for i, config in enumerate(configs(**changes))], cache)


def assert_same_course(root, records, alone):
    """Sums in another order; float32 losses after a few epochs."""
    for i, (record, expected) in enumerate(zip(records, alone, strict=True)):
        assert (record.stop_reason, record.epochs, record.run_id) == (expected.stop_reason, expected.epochs, expected.run_id)
        assert (record.best_epoch, record.target_epoch) == (expected.best_epoch, expected.target_epoch)
        rows = read_history(root / str(i) / "history.csv")
        assert [row.epoch for row in rows] == list(range(1, record.epochs + 1))
        finite = rows[-1] if math.isfinite(rows[-1].val_loss) else rows[0]
        assert finite.lr == pytest.approx(RATES[i])
        if expected.stop_reason != "diverged":
            assert (record.final_val_loss, record.final_train_loss) == pytest.approx(
                (expected.final_val_loss, expected.final_train_loss), rel=1e-4
            )


def test_each_run_is_as_it_would_be_alone(tmp_path, cache, alone):
    assert {record.stop_reason for record in alone} == {"target_reached", "diverged", "max_epochs"}
    records = together(tmp_path, cache)
    assert_same_course(tmp_path, records, alone)
    assert all(record.clocks["train_s"] > 0 for record in records)
    again = together(tmp_path, cache)
    assert list(map(to_json, again)) == list(map(to_json, records))


def test_interrupted_runs_go_on_where_they_were(tmp_path, cache, alone):
    interrupted = together(tmp_path, cache, lambda: Recorder(at=2, then=interrupt))
    assert interrupted[2].stop_reason == "sigterm"
    assert interrupted[2].epochs < alone[2].epochs
    assert_same_course(tmp_path, together(tmp_path, cache), alone)


@pytest.mark.slow
def test_runs_move_to_a_program_for_fewer(tmp_path, cache, alone, monkeypatch):
    """Here compilation costs nothing, so each dispatch gets a program for the runs that are left."""
    sizes = []
    compile_for = population.compile_together

    def compile_and_note(setups, *args):
        sizes.append(len(setups))
        return compile_for(setups, *args)

    monkeypatch.setattr(population, "compile_together", compile_and_note)
    monkeypatch.setattr(population._Population, "_compile_s", property(lambda _: -1.0, lambda *_: None), raising=False)
    assert_same_course(tmp_path, together(tmp_path, cache), alone)
    assert sizes == sorted(sizes, reverse=True)
    assert {sizes[0], sizes[-1]} == {4, 2}


@pytest.mark.slow
def test_several_epochs_in_a_program(tmp_path, cache, alone):
    records = together(tmp_path, cache, parallel__epochs_per_dispatch=3, checkpoint__every_epochs=5)
    assert_same_course(tmp_path, records, alone)


@pytest.mark.parametrize(
    "changes",
    [
        {"optim__batch_size": 4},
        {"stop__target": 0.1},
        {"precision": "float64"},
        {"parallel__deterministic": True, "parallel__deterministic_shards": 8},
    ],
    ids=str,
)
def test_runs_of_different_programs_are_refused(tmp_path, changes):
    runs = [(config, tmp_path / str(i), Recorder()) for i, config in enumerate([small(**OPTIONS), small(**OPTIONS | changes)])]
    with pytest.raises(InputError, match="runs that train together must"):
        run_together(runs)
    assert not list(tmp_path.glob("*/record.json"))


def test_seeds_rates_and_schedules_of_a_batch_share_one_program(tmp_path, monkeypatch):
    compiled = []
    compile_for_devices = Devices.compile

    def compile_and_note(devices, function, *args, **options):
        compiled.append(function)
        return compile_for_devices(devices, function, *args, **options)

    monkeypatch.setattr(Devices, "compile", compile_and_note)
    shared = RunCache()
    grid = [("weak", 0), ("linear", 1), ("linear-warmup", 2), ("sqrt", 3)]
    for scaling, seed in grid:
        config = small(scaling=scaling, seed=seed, parallel__simulate_devices=2, stop__max_epochs=1)
        loop.run(config, tmp_path / scaling, Recorder(), cache=shared)
    assert len(compiled) == 2, "one program for training and one for validation"
    loop.run(small(stop__max_epochs=1), tmp_path / "strong", Recorder(), cache=shared)
    assert len(compiled) == 3, "another batch is another program for training"


def test_runs_that_share_programs_are_those_of_fresh_ones_to_the_bit(tmp_path):
    shared = RunCache()
    for i, scaling in enumerate(("weak", "linear-warmup")):
        config = small(scaling=scaling, seed=i, parallel__simulate_devices=2)
        loop.run(config, tmp_path / f"shared-{i}", Recorder(), cache=shared)
        loop.run(config, tmp_path / f"fresh-{i}", Recorder())
        rows = [losses(read_history(tmp_path / f"{kind}-{i}" / "history.csv")) for kind in ("shared", "fresh")]
        assert rows[0] == rows[1]


def test_the_speed_is_measured_where_it_can_pay(monkeypatch, cache):
    runs = configs()[:2]
    monkeypatch.setattr(population, "MAX_STEP_S", 0.0)
    alone_s, together_s, _ = measure_speed(runs, cache)
    assert (alone_s > 0, together_s) == (True, None)
    monkeypatch.setattr(population, "MAX_STEP_S", math.inf)
    assert measure_speed(runs, cache)[1] is None, "the training is over before another program is compiled"
    monkeypatch.setattr(population, "MIN_TRAINING_S", 0.0)
    assert np.all(np.array(measure_speed(runs, cache), float) > 0)


@pytest.mark.slow
def test_the_speed_is_that_of_an_epoch(monkeypatch, cache):
    """Each call takes six seconds here, and has three epochs of one run or of two."""
    monkeypatch.setattr(population, "_seconds", lambda *_: 6.0)
    runs = configs(parallel__epochs_per_dispatch=3)[:2]
    assert measure_speed(runs, cache, always=True)[:2] == (2.0, 1.0)
