"""The optimisers against a plain loop in optax, and their constants against numbers worked by hand."""

import dataclasses
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from gmmae.config import schema
from gmmae.config.schema import OptimConfig
from gmmae.scaling.batches import epoch_order, plan_batches, shard_samples
from gmmae.scaling.strategies import by_sde, resolve
from gmmae.system.errors import InputError
from gmmae.training import optimizers
from gmmae.training.step import Algorithm, EpochValues, Slots, TrainState, train_steps
from tests.small import on_one_device

NAMES = get_args(schema.Optimizer)

# Ten epochs of four batches of 8 samples and one of 4. Their weights, 1/8 and 1/4, are exact in float32.
PLAN = plan_batches(samples=36, global_batch=8, devices=1)
STEPS = 50
RATES = {"adam": 0.02, "sgd": 0.1, "momentum": 0.02, "nesterov": 0.02, "adamw": 0.02, "lamb": 0.03, "lars": 5.0}
BETA1, BETA2, EPSILON, MOMENTUM = 0.8, 0.995, 1e-4, 0.7  # none is a default


def losses(params, samples, keys):
    """Returns the squared error of each sample by two layers with a tanh between them."""
    hidden = jnp.tanh(samples["x"] @ params["hidden_kernel"] + params["hidden_bias"])
    return jnp.sum((hidden @ params["kernel"] + params["bias"] - samples["y"]) ** 2, axis=-1)


def optax_s(name, rate, decay, clip):
    """Returns optax's own optimiser."""
    of_gradient = optax.add_decayed_weights(decay)
    made = {
        "adam": optax.chain(of_gradient, optax.adam(rate, BETA1, BETA2, EPSILON)),
        "sgd": optax.chain(of_gradient, optax.sgd(rate)),
        "momentum": optax.chain(of_gradient, optax.sgd(rate, MOMENTUM)),
        "nesterov": optax.chain(of_gradient, optax.sgd(rate, MOMENTUM, nesterov=True)),
        "adamw": optax.adamw(rate, BETA1, BETA2, EPSILON, weight_decay=decay),
        "lamb": optax.lamb(rate, BETA1, BETA2, EPSILON, weight_decay=decay),
        "lars": optax.lars(rate, decay, trust_coefficient=0.001, eps=0.0, momentum=MOMENTUM),
    }[name]
    return made if clip is None else optax.chain(optax.clip_by_global_norm(clip), made)


