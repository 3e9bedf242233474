"""Several epochs in one program, with validation and the best parameters.

It serves epochs that are shorter than the host's work between two of them. The device stops after the epoch that reaches the
target or has a loss that is not finite, so nothing is computed beyond it. It compares float32 sums with the target, a millionth
early. The host judges by the losses of the steps, as after single epochs, and may go on.
"""

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Int32, PyTree

from gmmae.config.schema import LOSS
from gmmae.scaling.batches import epoch_order
from gmmae.system.compilation_cache import repairing_cache
from gmmae.training.compilation import (
    TrainSetup,
    data_set,
    epoch_values,
    evaluation_of,
    shard_indices,
    train_epoch_of,
    validation_arguments,
)
from gmmae.training.per_sample import undefined_share, validation_means
from gmmae.training.step import EpochValues, TrainState
from gmmae.workloads.interface import Params, Samples


class MultiEpochResult(NamedTuple):
    """The outcome of several epochs.

    Attributes:
      state: after the last of them, on the devices.
      best: the parameters of the best validation metric so far, on the devices.
      best_epoch: their epoch; 0 where they are those given.
      step_losses: the mean training loss of each step.
      validations: the means of a validation, after each epoch.
    """

    state: TrainState
    best: Params
    best_epoch: int
    step_losses: Float[np.ndarray, "epochs steps"]
    validations: Sequence[dict[str, float]]


class _Carry(NamedTuple):
    """The values that one epoch hands to the next, on the devices.

    Attributes:
      done: epochs of this dispatch so far.
      ended: no further epoch is to be computed.
      best_cost: of the best parameters.
      best_epoch: of the best parameters.
      step_losses: a row for each epoch that the dispatch may have.
      validations: likewise, by name.
    """

    done: Int[Array, ""]
    ended: Bool[Array, ""]
    state: TrainState
    best: Params
    best_cost: Float[Array, ""]
    best_epoch: Int[Array, ""]
    step_losses: Float[Array, "epochs steps"]
    validations: dict[str, Float[Array, "epochs steps"]]


TrainEpochs = Callable[[TrainState, Params, float, range], MultiEpochResult]
"""`(state, best, its `StopConfig.cost`, epochs) -> MultiEpochResult`; takes over the memory of state and best."""

TrainTogether = Callable[[TrainState, Params, Sequence[float], Sequence[range]], list[MultiEpochResult]]
"""The same for several runs. The leading axis of every array of state and best is that of the runs. A range may be empty."""


class _Dispatch(NamedTuple):
    """The values of a dispatch of one run, on the host.

    Attributes:
      best_cost: of the best parameters.
      epochs: their number.
      values: of the first epoch, with the learning rates of all.
      indices: of the samples.
      weights: of the samples.
    """

    best_cost: np.ndarray
    epochs: np.int32
    values: EpochValues
    indices: Int32[np.ndarray, "devices epochs steps *device_batch"]
    weights: Float[np.ndarray, "devices epochs steps *device_batch"]


@repairing_cache()
def compile_epochs(setup: TrainSetup, state: TrainState, names: Sequence[str]) -> TrainEpochs:
    """Compiles a program for up to `setup.max_epochs_per_dispatch` epochs.

    Args:
      setup: from `compilation.prepare`.
      state: a state on the devices, for its shapes.
      names: of the values that a validation gives.
    """
    devices, fixed = setup.devices, _fixed_arguments(setup)

    def arguments(state: TrainState, best: Params, best_cost: float, epochs: range) -> tuple[PyTree, ...]:
        dispatch = _dispatch(setup, best_cost, epochs)
        replicated = devices.replicate((dispatch.best_cost, dispatch.epochs, dispatch.values))
        return state, best, *replicated, *fixed, *devices.shard((dispatch.indices, dispatch.weights))

    compiled = setup.cache.get(
        _key(setup, "epochs"),
        lambda: _compile(setup, _program(setup, names), arguments(state, state.params, 0.0, range(1, 2))),
    )

    def run(state: TrainState, best: Params, best_cost: float, epochs: range) -> MultiEpochResult:
        outputs = jax.block_until_ready(compiled(*arguments(state, best, best_cost, epochs)))
        return _result(setup, outputs[0], outputs[1], jax.device_get(outputs[2:]))

    return run


