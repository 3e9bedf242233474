"""The optimisers against plain loops in optax and in PyTorch, and their constants against numbers worked by hand."""

import dataclasses
import math
from functools import cache
from itertools import combinations
from typing import Any, get_args

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
from gmmae.workloads.configuration import read_config
from tests.small import on_one_device

NAMES = get_args(schema.Optimizer)
LARGE = 10_000  # training samples that clip nothing

# Ten epochs of four batches of 8 samples and one of 4. Their weights, 1/8 and 1/4, are exact in float32.
PLAN = plan_batches(samples=36, global_batch=8, devices=1)
STEPS = 50
CLIP = 3.0
"""Largest norm of the gradient, about the median of all steps, so it clips some of them."""
DECAY = 0.1
RATES = {"adam": 0.02, "sgd": 0.1, "momentum": 0.02, "nesterov": 0.02, "adamw": 0.02, "lamb": 0.03, "lars": 5.0}
BETA1, BETA2, EPSILON, MOMENTUM = 0.8, 0.995, 1e-4, 0.7  # none is a default

# Each step adds a few roundings of 1e-16 and may enlarge those before it. `1 - βᵗ` is the least exact number: at 0.995 it is
# a difference of two numbers near 1 in optax and in PyTorch, and so 2e-14 off. All losses were within 2e-15 of theirs.
RTOL = 1e-12

CASES = [(name, decay, clip) for name in NAMES for decay in (0.0, DECAY) for clip in (None, CLIP)]


def rates(name: str) -> np.ndarray:
    """Returns the learning rate of each step: it rises, and falls again."""
    return RATES[name] * (0.2 + np.sin(np.pi * np.arange(STEPS) / STEPS) ** 2)


@cache
def problem() -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Returns the samples, and the first parameters of two layers with a tanh between them."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(PLAN.samples, 6))
    samples = {"x": x, "y": np.sin(x @ rng.normal(size=(6, 3)))}
    shapes = {"hidden_kernel": (6, 8), "hidden_bias": (8,), "kernel": (8, 3), "bias": (3,)}
    return samples, {name: 0.5 * rng.normal(size=shape) for name, shape in shapes.items()}


