"""A global batch that grows during a run: its stages."""

import math
from typing import NamedTuple

from gmmae.config.schema import OptimConfig
from gmmae.system.errors import InputError


class Stage(NamedTuple):
    """A part of a run with one batch.

    Attributes:
      first_epoch: its first epoch, from 1.
      batch: its global batch.
    """

    first_epoch: int
    batch: int


def doublings(optim: OptimConfig, largest: int) -> list[Stage]:
    """Returns the doublings of the base batch after given epochs, up to a largest batch.

    >>> doublings(OptimConfig(batch_size=32, batch_doubling_epochs=(5, 10, 20)), 96)
    [Stage(first_epoch=6, batch=64), Stage(first_epoch=11, batch=96)]
    """
    epochs = optim.batch_doubling_epochs
    if not epochs:
        raise InputError(
            "optim.batch_doubling_epochs must be given for the strategy growing; got none: give epochs, as "
            "--optim.batch-doubling-epochs 5 10 20"
        )
    count = math.ceil(math.log2(max(largest / optim.batch_size, 1)))
    return [Stage(epoch + 1, min(optim.batch_size << i, largest)) for i, epoch in enumerate(epochs[:count], start=1)]


def no_growth(optim: OptimConfig, largest: int) -> list[Stage]:
    """Returns nothing: the batch is the same in all epochs."""
    return []
