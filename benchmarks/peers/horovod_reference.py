"""PyTorch reference with Horovod's `DistributedOptimizer`, which averages the gradients of the processes."""

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

import horovod.torch as hvd  # pyright: ignore[reportMissingImports]
import torch  # pyright: ignore[reportMissingImports]
from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts  # pyright: ignore[reportMissingImports]
from horovod.runner.http import http_server  # pyright: ignore[reportMissingImports]
from torch import nn  # pyright: ignore[reportMissingImports]

from benchmarks.peers import torch_epochs
from benchmarks.peers.backends import Place
from benchmarks.peers.problem import Problem
from benchmarks.peers.torch_reference import TorchPeer


def rendezvous(place: Place) -> None:
    """Tells the processes of one host their ranks as `horovodrun --gloo` does. The first process serves the others."""
    host = "localhost"
    if place.rank == 0:
        server = http_server.RendezvousHTTPServer(("127.0.0.1", place.port), http_server.RendezvousHandler, 0)
        server.init(get_host_assignments(parse_hosts(f"{host}:{place.processes}"), place.processes))
        threading.Thread(target=server.serve_forever, daemon=True).start()
    told = {"RANK": place.rank, "SIZE": place.processes, "LOCAL_RANK": place.rank, "LOCAL_SIZE": place.processes}
    told |= {"CROSS_RANK": 0, "CROSS_SIZE": 1, "HOSTNAME": host, "CONTROLLER": "gloo", "CPU_OPERATIONS": "gloo"}
    told |= {"GLOO_IFACE": "lo", "GLOO_RENDEZVOUS_ADDR": "127.0.0.1", "GLOO_RENDEZVOUS_PORT": place.port}
    os.environ.update({f"HOROVOD_{name}": str(value) for name, value in told.items()})


class HorovodPeer(TorchPeer):
    """A `backends.Peer` in eager mode."""

    def _meet(self) -> None:
        rendezvous(self.place)
        hvd.init()

    def _shared(self) -> nn.Module:
        hvd.broadcast_parameters(self.model.state_dict(), root_rank=0)
        self.optimizer = hvd.DistributedOptimizer(self.optimizer, named_parameters=self.model.named_parameters())
        return self.model

    def _sum(self, vector: Any) -> None:
        hvd.allreduce_(vector, op=hvd.Sum)

    def _reduced(self) -> None:
        self.optimizer.synchronize()

    @contextmanager
    def _joining(self, recipe: str) -> Iterator[None]:
        yield
        if recipe == torch_epochs.JOIN:
            hvd.join()

    def facts(self) -> dict[str, Any]:
        """Returns versions, threads and device."""
        found = super().facts()
        return found | {"versions": {"horovod": version("horovod"), **found["versions"]}}

    def reset(self) -> None:
        """Restores the initial parameters and optimiser state."""
        hooked = getattr(self, "optimizer", None)  # the hooks of its reductions stay with the parameters
        super().reset()
        if hooked is not None:
            hooked.state.clear()
            self.optimizer = hooked


def start(problem: Problem, place: Place, settings: Sequence[str] = ()) -> HorovodPeer:
    """Starts Horovod on a problem."""
    torch.manual_seed(0)
    return HorovodPeer(problem, place, mode="", settings=settings)
