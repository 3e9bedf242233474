"""What follows from a sweep's grid before anything is run, in words."""

from gmmae.scaling import strategies
from gmmae.scaling.batches import plan_batches
from gmmae.sweep.grid import RunKey, SweepConfig, paths

COLUMNS = ("run", "batch", "a device", "padded", "learning rate", "steps/epoch", "same path as")


def dry_run(config: SweepConfig, samples: int) -> list[tuple[str, ...]]:
    """The grid with what follows from it: a row of texts for each run, the first row the column names.

    Args:
      config: the sweep.
      samples: training volumes.

    Raises:
      InputError: a run cannot be run.
    """
    rows = [_row(config, key, owner, samples) for owner, members in paths(config, samples) for key in members]
    return [COLUMNS, *rows]


def _row(config: SweepConfig, key: RunKey, owner: RunKey, samples: int) -> tuple[str, ...]:
    strategy = strategies.resolve(key.scaling, config.run.optim, key.devices, samples)
    share = plan_batches(samples, strategy.global_batch, key.devices)
    rate = strategies.learning_rate_text(strategy.learning_rate, config.run.optim.learning_rate)
    numbers = (strategy.batch_text(), f"{share.device_batch}", f"{share.padding}", rate, f"{share.steps}")
    return (key.name, *numbers, "" if owner == key else owner.name)
