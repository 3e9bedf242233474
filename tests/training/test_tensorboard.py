import itertools
import time
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import plugin_data_pb2

from gmmae.config.schema import changed
from gmmae.system import stop_reasons, tensorboardx
from gmmae.training import run_logger
from gmmae.training.records import Epoch
from gmmae.training.run_logger import RESULTS, SCALARS, TIMES, RunLogger, TensorBoard
from gmmae.training.workdir import WorkDir
from gmmae.workloads.nodules import events, slices
from tests.small import fail, finish, interrupt, small
from tests.sweep.test_runs import RECORD


def row(epoch, loss=None):
    loss = 0.1 / epoch if loss is None else loss
    return Epoch(epoch, 18 * epoch, 574 * epoch, 0.001, 2 * loss, loss, 1.0, 2.0 * epoch, 0.5, 0.1, 4.0 * epoch, 32)


SIGMA, RHO = np.array([0.25, 0.5, 0.75]), 0.5


def details(n=3):
    """Two nodules of five components of one shape."""
    covariance = np.outer(SIGMA[:n], SIGMA[:n]) * (RHO + (1 - RHO) * np.eye(n))
    inputs, density = np.random.default_rng(0).uniform(size=(2, 2, *[8] * n)).astype(np.float32)
    means, weights = np.zeros((2, 5, n)), np.full((2, 5), 0.2)
    covariances = np.tile(covariance, (2, 5, 1, 1))
    return {"inputs": inputs, "density": density, "weights": weights, "means": means, "covariances": covariances}


def read(folder):
    return EventAccumulator(str(folder), size_guidance={"scalars": 0, "images": 0, "histograms": 0}).Reload()


def steps(folder):
    """The steps of every tag, in the order in which TensorBoard has them."""
    events = read(folder)
    kinds = {"scalars": events.Scalars, "histograms": events.Histograms, "images": events.Images}
    return {tag: [event.step for event in of(tag)] for kind, of in kinds.items() for tag in events.Tags()[kind]}


def write(folder, epochs, start=0, shown=(), parameters=None):
    board = TensorBoard(folder, parameters or {"seed": 0}, start)
    for epoch in epochs:
        board.row(row(epoch))
    for epoch, what in shown:
        board.events(epoch, events(what))
    board.close()


def test_scalars_come_back_and_losses_that_are_not_finite_stay_as_they_are(tmp_path):
    write(tmp_path / "new" / "tb", [1, 2, 3])
    events = read(tmp_path / "new" / "tb")
    expected = SCALARS | TIMES
    assert set(events.Tags()["scalars"]) == set(expected)
    for tag, name in expected.items():
        found = {event.step: event.value for event in events.Scalars(tag)}
        assert found == pytest.approx({epoch: getattr(row(epoch), name) for epoch in (1, 2, 3)}, rel=1e-6)  # stored in float32
    board = TensorBoard(tmp_path / "diverged", {})
    board.row(row(1, np.nan))
    board.row(row(2, np.inf))
    board.close()
    assert [str(event.value) for event in read(tmp_path / "diverged").Scalars("loss/validation")] == ["nan", "inf"]


def test_an_epoch_is_on_disk_before_the_board_is_closed_but_short_ones_do_not_wait_for_it_each(tmp_path, monkeypatch):
    flushed, now, flush = [], itertools.count(), tensorboardx.EventsWriter.flush
    board = TensorBoard(tmp_path, {})
    monkeypatch.setattr(run_logger, "FLUSH_S", 20)
    # The clock is read at an epoch and after a flush.
    monkeypatch.setattr(run_logger, "time", SimpleNamespace(monotonic=lambda: next(now), time=time.time))
    with monkeypatch.context() as patched:
        patched.setattr(tensorboardx.EventsWriter, "flush", lambda writer: flushed.append(epoch) or flush(writer))
        for epoch in range(1, 101):
            board.row(row(epoch))
    assert flushed == [1, 21, 41, 61, 81]
    assert steps(tmp_path)["loss/validation"][:81] == [*range(1, 82)]
    board.close()


