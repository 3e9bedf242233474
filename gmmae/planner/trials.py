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
from jaxtyping import Array, Float

from gmmae.config.schema import Config
from gmmae.planner.learning_rate import late
from gmmae.training import compilation
from gmmae.training.compilation import TrainSetup
from gmmae.training.step import take
from gmmae.workloads.interface import Params

LEAST_STEPS = 10
"""Of a trial: what fails, fails within them."""

GRADIENT_SAMPLES = 64
"""By which it is judged which units still learn."""


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
    return config.optim.warmup_epochs + math.ceil(at_least / math.ceil(samples / batch))


def trials(config: Config, at_least: int = LEAST_STEPS) -> Callable[[float], Trial]:
    """Trials of a configuration at multiples of its rate; each begins anew and takes so many steps, in whole epochs.

    Raises:
      InputError: as `programs.prepare`.
    """
    setup = compilation.prepare(config)
    setup = setup._replace(optimizer=factored(setup.optimizer))
    count = epochs(config, setup.train_plan.samples, setup.train_plan.batch, at_least)
    with compilation.precision_context(config):
        start = compilation.initial_state(setup)
        train = compilation.train_program(setup, setup.devices.replicate(start))
        alive = _alive_program(setup, start.params)

    def attempt(factor: float) -> Trial:
        assert isinstance(start.opt_state, Factored)
        changed = start.opt_state._replace(factor=np.asarray(factor, config.dtype))
        with compilation.precision_context(config):
            state = setup.devices.replicate(start._replace(opt_state=changed))
            losses: list[float] = []
            for epoch in range(1, 1 + count):
                state, of_steps = train(state, epoch)
                losses += of_steps.tolist()
            return Trial(losses, alive(jax.device_get(state.params)))

    return attempt


def _alive_program(setup: TrainSetup, params: Params) -> Callable[[Params], list[float]]:
    """The share of units, along the last axis of each array of weights, whose gradient is not zero, in few samples."""
    count = min(GRADIENT_SAMPLES, setup.train_plan.samples)
    few = (
        take(compilation.cast(setup.config, setup.data.train), np.arange(count)),
        jax.random.split(jax.random.key(0), count),
    )

    def shares(params: Params, samples: Any, keys: Array) -> list[Array]:
        gradient = jax.grad(lambda params: compilation.losses(setup.workload, params, samples, keys).mean())(params)
        weights = [leaf for leaf in jax.tree.leaves(gradient) if leaf.ndim > 1]
        return [(jnp.abs(leaf.reshape(-1, leaf.shape[-1])).max(axis=0) > 0).mean() for leaf in weights]

    compiled = jax.jit(shares).lower(params, *few).compile()
    return lambda params: [float(share) for share in compiled(params, *few)]


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
