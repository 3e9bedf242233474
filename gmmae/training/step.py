"""A training step, consecutive steps and a validation, as pure functions of one device's arguments, within `pmap`."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, PyTree, UInt32

from gmmae.models.losses import weighted_sum
from gmmae.training.exact import B, BatchFunction, T, exact_mean
from gmmae.training.parallel import AXIS
from gmmae.workloads.interface import Params, PerSample, Samples

Losses = Callable[[Params, Samples, Array | None], Array]
"""`(parameters, samples, keys) -> one loss for each sample`."""
X = TypeVar("X")

LARGE = 262_144
"""Elements of an array whose mean over a CPU's devices is taken alone."""


class TrainState(NamedTuple):
    """All that a step changes, and the momentum of the rounds of local steps."""

    params: Params
    opt_state: optax.OptState
    outer: optax.OptState | None = None


class Batch(NamedTuple):
    """One device's samples of a step, and a random key for each, or none where the losses draw nothing."""

    samples: Samples
    keys: Array | None = None


class Algorithm(NamedTuple):
    """What a step does with its batch, in `micro_batches` equal parts or by the `exact` reduction.

    With `local_steps` each replica takes that many steps by its own gradients, and then the replicas' states are averaged. The
    parameters take the change that `outer` makes of the average's, by momentum (DiLoCo, arXiv:2311.08105).
    """

    losses: Losses
    optimizer: optax.GradientTransformationExtraArgs
    micro_batches: int = 1
    exact: bool = False
    local_steps: int = 0
    outer: optax.GradientTransformation | None = None


class EpochValues(NamedTuple):
    """The values that differ between epochs, and between runs that share a program."""

    seed: UInt32[Array, ""]
    epoch: Int[Array, ""]
    learning_rates: Float[Array, " steps"]


class Slots(NamedTuple):
    """One device's slots of consecutive steps, or with the exact reduction those of all shards, `shards × shard_batch`.

    With local steps the replicas that a device computes are the first axis.

    Attributes:
      rows: where the samples are in the arrays on the device.
      indices: where they are in the data set, of which a device may hold a part.
      weights: as in `gmmae.scaling.batches.ShardedIndices`.
      shard_range: the device's first shard and number of shards, for the exact reduction.
    """

    rows: Int[Array, "steps *slots"]
    indices: Int[Array, "steps *slots"]
    weights: Float[Array, "steps *slots"]
    shard_range: Int[Array, "2"] | None = None


def take(samples: Samples, index: Int[Array | np.ndarray, "*batch"] | int) -> Samples:
    """The samples at these positions."""
    return jax.tree.map(lambda array: array[index], samples)


def in_micro_batches(function: BatchFunction[B, T], batch: B, weights: Float[Array, " samples"], parts: int = 1) -> T:
    """The sum of a function's values at equal parts of a batch, one after the other to bound memory."""
    if parts == 1:
        return function(batch, weights)
    divided = jax.tree.map(lambda leaf: leaf.reshape(parts, len(leaf) // parts, *leaf.shape[1:]), (batch, weights))
    function = jax.jit(function)  # traced once
    one = jax.eval_shape(function, *take(divided, 0))
    zero = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, jnp.promote_types(leaf.dtype, jnp.float32)), one)
    total = _scanned(lambda total, part: jax.tree.map(jnp.add, total, function(*part)), zero, divided, parts)
    return jax.tree.map(lambda total, leaf: total.astype(leaf.dtype), total, one)


def pmean(local: X) -> X:
    """The mean over devices, where it can by one `lax.pmean` of all arrays, because each one synchronises all devices."""
    if lax.axis_size(AXIS) == 1:
        return local
    with jax.named_scope("reduction"):
        return lax.platform_dependent(local, cpu=_pmean_on_cpu, default=_pmean_as_one)


def _pmean_as_one(local: PyTree) -> PyTree:
    vector, unravel = ravel_pytree(local)
    return unravel(lax.pmean(vector, AXIS))


def _pmean_on_cpu(local: PyTree) -> PyTree:
    """Takes large arrays alone: XLA joins arrays by loops as long as the longest."""
    leaves, tree = jax.tree.flatten(local)
    means = _pmean_as_one({i: leaf for i, leaf in enumerate(leaves) if leaf.size <= LARGE})
    return tree.unflatten(means[i] if i in means else lax.pmean(leaf, AXIS) for i, leaf in enumerate(leaves))


def averaged(of_replicas: X) -> X:
    """The mean over a device's replicas, the leading axis, and over devices; whole numbers are equal everywhere."""
    leaves, tree = jax.tree.flatten(of_replicas)
    means = pmean({i: leaf.mean(0) for i, leaf in enumerate(leaves) if jnp.issubdtype(leaf.dtype, jnp.inexact)})
    return tree.unflatten(means[i] if i in means else leaf[0] for i, leaf in enumerate(leaves))


