"""Whole runs: their ends, their files, and what a resume must not change."""

import dataclasses
import shutil
import signal
from contextlib import nullcontext
from functools import partial

import jax
import numpy as np
import pytest

from gmmae.system import stop_reasons
from gmmae.system.errors import InputError
from gmmae.training import loop, preparation, programs
from gmmae.training.figures import draw
from gmmae.training.records import read_history, to_json
from gmmae.training.trained import load
from gmmae.training.workdir import WorkDir
from gmmae.workloads import registry
from tests.small import Recorder, checkpoint_epochs, fail, fingerprint, finish, interrupt, losses, small
from tests.training.test_same_bits import GROWING


def snapshots(workdir):
    return sorted(path.name for path in (workdir / "figures" / "snapshots").iterdir())


@pytest.fixture
def uninterrupted(whole):
    return whole(stop__max_epochs=5)


def test_record_and_history_are_complete(uninterrupted):
    _, workdir, record, display = uninterrupted
    assert WorkDir(workdir).read_record() == record
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


def test_the_figure_ends_with_the_parameters_that_are_kept(tmp_path):
    record, display = finish(small(stop__mode="max"), tmp_path)  # so the best epoch is the first
    assert snapshots(tmp_path) == ["epoch_000000.npz", "epoch_000001.npz"]
    model = load(tmp_path)
    (tmp_path / "figures" / "snapshots" / "epoch_000003.npz").touch()  # of an earlier end, and not drawn
    draw(model.config, record, WorkDir(tmp_path))
    with np.load(tmp_path / "figures" / "snapshots" / "epoch_000001.npz") as kept:
        assert kept["val_loss"] == display.rows[0].val_loss
        expected = model.describe(model.workload.load().validation[:2])["density"]
        np.testing.assert_allclose(kept["density"], expected, rtol=1e-4, atol=1e-6)


def test_target_reached(tmp_path, uninterrupted):
    """Between the losses after epochs 2 and 3, of three steps each."""
    target = (uninterrupted.display.rows[1].val_loss + uninterrupted.display.rows[2].val_loss) / 2
    record, _ = finish(small(stop__max_epochs=9, stop__target=target), tmp_path)
    assert (record.stop_reason, record.epochs, record.target_epoch) == ("target_reached", 3, 3)
    assert record.target_step == pytest.approx(7.5)
    assert record.time_to_target_s == pytest.approx(record.clocks["train_s"] + record.clocks["eval_s"])


@pytest.mark.parametrize(("rate", "reason"), [(1e30, stop_reasons.DIVERGED), (10.0, stop_reasons.COLLAPSED)])
def test_divergence_and_collapse_are_results(tmp_path, rate, reason):
    """Steps of size 1e30 overflow float32. Those of size 10 switch every ReLU off: the loss then stays the same."""
    record, display = finish(small(optim__learning_rate=rate, stop__max_epochs=50, stop__collapse_epochs=3), tmp_path)
    assert (record.stop_reason, stop_reasons.EXIT_CODES[reason]) == (reason, 3)
    assert len({repr(row.val_loss) for row in display.rows[-4:]}) == 1
    assert np.isfinite(display.rows[-1].val_loss) == (reason == stop_reasons.COLLAPSED) == (record.best_epoch is not None)
    assert repr(read_history(tmp_path / "history.csv")) == repr(display.rows)
    assert repr(WorkDir(tmp_path).read_record()) == repr(record)


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
    first, _ = finish(config, tmp_path, 3, partial(interrupt, number))
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


