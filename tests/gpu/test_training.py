"""Training on a GPU computes what it computes on a CPU, and on several GPUs what it computes on one."""

import jax
import numpy as np
import pytest

from gmmae.training import preparation, programs
from gmmae.training.parallel import Devices
from tests.small import finish, small

pytestmark = pytest.mark.usefixtures("optimised")

SMOOTH = {"model__activation": "silu"}
"""The reason for no ReLU: with it two runs part once an input within rounding of zero falls on the other side."""


def course(config, devices, epochs=2):
    """Each step's loss, the validation's behind them, and the parameters at the end."""
    setup, found = preparation.prepare(config, Devices(devices)), []
    with preparation.precision_context(config):
        state = setup.devices.replicate(preparation.initial_state(setup))
        train, validate = programs.training(setup, state), programs.validation(setup, state.params)
        for epoch in range(1, 1 + epochs):
            state, steps = train(state, epoch)
            found += [steps, [validate(state.params)["loss"]]]
        return np.concatenate(found), [np.asarray(leaf) for leaf in jax.tree.leaves(jax.device_get(state.params))]


# Sums in another order: 1e-5 after a few steps, as between numbers of devices. TF32 rounds at 5e-4, and training amplifies it.
@pytest.mark.parametrize(("precision", "rtol"), [("float32", 1e-4), ("tf32", 1e-2)])
def test_a_gpu_has_the_losses_of_a_cpu(gpus, precision, rtol):
    config = small(**SMOOTH)
    [cpu] = jax.local_devices(backend="cpu")[:1]
    expected, _ = course(config, (cpu,))
    np.testing.assert_allclose(course(small(**SMOOTH, precision=precision), gpus[:1])[0], expected, rtol=rtol)


def test_all_gpus_have_the_losses_of_one(gpus):
    if len(gpus) < 2:
        pytest.skip("it takes two GPUs")
    config = small(**SMOOTH)
    np.testing.assert_allclose(course(config, gpus[:8])[0], course(config, gpus[:1])[0], rtol=1e-4)


def test_the_exact_reduction_has_the_same_bits_twice_and_on_all_gpus(gpus):
    config = small(parallel__deterministic=True, parallel__deterministic_shards=8)
    most = 1 << min(8, len(gpus)).bit_length() - 1
    (one, params), *others = (course(config, gpus[:count]) for count in (1, 1, most))
    for losses_again, params_again in others:
        np.testing.assert_array_equal(losses_again, one)
        for a, b in zip(params_again, params, strict=True):
            np.testing.assert_array_equal(a, b)


def test_a_run_has_the_losses_of_its_programs(gpus, tmp_path):
    config = small(**SMOOTH, parallel__devices=1, stop__max_epochs=9)
    _, display = finish(config, tmp_path)
    expected = course(config, gpus[:1], 9)[0].reshape(9, -1)[:, -1]
    np.testing.assert_allclose([row.val_loss for row in display.rows], expected, rtol=1e-4)
