"""A line through the mean of volumes in a memory-mapped file, from a source or from arrays. It is a workload file."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jax import Array

from gmmae.workloads.interface import Params, Samples, Splits, Workload


@dataclass(frozen=True)
class Config:
    """The file."""

    volumes: str = "volumes.npy"  # memory-mapped
    arrays: bool = False  # give the whole file as an array


class Volumes:
    """A part of the file. The value of a volume is its position."""

    def __init__(self, path: str, part: slice) -> None:
        volumes = np.load(path, mmap_mode="r")
        self._total, self._first = len(volumes), part.start or 0
        self._volumes = volumes[part]

    def __len__(self) -> int:
        return len(self._volumes)

    def __getitem__(self, index: int) -> Samples:
        return {"volume": self._volumes[index], "value": (self._first + index) / self._total}


def _arrays(volumes: Volumes) -> Samples:
    samples = [volumes[index] for index in range(len(volumes))]
    return {name: np.array([sample[name] for sample in samples]) for name in samples[0]}


def build(config: Config) -> Workload:
    """Returns the workload."""

    def load() -> Splits:
        held_out = len(np.load(config.volumes, mmap_mode="r")) // 10
        train, validation = Volumes(config.volumes, slice(held_out, None)), Volumes(config.volumes, slice(held_out))
        return Splits(_arrays(train), _arrays(validation)) if config.arrays else Splits(train, validation)

    def init(key: Array) -> Params:
        return {"slope": jnp.zeros(()), "intercept": jnp.zeros(())}

    def losses(params: Params, samples: Samples, keys: Array | None) -> Array:
        means = samples["volume"].mean((1, 2, 3))
        return (params["slope"] * means + params["intercept"] - samples["value"]) ** 2

    return Workload(load, init, losses)