@pytest.mark.parametrize(
    ("of", "earlier", "changes", "message"),
    [
        ({}, {"global_batch": 16}, {}, "must keep global batch, learning rate and replicas, 16 and .*; got 8 and"),
        ({}, {"learning_rate": 0.5}, {}, r"must keep .*, 8 and 0\.5 on 1 devices; got 8 and 0\.00105 on 1: use as many"),
        ({"scaling": "local"}, {"devices": 2, "local_steps": 4}, {}, "replicas, 8 and .* on 2 devices; got 8 and .* on 1"),
        (GROWING, {"largest_batch": 16}, {}, "must keep global batch, learning rate and replicas, 16 and .*; got 22 and"),
        (
            {"stop__target": 1e-9},
            {},
            {"stop__mode": "max"},
            "stop.mode, which chose its best .*, loss and min; got loss and max",
        ),
    ],
)
def test_what_an_earlier_part_of_a_run_was_optimised_with_is_kept(tmp_path, whole, of, earlier, changes, message):
    """Another machine may have other devices, and a batch that follows them, with the same configuration."""
    first, folder = whole(**of), tmp_path / "run"
    shutil.copytree(first.workdir, folder)
    (folder / "record.json").write_text(to_json(dataclasses.replace(first.record, **earlier)))
    with pytest.raises(InputError, match=message):
        finish(small(**of | changes | {"stop__max_epochs": 9}), folder)


HISTORIES = {
    "missing": lambda text: None,
    "without its last row": lambda text: text[: text.rindex("\n", 0, -1) + 1],
    "with another digit": lambda text: text.replace("1,3,22,", "1,3,23,"),
    "with another header": lambda text: text.replace("val_loss", "valid_loss"),
}


@pytest.mark.parametrize("change", HISTORIES.values(), ids=HISTORIES)
def test_a_history_that_is_not_the_checkpoint_s_is_refused_until_it_is_put_back(tmp_path, uninterrupted, change):
    finish(small(stop__max_epochs=2), tmp_path)
    history = tmp_path / "history.csv"
    text = history.read_text()
    if (changed := change(text)) is None:
        history.unlink()
    else:
        history.write_text(changed)
    words = r"\A.*history\.csv must begin with the 2 rows after which the checkpoint of epoch 2.*\Z"
    with pytest.raises(InputError, match=words):
        finish(uninterrupted.config, tmp_path)
    assert (history.read_text() if history.exists() else None) == changed
    assert checkpoint_epochs(tmp_path) == [2]
    history.write_text(text + "what no checkpoint has, as of a kill,,\n3,9")
    finish(uninterrupted.config, tmp_path)
    assert losses(read_history(history)) == losses(uninterrupted.display.rows)


def test_metrics_of_another_version_are_not_written_below_those_of_the_history(tmp_path, monkeypatch):
    finish(small(stop__max_epochs=2), tmp_path)
    text = (tmp_path / "history.csv").read_text()
    changed = registry.build(small())._replace(metrics=lambda params, samples: {"new": samples[:, 0, 0, 0]})
    monkeypatch.setattr(registry, "build", lambda config: changed)
    with pytest.raises(InputError, match=r"must have the metrics that the workload gives; it has none, and the workload new"):
        finish(small(stop__max_epochs=3), tmp_path)
    assert (tmp_path / "history.csv").read_text() == text
    assert checkpoint_epochs(tmp_path) == [2]


def test_a_checkpoint_that_comes_too_early_waits_for_a_later_one(tmp_path, uninterrupted):
    _, _, record, display = uninterrupted
    config = small(stop__max_epochs=5, checkpoint__min_interval_s=1000.0)
    with pytest.raises(MemoryError):
        finish(config, tmp_path, 3, fail)
    assert not (tmp_path / "checkpoints").exists()
    repeated, repeated_display = finish(config, tmp_path)
    assert [row.epoch for row in repeated_display.rows] == [1, 2, 3, 4, 5], "the record says nothing of what was lost"
    assert losses(repeated_display.rows) == losses(display.rows)
    assert checkpoint_epochs(tmp_path) == [5]
    assert repeated.run_id == record.run_id


