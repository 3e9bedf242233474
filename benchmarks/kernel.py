"""Compares three forms of the loss and its gradient with float64: the product, the lines of voxels, and the kernel.

    python -m benchmarks.kernel [--mixtures 1000]

Random mixtures have the paper's size. They are soft (logits of unit standard deviation, as at the start of training) or
sharp, in batches of 1 to 33. On a CPU the kernel is interpreted with the CPU's arithmetic. On an NVIDIA GPU it is compiled.
The product is the form of CPUs, the lines are that of GPUs without the kernel. docs/measurements/absent_gpus.md has a table.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from benchmarks.options import Parser, at_least, guarded
from gmmae.models.kernels import line_loss, loss_kernel
from gmmae.models.losses import PointLoss, mean_of_each, msle
from gmmae.models.mixture import Ranges, coefficients_from_logits, density_of, grid
from gmmae.plotting.tables import Table, markdown

EDGES, COMPONENTS, SPREADS, BATCHES = (16, 16, 16), 50, (1.0, 2.0, 4.0), (1, 2, 3, 5, 7, 8, 13, 16, 17, 31, 32, 33)
RANGES = Ranges("partial", "tanh", tuple(1 / edge for edge in EDGES), 0.99)
Form = Callable[..., Any]
"""Function `(logits, targets, point_loss, ranges) -> losses`, as `loss_kernel.losses`."""


def coefficients(planes: jax.Array, ranges: Ranges) -> jax.Array:
    """Returns the coefficients of the components' exponents."""
    return jnp.stack(coefficients_from_logits(list(jnp.moveaxis(planes, -2, 0)), ranges), axis=-1)


def product(planes: jax.Array, targets: jax.Array, point_loss: PointLoss, ranges: Ranges) -> jax.Array:
    """Computes the losses one operation after the other, with the exponents as a product of coefficients and monomials."""
    density = density_of(coefficients(planes, ranges), grid(targets.shape[1:], targets.ndim - 1, planes.dtype))
    return mean_of_each(point_loss(density.reshape(targets.shape), targets))


def lines(planes: jax.Array, targets: jax.Array, point_loss: PointLoss, ranges: Ranges) -> jax.Array:
    """Computes the losses by lines of voxels."""
    return line_loss.losses(coefficients(planes, ranges), targets, point_loss)


def with_gradient(form: Form) -> Form:
    """Returns a function of the losses and the gradient of their sum."""

    def both(planes: jax.Array, targets: jax.Array, point_loss: PointLoss, ranges: Ranges) -> tuple[jax.Array, jax.Array]:
        values, backward = jax.vjp(lambda planes: form(planes, targets, point_loss, ranges), planes)
        return values, backward(jnp.ones_like(values))[0]

    return jax.jit(both, static_argnums=(2, 3))


def problems(mixtures: int, spread: float) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields batches of logits and targets, `mixtures` of them in total."""
    rng, turn = np.random.default_rng(0), 0
    while mixtures:
        samples = min(BATCHES[turn % len(BATCHES)], mixtures)
        planes = spread * rng.standard_normal((samples, 10, COMPONENTS))
        yield planes.astype(np.float32), rng.exponential(0.1, (samples, *EDGES)).astype(np.float32)
        mixtures, turn = mixtures - samples, turn + 1


def errors(found: Iterable[ArrayLike], exact: Iterable[ArrayLike]) -> tuple[float, float]:
    """Returns the largest relative error of a loss, and of a gradient relative to the largest number of its sample."""
    loss, gradient = (np.asarray(array, np.float64) for array in found)
    true_loss, true_gradient = (np.asarray(array) for array in exact)
    scale = np.abs(true_gradient).max(axis=(1, 2), keepdims=True)
    return np.abs(loss / true_loss - 1).max(), (np.abs(gradient - true_gradient) / scale).max()


def main() -> None:
    """Prints the errors."""
    parser = Parser(__doc__)
    parser.add_argument("--mixtures", type=at_least(1), default=1000, help="number of mixtures for each standard deviation")
    args = parser.parse_args()
    interpret = jax.default_backend() != "gpu"
    exact = with_gradient(product)
    kernel = with_gradient(partial(loss_kernel.losses, interpret=interpret))
    forms = {"product": exact, "lines": with_gradient(lines), "kernel": kernel}
    rows = []
    for spread in SPREADS:
        worst = {name: (0.0, 0.0) for name in forms}
        for planes, targets in problems(args.mixtures, spread):
            with jax.enable_x64(True):
                truth = jax.device_get(exact(*(jnp.asarray(x, jnp.float64) for x in (planes, targets)), msle, RANGES))
            for name, form in forms.items():
                found = errors(jax.device_get(form(planes, targets, msle, RANGES)), truth)
                worst[name] = (max(worst[name][0], found[0]), max(worst[name][1], found[1]))
        rows.append((f"{spread:g}", *(f"{worst[name][what]:.1e}" for what in (0, 1) for name in forms)))
    title = f"{args.mixtures} mixtures each, on {jax.devices()[0].device_kind}" + (", interpreted" if interpret else "")
    columns = ("spread of logits", *(f"{what}, {name}" for what in ("loss", "gradient") for name in forms))
    print(markdown(Table("kernel", title, columns, tuple(rows))))


if __name__ == "__main__":
    guarded(main)
