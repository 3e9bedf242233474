"""A training step, an epoch and a validation as pure functions of one device's arguments.

`mean` averages over the devices. `gmmae.training.parallel` has two of them, `pmean` and `exact_mean`. The default is for one
device, and makes the same functions the sequential algorithm. Weights come from `gmmae.scaling.batches`.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol, TypeVar, runtime_checkable

import jax
import numpy as np
import optax
from jax import lax
from jaxtyping import Array, Float, Int, UInt32

from gmmae.models.losses import weighted_sum
from gmmae.workloads.interface import Params, PerSample, Samples

T = TypeVar("T")
B = TypeVar("B")
BatchFunction = Callable[[B, Array], T]
"""`(batch, weights) -> arrays`, a weighted sum over the samples of a batch."""
Losses = Callable[[Params, Samples, Array | None], Array]
"""`(parameters, samples, keys) -> one loss for each sample`."""
Indices = Int[Array, "steps *device_batch"]
Weights = Float[Array, "steps *device_batch"]


@runtime_checkable
class Mean(Protocol):
    """Averages a function of a device's batch over all devices."""

    def __call__(self, function: BatchFunction[B, T], batch: B, weights: Array, shard_range: Array | None = None) -> T:
        """Returns the mean of `function(batch, weights)`; `shard_range` is as in `parallel.exact_mean`."""
        ...


def on_one_device(function: BatchFunction[B, T], batch: B, weights: Array, shard_range: Array | None = None) -> T:
    """Returns the value of the function, because there is only one device to average over."""
    return function(batch, weights)


class TrainState(NamedTuple):
    """All that a step changes."""

    params: Params
    opt_state: optax.OptState


class Batch(NamedTuple):
    """One device's samples of a step, and a random key for each; no keys where the losses draw nothing."""

    samples: Samples
    keys: Array | None = None


def take(samples: Samples, index: Int[Array | np.ndarray, "*batch"]) -> Samples:
    """Returns the samples at these positions of the data set."""
    return jax.tree.map(lambda array: array[index], samples)


def sample_keys(epoch_key: Array, index: Int[Array, "*batch"]) -> Array:
    """Returns a random key for each sample, which depends on the epoch and the sample's position in the data set only."""
    keys = jax.vmap(lambda sample: jax.random.fold_in(epoch_key, sample))(index.ravel())
    return keys.reshape(index.shape)


def train_step(
    state: TrainState,
    batch: Batch,
    weights: Float[Array, "*samples"],
    learning_rate: Float[Array, ""] | float,
    *,
    losses: Losses,
    optimizer: optax.GradientTransformationExtraArgs,
    mean: Mean = on_one_device,
) -> tuple[TrainState, Float[Array, ""]]:
    """Takes one synchronous data-parallel step (Eq. 2): local gradient of the weighted sum, mean over devices, update.

    Args:
      state: equal on all devices, and so is the state returned.
      batch: this device's samples.
      weights: of the samples, as in `gmmae.scaling.batches.ShardedIndices`.
      learning_rate: of this step.
      losses: give one loss for each sample.
      optimizer: as `gmmae.training.optimizers.make` returns it.
      mean: averages loss and gradient over the devices.

    Returns:
      The new state and the mean loss over the step's real samples of all devices, before the update.
    """

    def loss_and_gradient(batch: Batch, weights: Array) -> tuple[Float[Array, ""], Params]:
        def loss(params: Params) -> Float[Array, ""]:
            return weighted_sum(losses(params, batch.samples, batch.keys), weights)

        return jax.value_and_grad(loss)(state.params)

    loss, gradient = mean(loss_and_gradient, batch, weights)
    with jax.named_scope("optimiser"):
        updates, opt_state = optimizer.update(gradient, state.opt_state, state.params, learning_rate=learning_rate)
        return TrainState(optax.apply_updates(state.params, updates), opt_state), loss


class EpochValues(NamedTuple):
    """The values that differ between the epochs of a program, and between runs that share it.

    Attributes:
      seed: of the samples' random keys.
      epoch: its number.
      learning_rates: of its steps.
    """

    seed: UInt32[Array, ""]
    epoch: Int[Array, ""]
    learning_rates: Float[Array, " steps"]


TrainEpoch = Callable[
    [TrainState, Samples, EpochValues, Indices, Weights, Int[Array, "2"] | None], tuple[TrainState, Float[Array, " steps"]]
]


def make_train_epoch(
    losses: Losses, optimizer: optax.GradientTransformationExtraArgs, mean: Mean = on_one_device
) -> TrainEpoch:
    """Returns a function that scans `train_step` over an epoch.

    Args:
      losses: give one loss for each sample.
      optimizer: as `gmmae.training.optimizers.make` returns it.
      mean: averages loss and gradient over the devices.
    """

    def train_epoch(
        state: TrainState,
        samples: Samples,
        values: EpochValues,
        indices: Indices,
        weights: Weights,
        shard_range: Int[Array, "2"] | None = None,
    ) -> tuple[TrainState, Float[Array, " steps"]]:
        """Returns the state after an epoch and the mean loss of each step.

        Args:
          state: equal on all devices.
          samples: the whole training set, a pytree of arrays that stays on the device.
          values: of the epoch.
          indices: this device's part of `gmmae.scaling.batches.ShardedIndices`.
          weights: of the same.
          shard_range: for `parallel.exact_mean`.
        """
        epoch_key = jax.random.fold_in(jax.random.key(values.seed), values.epoch)
        step = partial(train_step, losses=losses, optimizer=optimizer, mean=partial(mean, shard_range=shard_range))

        def body(state: TrainState, of_step: tuple[Array, Array, Array]) -> tuple[TrainState, Array]:
            index, weights, learning_rate = of_step
            return step(state, Batch(take(samples, index), sample_keys(epoch_key, index)), weights, learning_rate)

        return lax.scan(body, state, (indices, weights, values.learning_rates))

    return train_epoch


def evaluate(
    params: Params,
    samples: Samples,
    indices: Indices,
    weights: Weights,
    shard_range: Int[Array, "2"] | None = None,
    *,
    values: Callable[[Params, Samples], PerSample],
    mean: Mean = on_one_device,
) -> dict[str, Float[Array, " steps"]]:
    """Returns the mean of each step's real samples, by name.

    Args:
      params: equal on all devices.
      samples: the whole data set, a pytree of arrays.
      indices: as in `make_train_epoch`.
      weights: as in `make_train_epoch`.
      shard_range: for `parallel.exact_mean`.
      values: give one value for each sample, by name.
      mean: averages over the devices.
    """

    def sums(samples: Samples, weights: Array) -> dict[str, Array]:
        return {name: weighted_sum(value, weights) for name, value in values(params, samples).items()}

    def body(_: None, of_step: tuple[Array, Array]) -> tuple[None, dict[str, Array]]:
        index, weights = of_step
        return None, mean(sums, take(samples, index), weights, shard_range)

    return lax.scan(body, None, (indices, weights))[1]
