"""A global batch that grows during a run: its stages and its record. Its bits are in test_same_bits.py and test_exact.py."""

import pytest

from gmmae.config.schema import OptimConfig
from gmmae.scaling import strategies
from gmmae.system.errors import InputError
from gmmae.training.records import read_history
from tests.small import finish, small
from tests.training.test_same_bits import GROWING


def test_the_history_the_record_and_the_start_table_have_the_batches(whole):
    """22 training samples: batches 8, 16 and 22 have 3, 2 and 1 steps an epoch."""
    _, workdir, record, display = whole(**GROWING)
    rows = read_history(workdir / "history.csv")
    assert [row.batch for row in rows] == [8, 8, 16, 16, 22, 22, 22]
    assert [row.steps for row in rows] == [3, 6, 8, 10, 11, 12, 13]
    assert record.steps == 13
    assert record.growth == [[3, 16], [5, 22]]
    assert record.batch_text == "8 → 16 → 22"
    assert (record.global_batch, record.largest_batch, record.wanted_batch) == (8, 22, 64)
    assert record.clipped
    batches = "8 → 16 → 22 (capped from 64) after epochs 2, 4"
    assert display.facts["global batch"] == f"{batches}; at first 8 × 1 a device, no padding"


def test_a_target_within_the_first_batch_ends_the_run_without_growth(tmp_path):
    record, _ = finish(small(**GROWING | {"stop__target": 1.0}), tmp_path)
    assert (record.epochs, record.growth, record.batch_text) == (1, [], "8")


def test_the_last_batch_is_a_doubling_where_the_devices_would_take_more():
    """A stage begins with the epoch after the given one. Other doublings are in the docstring of `resolve`."""
    found = strategies.resolve("growing", OptimConfig(batch_size=32, batch_doubling_epochs=(5,)), 64, 1024)
    assert [stage[:2] for stage in found.stages] == [(1, 32), (6, 64)]


def test_a_strategy_without_its_epochs_is_refused():
    with pytest.raises(InputError, match=r"optim.batch_doubling_epochs must be given .*; got none: give epochs"):
        strategies.resolve("growing", OptimConfig(), 8, 574)
