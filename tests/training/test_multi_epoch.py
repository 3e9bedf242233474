"""Several epochs in one program: the same history, ends, checkpoints and pictures as epoch by epoch."""

from functools import partial

import numpy as np
import pytest

from gmmae.config.schema import Config
from gmmae.system import stop_reasons
from gmmae.system.clock import Clock
from gmmae.training import compilation, loop
from gmmae.training.checkpoint import Checkpoints
from gmmae.training.multi_epoch import compile_epochs
from gmmae.training.parallel import Devices
from gmmae.training.records import read_history
from tests.small import RATES, checkpoint_epochs, finish, interrupt, losses, small

pytestmark = pytest.mark.slow

SEVERAL = {"parallel__epochs_per_dispatch": 4}


def rows_of(config: Config, workdir):
    record, display = finish(config, workdir)
    return record, display.rows


def best(config: Config, workdir):
    saved = Checkpoints(workdir / "checkpoints", 2).restore(compilation.initial_state(compilation.prepare(config)), print)
    assert saved is not None
    return saved.progress.best_epoch, saved.best["params"]["encoder"]["Conv_0"]["kernel"]


def assert_same_course(one, other):
    """Two programs of the same sums, which XLA may order otherwise; float32 losses after a few epochs."""
    assert [row.epoch for row in one] == [row.epoch for row in other]
    np.testing.assert_allclose([row[1:] for row in losses(one)], [row[1:] for row in losses(other)], rtol=1e-5)
    assert [row[:4] for row in one] == [row[:4] for row in other]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"parallel__devices": 2, "data__augment": True},
        {"parallel__deterministic": True, "parallel__deterministic_shards": 8, "parallel__devices": 2},
        {"precision": "float64"},
    ],
    ids=["one device", "two devices, augmentation", "exact", "float64"],
)
def test_several_epochs_in_one_program_are_as_many_epochs(tmp_path, changes):
    options = {"stop__max_epochs": 9, "checkpoint__every_epochs": 6, "log__figure_epochs": (0, 3), "model__activation": "silu"}
    record, one = rows_of(small(**options, **changes), tmp_path / "one")
    config = small(**options, **changes, **SEVERAL)
    several_record, several = rows_of(config, tmp_path / "several")
    assert_same_course(several, one)
    assert losses(read_history(tmp_path / "several" / "history.csv")) == losses(several)
    assert several_record.run_id == record.run_id
    assert (several_record.stop_reason, several_record.best_epoch) == ("max_epochs", record.best_epoch)
    for folder in ("one", "several"):
        assert checkpoint_epochs(tmp_path / folder) == [6, 9]
        assert len(list((tmp_path / folder / "figures" / "snapshots").iterdir())) == 3
    epoch, params = best(config, tmp_path / "several")
    assert epoch == record.best_epoch
    np.testing.assert_allclose(params, best(config, tmp_path / "one")[1], atol=1e-5)


@pytest.mark.parametrize("name", [name for name in RATES if name != "adam"])
def test_each_optimiser_trains_several_epochs_and_resumes(tmp_path, name):
    """Both in one: three single epochs that are resumed to six, and six that are two programs' calls."""
    optim = {"optim__name": name, "optim__learning_rate": RATES[name], "model__activation": "silu"}
    _, first = rows_of(small(**optim, stop__max_epochs=3), tmp_path / "one")
    _, second = rows_of(small(**optim, stop__max_epochs=6), tmp_path / "one")
    _, several = rows_of(small(**optim, stop__max_epochs=6, **SEVERAL), tmp_path / "several")
    assert_same_course(several, [*first, *second])
    assert len({row.val_loss for row in several}) == 6


def test_exact_blocks_have_the_same_bits_on_one_and_on_four_devices(tmp_path):
    exact = {"parallel__deterministic": True, "parallel__deterministic_shards": 8, "stop__max_epochs": 5, **SEVERAL}
    rows = [rows_of(small(**exact, parallel__devices=n), tmp_path / str(n))[1] for n in (1, 4)]
    assert losses(rows[0]) == losses(rows[1])