@pytest.mark.parametrize("clip", [None, 3.0])  # about the median norm of all steps, so it clips some of them
@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("name", NAMES)
def test_the_losses_are_those_of_a_plain_loop_in_optax(x64, name, decay, clip):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(PLAN.samples, 6))
    samples = jax.tree.map(jnp.asarray, {"x": x, "y": np.sin(x @ rng.normal(size=(6, 3)))})
    shapes = {"hidden_kernel": (6, 8), "hidden_bias": (8,), "kernel": (8, 3), "bias": (3,)}
    params = {key: jnp.asarray(0.5 * rng.normal(size=shape)) for key, shape in shapes.items()}
    epochs = [shard_samples(epoch_order(0, epoch, PLAN.samples), PLAN) for epoch in range(1, STEPS // PLAN.steps + 1)]
    index, weights = (np.concatenate([values[i][0] for values in epochs]) for i in (0, 1))
    rates = jnp.asarray(RATES[name] * (0.2 + np.sin(np.pi * np.arange(STEPS) / STEPS) ** 2))  # it rises, and falls again

    own = optimizers.make(
        OptimConfig(name=name, beta1=BETA1, beta2=BETA2, epsilon=EPSILON, momentum=MOMENTUM, weight_decay=decay, clip_norm=clip)
    )
    values = EpochValues(jnp.uint32(0), jnp.int32(1), rates)
    steps = on_one_device(train_steps, algorithm=Algorithm(losses, own))
    slots = Slots(*map(jnp.asarray, (index, index, weights)))
    step_losses = np.asarray(steps(TrainState(params, own.init(params)), values, STEPS, samples, slots)[1])

    optimizer = optax_s(name, lambda count: rates[count], decay, clip)
    state, expected, update = optimizer.init(params), [], jax.jit(optimizer.update)
    loss_and_gradient = jax.jit(jax.value_and_grad(lambda params, samples: losses(params, samples, None).mean()))
    for real in (of_step[weight > 0] for of_step, weight in zip(index, weights, strict=True)):  # without the padding
        loss, gradient = loss_and_gradient(params, jax.tree.map(lambda array, real=real: array[real], samples))
        updates, state = update(gradient, state, params)
        params = optax.apply_updates(params, updates)
        expected.append(loss)
    # Each step adds a few roundings of 1e-16 and may enlarge those before it. `1 - βᵗ` is the least exact number: at 0.995 it
    # is a difference of two numbers near 1 in optax, and so 2e-14 off.
    np.testing.assert_allclose(step_losses, expected, rtol=1e-12)
    assert step_losses[-5:].mean() < step_losses[:5].mean() / 2, "it must learn"


@pytest.mark.parametrize(
    ("name", "decay"),  # √k = 2 multiplies AdamW's decay
    [("adam", 0.1), ("adamw", 0.2)],
)
def test_the_sde_rule_at_four_base_batches_against_numbers_worked_by_hand(name, decay):
    """1 - 4 (1 - 0.95) = 0.8, 1 - 4 (1 - 0.99) = 0.96, 1e-6 / 2."""
    base = OptimConfig(name=name, batch_size=8, beta1=0.95, beta2=0.99, epsilon=1e-6, weight_decay=0.1)
    found = by_sde(base, 4.0)
    values = found.beta1, found.beta2, found.epsilon, found.weight_decay
    assert values == pytest.approx((0.8, 0.96, 5e-7, decay), rel=1e-12, abs=0)  # roundings of differences from 1
    assert found == dataclasses.replace(base, beta1=values[0], beta2=values[1], epsilon=values[2], weight_decay=values[3])


@pytest.mark.parametrize(("beta1", "beta2", "most"), [(0.95, 0.75, 4), (0.0, 0.999, 1)])
def test_the_largest_batch_of_the_sde_rule_is_where_a_beta_becomes_zero(beta1, beta2, most):
    """It is B / (1 - β) for the smaller β. Ten base batches at 0.9 are in tests/scaling/test_strategies.py."""
    config = OptimConfig(batch_size=30, beta1=beta1, beta2=beta2)
    found, below = (resolve("sde", config, devices, 10_000) for devices in (64, most))
    assert (found.wanted_batch, found.stages[0].batch) == (64 * 30, most * 30)
    assert min(vars(found.stages[0].optim)[name] for name in ("beta1", "beta2")) == pytest.approx(0, abs=1e-12)  # roundings
    assert below.stages[0].batch == below.wanted_batch == most * 30


@pytest.mark.parametrize(("name", "rule"), [("nesterov", "linear"), ("lamb", "sqrt")])
@pytest.mark.parametrize("scaling", ["sde", "sde-warmup"])
def test_the_sde_rule_refuses_other_optimisers_and_names_a_rule_for_them(scaling, name, rule):
    with pytest.raises(InputError, match=f"optim.name must be adam or adamw .*; got {name}: set --scaling {rule}$"):
        resolve(scaling, OptimConfig(name=name), 2, 10_000)


@pytest.mark.parametrize("name", NAMES)
def test_an_automatic_weight_decay_is_a_hundredth_where_it_is_of_the_step_and_zero_elsewhere(name):
    usual = {"adamw": 0.01, "lamb": 0.01}.get(name, 0.0)
    assert OptimConfig(name=name).weight_decay_rate == usual
    assert OptimConfig(name=name, weight_decay=0.0).weight_decay_rate == 0.0
    assert OptimConfig(name=name, weight_decay=0.25).weight_decay_rate == 0.25
