"""A global batch that grows during a run: its stages, its record, and its resumption. Its bits are in test_exact.py."""

import dataclasses

import pytest

from gmmae.config.rules import ConfigError
from gmmae.config.schema import OptimConfig
from gmmae.scaling import strategies
from gmmae.scaling.growth import Stage, decay, doublings, halvings
from gmmae.system.errors import InputError
from gmmae.training import compilation
from gmmae.training.growth import Growth
from gmmae.training.loop import run
from gmmae.training.records import read_history
from gmmae.training.run_summary import require_same_optimization
from tests.small import Recorder, checkpoint_epochs, fail, fingerprint, finish, interrupt, losses, small

# 22 training samples: batches 8, 16 and 22 have 3, 2 and 1 steps an epoch.
BY_EPOCHS = {"scaling": "growing", "optim__batch_doubling_epochs": (2, 4)}
MEASURED = {"scaling": "growing", "optim__batch_doubling_epochs": "measured"}
SEESAW = {"scaling": "seesaw", "optim__decay_epochs": (2, 4), "optim__decay_factor": 0.5}
EIGHT = {"parallel__simulate_devices": 8, "stop__max_epochs": 7, "checkpoint__every_epochs": 1}


def growing(**changes):
    return small(**EIGHT | changes)


@pytest.fixture(scope="module", params=["epochs", "measured"])
def whole(request, tmp_path_factory):
    """A run without an interruption: its options, its work directory, record and display."""
    options = {"epochs": BY_EPOCHS, "measured": MEASURED}[request.param]
    workdir = tmp_path_factory.mktemp("whole")
    return options, workdir, *finish(growing(**options), workdir)


def test_the_history_and_the_record_have_the_batches(whole):
    options, workdir, record, _ = whole
    batches = {"measured": [8, 8, *[16] * 5]}.get(str(options["optim__batch_doubling_epochs"]), [8, 8, 16, 16, 22, 22, 22])
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
    options, _, _, display = whole
    when = {"measured": "where the measured critical batch is as large"}
    text = when.get(str(options["optim__batch_doubling_epochs"]), "after epochs 2, 4")
    assert display.facts["global batch"] == f"8 → 16 → 22 (capped from 64) {text}; at first 8 × 1 a device, no padding"


@pytest.mark.parametrize("epochs", [2, *(pytest.param(epoch, marks=pytest.mark.slow) for epoch in (1, 3, 4, 5, 6))])
def test_a_run_that_ends_after_any_epoch_and_goes_on_has_the_bits_of_one_that_does_not(tmp_path, whole, epochs):
    options, workdir, record, display = whole
    finish(growing(**options | {"stop__max_epochs": epochs}), tmp_path)
    resumed, _ = finish(config := growing(**options), tmp_path)
    assert losses(read_history(tmp_path / "history.csv")) == losses(display.rows)
    assert fingerprint(config, tmp_path) == fingerprint(config, workdir)
    assert (resumed.growth, resumed.epochs, resumed.steps) == (record.growth, record.epochs, record.steps)


@pytest.mark.slow
def test_an_interruption_in_the_epoch_before_a_change_of_batch_is_resumed(tmp_path, whole):
    options, workdir, _, _ = whole
    run(config := growing(**options), tmp_path, Recorder(2, interrupt))
    assert checkpoint_epochs(tmp_path)[-1] == 2
    finish(config, tmp_path)
    assert fingerprint(config, tmp_path) == fingerprint(config, workdir)


@pytest.mark.slow
def test_a_kill_after_a_change_of_batch_repeats_it(tmp_path, whole):
    """The newest checkpoint is of the epoch before the measurement, which is made again."""
    options, workdir, _, _ = whole
    config = growing(**options | {"checkpoint__every_epochs": 3})
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
    _, _, record, _ = whole
    with pytest.raises(InputError, match=r"must keep its global batch and learning rate, 22 and .*; got 16 and"):
        require_same_optimization(record, dataclasses.replace(record, devices=2, largest_batch=16))


def test_seesaw_replaces_the_decay_of_the_rate(tmp_path):
    """After two halvings the batch is capped at 22, and the rate is η × √(batch / 8) × the rest of the decay."""
    _, display = finish(growing(**SEESAW), tmp_path)
    eta = OptimConfig().learning_rate
    factors = [1, 1, 2**0.5 / 2, 2**0.5 / 2, (22 / 8) ** 0.5 / 4]
    assert [row.lr for row in display.rows[:5]] == pytest.approx([eta * factor for factor in factors])
    assert [row.batch for row in display.rows] == [8, 8, 16, 16, 22, 22, 22]


# A stage begins with the epoch after the given one. The last batch is n base batches, whether or not that is a doubling.
@pytest.mark.parametrize(
    ("epochs", "largest", "stages"),
    [
        ((5, 10, 20), 256, [Stage(6, 64), Stage(11, 128), Stage(21, 256)]),
        ((5, 10, 20), 96, [Stage(6, 64), Stage(11, 96)]),
        ((5,), 1024, [Stage(6, 64)]),
        ((5, 10), 32, []),
        ("measured", 100, [Stage(None, 64), Stage(None, 100)]),
    ],
)
def test_doublings(epochs, largest, stages):
    assert doublings(OptimConfig(batch_doubling_epochs=epochs), largest) == stages


def test_halvings_follow_a_cosine():
    """The factor is 1/2 after 10.1 of 20 epochs, 1/4 after 13.4, 1/8 after 15.5, 1/16 after 17."""
    optim = OptimConfig(cosine_epochs=20)
    assert halvings(optim, 1024)[:3] == [Stage(12, 64), Stage(15, 128), Stage(17, 256)]
    for stage in halvings(optim, 1024):
        assert stage.first_epoch is not None
        assert decay(optim, stage.first_epoch - 1) <= 32 / stage.batch < decay(optim, stage.first_epoch - 2)


@pytest.mark.parametrize(
    ("scaling", "changes", "message"),
    [
        ("growing", {}, r"optim.batch_doubling_epochs must be given .*; got none: give epochs"),
        ("seesaw", {}, r"optim.decay_epochs or optim.cosine_epochs must be given for the strategy seesaw.*; got neither"),
    ],
)
def test_a_strategy_without_its_epochs_is_refused(scaling, changes, message):
    with pytest.raises(InputError, match=message):
        strategies.resolve(scaling, OptimConfig(**changes), 8, 574)


@pytest.mark.parametrize("epochs", [(5, 5), (10, 5), (0,), "sometimes"])
def test_epochs_of_doublings_must_rise(epochs):
    with pytest.raises(ConfigError, match=r"batch_doubling_epochs must be .*; got"):
        OptimConfig(batch_doubling_epochs=epochs)


def test_a_measurement_decides_from_the_critical_batch(tmp_path):
    growth = Growth(compilation.prepare(growing(**MEASURED)), [])
    # Three times the noise scale is the critical batch. The next batches are 16 and 22.
    assert [growth.is_exceeded(noise) for noise in (5.3, 5.4)] == [False, True]
    growth.starts.append(3)
    assert [growth.is_exceeded(noise) for noise in (7.3, 7.4)] == [False, True]
    growth.starts.append(5)
    assert not growth.due(6)
