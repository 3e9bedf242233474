"""Whole runs: their ends, their files, and what a resume must not change."""

import dataclasses
import json
import shutil
import signal
from functools import partial

import jax
import numpy as np
import pytest

from gmmae.system import stop_reasons
from gmmae.system.errors import InputError
from gmmae.training import compilation, loop, programs
from gmmae.training.records import from_json, read_history, to_json
from tests.small import RATES, Recorder, checkpoint_epochs, fail, fingerprint, finish, interrupt, losses, small


def snapshots(workdir) -> list[str]:
    return sorted(path.name for path in (workdir / "figures" / "snapshots").iterdir())


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("whole")
    config = small(stop__max_epochs=5)
    record, display = finish(config, workdir)
    return config, workdir, record, display


def test_record_and_history_are_complete(uninterrupted):
    _config, workdir, record, display = uninterrupted
    assert from_json((workdir / "record.json").read_text()) == record
    assert (record.stop_reason, record.epochs, record.time_to_target_s) == ("max_epochs", 5, None)
    assert (record.global_batch, record.device_batch, record.padding, record.steps_per_epoch) == (8, 8, 0, 3)
    assert (record.train_samples, record.validation_samples) == (22, 6)
    assert set(record.clocks) == {"compile_s", "train_s", "eval_s", "checkpoint_s", "total_s"}
    assert sum(value for key, value in record.clocks.items() if key != "total_s") <= record.clocks["total_s"]
    history = read_history(workdir / "history.csv")
    assert history == display.rows
    assert [(row.epoch, row.steps, row.samples) for row in history] == [(e, 3 * e, 22 * e) for e in range(1, 6)]
    assert record.best_val_loss == min(row.val_loss for row in history)
    assert record.final_val_loss == history[-1].val_loss
    assert checkpoint_epochs(workdir) == [4, 5]
    assert snapshots(workdir) == ["epoch_000000.npz", "epoch_000005.npz"]


def test_target_reached(tmp_path, uninterrupted):
    target = uninterrupted[3].rows[2].val_loss
    record, _ = finish(small(stop__max_epochs=9, stop__target=target), tmp_path)
    assert (record.stop_reason, record.epochs) == ("target_reached", 3)
    assert record.time_to_target_s == pytest.approx(record.clocks["train_s"] + record.clocks["eval_s"])


def test_divergence_is_a_result(tmp_path):
    """A step of size 1e30 overflows float32: the next loss is not a number."""
    record, display = finish(small(optim__learning_rate=1e30), tmp_path)
    assert record.stop_reason == stop_reasons.DIVERGED
    assert stop_reasons.EXIT_CODES[record.stop_reason] == 3
    assert not np.isfinite(display.rows[-1].val_loss)
    assert record.best_epoch is None
    assert losses(read_history(tmp_path / "history.csv"))[0][0] == 1
    assert json.loads((tmp_path / "record.json").read_text())["final_val_loss"] in ("nan", "inf")


def test_collapse_is_a_result(tmp_path):
    """Steps of size 10 switch every ReLU off; the finite loss then stays the same to the last digit."""
    record, display = finish(small(optim__learning_rate=10.0, stop__max_epochs=50, stop__collapse_epochs=3), tmp_path)
    assert record.stop_reason == stop_reasons.COLLAPSED
    assert stop_reasons.EXIT_CODES[record.stop_reason] == 3
    assert len({row.val_loss for row in display.rows[-4:]}) == 1
    assert np.isfinite(display.rows[-1].val_loss)


