"""A global batch that grows during a run: its stages, by given epochs or by the decay of the learning rate."""

import math
from typing import NamedTuple

from gmmae.config.schema import MEASURED, OptimConfig
from gmmae.system.errors import InputError

COSINE_END = 0.01
"""The factor of the learning rate after its decay along a cosine."""


class Stage(NamedTuple):
    """A part of a run with one batch.

    Attributes:
      first_epoch: its first epoch, from 1; None where a measurement in the run decides.
      batch: its global batch.
    """

    first_epoch: int | None
    batch: int


def doublings(optim: OptimConfig, largest: int) -> list[Stage]:
    """Returns the doublings of the base batch after given epochs, or by measurement, up to a largest batch.

    >>> doublings(OptimConfig(batch_size=32, batch_doubling_epochs=(5, 10, 20)), 96)
    [Stage(first_epoch=6, batch=64), Stage(first_epoch=11, batch=96)]
    """
    epochs = optim.batch_doubling_epochs
    if not epochs:
        raise InputError(
            "optim.batch_doubling_epochs must be given for the strategies growing and growing-sqrt; got none: give epochs, as "
            "--optim.batch-doubling-epochs 5 10 20, or the word measured"
        )
    count = math.ceil(math.log2(max(largest / optim.batch_size, 1)))
    starts = [None] * count if epochs == MEASURED else [epoch + 1 for epoch in epochs[:count]]
    return [Stage(start, min(optim.batch_size << i, largest)) for i, start in enumerate(starts, start=1)]


def halvings(optim: OptimConfig, largest: int) -> list[Stage]:
    """Returns the doublings of the base batch at the epochs where the decay of the learning rate reaches 1/2, 1/4, ….

    >>> halvings(OptimConfig(batch_size=32, decay_epochs=(10, 20), decay_factor=0.25), 256)
    [Stage(first_epoch=11, batch=128), Stage(first_epoch=21, batch=256)]
    """
    if not optim.decay_epochs and not optim.cosine_epochs:
        raise InputError(
            "optim.decay_epochs or optim.cosine_epochs must be given for the strategy seesaw, whose batch grows where the "
            "learning rate would fall; got neither: set one, or use --scaling growing"
        )
    stages, batch = [], optim.batch_size
    for epoch in range(1, max([*optim.decay_epochs, optim.cosine_epochs or 0]) + 2):
        grown = min(optim.batch_size << math.floor(-math.log2(decay(optim, epoch - 1)) + 1e-9), largest)
        if grown > batch:
            stages.append(Stage(epoch, grown))
            batch = grown
    return stages


def decay(optim: OptimConfig, epochs: int) -> float:
    """Returns the factor of the learning rate after a number of epochs by its step decay and its cosine, at most 1.

    >>> [round(decay(OptimConfig(cosine_epochs=10), epochs), 3) for epochs in (0, 5, 10)]
    [1.0, 0.505, 0.01]
    """
    steps = optim.decay_factor ** sum(epoch <= epochs for epoch in optim.decay_epochs)
    if not optim.cosine_epochs:
        return min(steps, 1.0)
    cosine = (1 + math.cos(math.pi * min(epochs / optim.cosine_epochs, 1.0))) / 2
    return min(steps * ((1 - COSINE_END) * cosine + COSINE_END), 1.0)


def no_growth(optim: OptimConfig, largest: int) -> list[Stage]:
    """Returns nothing: the batch is the same in all epochs."""
    return []