@repairing_cache()
def compile_together(setups: Sequence[TrainSetup], states: TrainState, names: Sequence[str]) -> TrainTogether:
    """Compiles a program that trains several runs at once, which share data, batch and model. It is `compile_epochs` by `vmap`.

    Args:
      setups: of the runs.
      states: states on the devices, for their shapes; the leading axis of every array is that of the runs.
      names: of the values that a validation gives.
    """
    first = setups[0]
    devices, fixed = first.devices, _fixed_arguments(first)

    def arguments(states: TrainState, best: Params, best_costs: Sequence[float], epochs: Sequence[range]) -> tuple[PyTree, ...]:
        each = [_dispatch(*of_run) for of_run in zip(setups, best_costs, epochs, strict=True)]
        replicated = stack_runs([one[:3] for one in each])
        sharded = (np.stack(arrays, axis=1) for arrays in zip(*[one[3:] for one in each], strict=True))
        return states, best, *devices.replicate(replicated), *fixed, *devices.shard(tuple(sharded))

    count, axes = len(setups), (0,) * 5 + (None,) * len(fixed) + (0, 0)
    compiled = first.cache.get(
        _key(first, "together", count),
        lambda: _compile(
            first,
            jax.vmap(_program(first, names), in_axes=axes),
            arguments(states, states.params, [0.0] * count, [range(1, 2)] * count),
        ),
    )

    def run(states: TrainState, best: Params, best_costs: Sequence[float], epochs: Sequence[range]) -> list[MultiEpochResult]:
        outputs = jax.block_until_ready(compiled(*arguments(states, best, best_costs, epochs)))
        on_host = jax.device_get(outputs[2:])
        return [
            _result(setup, outputs[0], outputs[1], jax.tree.map(lambda leaf, i=i: leaf[i], on_host))
            for i, setup in enumerate(setups)
        ]

    return run


def stack_runs(trees: Sequence[PyTree]) -> PyTree:
    """Returns the arrays of several runs as one tree on the host. The leading axis of every array is that of the runs."""
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)


def _key(setup: TrainSetup, *own: Hashable) -> tuple[Hashable, ...]:
    """Returns the key of a program in the cache."""
    stop = setup.config.stop
    own = (*own, setup.max_epochs_per_dispatch, stop.monitor, stop.mode, stop.target, setup.eval_plan)
    return setup.program_key(*own, *setup.training_key)


def _compile(setup: TrainSetup, program: Callable[..., PyTree], example: tuple[PyTree, ...]) -> jax.stages.Compiled:
    deterministic = setup.config.parallel.deterministic
    return setup.devices.compile(program, *example, sharded=6, donate=(0, 1), deterministic=deterministic)


def _fixed_arguments(setup: TrainSetup) -> tuple[PyTree, ...]:
    """Returns the arguments that are the same for all epochs and runs: samples, shard range, and those of the validation."""
    shard_ranges = setup.devices.shard(setup.devices.shard_ranges(setup.train_plan.devices))
    return (data_set(setup, "train"), data_set(setup, "validation")), shard_ranges, *validation_arguments(setup)


def _dispatch(setup: TrainSetup, best_cost: float, epochs: range) -> _Dispatch:
    """Returns the values of some epochs. Those of unused epochs repeat others, and are never reached."""
    plan, max_epochs = setup.train_plan, setup.max_epochs_per_dispatch
    numbers = list(epochs) or [1]
    of_epochs = [shard_indices(setup, epoch_order(setup.config.seed, epoch, plan.samples), plan) for epoch in numbers]
    values = [epoch_values(setup, epoch) for epoch in numbers]
    unused = max_epochs - len(numbers)
    indices, weights = (np.stack([*arrays, *[arrays[-1]] * unused], axis=1) for arrays in zip(*of_epochs, strict=True))
    rates = np.stack([of_epoch.learning_rates for of_epoch in (*values, *[values[-1]] * unused)])
    cost = np.asarray(best_cost, setup.config.dtype)
    return _Dispatch(cost, np.int32(len(epochs)), values[0]._replace(learning_rates=rates), indices, weights)


