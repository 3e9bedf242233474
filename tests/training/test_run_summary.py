"""What is said and refused before the first epoch. The tests of `loop` have the rest."""

import dataclasses
import shutil

import numpy as np
import pytest

from gmmae.system.errors import InputError
from gmmae.training import compilation, loop
from gmmae.training.run_summary import new_record, require_same_optimization, run_summary
from tests.small import Recorder, small
from tests.sweep.test_runs import RECORD


def test_the_linear_arm_on_32_devices_with_574_samples_has_their_batch_and_the_rate_of_that(tmp_path):
    config = small(scaling="linear", parallel__simulate_devices=32, optim__batch_size=32, data__samples=580)
    setup = compilation.prepare(config)
    state = compilation.initial_state(setup)
    record = new_record(setup, state)
    assert (record.train_samples, record.wanted_batch, record.global_batch, record.batch_size) == (574, 1024, 574, 32)
    assert record.learning_rate == pytest.approx(17.9375 * 0.00105)
    assert np.asarray(setup.schedule(0)).item() == pytest.approx(17.9375 * 0.00105)
    told = run_summary(setup, record, tmp_path, 0)
    assert told["global batch"] == "574 (capped from 1024) = 32 × 18 a device, 2 of the slots padded"
    assert told["learning rate"] == "0.0188344 = 17.94 η"


def test_a_run_of_another_versions_rule_does_not_go_on(tmp_path):
    earlier = dataclasses.replace(RECORD, scaling="linear", devices=32, global_batch=574, learning_rate=0.0336)
    now = dataclasses.replace(earlier, learning_rate=0.01883437)
    with pytest.raises(InputError) as caught:
        require_same_optimization(earlier, now)
    assert str(caught.value) == (
        "a resumed run of strategy linear must keep its global batch and learning rate, 574 and 0.0336 on 32 devices; got 574 "
        "and 0.0188344 on 32: another version's rule chose them: give another workdir"
    )


def test_a_run_whose_checkpoints_are_gone_is_not_begun_again_in_silence(tmp_path):
    """The record says 1 epoch, and 2 are asked for. A sweep removes the checkpoints of finished runs."""
    loop.run(small(stop__max_epochs=1), tmp_path, Recorder())
    shutil.rmtree(tmp_path / "checkpoints")
    with pytest.raises(InputError) as caught:
        loop.run(small(stop__max_epochs=2), tmp_path, Recorder())
    message = str(caught.value)
    assert message.startswith("workdir must hold a checkpoint for its run to go on after epoch 1; got none in ")
    assert "keep_checkpoints" in message
    assert "\n" not in message
    assert (tmp_path / "history.csv").read_text().count("\n") == 2, "what the run left is as it was"
