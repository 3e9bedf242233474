import itertools
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import tensorboardX
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import plugin_data_pb2

from gmmae.system import stop_reasons
from gmmae.training import run_logger
from gmmae.training.loop import run
from gmmae.training.records import Epoch
from gmmae.training.run_logger import RESULTS, SCALARS, TIMES, TensorBoard
from gmmae.workloads.nodules import events, slices
from tests.small import Recorder, fail, finish, interrupt, small
from tests.sweep.test_runs import RECORD


def row(epoch, loss=None):
    loss = 0.1 / epoch if loss is None else loss
    return Epoch(epoch, 18 * epoch, 574 * epoch, 0.001, 2 * loss, loss, 1.0, 2.0 * epoch, 0.5, 0.1, 4.0 * epoch, 32)


def details(n=3, nodules=2, components=5):
    rng = np.random.default_rng(n)
    inputs, density = rng.uniform(0, 1, (2, nodules, *[8] * n)).astype(np.float32)
    factors = np.tril(rng.uniform(0.1, 0.2, (nodules, components, n, n))).astype(np.float32)
    weights = rng.dirichlet(np.ones(components), nodules).astype(np.float32)
    means = rng.uniform(-1, 1, (nodules, components, n)).astype(np.float32)
    covariances = factors @ factors.swapaxes(-1, -2)
    return {"inputs": inputs, "density": density, "weights": weights, "means": means, "covariances": covariances}


def read(folder):
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0, "images": 0, "histograms": 0})
    return events.Reload()


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


def test_an_epoch_is_on_disk_before_the_board_is_closed(tmp_path):
    board = TensorBoard(tmp_path, {})
    board.row(row(1))
    deadline = time.monotonic() + 30  # a second is promised; a busy machine may take longer
    while "loss/validation" not in read(tmp_path).Tags()["scalars"] and time.monotonic() < deadline:
        time.sleep(0.2)
    assert [event.step for event in read(tmp_path).Scalars("loss/validation")] == [1]
    board.close()


