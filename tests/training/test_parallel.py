"""n devices equal one device at an equal global batch, and all replicas agree."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gmmae.scaling.batches import epoch_order, shard_samples
from gmmae.system.errors import InputError
from gmmae.training import compilation, programs, step
from gmmae.training.parallel import AXIS, choose
from gmmae.training.step import Algorithm, EpochValues, Slots, train_steps
from tests.small import small

EPOCHS = 3


def trained(devices: int) -> tuple[list[float], list[float], dict]:
    setup = compilation.prepare(small(parallel__devices=devices))
    start = state = setup.devices.replicate(compilation.initial_state(setup))
    train, validate = programs.training(setup, state), programs.validation(setup, state.params)
    train_losses, val_losses = [], []
    for epoch in range(1, EPOCHS + 1):
        state, losses = train(state, epoch)
        train_losses += losses.tolist()
        val_losses.append(validate(state.params)["loss"])
    assert all(array.is_deleted() for array in jax.tree.leaves(start)), "the program takes over the state's memory"
    for leaf in jax.tree.leaves(state):
        assert leaf.sharding.device_set == set(setup.devices.devices)
        assert leaf.is_fully_replicated
    return train_losses, val_losses, jax.device_get(state.params)


@pytest.fixture(scope="module")
def one_device():
    return trained(1)


@pytest.mark.parametrize("devices", [2, *(pytest.param(n, marks=pytest.mark.slow) for n in (3, 8))])
def test_strong_scaling_equals_one_device(devices, one_device):
    """22 samples in batches of 8: a partial last batch always, padding on 3 devices and, in the last batch, on 8."""
    train_losses, val_losses, params = trained(devices)
    # Sums in another order: 1e-7 a step, carried on through nine steps of Adam.
    np.testing.assert_allclose(train_losses, one_device[0], rtol=2e-5)
    np.testing.assert_allclose(val_losses, one_device[1], rtol=2e-5)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=0, atol=5e-5), params, one_device[2])
    assert one_device[1][-1] < 0.98 * one_device[1][0], "training must have had an effect"


def test_float64_shows_that_devices_change_nothing_but_the_order_of_sums():
    """22 samples in one step: their weights have no exact value."""
    losses = []
    for devices in (1, 3):
        config = small(precision="float64", parallel__devices=devices, optim__batch_size=22)
        setup = compilation.prepare(config)
        with compilation.precision_context(config):
            state = setup.devices.replicate(compilation.initial_state(setup))
            losses.append(programs.training(setup, state)(state, 1)[1])
    np.testing.assert_allclose(*losses, rtol=1e-13)


def replicas_after_an_epoch():
    """The parameters on each of 4 devices, seen through a sharded output: a replicated one would show the first only."""
    setup = compilation.prepare(small(parallel__devices=4))
    state = setup.devices.replicate(compilation.initial_state(setup))
    samples = setup.devices.shard(shard_samples(epoch_order(0, 1, setup.train_plan.samples), setup.train_plan))
    steps = partial(train_steps, algorithm=Algorithm(setup.workload.losses, setup.optimizer))
    mapped = jax.pmap(steps, AXIS, in_axes=(None, None, None, None, 0), devices=list(setup.devices.devices))
    slots = Slots(samples.indices, *samples)
    values = EpochValues(jnp.uint32(0), jnp.int32(1), jnp.full(setup.train_plan.steps, 0.001))
    found, _ = mapped(state, values, setup.train_plan.steps, setup.data.train, slots)
    return jax.device_get(found.params)


@pytest.mark.slow
def test_all_replicas_are_equal_after_an_epoch_but_not_without_the_mean(monkeypatch):
    for leaf in jax.tree.leaves(replicas_after_an_epoch()):
        for replica in leaf[1:]:
            np.testing.assert_array_equal(replica, leaf[0])
    monkeypatch.setattr(step, "pmean", lambda local: local)
    assert any((leaf[1] != leaf[0]).any() for leaf in jax.tree.leaves(replicas_after_an_epoch()))


def test_the_devices_that_are_chosen():
    with pytest.raises(InputError, match=r"at most .* 8 \(cpu\); got 9: set JAX_NUM_CPU_DEVICES=9"):
        choose(9)
    assert choose(None).count == 8
    assert choose(2).oversubscribed
    assert not choose(1).oversubscribed


@pytest.mark.slow
def test_augmentation_does_not_depend_on_the_number_of_devices(one_device):
    def run(devices):
        setup = compilation.prepare(small(parallel__devices=devices, data__augment=True))
        state = setup.devices.replicate(compilation.initial_state(setup))
        return programs.training(setup, state)(state, 1)[1]

    augmented = run(1)
    assert not np.allclose(augmented, one_device[0][: len(augmented)], rtol=1e-3)
    # As above, over one epoch of three steps.
    np.testing.assert_allclose(run(3), augmented, rtol=1e-5)
