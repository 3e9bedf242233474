"""The loss of mixtures as a product, its gradient, and errors against float64, for the tests of the loss's kernel."""

import jax
import jax.numpy as jnp
import numpy as np

from gmmae.models.losses import mean_of_each
from gmmae.models.mixture import Ranges, coefficients_from_logits, density_of, grid, head_planes

EDGES, COMPONENTS = (16, 16, 16), 50
RANGES = Ranges("partial", "tanh", tuple(1 / edge for edge in EDGES), 0.99)


def product(planes, targets, point_loss, ranges):
    """Computes the losses one operation after the other, with the exponents as a product of coefficients and monomials."""
    terms = jnp.stack(coefficients_from_logits(list(jnp.moveaxis(planes, -2, 0)), ranges), axis=-1)
    density = density_of(terms, grid(targets.shape[1:], targets.ndim - 1, planes.dtype))
    return mean_of_each(point_loss(density.reshape(targets.shape), targets))


def with_gradient(form):
    """A function of the losses and the gradient of their sum; `form` is as `loss_kernel.losses`."""

    def both(planes, targets, point_loss, ranges):
        values, backward = jax.vjp(lambda planes: form(planes, targets, point_loss, ranges), planes)
        return values, backward(jnp.ones_like(values))[0]

    return jax.jit(both, static_argnums=(2, 3))


def problem(rng, samples, edges, components, spread):
    """Returns logits of that spread, which at 2 and more makes mixtures sharp, and densities to compare with."""
    planes = spread * rng.standard_normal((samples, sum(head_planes(len(edges)).values()), components))
    return planes.astype(np.float32), rng.exponential(0.1, (samples, *edges)).astype(np.float32)


def problems(spread):
    """Yields batches of several numbers of samples, 20 in total."""
    rng = np.random.default_rng(0)
    return (problem(rng, samples, EDGES, COMPONENTS, spread) for samples in (1, 2, 3, 5, 7, 2))


def errors(found, exact):
    """Returns the largest relative error of a loss, and of a gradient relative to the largest number of its sample."""
    loss, gradient = (np.asarray(array, np.float64) for array in found)
    true_loss, true_gradient = (np.asarray(array) for array in exact)
    scale = np.abs(true_gradient).max(axis=(1, 2), keepdims=True)
    return np.abs(loss / true_loss - 1).max(), (np.abs(gradient - true_gradient) / scale).max()