@pytest.fixture(scope="module")
def single(tmp_path_factory):
    """The rows of six epochs, one by one."""
    return rows_of(small(stop__max_epochs=6), tmp_path_factory.mktemp("single"))[1]


def test_the_device_stops_at_the_target_within_a_block(tmp_path, single):
    target = single[1].val_loss * (1 + 1e-6)
    record, rows = rows_of(small(stop__max_epochs=9, stop__target=target, checkpoint__every_epochs=9, **SEVERAL), tmp_path)
    assert (record.stop_reason, record.epochs, len(rows)) == ("target_reached", 2, 2)
    assert record.time_to_target_s == pytest.approx(record.clocks["train_s"] + record.clocks["eval_s"])
    assert 0 < rows[0].train_s < rows[1].train_s


def test_a_loss_that_the_device_takes_for_the_target_but_the_host_does_not_goes_on(tmp_path):
    """The device's bar is a millionth above the target."""
    _, rows = rows_of(small(stop__max_epochs=4, **SEVERAL), tmp_path / "all")
    target = rows[1].val_loss * (1 - 5e-7)
    config = small(stop__max_epochs=4, stop__target=target, **SEVERAL)
    record, again = rows_of(config, tmp_path / "again")
    assert [row.epoch for row in again] == list(range(1, record.epochs + 1))
    assert record.epochs > 2
    np.testing.assert_allclose([row.val_loss for row in again], [row.val_loss for row in rows][: record.epochs], rtol=1e-6)


def test_divergence_ends_a_block(tmp_path):
    record, rows = rows_of(
        small(optim__learning_rate=1e30, checkpoint__every_epochs=9, stop__max_epochs=9, **SEVERAL), tmp_path
    )
    assert record.stop_reason == stop_reasons.DIVERGED
    assert len(rows) < 4
    assert not np.isfinite([rows[-1].val_loss, rows[-1].train_loss]).all()


def test_rules_that_look_at_every_loss_take_single_epochs(tmp_path):
    changes = {"optim__learning_rate": 10.0, "stop__max_epochs": 50, "stop__collapse_epochs": 3}
    records = [rows_of(small(**changes, **more), tmp_path / str(i))[0] for i, more in enumerate(({}, SEVERAL))]
    assert [record.stop_reason for record in records] == ["collapsed", "collapsed"]
    assert records[0].epochs == records[1].epochs


def test_a_run_goes_on_with_another_number_of_epochs_a_dispatch(tmp_path, single):
    rows_of(small(stop__max_epochs=3, **SEVERAL), tmp_path)
    _, rest = rows_of(small(stop__max_epochs=6), tmp_path)
    assert [row.epoch for row in rest] == [4, 5, 6]
    assert_same_course(read_history(tmp_path / "history.csv"), single)


def time_epochs(monkeypatch, seconds, meanwhile=lambda count: None):
    """A clock that stands still but for `seconds` an epoch; returns the epochs of each dispatch, a list that grows."""
    now, dispatched = [0.0], []

    def timed(*of):
        block = compile_epochs(*of)

        def run(state, best, best_loss, epochs):
            dispatched.append(len(epochs))
            now[0] += seconds * len(epochs)
            meanwhile(len(epochs))
            return block(state, best, best_loss, epochs)

        return run

    monkeypatch.setattr(loop, "Clock", partial(Clock, now=lambda: now[0]))
    monkeypatch.setattr(loop, "compile_epochs", timed)
    return dispatched


