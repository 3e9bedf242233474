"""Workload of the faults of a sweep: an MLP on 450 samples. If told, a validation asks for too much memory, once."""

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from gmmae.workloads.interface import Splits, Workload

MARK = "GMMAE_FAULTS_SWEEP"
"""An environment variable of all processes of a sweep, with the sweep's folder. No worker names it in its command line."""
TELL = "take_memory"
"""A file of that folder. The process that sees it in a validation renames it, and asks for too much from then on."""
TOO_MANY_BYTES = 1 << 60
FEATURES, WIDTH, HELD_OUT = 16, 32, 90


@dataclass(frozen=True)
class Config:
    """It has no settings."""


def take_memory_if_told(losses: np.ndarray) -> np.ndarray:
    """Returns the losses, or raises MemoryError."""
    told = Path(os.environ[MARK], TELL)
    mine = told.with_name(f"{TELL}_{os.getpid()}")
    with suppress(FileNotFoundError):
        told.rename(mine)
    if mine.exists():  # on all devices of the process, as one that fails alone keeps the others waiting for a minute
        np.ones(TOO_MANY_BYTES, np.uint8)
    return np.asarray(losses)


def build(_config: Config) -> Workload:
    """Returns the workload: the regression of a smooth function of the features."""

    def load() -> Splits:
        rng = np.random.default_rng(0)
        x = rng.normal(size=(450 + HELD_OUT, FEATURES)).astype(np.float32)
        y = np.sin(x @ rng.normal(size=FEATURES).astype(np.float32))
        return Splits({"x": x[HELD_OUT:], "y": y[HELD_OUT:]}, {"x": x[:HELD_OUT], "y": y[:HELD_OUT]})

    def init(key):
        first, second = jax.random.split(key)
        return {
            "hidden": jax.random.normal(first, (FEATURES, WIDTH)) * FEATURES**-0.5,
            "output": jax.random.normal(second, (WIDTH,)) * WIDTH**-0.5,
        }

    def losses(params, samples, keys):
        units = jax.nn.relu(samples["x"] @ params["hidden"])
        found = jnp.square(units @ params["output"] - samples["y"])
        if keys is not None:
            return found
        like = jax.ShapeDtypeStruct(found.shape, jnp.float32)
        return jax.pure_callback(take_memory_if_told, like, found, vmap_method="sequential")

    return Workload(load, init, losses)
