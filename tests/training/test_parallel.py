"""n devices equal one device at an equal global batch, with padding and augmentation."""

from functools import cache, partial
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from gmmae.system.errors import InputError
from gmmae.training import preparation, programs
from gmmae.training.parallel import choose
from gmmae.training.step import LARGE, pmean
from tests.small import small


@cache
def trained(devices, batch):
    """The losses of steps, of validations and the parameters after three epochs."""
    config = small(precision="float64", data__augment=True, parallel__devices=devices, optim__batch_size=batch)
    setup = preparation.prepare(config)
    with preparation.precision_context(config):
        start = state = setup.devices.replicate(preparation.initial_state(setup))
        train, validate = programs.training(setup, state), programs.validation(setup, state.params)
        train_losses, val_losses = [], []
        for epoch in (1, 2, 3):
            state, losses = train(state, epoch)
            train_losses += losses.tolist()
            val_losses.append(validate(state.params)["loss"])
    assert all(array.is_deleted() for array in jax.tree.leaves(start)), "the program takes over the state's memory"
    for leaf in jax.tree.leaves(state):
        assert leaf.sharding.device_set == set(setup.devices.devices)
        assert leaf.is_fully_replicated
    assert val_losses[-1] < 0.99 * val_losses[0], "training must have had an effect"
    return train_losses, val_losses, jax.device_get(state.params)


@pytest.mark.parametrize(("devices", "batch"), [(2, 8), (3, 22), *(pytest.param(n, 8, marks=pytest.mark.slow) for n in (3, 8))])
def test_float64_shows_that_devices_change_nothing_but_the_order_of_sums(devices, batch):
    """22 samples. In batches of 8 the last one is partial, and padded on 3 and on 8 devices; 22 in one step are too on 3."""
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-12), trained(devices, batch), trained(1, batch))


def test_the_devices_that_are_chosen(monkeypatch):
    with pytest.raises(InputError, match=r"at most .* 8 \(cpu\); got 9: set JAX_NUM_CPU_DEVICES=9"):
        choose(9)
    assert choose(None).count == 8
    assert choose(2).oversubscribed
    assert not choose(1).oversubscribed
    monkeypatch.setattr(jax, "devices", lambda: [SimpleNamespace(process_index=i) for i in (0, 0, 1)])
    with pytest.raises(InputError, match="processes must have equally many devices; got 1 and 2"):
        choose(None)


@pytest.mark.usefixtures("optimised")
def test_a_cpu_does_not_join_a_large_array_with_others():
    """Joined, the gradients of an MLP took 100 ms a step instead of less than 1, where arrays lay badly in memory."""
    local = choose(2).shard((np.ones((2, LARGE + 1)), np.ones((2, 1))))
    assert "concatenate(" not in str(choose(2).compile(pmean, local, sharded=1).as_text())


def test_a_cpu_divides_a_share_of_large_samples():
    for parts, size in enumerate((8, 16), 1):
        config = small(data__shape=size, data__samples=60, optim__batch_size=40)
        assert preparation.prepare(config).train_plan.micro_batches == parts
