"""Autoencoder in PyTorch as a PyTorch user would write it: `Conv3d` channels first, fused Adam, `torch.compile`."""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch  # pyright: ignore[reportMissingImports]
import torch.nn.functional as F  # pyright: ignore[reportMissingImports]
from torch import distributed, nn  # pyright: ignore[reportMissingImports]
from torch.distributed.algorithms.join import Join  # pyright: ignore[reportMissingImports]

from benchmarks.peers import torch_epochs, torch_layout, torch_unet
from benchmarks.peers.backends import Last, Place
from benchmarks.peers.problem import Arrays, Autoencoder, Problem
from benchmarks.peers.quadratic import coefficients

EVAL_BATCH = 64  # as gmmae.training.compilation.EVAL_DEVICE_BATCH


class Reference(nn.Module):
    """Module from volumes (n, z, y, x) to their mean loss, so that compilation and DDP see the whole step."""

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


def reference_of(problem: Problem) -> tuple[nn.Module, Any]:
    """Returns the reference implementation of a problem's model, and the module of its parameters' layout."""
    if problem.workload == "segmentation":
        return torch_unet.Reference(problem.model["features"]), torch_unet
    return Reference(Autoencoder(**problem.model), problem.precision), torch_layout


class TorchPeer:
    """A `backends.Peer`. `mode` is that of `torch.compile`, or empty for eager mode."""

    def __init__(self, problem: Problem, place: Place, mode: str, settings: Sequence[str] = ()):
        self.problem, self.place, self.mode, self.settings = problem, place, mode, settings
        if "flush" in settings:  # before PyTorch starts threads, which inherit it
            torch.set_flush_denormal(True)
        if "no-onednn" in settings:
            torch.backends.mkldnn.enabled = False
        if "autotune" in settings and mode:
            self.mode = mode = "max-autotune"
        # Full precision, as in gmmae. A GPU would otherwise compute convolutions in TF32.
        torch.set_float32_matmul_precision("highest")
        torch.backends.cudnn.allow_tf32 = False
        self.device = torch.device("cuda" if torch.cuda.is_available() and place.processes == 1 else "cpu")
        torch.set_num_threads(1 if "one-thread" in settings else place.cores)
        if place.processes > 1:
            self._meet()
        reference, self.layout = reference_of(problem)
        self.model = reference.to(self.device, getattr(torch, problem.precision))
        if "channels-last" in settings:
            layouts = {"nodules": torch.channels_last_3d, "segmentation": torch.channels_last}
            self.model.to(memory_format=layouts[problem.workload])
        put = ({name: self._put(x) for name, x in arrays.items()} for arrays in (problem.train, problem.validation))
        self.samples, self.validation = put
        self.reset()
        self.loss: Any = self._shared() if place.processes > 1 else self.model
        if mode:
            self.loss = torch.compile(self.loss, mode=mode, dynamic=False)

    def _meet(self) -> None:
        """Joins the processes."""
        address = f"tcp://127.0.0.1:{self.place.port}"
        distributed.init_process_group("gloo", init_method=address, rank=self.place.rank, world_size=self.place.processes)

    def _shared(self) -> nn.Module:
        """Returns the model with reduced gradients."""
        return nn.parallel.DistributedDataParallel(self.model, gradient_as_bucket_view=True)

    def _sum(self, vector: Any) -> None:
        """Sums a vector over the processes, in place."""
        distributed.all_reduce(vector)

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
        state = {name: self._put(value) for name, value in self.layout.from_ours(self.problem.params).items()}
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
        batches = [self._share(batch) for batch in self.problem.batches(samples, epoch)]
        found = torch.empty(len(batches), device=self.device, dtype=getattr(torch, self.problem.precision))
        for step, index in enumerate(batches):
            if self.mode == "reduce-overhead":
                torch.compiler.cudagraph_mark_step_begin()
            self.optimizer.zero_grad()  # to None; Horovod's takes no arguments
            loss = self._of(index)
            loss.backward()
            self.optimizer.step()
            found[step] = loss.detach()
        if self.place.processes > 1:
            self._sum(found)
            found /= self.place.processes
        return found.cpu().numpy()  # waits for the device

    def _of(self, index: Any):
        """Returns the mean loss of some training samples."""
        return self.loss(**{name: x[index] for name, x in self.samples.items()})

    def _share(self, batch: np.ndarray):
        """Returns this process's part of a step's samples. All processes have equally many here."""
        return torch.from_numpy(np.split(batch, self.place.processes)[self.place.rank]).to(self.device)

    @torch.no_grad()
    def evaluate(self) -> float:
        """Returns the validation loss."""
        model = self.model if self.place.processes > 1 else self.loss  # DDP's forward pass would prepare a backward one
        count = len(next(iter(self.validation.values())))
        parts = torch.arange(count, device=self.device).chunk(self.place.processes)[self.place.rank].split(EVAL_BATCH)
        means = (model(**{name: x[part] for name, x in self.validation.items()}).clone() * len(part) for part in parts)
        total = torch.stack([*means]).double().sum()
        if self.place.processes > 1:
            self._sum(total)
        return float(total) / count

    def gradient(self) -> Arrays:
        """Returns the gradient of the first step's loss."""
        self.model.zero_grad()
        [first, *_] = self.problem.batches(self.problem.samples, 1)
        self._of(torch.from_numpy(first).to(self.device)).backward()
        return self._gradient()

    def _gradient(self) -> Arrays:
        found = {name: value.grad.cpu().numpy() for name, value in self.model.named_parameters()}
        return self.layout.to_ours(found)

    def reduction(self, times: int) -> None:
        """Averages the gradient over the processes, `times` times."""
        vector = torch.zeros(sum(value.numel() for value in self.model.parameters()))
        for _ in range(times):
            self._sum(vector)

    def last(self, recipe: str) -> Last:
        """Returns the gradient of the last step and the samples of each step."""
        known, steps = self.problem, []
        with self._joining(recipe):
            for index in torch_epochs.loader(recipe, known.samples, known.batch, self.place):
                self.optimizer.zero_grad()  # to None; Horovod's takes no arguments
                loss = self._of(index)
                if recipe == torch_epochs.WEIGHTED:
                    count = torch.tensor(float(len(index)))
                    self._sum(count)
                    loss = loss * len(index) * self.place.processes / count
                loss.backward()
                self._reduced()
                steps.append(index.tolist())
        return self._gradient(), steps

    def _joining(self, recipe: str) -> Any:
        """Returns a context in which a process without a batch joins the reductions of the others."""
        if recipe not in torch_epochs.JOINS:
            return nullcontext()
        return Join([self.loss], divide_by_initial_world_size=recipe == torch_epochs.JOIN)

    def _reduced(self) -> None:
        """Waits for the reduction where the backward pass has not done so."""


def start(problem: Problem, place: Place, mode: str, settings: Sequence[str] = ()) -> TorchPeer:
    """Starts PyTorch on a problem."""
    return TorchPeer(problem, place, mode, settings)
