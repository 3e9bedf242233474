"""The training step, the epoch and the evaluation as pure functions of one device's shard.

`average` is the mean over devices, given by `gmmae.training.parallel`; by default there is one device, and the same functions
are the sequential algorithm. Weights come from `gmmae.scaling.batches`.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jaxtyping import Array, Float, Int

from gmmae.models.losses import weighted_sum
from gmmae.training.reduction import OfBatch, in_parts
from gmmae.workloads.interface import Params, PerSample, Samples

Average = Callable[[OfBatch, Array, Array], Any]
Losses = Callable[[Params, Samples, Array | None], Array]
Keys = Callable[[Array], Array | None]


def no_keys(index: Array) -> None:
    """For losses that draw nothing."""


class TrainState(NamedTuple):
    """All that a step changes."""

    params: Params
    opt_state: optax.OptState


def take(samples: Samples, index: Int[Array | np.ndarray, "*batch"]) -> Samples:
    """The samples at `index`."""
    return jax.tree.map(lambda array: array[index], samples)


def adam(
    learning_rate: optax.Schedule, *, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8, clip_norm: float = 0.0
) -> optax.GradientTransformation:
    """Adam (Kingma and Ba, arXiv:1412.6980) on a schedule, after clipping by global norm where `clip_norm` is positive."""
    update = _adam(learning_rate, beta1, beta2, epsilon)
    return optax.chain(optax.clip_by_global_norm(clip_norm), update) if clip_norm else update


def _adam(learning_rate: optax.Schedule, beta1: float, beta2: float, epsilon: float) -> optax.GradientTransformation:
    """optax's, but for `1 - βᵗ`, which cancels in float32: its first steps are 1e-5 off, and losses after them 1e-4.

    Rate and moments share one count of the steps.
    """
    moments = optax.scale_by_adam(beta1, beta2, epsilon)
    logs = [math.log(beta) if beta else -math.inf for beta in (beta1, beta2)]

    def update(
        updates: optax.Updates, state: optax.OptState, params: optax.Params | None = None
    ) -> tuple[optax.Updates, optax.OptState]:
        assert isinstance(state, optax.ScaleByAdamState)
        rate = jnp.asarray(learning_rate(state.count))
        _, state = moments.update(updates, state, params)
        assert isinstance(state, optax.ScaleByAdamState)
        first, second = (-jnp.expm1(state.count * log) for log in logs)
        scaled = jax.tree.map(lambda m, v: -rate * (m / first / (jnp.sqrt(v / second) + epsilon)), state.mu, state.nu)
        return scaled, state

    return optax.GradientTransformation(moments.init, update)


def train_step(
    state: TrainState,
    samples: Samples,
    weights: Float[Array, "*samples"],
    *,
    losses: Callable[[Params, Samples], Array],
    optimizer: optax.GradientTransformation,
    average: Average = in_parts,
) -> tuple[TrainState, Float[Array, ""]]:
    """One synchronous data-parallel step (Eq. 2): local gradient of the weighted sum, mean over devices, update.

    Args:
      state: equal on all devices, and so is the state returned.
      samples: this device's samples, as `losses` takes them.
      weights: as in `gmmae.scaling.batches.Shards`.
      losses: `(params, samples) -> one loss a sample`.
      optimizer: an optax transformation.
      average: `(function, samples, weights) -> ` the mean over devices of the function's value at the samples of each.

    Returns:
      The new state and the mean loss over the step's real samples of all devices, before the update.
    """

    def loss_and_gradient(samples: Samples, weights: Array) -> tuple[Float[Array, ""], Params]:
        return jax.value_and_grad(lambda params: weighted_sum(losses(params, samples), weights))(state.params)

    loss, gradient = average(loss_and_gradient, samples, weights)
    with jax.named_scope("optimiser"):
        updates, opt_state = optimizer.update(gradient, state.opt_state, state.params)
        return TrainState(optax.apply_updates(state.params, updates), opt_state), loss


def train_epoch(
    state: TrainState,
    samples: Samples,
    indices: Int[Array, "steps *device_batch"],
    weights: Float[Array, "steps *device_batch"],
    *,
    losses: Losses,
    keys: Keys = no_keys,
    optimizer: optax.GradientTransformation,
    average: Average = in_parts,
) -> tuple[TrainState, Float[Array, " steps"]]:
    """A scan of `train_step` over the epoch's steps; the data set stays on the device and is gathered from.

    Args:
      state: equal on all devices.
      samples: the whole training set, a pytree of arrays.
      indices, weights: this device's part of `gmmae.scaling.batches.Shards`.
      losses: as `gmmae.workloads.interface.Workload.losses`.
      keys: `index -> one random key for each`, or None.
      optimizer, average: as in `train_step`.

    Returns:
      The new state and the mean loss of each step.
    """

    def of_index(params: Params, index: Array) -> Array:
        return losses(params, take(samples, index), keys(index))

    def body(carry: TrainState, shard: tuple[Array, Array]) -> tuple[TrainState, Array]:
        return train_step(carry, *shard, losses=of_index, optimizer=optimizer, average=average)

    return lax.scan(body, state, (indices, weights))


def evaluate(
    params: Params,
    samples: Samples,
    indices: Int[Array, "steps *device_batch"],
    weights: Float[Array, "steps *device_batch"],
    *,
    values: Callable[[Params, Samples], PerSample],
    average: Average = in_parts,
) -> dict[str, Float[Array, " steps"]]:
    """The mean of each step's real samples, by name; `values` gives one value a sample. Other arguments as in `train_epoch`."""

    def means(index: Array, weight: Array) -> dict[str, Array]:
        return {name: weighted_sum(each, weight) for name, each in values(params, take(samples, index)).items()}

    return lax.scan(lambda _, shard: (None, average(means, *shard)), None, (indices, weights))[1]
