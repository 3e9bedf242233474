"""Training problem of all backends, stored on disk and read without any framework.

Parameters have the names and shapes of gmmae's model, such as `encoder/Conv_0/kernel`. Each reference implementation converts
them.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gmmae.scaling.batches import epoch_order

Arrays = dict[str, np.ndarray]


class Problem(NamedTuple):
    """Training problem, with the fields of a configuration's section `optim` and the shape of a model.

    Attributes:
      model: the fields of `Autoencoder`.
      train: arguments of the model's loss by name, with the samples along the first axis.
      validation: the same for validation.
    """

    model: dict[str, Any]
    batch: int
    seed: int
    learning_rate: float
    beta1: float
    beta2: float
    epsilon: float
    precision: str
    train: Arrays
    validation: Arrays
    params: Arrays
    source: dict[str, Any]  # arguments of `gmmae_backend.configuration`, which our own peer starts from

    def batches(self, samples: int, epoch: int) -> list[np.ndarray]:
        """Returns the indices of each step of an epoch over the first `samples` volumes. The last step may be shorter."""
        order = epoch_order(self.seed, epoch, samples)
        return [order[first : first + self.batch] for first in range(0, samples, self.batch)]

    @property
    def samples(self) -> int:
        """Returns the number of training samples."""
        return len(next(iter(self.train.values())))


def first_losses(steps: int, of_epoch: Callable[[int], Sequence[float] | np.ndarray]) -> list[float]:
    """Returns the losses of the first steps of a training, from the losses of each epoch, from epoch 1 on."""
    losses: list[float] = []
    epoch = 0
    while len(losses) < steps:
        epoch += 1
        losses += [float(loss) for loss in of_epoch(epoch)]
    return losses[:steps]


class Autoencoder(NamedTuple):
    """Shape of the nodules' model, as in a configuration's sections `data` and `model`."""

    size: int
    filters: Sequence[int]
    kernels: Sequence[int]
    latent_dim: int
    components: int
    rho: str
    sigma_floor: float  # in units of the domain [-1, 1]
    rho_limit: float

    @property
    def edges(self) -> list[int]:
        """Returns the volume's side length before and after each convolution.

        >>> Autoencoder(*[None] * 8)._replace(size=16, kernels=(7, 5, 3)).edges
        [16, 10, 6, 4]
        """
        edges = [self.size]
        for kernel in self.kernels:
            edges.append(edges[-1] - kernel + 1)
        return edges

    def monomials(self, precision: str) -> np.ndarray:
        """Returns 1, x, y, z, x², xy, xz, y², yz, z² at the voxel centres, in the volume's order: (10, size³)."""
        centres = (2 * np.arange(self.size, dtype=precision) + 1) / self.size - 1
        z, y, x = (axis.ravel() for axis in np.meshgrid(centres, centres, centres, indexing="ij"))
        return np.stack([np.ones_like(x), x, y, z, x * x, x * y, x * z, y * y, y * z, z * z]).astype(precision)


_ARRAYS = ("train", "validation", "params")


def write_arrays(path: Path, arrays: Arrays) -> None:
    """Writes arrays by name, with any names."""
    np.savez(path, **arrays)  # pyright: ignore[reportArgumentType]


def write(folder: Path, problem: Problem) -> None:
    """Writes a problem into a folder."""
    plain = {key: value for key, value in problem._asdict().items() if key not in _ARRAYS}
    (folder / "problem.json").write_text(json.dumps(plain), encoding="utf-8")
    for name in _ARRAYS:
        write_arrays(folder / f"{name}.npz", getattr(problem, name))


def read(folder: Path) -> Problem:
    """Reads a problem from a folder."""
    plain: dict[str, Any] = json.loads((folder / "problem.json").read_text(encoding="utf-8"))
    plain |= {name: dict(np.load(folder / f"{name}.npz")) for name in _ARRAYS}
    return Problem(**plain)
