"""Short trials of a configuration: a few epochs at a multiple of its learning rate.

A trial shows its training loss and the share of each layer's units that still learn. A unit that no longer depends on its input
has a zero gradient in all its weights, in every workload.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from gmmae.config.schema import Config, changed
from gmmae.scaling import schedules
from gmmae.training import compilation, programs
from gmmae.training.compilation import TrainSetup
from gmmae.workloads import contract
from gmmae.workloads.interface import Params, Samples
from gmmae.workloads.sources import Fetcher, take_on_host

MIN_STEPS = 10
"""Minimum number of steps of a trial; instability shows within them."""

MAX_GRADIENT_SAMPLES = 64
"""Number of samples whose gradient decides which units still learn."""


class Trial(NamedTuple):
    """The result of a trial."""

    losses: list[float]  # the training loss of each step
    active_fractions: list[float]  # share of units that have a gradient, for each array of weights


def count_epochs(config: Config, samples: int, batch: int) -> int:
    """Returns the epochs of a trial: the warmup, and then as many as have the minimum number of steps."""
    return config.optim.warmup_epochs + math.ceil(MIN_STEPS / math.ceil(samples / batch))


def learning_rate_trials(config: Config) -> Callable[[float], Trial]:
    """Returns a function that runs a trial at a multiple of the configuration's learning rate.

    Each trial starts from the initial parameters and takes the minimum number of steps, rounded up to whole epochs.

    Raises:
      InputError: as `compilation.prepare`.
    """
    config = changed(config, stop__validate_every_steps=None)  # an epoch is one program
    setup = compilation.prepare(config)
    count = count_epochs(config, setup.train_plan.samples, setup.train_plan.batch)
    with compilation.precision_context(config):
        start = compilation.initial_state(setup)
        active = _compile_active_fractions(setup, start.params)

    def run_trial(factor: float) -> Trial:
        with compilation.precision_context(config):
            state = setup.devices.replicate(start)
            stage, base = setup.stage, changed(config, optim__learning_rate=factor * config.optim.learning_rate)
            scaled = stage._replace(learning_rate=factor * stage.learning_rate, optim=base.optim)
            at_factor = setup._replace(schedule=schedules.learning_rate(scaled, setup.train_plan.steps))
            losses: list[float] = []
            with Fetcher(config.parallel.fetch_threads) as fetcher:
                train = programs.training(at_factor, state, fetcher)
                for epoch in range(1, 1 + count):
                    state, of_steps = train(state, epoch)
                    losses += of_steps.tolist()
            return Trial(losses, active(jax.device_get(state.params)))

    return run_trial


def _compile_active_fractions(setup: TrainSetup, params: Params) -> Callable[[Params], list[float]]:
    """Compiles the share of units with a gradient other than zero, for each array of weights.

    Units lie along the last axis. The gradient is the mean over a few samples.
    """
    count = min(MAX_GRADIENT_SAMPLES, setup.train_plan.samples)
    few = (
        compilation.cast(setup.config, take_on_host(setup.data.train, np.arange(count))),
        jax.random.split(jax.random.key(0), count),
    )

    def shares(params: Params, samples: Samples, keys: Array) -> list[Array]:
        gradient = jax.grad(lambda params: contract.losses(setup.workload, params, samples, keys).mean())(params)
        weights = [leaf for leaf in jax.tree.leaves(gradient) if leaf.ndim > 1]
        return [(jnp.abs(leaf.reshape(-1, leaf.shape[-1])).max(axis=0) > 0).mean() for leaf in weights]

    compiled = jax.jit(shares).lower(params, *few).compile()
    return lambda params: [float(share) for share in compiled(params, *few)]


def progress(base: Trial, trial: Trial, final_loss: float) -> float:
    """Returns how far a trial's training loss has come, relative to the base rate's.

    1 means as far as at the base rate. 0 means behind it by all of the way that the base rate still has to go. Both are
    compared over the last third of the shorter one's steps. The loss before the first step does not count, because it may lie
    far above or below that of an untrained model. The result is NaN if a loss is not finite.

    Args:
      base: the trial at the base rate.
      trial: the trial at another learning rate.
      final_loss: training loss of the base run where it reaches the target.

    >>> base = Trial([1.0, 0.75, 0.5], [1.0])
    >>> progress(base, Trial([1.0, 1.0, 0.75], [1.0]), 0.0), progress(base, base, 0.0)
    (0.5, 1.0)
    """
    count = min(len(base.losses), len(trial.losses))
    wanted, got = (np.array(of.losses[count - max(1, count // 3) : count]) for of in (base, trial))
    left = max(0.0, wanted.mean() - final_loss) + wanted.std()
    behind = got.mean() - wanted.mean()
    return float(1 - behind / left) if left > 0 and math.isfinite(behind) else math.nan


def active_unit_fraction(base: Trial, trial: Trial) -> float:
    """Returns the smallest share of a layer's units that still learn, relative to that at the base rate.

    >>> active_unit_fraction(Trial([], [0.5, 1.0]), Trial([], [0.05, 1.0]))
    0.1
    """
    return min(
        (other / own for own, other in zip(base.active_fractions, trial.active_fractions, strict=True) if own), default=1.0
    )
