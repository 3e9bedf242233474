"""Backends by name, and the interface that a worker calls."""

import importlib.util
import os
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from benchmarks.peers.problem import Arrays, Problem


class Place(NamedTuple):
    """Position among the processes that train together, each on its own core. A single process has all cores.

    `cores` are counted before a framework starts. OpenMP with pinned threads leaves one core to the thread that asks.
    """

    rank: int = 0
    processes: int = 1
    port: int = 0
    cores: int = len(os.sched_getaffinity(0))


Last = tuple[Arrays, list[list[int]]]
"""Gradient of an epoch's last step by gmmae's names, and the samples of this process in each step."""


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

    def reduction(self, times: int) -> None:
        """Averages the gradient over the processes, `times` times."""
        ...

    def last(self, recipe: str) -> Last:
        """Returns the end of an epoch at the fixed initial parameters, divided as `experiments.last_batches` says."""
        ...


class Entry(NamedTuple):
    """Module and options of a backend: `benchmarks.peers.<module>.start(problem, place, **options)`."""

    title: str
    package: str  # that must be installed
    module: str
    options: dict[str, Any] = {}  # noqa: RUF012
    processes: int = 1
    platforms: tuple[str, ...] = ("cpu", "gpu")
    workloads: tuple[str, ...] = ("nodules", "segmentation")
    installed_by: str = "pip install '.[bench]'"

    @property
    def is_torch(self) -> bool:
        """Returns whether PyTorch computes, so that it has settings."""
        return self.package in ("torch", "horovod")


CPU, GPU = ("cpu",), ("gpu",)
NODULES = ("nodules",)

BACKENDS = {
    "ours": Entry("gmmae", "jax", "gmmae_backend"),
    "torch": Entry("PyTorch, eager", "torch", "torch_reference", {"mode": ""}),
    "torch-compile": Entry("PyTorch, torch.compile", "torch", "torch_reference", {"mode": "default"}),
    "torch-graphs": Entry(
        "PyTorch, torch.compile, CUDA graphs", "torch", "torch_reference", {"mode": "reduce-overhead"}, 1, GPU
    ),
    "keras": Entry("Keras on TensorFlow", "tensorflow", "keras_reference", {"jit": False}, 1, CPU, NODULES),
    "keras-xla": Entry("Keras on TensorFlow, XLA", "tensorflow", "keras_reference", {"jit": True}, 1, CPU, NODULES),
    "ours-2": Entry("gmmae, two processes", "jax", "gmmae_backend", {}, 2, CPU),
    "torch-ddp": Entry("PyTorch DDP, eager, two processes", "torch", "torch_reference", {"mode": ""}, 2, CPU),
    "torch-ddp-compile": Entry(
        "PyTorch DDP, torch.compile, two processes", "torch", "torch_reference", {"mode": "default"}, 2, CPU
    ),
    "horovod": Entry(
        "Horovod with PyTorch, two processes", "horovod", "horovod_reference", {}, 2, CPU, installed_by="experiments/horovod.sh"
    ),
    "keras-2": Entry("Keras on TensorFlow, own loop, two processes", "tensorflow", "keras_pair", {}, 2, CPU, NODULES),
}
ALONE = tuple(name for name, entry in BACKENDS.items() if entry.processes == 1)
TOGETHER = tuple(name for name, entry in BACKENDS.items() if entry.processes == 2)


def models(names: Sequence[str]) -> list[str]:
    """Returns the first backend of each module. The others of a module compute the same, compiled otherwise.

    >>> models(["ours", "torch", "torch-compile", "keras"])
    ['ours', 'torch', 'keras']
    """
    return [*{BACKENDS[name].module: name for name in reversed(names)}.values()][::-1]


def available(names: tuple[str, ...], platform: str, workload: str) -> tuple[list[str], list[str]]:
    """Returns the backends that can run here, and a line for each of the others."""
    found, lines = [], []
    for name in names:
        entry = BACKENDS[name]
        if platform not in entry.platforms:
            lines.append(f"{entry.title}: left out, it is for {entry.platforms[0]}")
        elif workload not in entry.workloads:
            lines.append(f"{entry.title}: left out, it has no {workload}")
        elif importlib.util.find_spec(entry.package) is None:
            lines.append(f"{entry.title}: left out, {entry.package} is not installed ({entry.installed_by})")
        else:
            found.append(name)
    return found, lines


def load(name: str, problem: Problem, place: Place, settings: Sequence[str] = ()) -> Peer:
    """Starts a backend in this process. Only those of PyTorch have `settings`, names of `torch_settings.SETTINGS`."""
    entry = BACKENDS[name]
    module = importlib.import_module(f"benchmarks.peers.{entry.module}")
    options = entry.options | ({"settings": settings} if entry.is_torch else {})
    return module.start(problem, place, **options)