def test_events_are_on_disk_before_a_checkpoint(tmp_path):
    board = TensorBoard(tmp_path / "tb", {})
    logger = RunLogger(WorkDir(tmp_path), board)
    logger.begin([], [])
    for epoch in range(1, 10):
        logger.row(row(epoch))
    logger.sha256()
    assert steps(tmp_path / "tb")["loss/validation"] == [*range(1, 10)]
    board.close()


def test_after_a_resume_no_epoch_is_there_twice_and_events_carry_the_run_s_own_clock(tmp_path):
    write(tmp_path, [1, 2, 3, 4], shown=[(2, details())])
    (file,) = tmp_path.iterdir()
    file.rename(tmp_path / "events.out.tfevents.1000000000.host")  # long before the next process
    write(tmp_path, [2, 3], start=2)  # the last checkpoint was after epoch 2
    first, *others = read(tmp_path).Scalars("loss/validation")
    assert first.wall_time > 1_500_000_000  # written before the file had that name
    assert [(event.step, event.wall_time) for event in others] == [
        (epoch, 1_000_000_000 + 2.0 * epoch + 0.5) for epoch in (2, 3)
    ]
    write(tmp_path / "new", [1, 4], shown=[(4, details())])
    events = read(tmp_path / "new")
    early, late = events.Scalars("loss/train")
    assert late.wall_time - early.wall_time == 2.0 * 3
    assert events.Images("nodule_0/input_and_reconstruction")[0].wall_time == late.wall_time


