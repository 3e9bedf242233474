"""What all peers train: the same numbers on disk, read without any framework.

Parameters have the names and shapes of our model, `encoder/Conv_0/kernel` and so on; each twin converts them.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gmmae.data.batches import epoch_order

Arrays = dict[str, np.ndarray]


class Problem(NamedTuple):
    """A training problem; shapes and rules as in a configuration's sections `data`, `model` and `optim`."""

    size: int
    filters: tuple[int, ...]
    kernels: tuple[int, ...]
    latent_dim: int
    components: int
    rho: str
    sigma_floor: float  # in units of the domain [-1, 1]
    rho_limit: float
    batch: int
    seed: int
    learning_rate: float
    beta1: float
    beta2: float
    epsilon: float
    target_loss: float
    max_epochs: int
    precision: str
    train: np.ndarray
    validation: np.ndarray
    params: Arrays
    source: dict[str, Any]  # arguments of `ours.configuration`, which our own peer starts from

    def batches(self, samples: int, epoch: int) -> list[np.ndarray]:
        """The indices of each step of an epoch over the first `samples` volumes, in our order; the last may be shorter."""
        order = epoch_order(self.seed, epoch, samples)
        return [order[first : first + self.batch] for first in range(0, samples, self.batch)]

    def steps(self, samples: int) -> int:
        return -(-samples // self.batch)

    @property
    def edges(self) -> list[int]:
        """The volume's edge before and after each convolution.

        >>> Problem(*[None] * 21)._replace(size=16, kernels=(7, 5, 3)).edges
        [16, 10, 6, 4]
        """
        edges = [self.size]
        for kernel in self.kernels:
            edges.append(edges[-1] - kernel + 1)
        return edges

    def monomials(self) -> np.ndarray:
        """1, x, y, z, x², xy, xz, y², yz, z² at the voxel centres, in the volume's order: (10, size³)."""
        centres = (2 * np.arange(self.size, dtype=self.precision) + 1) / self.size - 1
        z, y, x = (axis.ravel() for axis in np.meshgrid(centres, centres, centres, indexing="ij"))
        return np.stack([np.ones_like(x), x, y, z, x * x, x * y, x * z, y * y, y * z, z * z]).astype(self.precision)


_ARRAYS = ("train", "validation", "params")


def write_arrays(path: Path, arrays: Arrays) -> None:
    """Arrays by name, whatever the names."""
    np.savez(path, **arrays)  # pyright: ignore[reportArgumentType]


def write(folder: Path, problem: Problem) -> None:
    """Puts a problem into a folder."""
    plain = {key: value for key, value in problem._asdict().items() if key not in _ARRAYS}
    (folder / "problem.json").write_text(json.dumps(plain), encoding="utf-8")
    np.savez(folder / "data.npz", train=problem.train, validation=problem.validation)
    write_arrays(folder / "params.npz", problem.params)


def read(folder: Path) -> Problem:
    """What `write` put into the folder."""
    plain: dict[str, Any] = json.loads((folder / "problem.json").read_text(encoding="utf-8"))
    plain |= {key: tuple(plain[key]) for key in ("filters", "kernels")}
    with np.load(folder / "data.npz") as data, np.load(folder / "params.npz") as params:
        return Problem(**plain, train=data["train"], validation=data["validation"], params=dict(params))
