"""A training step, an epoch and a validation as pure functions of one device's arguments.

`mean` averages over the devices. `gmmae.training.parallel` has two of them, `pmean` and `exact_mean`. The default is for one
device, and makes the same functions the sequential algorithm. Weights come from `gmmae.scaling.batches`.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol, TypeVar, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jaxtyping import Array, Float, Int, UInt32

from gmmae.models.losses import weighted_sum
from gmmae.workloads.interface import Params, PerSample, Samples

T = TypeVar("T")
B = TypeVar("B")
C = TypeVar("C")
X = TypeVar("X")
Y = TypeVar("Y")
BatchFunction = Callable[[B, Array], T]
"""`(batch, weights) -> arrays`, a weighted sum over the samples of a batch."""
Losses = Callable[[Params, Samples, Array | None], Array]
"""`(parameters, samples, keys) -> one loss for each sample`."""
Indices = Int[Array, "steps *device_batch"]


class RowsOfSource(NamedTuple):
    """The samples of a device's slots where only a part of the data set is on the device.

    Attributes:
      rows: positions in the arrays on the device.
      indices: positions in the data set.
    """

    rows: Int[Array | np.ndarray, "*slots"]
    indices: Int[Array | np.ndarray, "*slots"]


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


def sample_keys(epoch_key: Array, index: Int[Array | np.ndarray, "*batch"]) -> Array:
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
StepOfEpoch = Callable[[TrainState, tuple[Array | RowsOfSource, Array, Array]], tuple[TrainState, Float[Array, ""]]]
"""`(state, (indices, weights, learning rate)) -> (state, mean loss)`."""
Progress = tuple[TrainState, Float[Array, " steps"]]
"""The state, and the loss of each step so far."""


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
        indices: Indices | RowsOfSource,
        weights: Weights,
        shard_range: Int[Array, "2"] | None = None,
    ) -> tuple[TrainState, Float[Array, " steps"]]:
        """Returns the state after an epoch and the mean loss of each step.

        Args:
          state: equal on all devices.
          samples: a pytree of arrays: the whole training set, which stays on the device, or what the device needs of it.
          values: of the epoch.
          indices: this device's part of `gmmae.scaling.batches.ShardedIndices`, or with `RowsOfSource`.
          weights: of the same.
          shard_range: for `parallel.exact_mean`.
        """
        step = _step_of_epoch(losses, optimizer, partial(mean, shard_range=shard_range), samples, values)
        steps = len(values.learning_rates)

        def run(carry: Progress, of_step: tuple[Array, tuple[Array | RowsOfSource, Array, Array]]) -> tuple[Progress, None]:
            state, step_losses = carry
            number, arrays = of_step
            state, loss = step(state, arrays)
            return (state, _noted(step_losses, loss, number)), None

        start = state, jnp.zeros_like(values.learning_rates)
        return lax.scan(run, start, (jnp.arange(steps), (indices, weights, values.learning_rates)))[0]

    return train_epoch


def make_train_steps(
    losses: Losses, optimizer: optax.GradientTransformationExtraArgs, mean: Mean = on_one_device
) -> Callable[..., tuple[TrainState, Float[Array, " steps"]]]:
    """Returns a function of some consecutive steps of an epoch. Their number is known at run time only.

    So the compiler cannot unroll the loop, and compiles the step as it does in `make_train_epoch`.

    Args:
      losses: give one loss for each sample.
      optimizer: as `gmmae.training.optimizers.make` returns it.
      mean: averages loss and gradient over the devices.
    """

    def train_steps(
        state: TrainState,
        samples: Samples,
        values: EpochValues,
        count: Int[Array, ""],
        indices: Indices | RowsOfSource,
        weights: Weights,
        shard_range: Int[Array, "2"] | None = None,
    ) -> tuple[TrainState, Float[Array, " steps"]]:
        """Returns the state after these steps and the mean loss of each, 0 for those beyond `count`.

        Args are those of `make_train_epoch`'s function, of these steps, and:
          count: the number of steps, at most that of `indices`.
        """
        step = _step_of_epoch(losses, optimizer, partial(mean, shard_range=shard_range), samples, values)
        of_steps = indices, weights, values.learning_rates
        return scan_some(step, state, of_steps, count, jnp.zeros_like(values.learning_rates))

    return train_steps


def scan_some(step: Callable[[C, X], tuple[C, Y]], carry: C, of_steps: X, count: Int[Array, ""], zeros: Y) -> tuple[C, Y]:
    """Returns what `lax.scan` returns, for the first steps only. Their number is known at run time only.

    Args:
      step: as of `lax.scan`.
      carry: before the first step.
      of_steps: a pytree of arrays with the steps along their leading axis.
      count: the number of steps, at most that of `of_steps`.
      zeros: the results of the other steps, and the form of all.
    """

    def run(state: tuple[Array, C, Y]) -> tuple[Array, C, Y]:
        done, carry, results = state
        carry, result = step(carry, jax.tree.map(partial(lax.dynamic_index_in_dim, index=done, keepdims=False), of_steps))
        return done + 1, carry, jax.tree.map(partial(_with_result, number=done), results, result)

    return lax.while_loop(lambda state: state[0] < count, run, (jnp.int32(0), carry, zeros))[1:]


def _with_result(results: Array, result: Array, number: Int[Array, ""]) -> Array:
    """Returns the results of all steps with that of one."""
    if result.ndim == 0:
        return _noted(results, result, number)
    return lax.dynamic_update_index_in_dim(results, result, number, axis=0)


def _noted(step_losses: Float[Array, " steps"], loss: Float[Array, ""], number: Int[Array, ""]) -> Float[Array, " steps"]:
    """Returns the losses with that of a step.

    All are written again. `lax.scan` would collect them by updates, which XLA makes copies on a GPU. A copy divides the step's
    CUDA graph.
    """
    return jnp.where(jnp.arange(len(step_losses)) == number, loss, step_losses)


def _step_of_epoch(
    losses: Losses, optimizer: optax.GradientTransformationExtraArgs, mean: Mean, samples: Samples, values: EpochValues
) -> StepOfEpoch:
    """Returns a step of an epoch, which takes its samples out of the training set."""
    epoch_key = jax.random.fold_in(jax.random.key(values.seed), values.epoch)
    step = partial(train_step, losses=losses, optimizer=optimizer, mean=mean)

    def step_of_epoch(state: TrainState, of_step: tuple[Array | RowsOfSource, Array, Array]) -> tuple[TrainState, Array]:
        places, weights, learning_rate = of_step
        rows, index = places if isinstance(places, RowsOfSource) else (places, places)
        return step(state, Batch(take(samples, rows), sample_keys(epoch_key, index)), weights, learning_rate)

    return step_of_epoch


StepOfValidation = Callable[[None, tuple[Array, Array]], tuple[None, dict[str, Float[Array, ""]]]]
"""`(None, (indices, weights)) -> (None, means by name)`."""


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
      samples: the whole data set, a pytree of arrays, or what the device needs of it.
      indices: positions in `samples`, divided as in `make_train_epoch`.
      weights: as in `make_train_epoch`.
      shard_range: for `parallel.exact_mean`.
      values: give one value for each sample, by name.
      mean: averages over the devices.
    """
    step = _step_of_validation(params, samples, values, partial(mean, shard_range=shard_range))
    return lax.scan(step, None, (indices, weights))[1]