@pytest.mark.parametrize("n", [1, 2, 3])
def test_histograms_and_images_come_back_and_nan_hides_no_other_number(tmp_path, n):
    write(tmp_path, [1], shown=[(1, details(n))])
    events = read(tmp_path)
    sigma, rho = (SIGMA[0], SIGMA[n - 1], n), (RHO, RHO, n * (n - 1) // 2)
    expected = {"alpha": (0.2, 0.2, 1), "mu": (0, 0, n), "sigma": sigma} | ({"rho": rho} if n > 1 else {})
    assert set(events.Tags()["histograms"]) == {f"mixture/{name}" for name in expected}
    for name, (low, high, count) in expected.items():
        found = events.Histograms(f"mixture/{name}")[0].histogram_value
        assert (found.min, found.max, found.num) == pytest.approx((low, high, 2 * 5 * count), rel=1e-6)
    images = [f"nodule_{i}/input_and_reconstruction" for i in range(2)] if n > 1 else []
    assert sorted(events.Tags()["images"]) == images
    for tag in images:
        image = events.Images(tag)[0]
        assert (image.height, image.width) == (8 * 8, 8 * (8 + 1 + 8))
    write(tmp_path / "broken", [], shown=[(1, details(n) | {"covariances": np.full((2, 5, n, n), np.nan)})])
    assert set(read(tmp_path / "broken").Tags()["histograms"]) == {"mixture/alpha", "mixture/mu"}


def hparams(folder):
    """What the HParams tab reads, by tag."""
    events, plugin = read(folder), getattr(plugin_data_pb2, "HParamsPluginData")  # noqa: B009 – protobuf makes it at import
    tags = events.PluginTagToContent("hparams")
    return {tag: plugin.FromString(events.SummaryMetadata(tag).plugin_data.content) for tag in tags}


def test_hyperparameters_reach_their_tab(tmp_path):
    parameters = {"scaling": "linear", "seed": 3, "rate": 0.001, "log.tensorboard": True, "model.filters": (8, 16)}
    write(tmp_path, [1], parameters=parameters)
    contents = hparams(tmp_path)
    started = contents["_hparams_/session_start_info"].session_start_info.hparams
    found = {name: getattr(value, value.WhichOneof("kind")) for name, value in started.items()}
    assert found == parameters | {"model.filters": "(8, 16)"}
    assert [info.name.tag for info in contents["_hparams_/experiment"].experiment.metric_infos] == [*RESULTS, *SCALARS]


def test_the_result_fills_its_columns_with_the_metric_of_the_target_but_for_what_was_missed(tmp_path):
    board = TensorBoard(tmp_path, {}, metric="accuracy")
    board.row(row(1)._replace(metrics={"accuracy": 0.75}))
    board.result(replace(RECORD, monitor="accuracy", epochs=1, best_metrics={"accuracy": 0.75}, time_to_target_s=None))
    board.close()
    columns = {info.name.tag for info in hparams(tmp_path)["_hparams_/experiment"].experiment.metric_infos}
    assert columns == {*SCALARS, *RESULTS, "metric/accuracy", "result/best_accuracy"}
    events = read(tmp_path)
    expected = {"metric/accuracy": 0.75, "result/best_accuracy": 0.75, "result/epochs": 1}
    for tag, value in (expected | {"result/best_val_loss": RECORD.best_val_loss}).items():
        assert [event.value for event in events.Scalars(tag)] == pytest.approx([value], rel=1e-6)
    assert "result/time_to_target_s" not in events.Tags()["scalars"]


def test_slices_are_the_central_ones_side_by_side_on_the_inputs_scale():
    volume = np.zeros((4, 2, 2), np.float32)
    volume[2] = [[0, 4], [2, 4]]
    density = np.zeros_like(volume)
    density[2] = [[1, 8], [np.nan, -3]]
    expected = [[0, 1, 1, 0.25, 1], [0.5, 1, 1, 0, 0]]  # input, a white line, reconstruction clipped to the input's range
    np.testing.assert_array_equal(slices(volume, density, zoom=1), expected)
    np.testing.assert_array_equal(slices(volume[2], density[2], zoom=1), expected)
    np.testing.assert_array_equal(slices(volume, density, zoom=3)[1::3, 1::3], expected)
    assert np.isfinite(slices(np.zeros((4, 4)), np.zeros((4, 4)))).all()  # nothing to divide by


LOGGED = {
    "log__tensorboard": True,
    "log__every_epochs": 2,
    "checkpoint__every_epochs": 4,
    "stop__max_epochs": 7,
    "stop__validate_every_steps": 2,
}


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param([(5, fail)], id="killed after a checkpoint"),
        *(
            pytest.param(parts, id=name, marks=pytest.mark.slow)
            for name, parts in {
                "killed twice before the first checkpoint": [(2, fail), (3, fail)],
                "killed in the epoch after one": [(6, fail), (5, fail)],
                "ended, and now goes on": [(3, None)],
                "interrupted, ended at once, and now goes on": [(3, interrupt), (3, None)],
            }.items()
        ),
    ],
)
def test_whatever_ended_the_runs_before_the_board_is_that_of_one_run(tmp_path, monkeypatch, whole, parts):
    opened, make = [], tensorboardx.EventsWriter
    monkeypatch.setattr(tensorboardx, "EventsWriter", lambda of: opened.append(make(of)) or opened[-1])
    config = small(**LOGGED)
    for i, (at, end) in enumerate(parts):
        with pytest.raises(MemoryError) if end is fail else nullcontext():
            finish(config if end else changed(config, stop__max_epochs=at), tmp_path, at, end or (lambda: None))
        if end is fail:
            opened[-1].close()  # all that a killed run has shown is on the disk
        [file] = tmp_path.glob("events*[!x]")
        file.rename(file.with_name(f"events.out.tfevents.100000000{i}.x"))  # named by the second; a start takes longer
    finish(config, tmp_path)
    expected = steps(whole(**LOGGED).workdir)
    assert expected["loss/validation"] == list(range(1, 8))
    assert expected["mixture/mu"] == [0, 2, 4, 6, 7]
    assert expected["steps/loss"] == [step for epoch in range(7) for step in (3 * epoch + 2, 3 * epoch + 3)]
    assert steps(tmp_path) == expected


@pytest.mark.slow
def test_a_run_that_ends_at_once_keeps_its_last_details(tmp_path):
    """The target was raised to what an earlier epoch had; epoch 3 is in no series of details but as the last one."""
    config = small(log__tensorboard=True, log__every_epochs=2)
    _, display = finish(config, tmp_path)
    [file] = tmp_path.glob("events*")
    file.rename(file.with_name("events.out.tfevents.1000000000.x"))
    raised = changed(config, stop__target=display.rows[1].val_loss)
    assert finish(raised, tmp_path)[0].stop_reason == stop_reasons.TARGET_REACHED
    found = steps(tmp_path)
    assert (found["loss/validation"], found["mixture/mu"], found["result/epochs"]) == ([1, 2, 3], [0, 2, 3], [3])
