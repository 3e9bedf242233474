"""Backends by name, and the interface that a worker calls."""

import importlib.util
import os
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from benchmarks.peers.problem import Arrays, Problem

CORES = len(os.sched_getaffinity(0))
"""Counted before a framework starts. OpenMP with pinned threads leaves one core to the thread that asks."""


class Peer(Protocol):
    """Framework with a problem, ready to train."""

    def facts(self) -> dict[str, Any]:
        """Returns versions, threads and device."""
        ...

    def reset(self) -> None:
        """Restores the initial parameters and optimiser state."""
        ...

    def train(self, samples: int, epoch: int) -> None:
        """Trains an epoch over the first `samples` volumes in the usual fast way, and waits for its end."""
        ...

    def losses(self, samples: int, epoch: int) -> np.ndarray:
        """Trains an epoch and returns the loss of each step."""
        ...

    def evaluate(self) -> float:
        """Returns the validation loss."""
        ...

    def gradient(self) -> Arrays:
        """Returns the gradient of the first step's loss at the current parameters, by gmmae's names and shapes."""
        ...


class Entry(NamedTuple):
    """Module and options of a backend: `benchmarks.peers.<module>.start(problem, **options)`."""

    title: str
    package: str  # that must be installed
    module: str
    options: dict[str, Any] = {}  # noqa: RUF012
    platforms: tuple[str, ...] = ("cpu", "gpu")

    @property
    def is_torch(self) -> bool:
        """Returns whether PyTorch computes, so that it has settings."""
        return self.package == "torch"


CPU, GPU = ("cpu",), ("gpu",)

BACKENDS = {
    "ours": Entry("gmmae", "jax", "gmmae_backend"),
    "torch": Entry("PyTorch, eager", "torch", "torch_reference", {"mode": ""}),
    "torch-compile": Entry("PyTorch, torch.compile", "torch", "torch_reference", {"mode": "default"}),
    "torch-graphs": Entry("PyTorch, torch.compile, CUDA graphs", "torch", "torch_reference", {"mode": "reduce-overhead"}, GPU),
}


def models(names: Sequence[str]) -> list[str]:
    """Returns the first backend of each module. The others of a module compute the same, compiled otherwise.

    >>> models(["ours", "torch", "torch-compile"])
    ['ours', 'torch']
    """
    return [*{BACKENDS[name].module: name for name in reversed(names)}.values()][::-1]


def available(names: tuple[str, ...], platform: str) -> tuple[list[str], list[str]]:
    """Returns the backends that can run here, and a line for each of the others."""
    found, lines = [], []
    for name in names:
        entry = BACKENDS[name]
        if platform not in entry.platforms:
            lines.append(f"{entry.title}: left out, it is for {entry.platforms[0]}")
        elif importlib.util.find_spec(entry.package) is None:
            lines.append(f"{entry.title}: left out, {entry.package} is not installed (pip install '.[bench]')")
        else:
            found.append(name)
    return found, lines


def load(name: str, problem: Problem, settings: Sequence[str] = ()) -> Peer:
    """Starts a backend in this process. Only those of PyTorch have `settings`, names of `torch_settings.SETTINGS`."""
    entry = BACKENDS[name]
    module = importlib.import_module(f"benchmarks.peers.{entry.module}")
    options = entry.options | ({"settings": settings} if entry.is_torch else {})
    return module.start(problem, **options)
