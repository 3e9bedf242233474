"""Short trials of a configuration: a few epochs at some multiple of its learning rate, and the noise of its gradients.

A trial tells what it does to the loss, and how much of each layer still learns: a unit that no longer depends on its input has
a gradient of zero in all its weights, whatever the workload is.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jaxtyping import Array, Float

from gmmae.analysis.noise import noise_scale
from gmmae.analysis.pace import late
from gmmae.base.config import Config
from gmmae.training import programs
from gmmae.training.programs import Setup
from gmmae.training.step import TrainState, take
from gmmae.workloads.workload import Params, Samples

LEAST_STEPS = 10
"""Of a trial: what fails, fails within them."""

GRADIENT_SAMPLES = 64
"""By which it is judged which units still learn."""


NORM_STEPS = 8
"""Batches whose gradients the noise scale is computed from, at most an epoch's."""


class Trial(NamedTuple):
    """What a trial has shown."""

    losses: list[float]  # the training loss of each step
    alive: list[float]  # of each array of weights, the share of units that have a gradient


class Factored(NamedTuple):
    """The state of an optimiser whose updates are multiplied: Adam's are in proportion to its rate."""

    inner: optax.OptState
    factor: Float[Array, ""]


def factored(optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
    """The optimiser with a factor in its state, so that one compiled program serves all rates."""

    def update(updates: optax.Updates, state: optax.OptState, params: optax.Params | None = None) -> Any:
        assert isinstance(state, Factored)
        scaled, inner = optimizer.update(updates, state.inner, params)
        return jax.tree.map(lambda leaf: state.factor * leaf, scaled), Factored(inner, state.factor)

    return optax.GradientTransformation(lambda params: Factored(optimizer.init(params), jnp.ones(())), update)


def epochs(config: Config, samples: int, batch: int, at_least: int = LEAST_STEPS) -> int:
    """That a trial takes: after any ramp of the rate, as many as have so many steps."""
    return config.optim.ramp_epochs + math.ceil(at_least / math.ceil(samples / batch))


def trials(config: Config, at_least: int = LEAST_STEPS) -> Callable[[float], Trial]:
    """Trials of a configuration at multiples of its rate; each begins anew and takes so many steps, in whole epochs.

    Raises:
      InputError: as `programs.prepare`.
    """
    setup = programs.prepare(config)
    setup = setup._replace(optimizer=factored(setup.optimizer))
    count = epochs(config, setup.train_plan.samples, setup.train_plan.batch, at_least)
    with programs.arithmetic(config):
        start = programs.initial_state(setup)
        train = programs.train_program(setup, setup.devices.replicate(start))
        alive = _alive_program(setup, start.params)

    def attempt(factor: float) -> Trial:
        assert isinstance(start.opt_state, Factored)
        changed = start.opt_state._replace(factor=np.asarray(factor, config.dtype))
        with programs.arithmetic(config):
            state = setup.devices.replicate(start._replace(opt_state=changed))
            losses: list[float] = []
            for epoch in range(1, 1 + count):
                state, of_steps = train(state, epoch)
                losses += of_steps.tolist()
            return Trial(losses, alive(jax.device_get(state.params)))

    return attempt


def _alive_program(setup: Setup, params: Params) -> Callable[[Params], list[float]]:
    """The share of units, along the last axis of each array of weights, whose gradient is not zero, in few samples."""
    count = min(GRADIENT_SAMPLES, setup.train_plan.samples)
    few = (
        take(programs.cast(setup.config, setup.workload.data.train), np.arange(count)),
        jax.random.split(jax.random.key(0), count),
    )

    def shares(params: Params, samples: Any, keys: Array) -> list[Array]:
        gradient = jax.grad(lambda params: programs.losses(setup.workload, params, samples, keys).mean())(params)
        weights = [leaf for leaf in jax.tree.leaves(gradient) if leaf.ndim > 1]
        return [(jnp.abs(leaf.reshape(-1, leaf.shape[-1])).max(axis=0) > 0).mean() for leaf in weights]

    compiled = jax.jit(shares).lower(params, *few).compile()
    return lambda params: [float(share) for share in compiled(params, *few)]


class Norms(NamedTuple):
    """Squared norms of gradients as Adam sees them, |P^(-1/2) g|², a number a step."""

    batch: int
    of_one: list[float]  # the mean over the samples of a step, each alone
    of_batch: list[float]  # of their mean gradient


def gradient_norms(setup: Setup, like: TrainState) -> Callable[[TrainState], Norms]:
    """A program for the norms that the noise scale is computed from, at a state of a run, on the host.

    Args:
      setup: of the run; one device computes.
      like: a state on the host, for its shapes.
    """
    config, batch = setup.config, setup.train_plan.batch
    order = np.random.default_rng(0).permutation(setup.train_plan.samples)[: batch * NORM_STEPS]
    indices = order[: len(order) // batch * batch].reshape(-1, batch)

    def squares(state: TrainState, data: Samples, index: Array) -> tuple[Array, Array]:
        count = optax.tree_utils.tree_get_all_with_path(state.opt_state, "count")[0][1]
        unbiased = -jnp.expm1(jnp.maximum(count, 1) * math.log(config.optim.beta2))
        scales = jax.tree.map(
            lambda v: jnp.sqrt(v / unbiased) + config.optim.epsilon, optax.tree_utils.tree_get(state.opt_state, "nu")
        )

        def norm(index: Array) -> Array:
            keys = jax.vmap(lambda sample: jax.random.fold_in(jax.random.key(0), sample))(index)
            samples = take(data, index)
            gradient = jax.grad(lambda params: programs.losses(setup.workload, params, samples, keys).mean())(state.params)
            return jax.tree.reduce(jnp.add, jax.tree.map(lambda g, scale: jnp.sum(g**2 / scale), gradient, scales))

        return lax.map(lambda one: norm(one[None]), index).mean(), norm(index)

    data = jax.device_put(programs.cast(config, setup.workload.data.train))
    compiled = jax.jit(squares).lower(like, data, indices[0]).compile()

    def norms(state: TrainState) -> Norms:
        found = [compiled(state, data, index) for index in indices]
        return Norms(batch, [float(one) for one, _ in found], [float(many) for _, many in found])

    return norms


def noise_of(norms: Norms) -> float | None:
    """The noise scale in samples; None where the norms say none."""
    return noise_scale(1, np.array(norms.of_one), norms.batch, np.array(norms.of_batch))


def progress(base: Trial, trial: Trial, final_loss: float) -> float:
    """How far a trial's training loss has come: 1, as far as with the base rate; 0, behind by all that this has still to go.

    Both are compared over the last third of the shorter one's steps. The loss before the first step is no measure: it may lie
    far above or below that of a model which has learnt nothing but the mean. NaN where a loss is not finite.

    Args:
      base, trial: at the base rate, and another one.
      final_loss: of the base run, in training, where it reached the target.

    >>> base = Trial([1.0, 0.75, 0.5], [1.0])
    >>> progress(base, Trial([1.0, 1.0, 0.75], [1.0]), 0.0), progress(base, base, 0.0)
    (0.5, 1.0)
    """
    part = late(base.losses, min(len(base.losses), len(trial.losses)))
    wanted, got = (np.array(of.losses[part]) for of in (base, trial))
    left = max(0.0, wanted.mean() - final_loss) + wanted.std()
    behind = got.mean() - wanted.mean()
    return float(1 - behind / left) if left > 0 and math.isfinite(behind) else math.nan


def vitality(base: Trial, trial: Trial) -> float:
    """The least share of a layer's units that still learn, relative to the base rate's.

    >>> vitality(Trial([], [0.5, 1.0]), Trial([], [0.05, 1.0]))
    0.1
    """
    return min((other / own for own, other in zip(base.alive, trial.alive, strict=True) if own), default=1.0)