def test_short_epochs_do_not_wait_for_the_disk_each(tmp_path, monkeypatch):
    flushed, now = [], itertools.count()
    monkeypatch.setattr(run_logger, "FLUSH_S", 20)
    monkeypatch.setattr(
        run_logger, "time", SimpleNamespace(monotonic=lambda: next(now), time=time.time)
    )  # read at an epoch and after a flush
    board = TensorBoard(tmp_path, {})
    with monkeypatch.context() as patched:
        patched.setattr(tensorboardX.SummaryWriter, "flush", lambda _: flushed.append(epoch))
        for epoch in range(1, 101):
            board.row(row(epoch))
    board.close()
    assert flushed == [1, 21, 41, 61, 81]
    assert [event.step for event in read(tmp_path).Scalars("loss/validation")] == list(range(1, 101))


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
def test_histograms_and_images_come_back(tmp_path, n):
    write(tmp_path, [1], shown=[(1, details(n))])
    events = read(tmp_path)
    names = {"mixture/alpha", "mixture/mu", "mixture/sigma"} | ({"mixture/rho"} if n > 1 else set())
    assert set(events.Tags()["histograms"]) == names
    counts = {tag: events.Histograms(tag)[0].histogram_value.num for tag in names}
    each = {"mixture/alpha": 1, "mixture/mu": n, "mixture/sigma": n, "mixture/rho": n * (n - 1) // 2}
    assert counts == {tag: 2 * 5 * each[tag] for tag in names}  # nodules × components × numbers a component
    images = [f"nodule_{i}/input_and_reconstruction" for i in range(2)] if n > 1 else []
    assert sorted(events.Tags()["images"]) == images
    for tag in images:
        image = events.Images(tag)[0]
        assert (image.height, image.width) == (8 * 8, 8 * (8 + 1 + 8))


def test_sigma_and_rho_are_those_of_the_covariances_and_nan_hides_no_other_number(tmp_path):
    sigma, rho = np.array([0.5, 0.25], np.float32), 0.6
    covariance = np.outer(sigma, sigma) * np.array([[1, rho], [rho, 1]])
    one = details(2, nodules=1, components=1) | {"covariances": covariance[None, None].astype(np.float32)}
    write(tmp_path, [], shown=[(1, one)])
    for name, values in (("sigma", sigma), ("rho", [rho])):
        histogram = read(tmp_path).Histograms(f"mixture/{name}")[0].histogram_value
        assert (histogram.min, histogram.max) == pytest.approx((min(values), max(values)), rel=1e-6)
    one["covariances"][0, 0] = np.nan
    write(tmp_path / "broken", [], shown=[(1, one)])
    assert set(read(tmp_path / "broken").Tags()["histograms"]) == {"mixture/alpha", "mixture/mu"}


def hparams(folder):
    """What the HParams tab reads, by tag."""
    events, plugin = read(folder), getattr(plugin_data_pb2, "HParamsPluginData")  # noqa: B009 – protobuf makes it at import
    tags = events.PluginTagToContent("hparams")
    return {tag: plugin.FromString(events.SummaryMetadata(tag).plugin_data.content) for tag in tags}


def test_hyperparameters_reach_their_tab(tmp_path):
    parameters = {
        "scaling": "linear",
        "seed": 3,
        "optim.learning_rate": 0.001,
        "log.tensorboard": True,
        "model.filters": (8, 16),
    }
    write(tmp_path, [1], parameters=parameters)
    contents = hparams(tmp_path)
    started = contents["_hparams_/session_start_info"].session_start_info.hparams
    found = {name: getattr(value, value.WhichOneof("kind")) for name, value in started.items()}
    assert found == parameters | {"model.filters": "(8, 16)"}
    experiment = contents["_hparams_/experiment"].experiment
    assert {info.name.tag for info in experiment.metric_infos} == set(SCALARS) | set(RESULTS)


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


def kill(at):
    def start(config, workdir):
        with pytest.MonkeyPatch.context() as patched:
            opened = []
            make = tensorboardX.SummaryWriter
            patched.setattr(
                tensorboardX, "SummaryWriter", lambda *args, **options: opened.append(make(*args, **options)) or opened[-1]
            )
            with pytest.raises(MemoryError):
                run(config, workdir, Recorder(at, fail))
        for writer in opened:
            writer.close()  # all that it has shown is on the disk, and no thread is left

    return start


def stop(config, workdir):
    assert run(config, workdir, Recorder(3, interrupt)).stop_reason == stop_reasons.SIGTERM


def end_early(config, workdir):
    assert run(replace(config, stop=replace(config.stop, max_epochs=3)), workdir, Recorder()).epochs == 3


STARTS = {
    "killed before the first checkpoint": [kill(3)],
    "killed twice before it": [kill(2), kill(3)],
    "killed after a checkpoint": [kill(5)],
    "killed in the epoch after one": [kill(6), kill(5)],
    "interrupted": [stop],
    "ended, and now goes on": [end_early],
    "interrupted, ended at once, and now goes on": [stop, end_early],
}


def steps(folder):
    """The steps of every tag, in the order in which TensorBoard has them."""
    events = read(folder)
    kinds = {"scalars": events.Scalars, "histograms": events.Histograms, "images": events.Images}
    return {tag: [event.step for event in of(tag)] for kind, of in kinds.items() for tag in events.Tags()[kind]}


LOGGED = small(log__tensorboard=True, log__every_epochs=2, checkpoint__every_epochs=4, stop__max_epochs=7)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    run(LOGGED, workdir := tmp_path_factory.mktemp("whole"), Recorder())
    return steps(workdir / "tb")


@pytest.mark.slow
@pytest.mark.parametrize("starts", STARTS.values(), ids=STARTS.keys())
def test_whatever_ended_the_runs_before_the_board_is_that_of_one_run(tmp_path, whole, starts):
    for i, start in enumerate(starts):
        start(LOGGED, tmp_path / "parts")
        [file] = (tmp_path / "parts" / "tb").glob("*[!x]")
        file.rename(file.with_name(f"events.out.tfevents.100000000{i}.x"))  # named by the second; a start takes longer
    run(LOGGED, tmp_path / "parts", Recorder())
    assert whole["loss/validation"] == list(range(1, 8))
    assert whole["mixture/mu"] == [0, 2, 4, 6, 7]
    assert steps(tmp_path / "parts" / "tb") == whole


@pytest.mark.slow
def test_a_run_that_ends_at_once_keeps_its_last_details(tmp_path):
    """The target was raised to what an earlier epoch had; epoch 3 is in no series of details but as the last one."""
    config = small(log__tensorboard=True, log__every_epochs=2)
    _, display = finish(config, tmp_path)
    losses = [row.val_loss for row in display.rows]
    [file] = (tmp_path / "tb").iterdir()
    file.rename(file.with_name("events.out.tfevents.1000000000.x"))
    raised = replace(config, stop=replace(config.stop, target=losses[1]))
    assert run(raised, tmp_path, Recorder()).stop_reason == stop_reasons.TARGET_REACHED
    found = steps(tmp_path / "tb")
    assert (found["loss/validation"], found["mixture/mu"], found["result/epochs"]) == ([1, 2, 3], [0, 2, 3], [3])
