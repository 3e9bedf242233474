"""Autoencoder in PyTorch as a PyTorch user would write it: `Conv3d` channels first, fused Adam, `torch.compile`."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch  # pyright: ignore[reportMissingImports]
import torch.nn.functional as F  # pyright: ignore[reportMissingImports]
from torch import nn  # pyright: ignore[reportMissingImports]

from benchmarks.peers import torch_layout
from benchmarks.peers.backends import CORES
from benchmarks.peers.problem import Arrays, Autoencoder, Problem
from benchmarks.peers.quadratic import coefficients

EVAL_BATCH = {"cpu": 16, "cuda": 64}  # as gmmae


class Reference(nn.Module):
    """Module from volumes (n, z, y, x) to their mean loss, so that compilation sees the whole step."""

    def __init__(self, shape: Autoencoder, precision: str):
        super().__init__()
        channels = (1, *shape.filters)
        layers = zip(channels[:-1], channels[1:], shape.kernels, strict=True)
        self.convolutions = nn.ModuleList([nn.Conv3d(*layer) for layer in layers])
        self.dense = nn.Linear(channels[-1] * shape.edges[-1] ** 3, shape.latent_dim)
        self.heads = nn.Linear(shape.latent_dim, 10 * shape.components)
        self.register_buffer("monomials", torch.from_numpy(shape.monomials(precision)))
        self.floor, self.limit, self.components = shape.sigma_floor, shape.rho_limit, shape.components
        self.squash = {"sigmoid": torch.sigmoid, "tanh": torch.tanh}[shape.rho]

    def forward(self, volumes):
        """Returns the mean loss."""
        predicted = self.density(volumes)
        return (torch.log1p(predicted) - torch.log1p(volumes)).square().mean()

    def density(self, volumes):
        """Returns the density of each volume."""
        x = volumes.unsqueeze(1)
        for convolution in self.convolutions:
            x = F.relu(convolution(x))
        latent = F.relu(self.dense(x.flatten(1)))
        planes = self.heads(latent).unflatten(1, (10, self.components))
        alpha, mu, sigma, rho = planes.split((1, 3, 3, 3), dim=1)
        terms = coefficients(
            F.log_softmax(alpha.squeeze(1), dim=-1),
            torch.tanh(mu).unbind(1),
            (self.floor + (1 - self.floor) * torch.sigmoid(sigma)).unbind(1),
            (self.limit * self.squash(rho)).unbind(1),
            sqrt=torch.sqrt,
            log=torch.log,
        )
        return torch.exp(torch.stack(terms, dim=-1) @ self.monomials).sum(dim=1).view_as(volumes)


class TorchPeer:
    """A `backends.Peer`. `mode` is that of `torch.compile`, or empty for eager mode."""

    def __init__(self, problem: Problem, mode: str, settings: Sequence[str] = ()):
        self.problem, self.mode = problem, mode
        if "flush" in settings:  # before PyTorch starts threads, which inherit it
            torch.set_flush_denormal(True)
        # Full precision, as in gmmae. A GPU would otherwise compute convolutions in TF32.
        torch.set_float32_matmul_precision("highest")
        torch.backends.cudnn.allow_tf32 = False
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        torch.set_num_threads(CORES)
        reference = Reference(Autoencoder(**problem.model), problem.precision)
        self.model = reference.to(self.device, getattr(torch, problem.precision))
        if "channels-last" in settings:
            self.model.to(memory_format=torch.channels_last_3d)
        put = ({name: self._put(x) for name, x in arrays.items()} for arrays in (problem.train, problem.validation))
        self.samples, self.validation = put
        self.reset()
        self.loss: Any = self.model
        if mode:
            self.loss = torch.compile(self.loss, mode=mode, dynamic=False)

    def _put(self, array: np.ndarray):
        kept = array if array.dtype == bool else array.astype(self.problem.precision)
        return torch.from_numpy(kept).to(self.device)

    def facts(self) -> dict[str, Any]:
        """Returns versions, threads and device."""
        kind = torch.cuda.get_device_name() if self.device.type == "cuda" else "cpu"
        versions = {"torch": torch.__version__}
        capability = torch.backends.cpu.get_cpu_capability()
        return {"versions": versions, "device": kind, "threads": torch.get_num_threads(), "capability": capability}

    def reset(self) -> None:
        """Restores the initial parameters and optimiser state."""
        state = {name: self._put(value) for name, value in torch_layout.from_ours(self.problem.params).items()}
        self.model.load_state_dict(state, strict=False)
        p = self.problem
        self.optimizer = torch.optim.Adam(
            self.model.parameters(), lr=p.learning_rate, betas=(p.beta1, p.beta2), eps=p.epsilon, fused=True
        )

    def train(self, samples: int, epoch: int) -> None:
        """Trains an epoch over the first `samples` volumes."""
        self.losses(samples, epoch)

    def losses(self, samples: int, epoch: int) -> np.ndarray:
        """Trains an epoch and returns the loss of each step."""
        batches = [torch.from_numpy(batch).to(self.device) for batch in self.problem.batches(samples, epoch)]
        found = torch.empty(len(batches), device=self.device, dtype=getattr(torch, self.problem.precision))
        for step, index in enumerate(batches):
            if self.mode == "reduce-overhead":
                torch.compiler.cudagraph_mark_step_begin()
            self.optimizer.zero_grad()
            loss = self._of(index)
            loss.backward()
            self.optimizer.step()
            found[step] = loss.detach()
        return found.cpu().numpy()  # waits for the device

    def _of(self, index: Any):
        """Returns the mean loss of some training samples."""
        return self.loss(**{name: x[index] for name, x in self.samples.items()})

    @torch.no_grad()
    def evaluate(self) -> float:
        """Returns the validation loss."""
        count = len(next(iter(self.validation.values())))
        parts = torch.arange(count, device=self.device).split(EVAL_BATCH[self.device.type])
        means = (self.loss(**{name: x[part] for name, x in self.validation.items()}).clone() * len(part) for part in parts)
        return float(torch.stack([*means]).double().sum()) / count

    def gradient(self) -> Arrays:
        """Returns the gradient of the first step's loss."""
        self.model.zero_grad()
        [first, *_] = self.problem.batches(self.problem.samples, 1)
        self._of(torch.from_numpy(first).to(self.device)).backward()
        found = {name: value.grad.cpu().numpy() for name, value in self.model.named_parameters()}
        return torch_layout.to_ours(found)


def start(problem: Problem, mode: str, settings: Sequence[str] = ()) -> TorchPeer:
    """Starts PyTorch on a problem."""
    return TorchPeer(problem, mode, settings)
