"""Several epochs in one program, with validation and the best parameters: for epochs shorter than what the host does for one.

The device stops after the epoch that reaches the target or has a loss that is not finite, so nothing is computed beyond it. It
judges by float32 sums, a millionth early; the host judges by the losses of the steps, as after single epochs, and may go on.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Float

from gmmae.base.compiled import mended
from gmmae.data.batches import epoch_order
from gmmae.training.programs import Setup, a_validation, an_epoch, data_set, hands, held_out, mean_over_steps
from gmmae.training.step import Params, TrainState


class Block(NamedTuple):
    """What some epochs gave.

    Attributes:
      state: after the last of them, on the devices.
      best, best_epoch: the parameters of the lowest validation loss so far, on the devices, and their epoch; 0: those given.
      step_losses: the mean training loss of each step.
      val_losses: the validation loss after each epoch.
    """

    state: TrainState
    best: Params
    best_epoch: int
    step_losses: Float[np.ndarray, "epochs steps"]
    val_losses: Sequence[float]


TrainBlock = Callable[[TrainState, Params, float, range], Block]
"""`(state, best, its validation loss, epochs) -> Block`; takes over the memory of state and best."""


@mended()
def block_program(setup: Setup, state: TrainState) -> TrainBlock:
    """Compiles a program for up to `parallel.epochs_per_dispatch` epochs.

    Args:
      setup: from `programs.prepare`.
      state: a state on the devices, for its shapes.
    """
    config, devices, most = setup.config, setup.devices, setup.config.parallel.epochs_per_dispatch
    volumes = tuple(data_set(setup, targets) for targets in (setup.workload.data.train, setup.workload.data.validation))
    shares = (setup.eval_plan.counts / setup.eval_plan.samples).astype(config.dtype)
    bar = config.stop.target * (1 + 1e-6)

    def program(state: Any, best: Any, best_loss: Any, volumes: Any, epochs: Any, *samples: Any) -> Any:
        *validation, indices, weights, part = samples
        first, count = epochs

        def run(carry: tuple[Any, ...]) -> tuple[Any, ...]:
            done, _, state, best, best_loss, best_epoch, step_losses, val_losses = carry
            state, losses = an_epoch(setup, state, volumes[0], first + done, indices[done], weights[done], part)
            steps = a_validation(setup, state.params, volumes[1], *validation)
            loss = steps @ shares
            better = loss < best_loss
            best = jax.tree.map(partial(jnp.where, better), state.params, best)
            finite = jnp.isfinite(losses).all() & jnp.isfinite(loss)
            return (
                done + 1,
                ~finite | (loss <= bar),
                state,
                best,
                jnp.where(better, loss, best_loss),
                jnp.where(better, first + done, best_epoch),
                lax.dynamic_update_index_in_dim(step_losses, losses, done, 0),
                lax.dynamic_update_index_in_dim(val_losses, steps, done, 0),
            )

        zero = jnp.int32(0)
        blank = [jnp.zeros((most, plan.steps), config.dtype) for plan in (setup.train_plan, setup.eval_plan)]
        start = (zero, jnp.bool_(False), state, best, best_loss, zero, *blank)
        done, _, state, best, _, best_epoch, *losses = lax.while_loop(lambda c: (c[0] < count) & ~c[1], run, start)
        return state, best, best_epoch, done, *losses

    validation = held_out(setup)

    def arguments(state: TrainState, best: Params, best_loss: float, epochs: range) -> tuple[Any, ...]:
        plan = setup.train_plan
        samples = [hands(setup, epoch_order(config.seed, epoch, plan.samples), plan) for epoch in epochs]
        samples += [samples[-1]] * (most - len(epochs))  # never reached
        each = (np.stack(x, axis=1) for x in zip(*samples, strict=True))
        dealt = devices.shard((*each, devices.parts(plan.devices)))
        scalars = devices.replicate((np.asarray(best_loss, config.dtype), np.array([epochs.start, len(epochs)], np.int32)))
        return state, best, scalars[0], volumes, scalars[1], *validation, *dealt

    example = arguments(state, state.params, 0.0, range(1, 1 + most))
    compiled = devices.compile(program, *example, sharded=6, donate=(0, 1), deterministic=config.parallel.exact)

    def run(state: TrainState, best: Params, best_loss: float, epochs: range) -> Block:
        state, best, best_epoch, done, step_losses, val_losses = jax.block_until_ready(
            compiled(*arguments(state, best, best_loss, epochs))
        )
        losses = [mean_over_steps(row, setup.eval_plan) for row in np.asarray(val_losses)[: int(done)]]
        return Block(state, best, int(best_epoch), np.asarray(step_losses)[: int(done)], losses)

    return run