def make_evaluate_steps(
    values: Callable[[Params, Samples], PerSample], mean: Mean = on_one_device
) -> Callable[..., dict[str, Float[Array, " steps"]]]:
    """Returns `evaluate` for some steps. Their number is known at run time only, as in `make_train_steps`.

    Args:
      values: give one value for each sample, by name.
      mean: averages over the devices.
    """

    def evaluate_steps(
        params: Params,
        samples: Samples,
        count: Int[Array, ""],
        indices: Indices,
        weights: Weights,
        shard_range: Int[Array, "2"] | None = None,
    ) -> dict[str, Float[Array, " steps"]]:
        """Returns the mean of each step, by name, 0 for those beyond `count`.

        Args are those of `evaluate`, of these steps, and:
          count: the number of steps, at most that of `indices`.
        """
        step = _step_of_validation(params, samples, values, partial(mean, shard_range=shard_range))
        one = jax.eval_shape(lambda: step(None, (indices[0], weights[0])))[1]
        zeros = {name: jnp.zeros((len(weights), *leaf.shape), leaf.dtype) for name, leaf in one.items()}
        return scan_some(step, None, (indices, weights), count, zeros)[1]

    return evaluate_steps


def _step_of_validation(
    params: Params, samples: Samples, values: Callable[[Params, Samples], PerSample], mean: Mean
) -> StepOfValidation:
    def sums(samples: Samples, weights: Array) -> dict[str, Array]:
        return {name: weighted_sum(value, weights) for name, value in values(params, samples).items()}

    def step(_: None, of_step: tuple[Array, Array]) -> tuple[None, dict[str, Array]]:
        index, weights = of_step
        return None, mean(sums, take(samples, index), weights)

    return step