def test_without_a_checkpoint_at_its_end_a_run_writes_one_when_it_is_interrupted(tmp_path):
    config = small(stop__max_epochs=3, checkpoint__at_end=False, checkpoint__every_epochs=9)
    finish(config, tmp_path, 2, interrupt)
    assert checkpoint_epochs(tmp_path) == [2]
    record, display = finish(config, tmp_path)
    assert [row.epoch for row in display.rows] == [3]
    assert checkpoint_epochs(tmp_path) == [2]
    assert (record.stop_reason, record.epochs) == ("max_epochs", 3)


@pytest.mark.parametrize(
    "before",
    ["target_reached", *(pytest.param(end, marks=pytest.mark.slow) for end in ("max_epochs", "sigterm", "killed", "diverged"))],
)
def test_a_target_that_an_earlier_epoch_had_reached_ends_the_run_and_says_so(tmp_path, uninterrupted, before):
    # Epoch 4 then has steps that overflow.
    changes = {"optim__decay_epochs": (3,), "optim__decay_factor": 1e35} if before == "diverged" else {}
    limit = {"max_epochs": 4}.get(before, 5)
    target = uninterrupted.display.rows[3].val_loss if before == "target_reached" else None
    end = {"killed": (5, fail), "sigterm": (4, interrupt)}.get(before, ())
    with pytest.raises(MemoryError) if before == "killed" else nullcontext():
        first, _ = finish(small(stop__max_epochs=limit, stop__target=target, **changes), tmp_path, *end)
        assert first.stop_reason == before
    third = read_history(tmp_path / "history.csv")[2]
    again = small(stop__max_epochs=5, stop__target=third.val_loss, **changes)
    record, display = finish(again, tmp_path)
    assert display.rows == []
    assert (record.stop_reason, record.epochs, record.target_epoch) == ("target_reached", 4, 3)
    assert record.time_to_target_s == third.train_s + third.eval_s
    assert f"validation loss {third.val_loss:g} reached after epoch 3 of 4 earlier ones" in display.lines
    same, display = finish(again, tmp_path)
    assert to_json(same) == to_json(record) == (tmp_path / "record.json").read_text()
    assert display.lines == [f"{tmp_path} holds a finished run: target_reached after 4 epochs"]


@pytest.mark.slow
@pytest.mark.parametrize(("rule", "reason"), [("stop__collapse_epochs", "collapsed"), ("stop__patience_epochs", "stalled")])
def test_a_plateau_goes_on_where_its_rule_has_been_changed(tmp_path, rule, reason):
    """Units that are all off never change again."""
    flat = {"optim__learning_rate": 10.0, "stop__max_epochs": 50, rule: 3}
    record, _ = finish(small(**flat), tmp_path)
    assert record.stop_reason == reason
    flat["stop__max_epochs"] = record.epochs + 2
    assert finish(small(**flat), tmp_path)[1].rows == []
    longer, display = finish(small(**flat | {rule: None}), tmp_path)
    assert display.rows[0].epoch == record.epochs + 1
    assert longer.epochs > record.epochs


def test_an_epochs_order_is_drawn_while_the_one_before_is_computed(monkeypatch):
    setup = preparation.prepare(small())
    state, drawn, draw = setup.devices.replicate(preparation.initial_state(setup)), [], programs.epoch_order
    monkeypatch.setattr(programs, "epoch_order", lambda seed, epoch, of: drawn.append(epoch) or draw(seed, epoch, of))
    train = programs.training(setup, state)
    for epoch in (1, 2, 5):
        state, _ = train(state, epoch)
    assert drawn == [1, 2, 3, 5, 6], "each once, with the one that follows"


@pytest.mark.slow
def test_later_epochs_compile_nothing(tmp_path):
    """Counted by JAX's own events. Every epoch also writes TensorBoard details and a checkpoint here."""
    counts, compilations = [], 0

    def count(event, *_, **__):
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
    assert read_history(tmp_path / "history.csv")[0].lr == pytest.approx(1.1 * 0.00105), (
        "at the second of ten steps to twice the rate"
    )
