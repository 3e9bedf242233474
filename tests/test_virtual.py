"""Virtual devices, micro-batches and float64: other ways to compute the same run."""

import jax
import numpy as np
import pytest

from tests.small import CHEAP, finish, losses, small

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("optimised")]

# Smooth: with ReLU two equal runs part once an input within rounding of zero falls on the other side.
# docs/measurements/equality.md has the sizes.
SMOOTH = CHEAP | {"stop__max_epochs": 4}
# Sums in another order: at most 3e-6 after 100 steps of the quickstart, see that page; here 16 steps or fewer.
RTOL = 1e-5


def trained(folder, **changes):
    record, display = finish(small(**SMOOTH | changes), folder)
    return record, np.array(losses(display.rows))


@pytest.mark.parametrize(("scaling", "devices"), [("strong", 4), ("weak", 4), ("linear", 2), ("linear-warmup", 4)])
def test_virtual_devices_have_the_losses_of_as_many_real_ones(tmp_path, scaling, devices):
    measured, real = trained(tmp_path / "real", scaling=scaling, parallel__devices=devices)
    record, virtual = trained(tmp_path / "virtual", scaling=scaling, parallel__devices=1, parallel__simulate_devices=devices)
    np.testing.assert_allclose(virtual, real, rtol=RTOL)
    assert len(set(real[:, 2])) == 4  # losses that do not change would say nothing
    assert (record.virtual, measured.virtual) == (True, False)
    assert (record.oversubscribed, measured.oversubscribed) == (False, True)
    for name in ("devices", "global_batch", "device_batch", "padding", "steps_per_epoch", "learning_rate"):
        assert getattr(record, name) == getattr(measured, name), name


def test_micro_batches_change_no_loss(tmp_path):
    weak = {"scaling": "weak", "parallel__simulate_devices": 2}
    in_one, *in_parts = (trained(tmp_path / f"{size}", parallel__micro_batch_size=size, **weak)[1] for size in (None, 3, 100))
    for losses_in_parts in in_parts:
        np.testing.assert_allclose(losses_in_parts, in_one, rtol=RTOL)


def test_float64_is_computed_in_float64_from_the_same_start(tmp_path):
    _, single = trained(tmp_path / "single")
    _, double = trained(tmp_path / "double", precision="float64")
    assert not jax.config.read("jax_enable_x64")
    assert np.abs(single / double - 1).max() < RTOL
    assert not np.array_equal(single, double)
    # The last digit of a float32 loss is a multiple of its spacing; that of a float64 mean is not.
    assert any(float(np.float32(loss)) != loss for loss in double[:, 2])
    with np.load(sorted((tmp_path / "double" / "figures" / "snapshots").iterdir())[0]) as snapshot:
        assert snapshot["density"].dtype == np.float64