@pytest.mark.parametrize(
    ("number", "reason", "code"),
    [
        (signal.SIGTERM, "sigterm", 143),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in ((signal.SIGUSR1, "sigterm", 143), (signal.SIGINT, "sigint", 130), (signal.SIGHUP, "sighup", 129))
        ),
    ],
)
def test_interrupted_and_resumed_equals_uninterrupted(tmp_path, uninterrupted, number, reason, code):
    config, workdir, record, display = uninterrupted
    before = signal.getsignal(number)
    first = loop.run(config, tmp_path, Recorder(3, partial(interrupt, number)))
    assert signal.getsignal(number) is before
    assert (first.stop_reason, first.epochs, stop_reasons.EXIT_CODES.get(first.stop_reason or "")) == (reason, 3, code)
    assert checkpoint_epochs(tmp_path) == [2, 3]

    second, resumed = finish(config, tmp_path)
    assert [row.epoch for row in resumed.rows] == [4, 5]
    assert "resumed after epoch 3" in resumed.facts["run"]
    assert second.run_id == record.run_id
    assert losses(read_history(tmp_path / "history.csv")) == losses(display.rows)
    assert snapshots(tmp_path) == snapshots(workdir)
    assert fingerprint(config, tmp_path) == fingerprint(config, workdir)
    assert second.clocks["total_s"] > first.clocks["total_s"]


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in RATES if name != "adam"])
def test_each_optimiser_resumes(tmp_path, name):
    optim = {"optim__name": name, "optim__learning_rate": RATES[name], "model__activation": "silu"}
    config = small(**optim, stop__max_epochs=4)
    finish(small(**optim, stop__max_epochs=2), tmp_path / "parts")
    finish(config, tmp_path / "parts")
    _, whole = finish(config, tmp_path / "whole")
    assert losses(read_history(tmp_path / "parts" / "history.csv")) == losses(whole.rows)
    assert len({row.val_loss for row in whole.rows}) == 4


@pytest.mark.slow
def test_another_number_of_devices_goes_on_with_the_same_strong_run(tmp_path, uninterrupted):
    _, _, _, display = uninterrupted
    for devices, epochs in ((1, 2), (4, 4), (3, 5)):
        record, _ = finish(small(parallel__devices=devices, stop__max_epochs=epochs), tmp_path)
        assert (record.devices, record.epochs, record.run_id) == (devices, epochs, uninterrupted[2].run_id)
    # Sums in another order, as in test_parallel.py.
    np.testing.assert_allclose(losses(read_history(tmp_path / "history.csv")), losses(display.rows), rtol=2e-5)


def test_a_run_whose_global_batch_would_be_another_does_not_go_on(tmp_path, uninterrupted):
    """Another machine may have other devices, and a batch that follows them, with the same configuration."""
    _, workdir, record, _ = uninterrupted
    shutil.copytree(workdir, tmp_path / "run")
    (tmp_path / "run" / "record.json").write_text(to_json(dataclasses.replace(record, global_batch=16)))
    with pytest.raises(InputError, match=r"must keep its global batch and learning rate, 16 and .*; got 8 and"):
        finish(small(stop__max_epochs=6), tmp_path / "run")


@pytest.mark.slow
def test_killed_run_repeats_only_what_was_not_saved(tmp_path, uninterrupted):
    """The history has a row that no checkpoint has, and there is no final record."""
    config, _, _, display = uninterrupted
    with pytest.raises(MemoryError):
        loop.run(config, tmp_path, Recorder(3, fail))
    assert len(read_history(tmp_path / "history.csv")) == 3
    assert checkpoint_epochs(tmp_path) == [2]
    finish(config, tmp_path)
    assert losses(read_history(tmp_path / "history.csv")) == losses(display.rows)


HISTORIES = {
    "missing": lambda text: None,
    "empty": lambda text: "",
    "without its last row": lambda text: text[: text.rindex("\n", 0, -1) + 1],
    "with another digit": lambda text: text.replace("1,3,22,", "1,3,23,"),
    "with another header": lambda text: text.replace("val_loss", "valid_loss"),
}


@pytest.mark.parametrize("change", HISTORIES.values(), ids=HISTORIES.keys())
def test_a_history_that_is_not_the_checkpoint_s_is_refused_until_it_is_put_back(tmp_path, uninterrupted, change):
    finish(small(stop__max_epochs=2), tmp_path)
    history = tmp_path / "history.csv"
    text = history.read_text()
    if (changed := change(text)) is None:
        history.unlink()
    else:
        history.write_text(changed)
    with pytest.raises(
        InputError, match=r"history\.csv must begin with the 2 rows after which the checkpoint of epoch 2"
    ) as error:
        finish(uninterrupted[0], tmp_path)
    assert "\n" not in str(error.value)
    assert (history.read_text() if history.exists() else None) == changed
    assert checkpoint_epochs(tmp_path) == [2]
    history.write_text(text + "what no checkpoint has, as of a kill,,\n3,9")
    finish(uninterrupted[0], tmp_path)
    assert losses(read_history(history)) == losses(uninterrupted[3].rows)


