"""Compiled program of an epoch as `train.py` runs it, at a batch of the benchmark's choice."""

import dataclasses
from typing import Any

import jax

from gmmae.config.schema import Config, changed
from gmmae.training import preparation, programs


def of_batches(config: Config, batch: int, steps: int) -> Config:
    """Returns the configuration with an epoch of the given number of steps."""
    config = changed(config, data__samples=batch * steps + 2, data__validation=2)
    return dataclasses.replace(config, optim=dataclasses.replace(config.optim, batch_size=batch))


def compiled_epoch(config: Config) -> tuple[jax.stages.Compiled, tuple[Any, ...]]:
    """Returns the program and its arguments, with the initial state first. It donates no buffers, so it can run again."""
    setup = preparation.prepare(config)
    with preparation.precision_context(config):
        state = setup.devices.replicate(preparation.initial_state(setup))
        compiled, arguments, chunks = programs.compile_training(setup, state, donate=False)
        return compiled, (state, *arguments(1, chunks.of_epoch[0]))
