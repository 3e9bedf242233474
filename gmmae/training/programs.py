"""The programs of a run. Its samples are all on the devices, or come from a source."""

from collections.abc import Callable

import numpy as np

from gmmae.training import block_programs, compilation, epoch_parts
from gmmae.training.block_programs import from_source
from gmmae.training.compilation import TrainSetup
from gmmae.training.epoch_parts import TrainPart
from gmmae.training.fetching import Fetcher
from gmmae.training.step import TrainState
from gmmae.workloads.interface import Params


def train_part(setup: TrainSetup, state: TrainState, fetcher: Fetcher) -> TrainPart:
    """Compiles the program for the parts of epochs.

    Args:
      setup: from `compilation.prepare`.
      state: a state on the devices, for its shapes.
      fetcher: reads the samples of a source. The returned function needs it.
    """
    if from_source(setup, "train"):
        return block_programs.train_part_program(setup, state, fetcher)
    return epoch_parts.part_program(setup, state)


def train_epoch(
    setup: TrainSetup, state: TrainState, fetcher: Fetcher
) -> Callable[[TrainState, int], tuple[TrainState, np.ndarray]]:
    """Compiles `Programs.train`. Args are those of `train_part`."""
    if not from_source(setup, "train"):
        return compilation.train_program(setup, state)
    train, steps = block_programs.train_part_program(setup, state, fetcher), range(setup.train_plan.steps)
    return lambda state, epoch: train(state, epoch, steps)


def validation(setup: TrainSetup, params: Params, fetcher: Fetcher) -> Callable[[Params], dict[str, float]]:
    """Compiles `Programs.evaluate`. Args are those of `train_part`, of parameters."""
    if from_source(setup, "validation"):
        return block_programs.evaluate_program(setup, params, fetcher)
    return compilation.evaluate_program(setup, params)
