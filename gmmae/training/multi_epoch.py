"""Several epochs in one program, with validation and the best parameters: for epochs shorter than what the host does for one.

The device stops after the epoch that reaches the target or has a loss that is not finite, so nothing is computed beyond it. It
judges by float32 sums, a millionth early; the host judges by the losses of the steps, as after single epochs, and may go on.
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
    Setup,
    data_set,
    deal_validation,
    dealt_on_host,
    epoch_of_device,
    undefined_share,
    validation_means,
    validation_of_device,
)
from gmmae.training.step import TrainState
from gmmae.workloads.interface import Params, Samples


class Block(NamedTuple):
    """What some epochs gave.

    Attributes:
      state: after the last of them, on the devices.
      best, best_epoch: the parameters of the best validation metric so far, on the devices, and their epoch; 0: those given.
      step_losses: the mean training loss of each step.
      validations: what a validation gives, after each epoch.
    """

    state: TrainState
    best: Params
    best_epoch: int
    step_losses: Float[np.ndarray, "epochs steps"]
    validations: Sequence[dict[str, float]]


class _Carry(NamedTuple):
    """What one epoch hands to the next, on the devices.

    Attributes:
      done: epochs of this block so far.
      ended: nothing is to be computed any more.
      best_cost, best_epoch: of the best parameters.
      step_losses, validations: a row for each epoch that the block may have.
    """

    done: Int[Array, ""]
    ended: Bool[Array, ""]
    state: TrainState
    best: Params
    best_cost: Float[Array, ""]
    best_epoch: Int[Array, ""]
    step_losses: Float[Array, "epochs steps"]
    validations: dict[str, Float[Array, "epochs steps"]]


TrainBlock = Callable[[TrainState, Params, float, range], Block]
"""`(state, best, its `StopConfig.cost`, epochs) -> Block`; takes over the memory of state and best."""


@repairing_cache()
def block_program(setup: Setup, state: TrainState, names: Sequence[str]) -> TrainBlock:
    """Compiles a program for up to `setup.most_epochs` epochs.

    Args:
      setup: from `programs.prepare`.
      state: a state on the devices, for its shapes.
      names: of what a validation gives.
    """
    config, devices, most = setup.config, setup.devices, setup.most_epochs
    stop, samples = config.stop, tuple(data_set(setup, split) for split in setup.workload.data)
    shares = (setup.eval_plan.counts / setup.eval_plan.samples).astype(config.dtype)
    bar = stop.cost(stop.target) + abs(stop.target) * 1e-6 if stop.target else -math.inf

    def program(
        state: TrainState,
        best: Params,
        best_cost: Float[Array, ""],
        samples: tuple[Samples, Samples],
        epochs: Int[Array, "2"],
        *dealt: Array,
    ) -> tuple[TrainState, Params, Array, Array, Array, dict[str, Array]]:
        *validation, indices, weights, part = dealt
        first, count = epochs

        def run(carry: _Carry) -> _Carry:
            done = carry.done
            state, losses = epoch_of_device(setup, carry.state, samples[0], first + done, indices[done], weights[done], part)
            steps = validation_of_device(setup, state.params, samples[1], *validation)
            cost = stop.cost(_mean(steps, stop.metric, shares, setup.eval_plan.samples))
            better = cost < carry.best_cost
            finite = jnp.isfinite(losses).all() & jnp.isfinite(steps[LOSS] @ shares)
            return _Carry(
                done=done + 1,
                ended=~finite | (cost <= bar),
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
            jnp.zeros((most, plan.steps), config.dtype) for plan in (setup.train_plan, setup.eval_plan)
        )
        undefined = map(undefined_share, setup.workload.may_be_undefined)
        blank = dict.fromkeys((*names, *undefined), validation_steps)
        start = _Carry(zero, jnp.bool_(False), state, best, best_cost, zero, step_losses, blank)
        end = lax.while_loop(lambda carry: (carry.done < count) & ~carry.ended, run, start)
        return end.state, end.best, end.best_epoch, end.done, end.step_losses, end.validations

    validation = deal_validation(setup)

    def arguments(state: TrainState, best: Params, best_cost: float, epochs: range) -> tuple[PyTree, ...]:
        plan = setup.train_plan
        on_host = [dealt_on_host(setup, epoch_order(config.seed, epoch, plan.samples), plan) for epoch in epochs]
        on_host += [on_host[-1]] * (most - len(epochs))  # never reached
        each = (np.stack(x, axis=1) for x in zip(*on_host, strict=True))
        dealt = devices.shard((*each, devices.parts(plan.devices)))
        scalars = devices.replicate((np.asarray(best_cost, config.dtype), np.array([epochs.start, len(epochs)], np.int32)))
        return state, best, scalars[0], samples, scalars[1], *validation, *dealt

    example = arguments(state, state.params, 0.0, range(1, 1 + most))
    compiled = devices.compile(program, *example, sharded=6, donate=(0, 1), deterministic=config.parallel.exact)

    def run(state: TrainState, best: Params, best_cost: float, epochs: range) -> Block:
        state, best, best_epoch, done, step_losses, steps = jax.block_until_ready(
            compiled(*arguments(state, best, best_cost, epochs))
        )
        count = int(done)
        on_host = jax.device_get(steps)
        means = [
            validation_means({name: rows[epoch] for name, rows in on_host.items()}, setup.eval_plan) for epoch in range(count)
        ]
        return Block(state, best, int(best_epoch), np.asarray(step_losses)[:count], means)

    return run


def _mean(steps: Mapping[str, Array], name: str, shares: Float[np.ndarray, " steps"], samples: int) -> Float[Array, ""]:
    """As `programs.validation_means`, of one value."""
    mean = steps[name] @ shares
    if undefined_share(name) not in steps:
        return mean
    defined = 1 - steps[undefined_share(name)] @ shares
    return jnp.where(defined * samples < 0.5, jnp.nan, mean / defined)