def _result(setup: TrainSetup, state: TrainState, best: Params, outputs: tuple[PyTree, ...]) -> MultiEpochResult:
    """Returns the outcome of one run from the outputs of its program on the host."""
    best_epoch, done, step_losses, steps = outputs
    validations = [validation_means({name: rows[i] for name, rows in steps.items()}, setup.eval_plan) for i in range(int(done))]
    return MultiEpochResult(state, best, int(best_epoch), step_losses[: int(done)], validations)


def _program(setup: TrainSetup, names: Sequence[str]) -> Callable[..., PyTree]:
    """Returns one device's function of several epochs of a run."""
    config, max_epochs = setup.config, setup.max_epochs_per_dispatch
    train_epoch, evaluate = train_epoch_of(setup), evaluation_of(setup)
    stop = config.stop
    shares = (setup.eval_plan.counts / setup.eval_plan.samples).astype(config.dtype)
    target_cost = -math.inf if stop.target is None else stop.cost(stop.target) + abs(stop.target) * 1e-6

    def program(
        state: TrainState,
        best: Params,
        best_cost: Float[Array, ""],
        count: Int[Array, ""],
        values: EpochValues,
        samples: tuple[Samples, Samples],
        shard_range: Int[Array, "2"],
        *shards: Array,
    ) -> tuple[TrainState, Params, Array, Array, Array, dict[str, Array]]:
        *validation, indices, weights = shards
        first = values.epoch

        def run(carry: _Carry) -> _Carry:
            done = carry.done
            of_epoch = EpochValues(values.seed, first + done, values.learning_rates[done])
            state, losses = train_epoch(carry.state, samples[0], of_epoch, indices[done], weights[done], shard_range)
            steps = evaluate(state.params, samples[1], *validation)
            cost = stop.cost(_mean(steps, stop.monitor, shares, setup.eval_plan.samples))
            better = cost < carry.best_cost
            finite = jnp.isfinite(losses).all() & jnp.isfinite(steps[LOSS] @ shares)
            return _Carry(
                done=done + 1,
                ended=~finite | (cost <= target_cost),
                state=state,
                best=jax.tree.map(partial(jnp.where, better), state.params, carry.best),
                best_cost=jnp.where(better, cost, carry.best_cost),
                best_epoch=jnp.where(better, first + done, carry.best_epoch),
                step_losses=lax.dynamic_update_index_in_dim(carry.step_losses, losses, done, 0),
                validations={
                    name: lax.dynamic_update_index_in_dim(rows, steps[name], done, 0)
                    for name, rows in carry.validations.items()
                },
            )

        zero = jnp.int32(0)
        step_losses, validation_steps = (
            jnp.zeros((max_epochs, plan.steps), config.dtype) for plan in (setup.train_plan, setup.eval_plan)
        )
        undefined = map(undefined_share, setup.data.may_be_undefined)
        blank = dict.fromkeys((*names, *undefined), validation_steps)
        start = _Carry(zero, jnp.bool_(False), state, best, best_cost, zero, step_losses, blank)
        end = lax.while_loop(lambda carry: (carry.done < count) & ~carry.ended, run, start)
        return end.state, end.best, end.best_epoch, end.done, end.step_losses, end.validations

    return program


def _mean(steps: Mapping[str, Array], name: str, shares: Float[np.ndarray, " steps"], samples: int) -> Float[Array, ""]:
    """Returns one of the `compilation.validation_means`, on the device."""
    mean = steps[name] @ shares
    if undefined_share(name) not in steps:
        return mean
    defined = 1 - steps[undefined_share(name)] @ shares
    return jnp.where(defined * samples < 0.5, jnp.nan, mean / defined)
