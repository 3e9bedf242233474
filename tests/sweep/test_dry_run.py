"""A sweep's numbers before anything is run."""

import dataclasses

import pytest

from gmmae.config.schema import Config
from gmmae.sweep.grid import DRY_RUN_COLUMNS, SweepConfig, dry_run
from gmmae.system.errors import InputError


def test_the_grids_numbers_before_anything_is_run():
    """640 samples. Strong on 5: 32 = 5 × 7 - 3, 20 steps. Linear with warmup on 5: 160 = 5 × 32, 4 steps, 5 × 0.001."""
    run = dataclasses.replace(Config(), optim=dataclasses.replace(Config().optim, learning_rate=0.001))
    head, *rows = dry_run(SweepConfig(scaling=("strong", "weak", "linear-warmup"), devices=(1, 5), run=run), 640)
    assert head == DRY_RUN_COLUMNS
    assert rows == [
        ("strong-n1-seed0", "32", "32", "0", "0.001", "20", ""),
        ("weak-n1-seed0", "32", "32", "0", "0.001", "20", "strong-n1-seed0"),
        ("linear-warmup-n1-seed0", "32", "32", "0", "0.001", "20", "strong-n1-seed0"),
        ("strong-n5-seed0", "32", "7", "3", "0.001", "20", "strong-n1-seed0"),
        ("weak-n5-seed0", "160", "32", "0", "0.001", "4", ""),
        ("linear-warmup-n5-seed0", "160", "32", "0", "0.001 → 0.005 = 5 η in 5 epochs", "4", ""),
    ]


def test_a_data_set_smaller_than_the_batch_is_one_step_of_all_of_it():
    """100 of the 128 samples that weak asks for on 4: 25 a device. 100 on 3 are 34 a device with 2 empty slots."""
    _, *rows = dry_run(SweepConfig(scaling=("weak",), devices=(3, 4)), 100)
    assert [row[1:4] + row[5:6] for row in rows] == [("96", "32", "0", "2"), ("100 (capped from 128)", "25", "0", "1")]
    _, *rows = dry_run(SweepConfig(scaling=("weak",), devices=(3,)), 88)
    assert rows[0][1:4] == ("88 (capped from 96)", "30", "2")


def test_the_linear_arm_on_32_devices_with_574_samples():
    """A batch of 574 rather than 1024, and 574 / 32 = 17.94 times the learning rate, rather than 32 times."""
    _, row = dry_run(SweepConfig(scaling=("linear",), devices=(32,)), 574)
    assert row == ("linear-n32-seed0", "574 (capped from 1024)", "18", "2", "0.0188344 = 17.94 η", "1", "")


@pytest.mark.parametrize(("scaling", "samples", "batch"), [("strong", 640, 32), ("weak", 10, 10)])
def test_more_devices_than_samples_in_a_step_are_refused(scaling, samples, batch):
    with pytest.raises(InputError, match=rf"at most the samples in a step.*, {batch}; got \(?40"):
        dry_run(SweepConfig(scaling=(scaling,), devices=(40,)), samples)
