"""What is said and refused before the first epoch. The tests of `loop` have the rest."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from gmmae.system.errors import InputError
from gmmae.training import beginning, preparation
from gmmae.training.beginning import new_record, run_summary
from tests.small import finish, small


def summary(config):
    setup = preparation.prepare(config)
    record = new_record(setup, preparation.initial_state(setup))
    return setup, record, run_summary(setup, record, Path("run"), 0)


def test_the_linear_rule_on_32_devices_with_574_samples_has_their_batch_and_the_rate_of_that():
    setup, record, facts = summary(
        small(scaling="linear", parallel__simulate_devices=32, optim__batch_size=32, data__samples=580)
    )
    assert (record.train_samples, record.wanted_batch, record.global_batch, record.batch_size) == (574, 1024, 574, 32)
    assert record.learning_rate == pytest.approx(17.9375 * 0.00105)
    assert np.asarray(setup.schedule(0)).item() == pytest.approx(17.9375 * 0.00105)
    assert facts["global batch"] == "574 (capped from 1024) = 32 × 18 a device, 2 of the slots padded"
    assert facts["learning rate"] == "0.0188344 = 17.94 η"
    assert "GPU" not in facts


@pytest.mark.parametrize(
    ("cores", "devices"),
    [(3, "3 × cpu, one a core"), (2, "3 × cpu (virtual: they share the processor, so times are no measure of scaling)")],
)
def test_the_start_table_names_devices_batch_warmup_and_an_unused_gpu(monkeypatch, cores, devices):
    monkeypatch.setattr(beginning, "cores", lambda: cores)
    monkeypatch.setattr(beginning.nvidia, "unused", lambda platform, _: f"not used by {platform}")
    _, _, facts = summary(small(scaling="linear-warmup", parallel__devices=3))
    assert facts["global batch"] == "22 (capped from 24) = 3 × 8 a device, 2 of the slots padded"
    assert facts["learning rate"] == "0.00105 → 0.0028875 = 2.75 η in 5 epochs"
    assert (facts["devices"], facts["GPU"]) == (devices, "not used by cpu")


def test_a_run_whose_checkpoints_are_gone_is_not_begun_again_in_silence(tmp_path):
    """The record says 1 epoch, and 2 are asked for. A sweep removes the checkpoints of finished runs."""
    finish(small(stop__max_epochs=1), tmp_path)
    shutil.rmtree(tmp_path / "checkpoints")
    words = r"\Aworkdir must hold a checkpoint for its run to go on after epoch 1; got none in .*keep_checkpoints.*\Z"
    with pytest.raises(InputError, match=words):
        finish(small(stop__max_epochs=2), tmp_path)
    assert (tmp_path / "history.csv").read_text().count("\n") == 2, "what the run left is as it was"