@cache
def batches() -> tuple[np.ndarray, np.ndarray]:
    """Returns the indices and the weights of all steps, as the project's epochs have them."""
    epochs = [shard_samples(epoch_order(0, epoch, PLAN.samples), PLAN) for epoch in range(1, STEPS // PLAN.steps + 1)]
    return np.concatenate([epoch.indices[0] for epoch in epochs]), np.concatenate([epoch.weights[0] for epoch in epochs])


def real_samples() -> list[np.ndarray]:
    """Returns the samples of each step, without its padding."""
    return [index[weights > 0] for index, weights in zip(*batches(), strict=True)]


def losses(params: Any, samples: Any, keys: Any = None) -> jax.Array:
    """Returns the squared error of each sample."""
    hidden = jnp.tanh(samples["x"] @ params["hidden_kernel"] + params["hidden_bias"])
    return jnp.sum((hidden @ params["kernel"] + params["bias"] - samples["y"]) ** 2, axis=-1)


def optim(name: Any, decay: float, clip: float | None) -> OptimConfig:
    return OptimConfig(
        name=name, beta1=BETA1, beta2=BETA2, epsilon=EPSILON, momentum=MOMENTUM, weight_decay=decay, clip_norm=clip
    )


@cache
def own_losses(name: str, decay: float, clip: float | None) -> np.ndarray:
    """Returns the loss of each step of the project's own epoch."""
    with jax.enable_x64(True):
        samples, start = jax.tree.map(jnp.asarray, problem())
        optimizer = optimizers.make(optim(name, decay, clip))
        state = TrainState(start, optimizer.init(start))
        values = EpochValues(jnp.uint32(0), jnp.int32(1), jnp.asarray(rates(name)))
        index, weights = map(jnp.asarray, batches())
        steps = on_one_device(train_steps, algorithm=Algorithm(losses, optimizer))
        step_losses = np.asarray(steps(state, values, STEPS, samples, Slots(index, index, weights))[1])
    assert step_losses.dtype == np.float64
    return step_losses


def optax_s(name: str, decay: float, clip: float | None) -> optax.GradientTransformation:
    """Returns optax's own optimiser."""

    def rate(count: Any) -> Any:
        return jnp.asarray(rates(name))[count]

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


def mean_loss(params: Any, samples: Any) -> jax.Array:
    return losses(params, samples).mean()


loss_and_gradient = jax.jit(jax.value_and_grad(mean_loss))


@pytest.mark.parametrize(("name", "decay", "clip"), CASES)
def test_the_losses_are_those_of_a_plain_loop_in_optax(name, decay, clip):
    with jax.enable_x64(True):
        samples, params = jax.tree.map(jnp.asarray, problem())
        optimizer = optax_s(name, decay, clip)
        state, expected = optimizer.init(params), []
        update = jax.jit(optimizer.update)
        for index in real_samples():
            loss, gradient = loss_and_gradient(params, jax.tree.map(lambda array, index=index: array[index], samples))
            updates, state = update(gradient, state, params)
            params = optax.apply_updates(params, updates)
            expected.append(loss)
        np.testing.assert_allclose(own_losses(name, decay, clip), np.array(expected), rtol=RTOL)


@pytest.mark.parametrize(("name", "decay", "clip"), [case for case in CASES if case[0] not in ("lamb", "lars")])
def test_the_losses_are_those_of_a_plain_loop_in_pytorch(name, decay, clip):
    """PyTorch has neither LAMB nor LARS.

    Its `clip_grad_norm_` divides by the norm + 1e-6, and optax by the norm. So the loop clips by itself. AdamW shrinks the
    parameters by learning rate × decay before the step. Ours adds that to the step, which is the same number.
    """
    torch = pytest.importorskip("torch", reason="PyTorch is an extra: `pip install -c constraints.txt -e '.[bench]'`")
    made = {
        "adam": lambda p: torch.optim.Adam(p, 1.0, (BETA1, BETA2), EPSILON, decay),
        "sgd": lambda p: torch.optim.SGD(p, 1.0, weight_decay=decay),
        "momentum": lambda p: torch.optim.SGD(p, 1.0, MOMENTUM, weight_decay=decay),
        "nesterov": lambda p: torch.optim.SGD(p, 1.0, MOMENTUM, weight_decay=decay, nesterov=True),
        "adamw": lambda p: torch.optim.AdamW(p, 1.0, (BETA1, BETA2), EPSILON, decay),
    }
    samples, start = problem()
    x, y = (torch.tensor(samples[key]) for key in ("x", "y"))
    params = {key: torch.tensor(value, requires_grad=True) for key, value in start.items()}
    optimizer, expected = made[name](list(params.values())), []
    for index, rate in zip(real_samples(), rates(name), strict=True):
        hidden = torch.tanh(x[index] @ params["hidden_kernel"] + params["hidden_bias"])
        loss = ((hidden @ params["kernel"] + params["bias"] - y[index]) ** 2).sum(-1).mean()
        optimizer.zero_grad()
        loss.backward()
        norm = math.sqrt(sum(float((leaf.grad**2).sum()) for leaf in params.values()))
        for leaf in params.values():
            leaf.grad *= 1.0 if clip is None else min(1.0, clip / norm)
        for group in optimizer.param_groups:
            group["lr"] = float(rate)
        optimizer.step()
        expected.append(loss.item())
    np.testing.assert_allclose(own_losses(name, decay, clip), np.array(expected), rtol=RTOL)


def test_all_optimisers_learn_and_all_options_matter_but_for_those_without_an_effect_by_definition():
    """AdamW without a decay is Adam. LARS divides by each layer's norm, so without a decay clipping changes nothing."""
    found = {case: own_losses(*case) for case in CASES}
    for step_losses in found.values():
        assert step_losses[-5:].mean() < step_losses[:5].mean() / 2
    # The equal ones differ by roundings, and the others by 1 % or more.
    same = {pair for pair in combinations(CASES, 2) if np.allclose(*(found[case] for case in pair), rtol=1e-9, atol=0)}
    assert same == {(("lars", 0.0, None), ("lars", 0.0, CLIP)), *((("adam", 0.0, c), ("adamw", 0.0, c)) for c in (None, CLIP))}


def test_an_unknown_optimiser_in_a_file_is_refused_by_one_line_with_the_names(tmp_path):
    path = tmp_path / "config.toml"
    path.write_text('[optim]\nname = "rmsprop"\n', encoding="utf-8")
    with pytest.raises(InputError) as caught:
        read_config(path)
    assert f"{', '.join(NAMES)}; got 'rmsprop'" in str(caught.value)


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


@pytest.mark.parametrize(("beta1", "beta2", "most"), [(0.9, 0.999, 10), (0.95, 0.999, 20), (0.95, 0.75, 4), (0.0, 0.999, 1)])
@pytest.mark.parametrize("base", [1, 8, 30])
def test_the_largest_batch_of_the_sde_rule_is_where_a_beta_becomes_zero(base, beta1, beta2, most):
    """It is B / (1 - β) for the smaller β: ten base batches at 0.9."""
    config = OptimConfig(batch_size=base, beta1=beta1, beta2=beta2)
    found = resolve("sde", config, 64, LARGE)
    [stage] = found.stages
    assert (found.wanted_batch, stage.batch) == (64 * base, most * base)
    assert min(stage.optim.beta1, stage.optim.beta2) == pytest.approx(0, abs=1e-12)  # roundings of a difference from 1
    below = resolve("sde", config, most, LARGE)
    assert below.stages[0].batch == below.wanted_batch == most * base


@pytest.mark.parametrize(
    ("name", "rule"),
    [("sgd", "linear"), ("momentum", "linear"), ("nesterov", "linear"), ("lamb", "sqrt"), ("lars", "sqrt")],
)
@pytest.mark.parametrize("scaling", ["sde", "sde-warmup"])
def test_the_sde_rule_refuses_other_optimisers_and_names_a_rule_for_them(scaling, name, rule):
    with pytest.raises(InputError) as caught:
        resolve(scaling, OptimConfig(name=name), 2, LARGE)
    assert str(caught.value) == f"optim.name must be adam or adamw for the strategy sde; got {name}: set --scaling {rule}"


@pytest.mark.parametrize("name", NAMES)
def test_an_automatic_weight_decay_is_a_hundredth_where_it_is_of_the_step_and_zero_elsewhere(name):
    usual = {"adamw": 0.01, "lamb": 0.01}.get(name, 0.0)
    assert OptimConfig(name=name).weight_decay_rate == usual
    assert OptimConfig(name=name, weight_decay=0.0).weight_decay_rate == 0.0
    assert OptimConfig(name=name, weight_decay=0.25).weight_decay_rate == 0.25
