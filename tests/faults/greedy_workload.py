"""Workload of the faults of a sweep: the tiny MLP of the benchmarks. If told, a validation asks for too much memory, once."""

import os
from contextlib import suppress
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import tiny_mlp
from benchmarks.tiny_mlp import Config
from gmmae.workloads.interface import Workload

MARK = "GMMAE_FAULTS_SWEEP"
"""An environment variable of all processes of a sweep, with the sweep's folder. No worker names it in its command line."""
TELL = "take_memory"
"""A file of that folder. The process that sees it in a validation renames it, and asks for too much from then on."""
TOO_MANY_BYTES = 1 << 60


def take_memory_if_told(losses: np.ndarray) -> np.ndarray:
    """Returns the losses, or raises MemoryError."""
    told = Path(os.environ[MARK], TELL)
    mine = told.with_name(f"{TELL}_{os.getpid()}")
    with suppress(FileNotFoundError):
        told.rename(mine)
    if mine.exists():  # on all devices of the process, as one that fails alone keeps the others waiting for a minute
        np.ones(TOO_MANY_BYTES, np.uint8)
    return np.asarray(losses)


def build(config: Config) -> Workload:
    """Returns the workload."""
    tiny = tiny_mlp.build(config)

    def losses(params, samples, keys):
        found = tiny.losses(params, samples, keys)
        if keys is not None:
            return found
        like = jax.ShapeDtypeStruct(found.shape, jnp.float32)
        return jax.pure_callback(take_memory_if_told, like, found, vmap_method="sequential")

    return Workload(tiny.load, tiny.init, losses)