def train_step(
    state: TrainState,
    batch: Batch,
    weights: Float[Array, "*samples"],
    learning_rate: Float[Array, ""] | float,
    shard_range: Int[Array, "2"] | None = None,
    *,
    algorithm: Algorithm,
) -> tuple[TrainState, Float[Array, ""]]:
    """Takes one synchronous data-parallel step (Eq. 2): local gradient of the weighted sum, mean over devices, update.

    With the exact reduction the batch has the samples of all devices, with the shards as leading axis. With local steps nothing
    is averaged here: gradient and loss are the replica's.

    Returns:
      The new state and the mean loss over the step's real samples of all devices, before the update.
    """

    def weighted_loss(params: Params, batch: Batch, weights: Array) -> Float[Array, ""]:
        return weighted_sum(algorithm.losses(params, batch.samples, batch.keys), weights)

    loss_and_gradient = partial(jax.value_and_grad(weighted_loss), state.params)
    if algorithm.exact:
        loss, gradient = exact_mean(loss_and_gradient, batch, weights, shard_range)
    else:
        loss, gradient = in_micro_batches(loss_and_gradient, batch, weights, algorithm.micro_batches)
        if not algorithm.local_steps:
            loss, gradient = pmean((loss, gradient))
    with jax.named_scope("optimiser"):
        updates, opt_state = algorithm.optimizer.update(gradient, state.opt_state, state.params, learning_rate=learning_rate)
        return TrainState(optax.apply_updates(state.params, updates), opt_state, state.outer), loss


def train_steps(
    state: TrainState,
    values: EpochValues,
    count: Int[Array, ""] | int,
    samples: Samples,
    slots: Slots,
    *,
    algorithm: Algorithm,
) -> tuple[TrainState, Float[Array, " steps"]]:
    """Takes consecutive steps of an epoch, each by `train_step`, or rounds of local steps (Stich, arXiv:1805.09767).

    Where `count` is an array, the program has the same bits for any number of steps.

    Returns:
      The new state and the mean loss of each step, 0 for those that were not taken.
    """
    epoch_key = jax.random.fold_in(jax.random.key(values.seed), values.epoch)
    rates = values.learning_rates

    def step(carry: tuple[TrainState, Array], of_step: tuple[Array, ...]) -> tuple[TrainState, Array]:
        (state, step_losses), (number, rate, rows, indices, weights) = carry, of_step
        # A key depends on the epoch and the sample's position in the data set only.
        keys = jax.vmap(lambda sample: jax.random.fold_in(epoch_key, sample))(indices.ravel()).reshape(indices.shape)
        batch = Batch(take(samples, rows), keys)
        state, loss = train_step(state, batch, weights, rate, slots.shard_range, algorithm=algorithm)
        return state, _with(step_losses, number, loss)

    def of_steps(slots: Slots) -> tuple[Array, ...]:
        return jnp.arange(len(rates)), rates, slots.rows, slots.indices, slots.weights

    start, every = (state, jnp.zeros_like(rates)), algorithm.local_steps
    if not every:
        return _scanned(step, start, of_steps(slots), count)

    def take_round(number: Array, carry: tuple[TrainState, Array]) -> tuple[TrainState, Array]:
        before, losses = carry
        own = before._replace(outer=None), losses

        def of_replica(slots: Slots) -> tuple[TrainState, Array]:
            first = number * every
            return _scanned(step, own, of_steps(slots), jnp.minimum(first + every, count), first)

        state, losses = averaged(lax.map(of_replica, slots._replace(shard_range=None)))
        if not (algorithm.outer and before.outer):
            return state, losses
        change, outer = algorithm.outer.update(jax.tree.map(jnp.subtract, state.params, before.params), before.outer)
        return TrainState(optax.apply_updates(before.params, change), state.opt_state, outer), losses

    return lax.fori_loop(0, -(-count // every), take_round, start)


def validate_steps(
    params: Params,
    count: Int[Array, ""] | int,
    samples: Samples,
    slots: Slots,
    *,
    per_sample: Callable[[Params, Samples], PerSample],
    exact: bool = False,
) -> dict[str, Float[Array, " steps"]]:
    """The mean of each step's real samples, by name, 0 for steps that are not taken."""

    def sums(samples: Samples, weights: Array) -> dict[str, Array]:
        values = per_sample(params, samples)
        return jax.tree.map(lambda value: weighted_sum(jnp.where(weights > 0, value, 0), weights), values)  # 0 · ∞ is no number

    @jax.jit  # traced once
    def means(rows: Array, weights: Array) -> dict[str, Array]:
        batch = take(samples, rows)
        return exact_mean(sums, batch, weights, slots.shard_range) if exact else pmean(sums(batch, weights))

    def step(step_means: dict[str, Array], of_step: tuple[Array, Array, Array]) -> dict[str, Array]:
        number, *places = of_step
        return {name: _with(step_means[name], number, mean) for name, mean in means(*places).items()}

    steps, one = len(slots.weights), jax.eval_shape(means, slots.rows[0], slots.weights[0])
    zeros = jax.tree.map(lambda leaf: jnp.zeros(steps, leaf.dtype), one)
    return _scanned(step, zeros, (jnp.arange(steps), slots.rows, slots.weights), count)


def _scanned(
    step: Callable[[X, PyTree], X], carry: X, of_steps: PyTree, count: Int[Array, ""] | int, first: Int[Array, ""] | int = 0
) -> X:
    """XLA knows the number of turns where `count` is an int."""
    if isinstance(count, int):
        return lax.scan(lambda carry, of_step: (step(carry, of_step), None), carry, of_steps)[0]

    def numbered(number: Array, carry: X) -> X:
        return step(carry, jax.tree.map(lambda array: lax.dynamic_index_in_dim(array, number, keepdims=False), of_steps))

    return lax.fori_loop(first, count, numbered, carry)


def _with(values: Float[Array, " steps"], number: Array, value: Float[Array, ""]) -> Float[Array, " steps"]:
    """The values with another one at `number`.

    All are written again: XLA makes an update in place a copy on a GPU, which divides the step's CUDA graph.
    """
    return jnp.where(jnp.arange(len(values)) == number, value, values)
