"""The peers by name, and what a worker asks of one."""

import importlib.util
from typing import Any, NamedTuple, Protocol

import numpy as np

from benchmarks.peers.problem import Arrays, Problem


class Place(NamedTuple):
    """One of the processes that train together, each with a core of its own; alone, a process has all cores."""

    rank: int = 0
    processes: int = 1
    port: int = 0


Last = tuple[Arrays, list[list[int]]]
"""The gradient of an epoch's last step, by our names; and the samples of each step that this process had."""


class Peer(Protocol):
    """A framework that holds a problem, ready to train."""

    def facts(self) -> dict[str, Any]:
        """Versions, threads and device."""
        ...

    def reset(self) -> None:
        """Back to the initial parameters and optimiser state."""
        ...

    def train(self, samples: int, epoch: int) -> None:
        """An epoch over the first `samples` volumes, in the way that is usual and fast; returns when it is done."""
        ...

    def losses(self, samples: int, epoch: int) -> np.ndarray:
        """The same, with the loss of each step."""
        ...

    def evaluate(self) -> float:
        """The validation loss."""
        ...

    def gradient(self) -> Arrays:
        """Of the first step's loss at the current parameters, by our names and in our shapes."""
        ...

    def reduction(self, times: int) -> None:
        """The gradient's mean over the processes, so many times."""
        ...

    def last(self, recipe: str) -> Last:
        """What an epoch at the problem's parameters, which stay, ends with, divided as `experiments.last_batches` says."""
        ...


class Entry(NamedTuple):
    """How to start a peer: `benchmarks.peers.<module>.start(problem, place, **options)`."""

    title: str
    package: str  # that must be installed
    module: str
    options: dict[str, Any] = {}  # noqa: RUF012
    processes: int = 1
    platforms: tuple[str, ...] = ("cpu", "gpu")
    workloads: tuple[str, ...] = ("nodules", "segmentation")
    installed_by: str = "pip install '.[bench]'"


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


def available(names: tuple[str, ...], platform: str, workload: str) -> tuple[list[str], list[str]]:
    """Those that can run here, and a line for each that cannot."""
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


def load(name: str, problem: Problem, place: Place) -> Peer:
    """Starts a peer in this process."""
    entry = BACKENDS[name]
    module = importlib.import_module(f"benchmarks.peers.{entry.module}")
    return module.start(problem, place, **entry.options)
