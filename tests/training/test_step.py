"""The scanned epoch against a plain loop, and the weighted gradient against the mean over the real samples."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from gmmae.config.schema import OptimConfig
from gmmae.scaling.batches import epoch_order, plan_batches, shard_samples
from gmmae.training import compilation, optimizers
from gmmae.training.step import Algorithm, Batch, EpochValues, Slots, TrainState, train_step, train_steps, validate_steps
from tests.small import on_one_device, small

# One step differs by the order of float32 sums: a few units in the last place of the gradient, which Adam, dividing by its
# root mean square, passes on as a relative change of the update. 1e-5 of the largest parameter is a hundred times that.
ATOL = 1e-5


@pytest.fixture(scope="module")
def setup():
    return compilation.prepare(small())


def without_keys(setup):
    return lambda params, samples, keys=None: setup.workload.losses(params, samples, None)


@pytest.mark.slow
def test_scanned_epoch_equals_plain_loop(setup):
    state = compilation.initial_state(setup)
    volumes = jnp.asarray(setup.data.train)
    samples = shard_samples(epoch_order(0, 1, len(volumes)), setup.train_plan)
    indices, weights = jnp.asarray(samples.indices[0]), jnp.asarray(samples.weights[0])
    step = on_one_device(train_step, algorithm=Algorithm(without_keys(setup), setup.optimizer))

    steps = on_one_device(train_steps, algorithm=Algorithm(setup.workload.losses, setup.optimizer))
    slots = Slots(indices, indices, weights)
    values = EpochValues(jnp.uint32(0), jnp.int32(1), jnp.full(len(indices), setup.config.optim.learning_rate))
    scanned, scanned_losses = steps(state, values, len(indices), volumes, slots)
    looped, looped_losses = state, []
    for index, weight in zip(indices, weights, strict=True):
        looped, loss = step(looped, Batch(volumes[index]), weight, setup.config.optim.learning_rate)
        looped_losses.append(float(loss))

    np.testing.assert_allclose(scanned_losses, looped_losses, rtol=1e-5)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=0, atol=ATOL), scanned.params, looped.params)
    moved = jax.tree.map(lambda a, b: float(np.abs(a - b).max()), scanned.params, state.params)
    assert max(jax.tree.leaves(moved)) > 100 * ATOL, "an epoch must change the parameters, or the comparison says nothing"


def test_gradient_is_the_mean_over_real_samples(setup):
    """Eq. 2 with padding: SGD with rate 1 moves the parameters by the gradient itself."""
    params = jax.tree.map(jnp.asarray, compilation.initial_state(setup).params)
    volumes = jnp.asarray(setup.data.train[:5])
    uneven = plan_batches(samples=5, global_batch=5, devices=3)
    samples = shard_samples(np.arange(5, dtype=np.int32), uneven)
    assert uneven.padding == 1
    sgd = optax.with_extra_args_support(optax.sgd(1.0))
    step = on_one_device(train_step, algorithm=Algorithm(without_keys(setup), sgd))
    moved = [
        step(TrainState(params, sgd.init(params)), Batch(volumes[index[0]]), jnp.asarray(weight[0]), 1.0)
        for index, weight in zip(samples.indices, samples.weights, strict=True)
    ]
    gradient = jax.tree.map(
        lambda start, *ends: np.mean([start - end for end in ends], axis=0), params, *[s.params for s, _ in moved]
    )
    expected = jax.jit(jax.grad(lambda p: without_keys(setup)(p, volumes).mean()))(params)

    assert max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(expected)) > 1e-4
    # The difference of two parameters near 1 is known to 1e-7, whatever the size of the gradient.
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6), gradient, expected)
    np.testing.assert_allclose(
        np.mean([loss for _, loss in moved]), jax.jit(without_keys(setup))(params, volumes).mean(), rtol=1e-6
    )


def test_evaluation_counts_every_sample_once(setup):
    params = jax.tree.map(jnp.asarray, compilation.initial_state(setup).params)
    volumes = jnp.asarray(setup.data.validation)
    partial_last = plan_batches(samples=6, global_batch=4, devices=1)
    samples = shard_samples(np.arange(6, dtype=np.int32), partial_last)
    indices, weights = jnp.asarray(samples.indices[0]), jnp.asarray(samples.weights[0])
    steps = on_one_device(validate_steps, values=lambda *of: {"loss": without_keys(setup)(*of)})(
        params, len(indices), volumes, Slots(indices, indices, weights)
    )
    expected = float(np.asarray(jax.jit(without_keys(setup))(params, volumes), np.float64).mean())
    assert partial_last.mean(np.asarray(steps["loss"])) == pytest.approx(expected, rel=1e-6)


def test_clipping_bounds_the_gradient_that_adam_sees():
    gradient = {"w": jnp.array([3.0, 4.0])}
    optimizer = optimizers.make(OptimConfig(clip_norm=1.0))
    _, state = optimizer.update(gradient, optimizer.init(gradient), gradient, learning_rate=0.1)
    first_moment = next(leaf for leaf in jax.tree.leaves(state) if jnp.shape(leaf) == (2,))
    np.testing.assert_allclose(first_moment, 0.1 * np.array([0.6, 0.8]), rtol=1e-6)
