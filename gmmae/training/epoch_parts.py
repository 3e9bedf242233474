"""An epoch in parts of `stop.validate_every_steps` steps, so that the host can validate between them.

One program trains any part of a run's epochs. It takes the steps that the program of a whole epoch takes, with the same bits.
"""

from collections.abc import Callable
from functools import lru_cache, partial

import jax
import numpy as np
from jaxtyping import Float, Int32, PyTree

from gmmae.system.compilation_cache import repairing_cache
from gmmae.training import compilation
from gmmae.training.compilation import TrainSetup
from gmmae.training.step import TrainState, make_train_steps

TrainPart = Callable[[TrainState, int, range], tuple[TrainState, Float[np.ndarray, " steps"]]]
"""`(state, epoch, steps of the epoch from 0) -> (state, mean loss of each step)`; takes over the state's memory."""


def epoch_parts(setup: TrainSetup) -> list[range]:
    """Returns the steps of each part of an epoch, from 0. There is one part if no validation is due before the epoch's end."""
    steps = setup.train_plan.steps
    length = min(setup.config.stop.validate_every_steps or steps, steps)
    return [range(first, min(first + length, steps)) for first in range(0, steps, length)]


def part_program(setup: TrainSetup, state: TrainState) -> TrainPart:
    """Compiles the program for the parts of epochs. An epoch of one part has the usual program.

    Args:
      setup: from `compilation.prepare`.
      state: a state on the devices, for its shapes.
    """
    if len(epoch_parts(setup)) > 1:
        return _part_program(setup, state)
    train = compilation.train_program(setup, state)
    return lambda state, epoch, _: train(state, epoch)


@repairing_cache()
def _part_program(setup: TrainSetup, state: TrainState) -> TrainPart:
    samples, length = compilation.data_set(setup, "train"), len(epoch_parts(setup)[0])
    devices, plan = setup.devices, setup.train_plan
    shard_ranges = devices.shard(devices.shard_ranges(plan.devices))

    on_host = lru_cache(maxsize=1)(partial(compilation.epoch_places, setup))

    def arguments(epoch: int, steps: range) -> tuple[PyTree, ...]:
        places = padded(steps, length)
        values = compilation.epoch_values(setup, epoch)
        values = values._replace(learning_rates=values.learning_rates[places])
        replicated = devices.replicate((values, np.int32(len(steps))))
        return *replicated, *devices.shard(tuple(array[:, places] for array in on_host(epoch))), shard_ranges

    compiled = setup.cache.get(
        setup.program_key("train part", length, *setup.training_key),
        lambda: devices.compile(
            make_train_steps(*compilation.step_functions(setup)), state, samples, *arguments(1, range(length)),
            sharded=3, donate=(0,), deterministic=setup.config.parallel.deterministic,
        ),
    )  # fmt: skip

    def train(state: TrainState, epoch: int, steps: range) -> tuple[TrainState, np.ndarray]:
        state, losses = jax.block_until_ready(compiled(state, samples, *arguments(epoch, steps)))
        return state, np.asarray(losses)[: len(steps)]

    return train


def padded(steps: range, length: int) -> Int32[np.ndarray, " length"]:
    """Returns the steps as an array of a length. The last step fills it; the program does not get so far.

    >>> padded(range(4, 6), 3).tolist()
    [4, 5, 5]
    """
    return np.minimum(np.arange(steps.start, steps.start + length, dtype=np.int32), steps.stop - 1)