def test_a_checkpoint_that_comes_too_early_waits_for_a_later_one(tmp_path, uninterrupted):
    _, _, record, display = uninterrupted
    config = small(stop__max_epochs=5, checkpoint__min_interval_s=1000.0)
    with pytest.raises(MemoryError):
        loop.run(config, tmp_path, Recorder(3, fail))
    assert not (tmp_path / "checkpoints").exists()
    repeated, repeated_display = finish(config, tmp_path)
    assert [row.epoch for row in repeated_display.rows] == [1, 2, 3, 4, 5], "the record says nothing of what was lost"
    assert losses(repeated_display.rows) == losses(display.rows)
    assert checkpoint_epochs(tmp_path) == [5]
    assert repeated.run_id == record.run_id


def test_without_a_checkpoint_at_its_end_a_run_writes_one_when_it_is_interrupted(tmp_path):
    config = small(stop__max_epochs=3, checkpoint__at_end=False, checkpoint__every_epochs=9)
    loop.run(config, tmp_path, Recorder(2, interrupt))
    assert checkpoint_epochs(tmp_path) == [2]
    record, display = finish(config, tmp_path)
    assert [row.epoch for row in display.rows] == [3]
    assert checkpoint_epochs(tmp_path) == [2]
    assert (record.stop_reason, record.epochs) == ("max_epochs", 3)


def test_finished_run_says_so_and_longer_one_goes_on(tmp_path, uninterrupted):
    finish(small(stop__max_epochs=2), tmp_path)
    again, display = finish(small(stop__max_epochs=2), tmp_path)
    assert display.rows == []
    assert display.lines == [f"{tmp_path} holds a finished run: max_epochs after 2 epochs"]
    assert again.epochs == 2
    _, longer = finish(uninterrupted[0], tmp_path)
    assert losses(longer.rows) == losses(uninterrupted[3].rows)[2:]


@pytest.mark.slow
def test_a_lower_target_goes_on(tmp_path, uninterrupted):
    rows = uninterrupted[3].rows
    finish(small(stop__max_epochs=5, stop__target=rows[1].val_loss), tmp_path)
    record, display = finish(small(stop__max_epochs=5, stop__target=rows[3].val_loss), tmp_path)
    assert (record.stop_reason, record.epochs, record.target_epoch) == ("target_reached", 4, 4)
    assert losses(display.rows) == losses(rows)[2:4]
    off, display = finish(uninterrupted[0], tmp_path)  # 0: no target
    assert (off.stop_reason, off.epochs, off.target_epoch, off.time_to_target_s) == ("max_epochs", 5, None, None)


