"""Several epochs in one program, with validation and the best parameters.

It serves epochs that are shorter than the host's work between two of them. The device stops after the epoch that reaches the
target or has a loss that is not finite, so nothing is computed beyond it. It compares float32 sums with the target, a millionth
early. The host judges by the losses of the steps, as after single epochs, and may go on.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int, PyTree

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


@repairing_cache()
def compile_epochs(setup: TrainSetup, state: TrainState, names: Sequence[str]) -> TrainEpochs:
    """Compiles a program for up to `setup.max_epochs_per_dispatch` epochs.

    Args:
      setup: from `compilation.prepare`.
      state: a state on the devices, for its shapes.
      names: of the values that a validation gives.
    """
    config, devices, max_epochs = setup.config, setup.devices, setup.max_epochs_per_dispatch
    train_epoch, evaluate = train_epoch_of(setup), evaluation_of(setup)
    stop, samples = config.stop, (data_set(setup, "train"), data_set(setup, "validation"))
    shares = (setup.eval_plan.counts / setup.eval_plan.samples).astype(config.dtype)
    target_cost = -math.inf if stop.target is None else stop.cost(stop.target) + abs(stop.target) * 1e-6

    def program(
        state: TrainState,
        best: Params,
        best_cost: Float[Array, ""],
        samples: tuple[Samples, Samples],
        count: Int[Array, ""],
        values: EpochValues,
        *shards: Array,
    ) -> tuple[TrainState, Params, Array, Array, Array, dict[str, Array]]:
        *validation, indices, weights, shard_range = shards
        first = values.epoch

        def run(carry: _Carry) -> _Carry:
            done = carry.done
            of_epoch = EpochValues(values.run_key, first + done, values.learning_rates[done])
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

    validation = validation_arguments(setup)

    def arguments(state: TrainState, best: Params, best_cost: float, epochs: range) -> tuple[PyTree, ...]:
        plan = setup.train_plan
        of_epochs = [shard_indices(setup, epoch_order(config.seed, epoch, plan.samples), plan) for epoch in epochs]
        values = [epoch_values(setup, epoch) for epoch in epochs]
        unused = max_epochs - len(epochs)
        indices, weights = (np.stack([*arrays, *[arrays[-1]] * unused], axis=1) for arrays in zip(*of_epochs, strict=True))
        rates = np.stack([of_epoch.learning_rates for of_epoch in (*values, *[values[-1]] * unused)])
        first = values[0]._replace(learning_rates=rates)
        shards = devices.shard((indices, weights, devices.shard_ranges(plan.devices)))
        cost, count, values = devices.replicate((np.asarray(best_cost, config.dtype), np.int32(len(epochs)), first))
        return state, best, cost, samples, count, values, *validation, *shards

    example = arguments(state, state.params, 0.0, range(1, 1 + max_epochs))
    compiled = setup.cache.get(
        setup.program_key("epochs", max_epochs, stop.monitor, stop.mode, target_cost, setup.eval_plan, *setup.training_key),
        lambda: devices.compile(program, *example, sharded=6, donate=(0, 1), deterministic=config.parallel.deterministic),
    )

    def run(state: TrainState, best: Params, best_cost: float, epochs: range) -> MultiEpochResult:
        state, best, best_epoch, done, step_losses, steps = jax.block_until_ready(
            compiled(*arguments(state, best, best_cost, epochs))
        )
        count = int(done)
        on_host = jax.device_get(steps)
        means = [
            validation_means({name: rows[epoch] for name, rows in on_host.items()}, setup.eval_plan) for epoch in range(count)
        ]
        return MultiEpochResult(state, best, int(best_epoch), np.asarray(step_losses)[:count], means)

    return run


def _mean(steps: Mapping[str, Array], name: str, shares: Float[np.ndarray, " steps"], samples: int) -> Float[Array, ""]:
    """Returns one of the `compilation.validation_means`, on the device."""
    mean = steps[name] @ shares
    if undefined_share(name) not in steps:
        return mean
    defined = 1 - steps[undefined_share(name)] @ shares
    return jnp.where(defined * samples < 0.5, jnp.nan, mean / defined)
