"""The training step, the epoch and the evaluation as pure functions of one device's shard.

`mean` is the average over devices, given by `gmmae.parallel` (`lax.pmean`); with `identity` the same functions are the
sequential algorithm. Weights come from `gmmae.data.batches`.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jaxtyping import Array, Float, Int, PyTree

from gmmae.losses import weighted_sum

Params = PyTree
Losses = Callable[[Params, Array], Array]
Mean = Callable[[Any], Any]
Gather = Callable[[Array, Array], Array]


class TrainState(NamedTuple):
    """All that a step changes."""

    params: Params
    opt_state: optax.OptState


def identity(tree: Any) -> Any:
    """The mean over one device."""
    return tree


def take(volumes: Array, index: Array) -> Array:
    """The volumes at `index`, as they are."""
    return volumes[index]


def adam(
    learning_rate: optax.Schedule, *, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8, clip_norm: float = 0.0
) -> optax.GradientTransformation:
    """Adam (Kingma and Ba, arXiv:1412.6980) on a schedule, after clipping by global norm where `clip_norm` is positive."""
    update = optax.adam(learning_rate, b1=beta1, b2=beta2, eps=epsilon)
    return optax.chain(optax.clip_by_global_norm(clip_norm), update) if clip_norm else update


def train_step(
    state: TrainState,
    volumes: Float[Array, "device_batch *volume"],
    weights: Float[Array, " device_batch"],
    *,
    losses: Losses,
    optimizer: optax.GradientTransformation,
    mean: Mean = identity,
    micro_batches: int = 1,
) -> tuple[TrainState, Float[Array, ""]]:
    """One synchronous data-parallel step (Eq. 2): local gradient of the weighted sum, mean over devices, update.

    Args:
      state: equal on all devices, and so is the state returned.
      volumes: this device's samples.
      weights: as in `gmmae.data.batches.Shards`.
      losses: `(params, volumes) -> one loss a sample`.
      optimizer: an optax transformation.
      mean: the average over devices.
      micro_batches: equal parts of the batch whose gradients are computed one after the other and added.

    Returns:
      The new state and the mean loss over the step's real samples of all devices, before the update.
    """

    def objective(params: Params, volumes: Array, weights: Array) -> Float[Array, ""]:
        return weighted_sum(losses(params, volumes), weights)

    loss_and_gradient = partial(jax.value_and_grad(objective), state.params)
    local = (
        loss_and_gradient(volumes, weights) if micro_batches == 1 else _sum(loss_and_gradient, volumes, weights, micro_batches)
    )
    loss, gradient = mean(local)
    updates, opt_state = optimizer.update(gradient, state.opt_state, state.params)
    return TrainState(optax.apply_updates(state.params, updates), opt_state), loss


def _sum(function: Callable[[Array, Array], Any], volumes: Array, weights: Array, parts: int) -> Any:
    """The sum of a function's values at equal parts of a batch, one part in memory at a time."""
    shares = (volumes.reshape(parts, -1, *volumes.shape[1:]), weights.reshape(parts, -1))
    zero = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(function, volumes, weights))

    def add(total: Any, share: tuple[Array, Array]) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, total, function(*share)), None

    return lax.scan(add, zero, shares)[0]


def train_epoch(
    state: TrainState,
    volumes: Float[Array, "samples *volume"],
    indices: Int[Array, "steps device_batch"],
    weights: Float[Array, "steps device_batch"],
    *,
    gather: Gather = take,
    **step: Any,
) -> tuple[TrainState, Float[Array, " steps"]]:
    """A scan of `train_step` over the epoch's steps; the data set stays on the device and is gathered from.

    Args:
      state: equal on all devices.
      volumes: the whole training set.
      indices, weights: this device's part of `gmmae.data.batches.Shards`.
      gather: `(volumes, index) -> samples`; where an augmentation comes in.
      step: the keyword arguments of `train_step`.

    Returns:
      The new state and the mean loss of each step.
    """

    def body(carry: TrainState, shard: tuple[Array, Array]) -> tuple[TrainState, Array]:
        index, weight = shard
        return train_step(carry, gather(volumes, index), weight, **step)

    return lax.scan(body, state, (indices, weights))


def evaluate(
    params: Params,
    volumes: Float[Array, "samples *volume"],
    indices: Int[Array, "steps device_batch"],
    weights: Float[Array, "steps device_batch"],
    *,
    losses: Losses,
    mean: Mean = identity,
) -> Float[Array, " steps"]:
    """The mean loss of each step's real samples, without a gradient. Arguments as in `train_epoch`."""

    def body(_: None, shard: tuple[Array, Array]) -> tuple[None, Array]:
        index, weight = shard
        return None, weighted_sum(losses(params, volumes[index]), weight)

    return mean(lax.scan(body, None, (indices, weights))[1])
