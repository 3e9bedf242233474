"""A global batch that grows during a run: its stages, its record, and its resumption. Its bits are in test_exact.py."""

import dataclasses

import pytest

from gmmae.config.rules import ConfigError
from gmmae.config.schema import OptimConfig
from gmmae.scaling import strategies
from gmmae.system.errors import InputError
from gmmae.training.beginning import require_same_optimization
from gmmae.training.loop import run
from gmmae.training.records import read_history
from tests.small import Recorder, checkpoint_epochs, fail, fingerprint, finish, interrupt, losses, small

# 22 training samples: batches 8, 16 and 22 have 3, 2 and 1 steps an epoch.
BY_EPOCHS = {"scaling": "growing", "optim__batch_doubling_epochs": (2, 4)}
EIGHT = {"parallel__simulate_devices": 8, "stop__max_epochs": 7, "checkpoint__every_epochs": 1}


def growing(**changes):
    return small(**EIGHT | changes)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run without an interruption: its work directory, record and display."""
    workdir = tmp_path_factory.mktemp("whole")
    return workdir, *finish(growing(**BY_EPOCHS), workdir)


def test_the_history_and_the_record_have_the_batches(whole):
    workdir, record, _ = whole
    batches = [8, 8, 16, 16, 22, 22, 22]
    steps = {8: 3, 16: 2, 22: 1}
    rows = read_history(workdir / "history.csv")
    assert [row.batch for row in rows] == batches
    assert [row.steps for row in rows] == [sum(steps[batch] for batch in batches[: i + 1]) for i in range(7)]
    assert record.steps == rows[-1].steps
    assert record.growth == [[batches.index(batch) + 1, batch] for batch in dict.fromkeys(batches[2:])]
    assert record.batch_text == " → ".join(str(batch) for batch in dict.fromkeys(batches))
    assert (record.global_batch, record.largest_batch, record.wanted_batch) == (8, 22, 64)
    assert record.clipped


def test_the_start_table_says_when_the_batch_grows(whole):
    _, _, display = whole
    batches = "8 → 16 → 22 (capped from 64) after epochs 2, 4"
    assert display.facts["global batch"] == f"{batches}; at first 8 × 1 a device, no padding"


@pytest.mark.parametrize("epochs", [2, *(pytest.param(epoch, marks=pytest.mark.slow) for epoch in (1, 3, 4, 5, 6))])
def test_a_run_that_ends_after_any_epoch_and_goes_on_has_the_bits_of_one_that_does_not(tmp_path, whole, epochs):
    workdir, record, display = whole
    finish(growing(**BY_EPOCHS | {"stop__max_epochs": epochs}), tmp_path)
    resumed, _ = finish(config := growing(**BY_EPOCHS), tmp_path)
    assert losses(read_history(tmp_path / "history.csv")) == losses(display.rows)
    assert fingerprint(config, tmp_path) == fingerprint(config, workdir)
    assert (resumed.growth, resumed.epochs, resumed.steps) == (record.growth, record.epochs, record.steps)


@pytest.mark.slow
def test_an_interruption_in_the_epoch_before_a_change_of_batch_is_resumed(tmp_path, whole):
    workdir, _, _ = whole
    run(config := growing(**BY_EPOCHS), tmp_path, Recorder(2, interrupt))
    assert checkpoint_epochs(tmp_path)[-1] == 2
    finish(config, tmp_path)
    assert fingerprint(config, tmp_path) == fingerprint(config, workdir)


@pytest.mark.slow
def test_a_kill_after_a_change_of_batch_repeats_it(tmp_path, whole):
    workdir, _, _ = whole
    config = growing(**BY_EPOCHS | {"checkpoint__every_epochs": 3})
    with pytest.raises(MemoryError):
        run(config, tmp_path, Recorder(5, fail))
    assert checkpoint_epochs(tmp_path) == [3]
    finish(config, tmp_path)
    assert fingerprint(config, tmp_path) == fingerprint(config, workdir)


def test_a_target_within_the_first_batch_ends_the_run_without_growth(tmp_path):
    record, _ = finish(growing(**BY_EPOCHS | {"stop__target": 1.0}), tmp_path)
    assert (record.epochs, record.growth, record.batch_text) == (1, [], "8")


def test_a_run_whose_largest_batch_would_be_another_does_not_go_on(whole):
    """Another machine may have other devices, with the same configuration."""
    _, record, _ = whole
    with pytest.raises(InputError, match=r"must keep its global batch and learning rate, 22 and .*; got 16 and"):
        require_same_optimization(record, dataclasses.replace(record, devices=2, largest_batch=16))


# A stage begins with the epoch after the given one. The last batch is n base batches, whether or not that is a doubling.
@pytest.mark.parametrize(
    ("epochs", "largest", "stages"),
    [
        ((5, 10, 20), 256, [(1, 32), (6, 64), (11, 128), (21, 256)]),
        ((5, 10, 20), 96, [(1, 32), (6, 64), (11, 96)]),
        ((5,), 1024, [(1, 32), (6, 64)]),
        ((5, 10), 32, [(1, 32)]),
    ],
)
def test_doublings(epochs, largest, stages):
    found = strategies.resolve("growing", OptimConfig(batch_size=32, batch_doubling_epochs=epochs), 64, largest)
    assert [stage[:2] for stage in found.stages] == stages


def test_a_strategy_without_its_epochs_is_refused():
    with pytest.raises(InputError, match=r"optim.batch_doubling_epochs must be given .*; got none: give epochs"):
        strategies.resolve("growing", OptimConfig(), 8, 574)


@pytest.mark.parametrize("epochs", [(5, 5), (10, 5), (0,), "measured"])
def test_epochs_of_doublings_must_rise(epochs):
    with pytest.raises(ConfigError, match=r"batch_doubling_epochs must be .*; got"):
        OptimConfig(batch_doubling_epochs=epochs)
