"""The loss of mixtures as a product, its gradient, and errors against float64, for the tests of the loss's kernel."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from gmmae.models.losses import PointLoss, mean_of_each
from gmmae.models.mixture import Ranges, coefficients_from_logits, density_of, grid

EDGES, COMPONENTS, BATCHES = (16, 16, 16), 50, (1, 2, 3, 5, 7, 8, 13, 16, 17, 31, 32, 33)
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