def test_an_easier_target_is_judged_anew_and_another_metric_is_refused(tmp_path, uninterrupted):
    rows = uninterrupted[3].rows
    finish(small(stop__target=rows[2].val_loss), tmp_path)
    record, display = finish(small(stop__target=rows[1].val_loss), tmp_path)
    assert display.rows == []
    assert (record.target, record.target_epoch, record.epochs) == (rows[1].val_loss, 2, 3)
    history = read_history(tmp_path / "history.csv")
    assert record.time_to_target_s == history[1].train_s + history[1].eval_s
    with pytest.raises(InputError, match=r"stop.mode, which chose its best parameters, loss and min; got loss and max"):
        finish(small(stop__target=rows[1].val_loss, stop__mode="max"), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("before", ["max_epochs", "sigterm", "killed", "diverged"])
def test_a_target_that_an_earlier_epoch_had_reached_ends_the_run_and_says_so(tmp_path, before):
    # Epoch 4 then has steps that overflow.
    changes = {"optim__decay_epochs": (3,), "optim__decay_factor": 1e35} if before == "diverged" else {}
    config = small(stop__max_epochs=5, **changes)
    if before == "killed":
        with pytest.raises(MemoryError):
            loop.run(config, tmp_path, Recorder(5, fail))
    elif before == "sigterm":
        loop.run(config, tmp_path, Recorder(4, interrupt))
    else:
        limit = {"max_epochs": 4, "diverged": 5}[before]
        record, _ = finish(small(stop__max_epochs=limit, **changes), tmp_path)
        assert (record.stop_reason, record.epochs) == (before, 4)
    third = read_history(tmp_path / "history.csv")[2]
    again = small(stop__max_epochs=5, stop__target=third.val_loss, **changes)
    record, display = finish(again, tmp_path)
    assert display.rows == []
    assert (record.stop_reason, record.epochs, record.target_epoch) == ("target_reached", 4, 3)
    assert record.time_to_target_s == third.train_s + third.eval_s
    assert f"validation loss {third.val_loss:g} reached after epoch 3 of 4 earlier ones" in display.lines
    assert (tmp_path / "record.json").read_text() == to_json(record)
    same, display = finish(again, tmp_path)
    assert to_json(same) == to_json(record)
    assert display.lines == [f"{tmp_path} holds a finished run: target_reached after 4 epochs"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ended", "reason", "released"),
    [
        ({"stop__collapse_epochs": 3}, "collapsed", {"stop__collapse_epochs": None}),
        ({"stop__patience_epochs": 3}, "stalled", {"stop__patience_epochs": None}),
    ],
)
def test_a_plateau_goes_on_where_its_rule_has_been_changed(tmp_path, ended, reason, released):
    """Units that are all off never change again."""
    flat = {"optim__learning_rate": 10.0, "stop__max_epochs": 50}
    record, _ = finish(small(**flat, **ended), tmp_path)
    assert record.stop_reason == reason
    flat["stop__max_epochs"] = record.epochs + 2
    assert finish(small(**flat, **ended), tmp_path)[1].lines == [
        f"{tmp_path} holds a finished run: {reason} after {record.epochs} epochs"
    ]
    longer, display = finish(small(**flat, **ended | released), tmp_path)
    assert display.rows[0].epoch == record.epochs + 1
    assert longer.epochs > record.epochs


@pytest.mark.slow
def test_time_limit(tmp_path):
    record, _ = finish(small(stop__time_limit_s=1e-3, stop__max_epochs=9), tmp_path)
    assert (record.stop_reason, record.epochs) == ("time_limit", 1)
    assert finish(small(stop__time_limit_s=1e-3, stop__max_epochs=9), tmp_path)[0] == record
    assert finish(small(stop__max_epochs=3), tmp_path)[0].epochs == 3


def test_an_epochs_order_is_drawn_while_the_one_before_is_computed(monkeypatch):
    setup = compilation.prepare(small())
    state, drawn, draw = setup.devices.replicate(compilation.initial_state(setup)), [], programs.epoch_order
    monkeypatch.setattr(programs, "epoch_order", lambda seed, epoch, of: drawn.append(epoch) or draw(seed, epoch, of))
    train = programs.training(setup, state)
    for epoch in (1, 2, 5):
        state, _ = train(state, epoch)
    assert drawn == [1, 2, 3, 5, 6], "each once, with the one that follows"


@pytest.mark.slow
def test_later_epochs_compile_nothing(tmp_path):
    """Counted by JAX's own events. Every epoch also writes TensorBoard details and a checkpoint here."""
    counts: list[int] = []
    compilations = 0

    def count(event: str, *_: object, **__: object) -> None:
        nonlocal compilations
        compilations += event == "/jax/core/compile/backend_compile_duration"

    jax.monitoring.register_event_duration_secs_listener(count)
    try:
        config = small(
            scaling="linear-warmup", parallel__devices=2, stop__max_epochs=4, checkpoint__every_epochs=1,
            log__tensorboard=True, log__every_epochs=1, optim__decay_epochs=(2,),
        )  # fmt: skip
        display = Recorder()
        display.epoch = lambda row: counts.append(compilations)
        loop.run(config, tmp_path, display)
    finally:
        jax.monitoring.unregister_event_duration_listener(count)
    assert counts[0] > 0, "the listener must have seen the compilation before the first epoch"
    assert counts[1:] == [counts[0]] * 3


@pytest.mark.slow
@pytest.mark.parametrize("ndim", [1, 2])
def test_fewer_axes(tmp_path, ndim):
    record, display = finish(small(data__ndim=ndim, stop__max_epochs=12), tmp_path)
    assert record.stop_reason == "max_epochs"
    assert display.rows[-1].val_loss < display.rows[0].val_loss


@pytest.mark.slow
@pytest.mark.parametrize("scaling", ["strong", "linear", "sqrt-warmup"])
def test_arms_run_on_two_devices(tmp_path, scaling):
    record, display = finish(small(scaling=scaling, parallel__devices=2, stop__max_epochs=2), tmp_path)
    assert record.global_batch == (8 if scaling == "strong" else 16)
    factor = {"strong": 1, "linear": 2, "sqrt-warmup": 2**0.5}[scaling]
    assert record.learning_rate == pytest.approx(factor * 0.00105)
    steps = record.steps_per_epoch
    warm = 1 + (factor - 1) * (2 * steps - 1) / (5 * steps) if scaling.endswith("warmup") else factor
    assert display.rows[-1].lr == pytest.approx(warm * 0.00105, rel=1e-6)