@pytest.mark.parametrize("seconds", [1.0, 0.3, 7.0])
def test_the_time_limit_is_overshot_by_one_epoch_at_most(tmp_path, monkeypatch, seconds):
    """Uses a clock that stands still but for `seconds` an epoch."""
    dispatched = time_epochs(monkeypatch, seconds)
    few = {"parallel__epochs_per_dispatch": 5, "checkpoint__every_epochs": 50, "log__every_epochs": 50, "stop__max_epochs": 99}
    record, _ = rows_of(small(**few, stop__time_limit_s=6.5), tmp_path)
    assert record.stop_reason == "time_limit"
    assert 6.5 <= record.clocks["total_s"] < 6.5 + seconds
    assert max(dispatched) == (5 if seconds < 1.1 else 1)


GPU = property(lambda devices: "gpu")


@pytest.mark.parametrize(
    ("changes", "most"),
    [
        ({}, 6),
        ({"log__every_epochs": 4}, 4),
        (
            {"checkpoint__every_epochs": 1000, "log__every_epochs": 1000, "stop__max_epochs": 1000},
            compilation.MAX_EPOCHS_PER_DISPATCH,
        ),
        ({"stop__max_epochs": 3}, 3),
        ({"stop__collapse_epochs": 3}, 1),
        ({"stop__patience_epochs": 3}, 1),
        ({"parallel__epochs_per_dispatch": 2}, 2),
        ({"parallel__epochs_per_dispatch": 1}, 1),
    ],
)
def test_a_gpu_computes_as_many_epochs_as_the_host_leaves_alone(changes, most):
    config = small(**{"checkpoint__every_epochs": 6, "stop__max_epochs": 99} | changes)
    assert compilation.epochs_per_dispatch(config, "gpu") == most
    assert compilation.epochs_per_dispatch(config, "cpu") == changes.get("parallel__epochs_per_dispatch", 1)


@pytest.mark.parametrize("seconds", [0.3, 2.0])
def test_on_a_gpu_a_dispatch_ends_within_a_second_or_after_an_epoch_and_with_the_same_bits(tmp_path, monkeypatch, seconds):
    """Uses a clock that stands still but for `seconds` an epoch. The other run has a second for any number of epochs."""
    monkeypatch.setattr(Devices, "platform", GPU)
    options = {"stop__max_epochs": 9, "checkpoint__every_epochs": 5, "log__figure_epochs": (0,)}
    runs = {}
    for name, epoch_s in (("slow", seconds), ("fast", 1e-3)):
        dispatched = time_epochs(monkeypatch, epoch_s)
        record, rows = rows_of(small(**options), tmp_path / name)
        assert record.stop_reason == "max_epochs"
        assert checkpoint_epochs(tmp_path / name) == [5, 9]
        runs[name] = dispatched, losses(rows), best(small(**options), tmp_path / name)
    assert runs["fast"][0] == [1, 4, 4], "one epoch to find out how long it takes, then up to a checkpoint, then to the end"
    assert runs["slow"][0] == ([1, 3, 1, 3, 1] if seconds < 1 else [1] * 9)
    assert runs["slow"][1] == runs["fast"][1]
    np.testing.assert_array_equal(runs["slow"][2][1], runs["fast"][2][1])


def test_on_a_gpu_a_signal_ends_a_run_after_the_dispatch_and_it_goes_on_with_the_same_bits(tmp_path, monkeypatch):
    monkeypatch.setattr(Devices, "platform", GPU)
    options = {"stop__max_epochs": 8, "checkpoint__every_epochs": 5}
    time_epochs(monkeypatch, 1e-3)
    _, whole = rows_of(small(**options), tmp_path / "whole")
    dispatched = time_epochs(monkeypatch, 1e-3, lambda count: count == 4 and interrupt())
    record, rows = rows_of(small(**options), tmp_path / "parts")
    assert (record.stop_reason, record.epochs, dispatched) == (stop_reasons.SIGTERM, 5, [1, 4])
    time_epochs(monkeypatch, 1e-3)
    _, rest = rows_of(small(**options), tmp_path / "parts")
    assert losses(rows + rest) == losses(whole)
