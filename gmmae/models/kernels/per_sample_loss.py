"""Losses of densities and their gradients, on a CPU sample by sample.

The intermediate arrays of one mixture's density fit into a core's cache, those of a batch do not. Loss and gradient are
computed together, so that only the latter is kept.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, PyTree

from gmmae.models.losses import PointLoss, mean_of_each
from gmmae.models.mixture import at_once, grid, monomials_at

Density = Callable[[PyTree, PyTree], Array]
"""`(parameters of a sample or of a batch, arrays that all samples share) -> density at the points of the targets`."""
SampleLoss = Callable[[PyTree, Array, PyTree], Float[Array, ""]]
"""`(parameters of a sample, its target, arrays that all share) -> its loss`."""


def losses(
    density: Density, parameters: PyTree, targets: Float[Array, "samples *points"], point_loss: PointLoss, shared: PyTree = None
) -> Float[Array, " samples"]:
    """The mean of `point_loss` between each density and its target, which like `shared` is constant, without a gradient.

    The first axis of the parameters is the samples.
    """

    def of_one(parameters: PyTree, target: Array, shared: PyTree) -> Array:
        return point_loss(density(parameters, shared), target).mean()

    def of_batch(parameters: PyTree, targets: Array, shared: PyTree) -> Array:
        return mean_of_each(point_loss(density(parameters, shared), targets))

    return lax.platform_dependent(parameters, targets, shared, cpu=partial(_by_sample, of_one), default=of_batch)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _by_sample(of_one: SampleLoss, parameters: PyTree, targets: Array, shared: PyTree) -> Float[Array, " samples"]:
    return lax.map(lambda sample: of_one(sample[0], sample[1], shared), (parameters, targets))


Saved = tuple[PyTree, PyTree, PyTree]


def _forward(of_one: SampleLoss, parameters: PyTree, targets: PyTree, shared: PyTree) -> tuple[Array, Saved]:
    both = jax.value_and_grad(of_one)
    values, slopes = lax.map(lambda sample: both(*sample, shared), (parameters, targets))
    return values, (slopes, targets, shared)


def _backward(_: SampleLoss, saved: Saved, g: Array) -> Saved:
    slopes, *constants = saved
    weighted = jax.tree.map(lambda slope: g.reshape(-1, *(1,) * (slope.ndim - 1)) * slope, slopes)
    return weighted, *jax.tree.map(jnp.zeros_like, constants)


_by_sample.defvjp(_forward, _backward)


def centres(volumes: Float[Array, "samples *volume"]) -> Float[Array, "points n"]:
    """The voxel centres of volumes, in their type."""
    return grid(volumes.shape[1:], volumes.ndim - 1, volumes.dtype)


def of_polynomials(
    coefficients: Float[Array, "samples k monomials"], volumes: Float[Array, "samples *volume"], point_loss: PointLoss
) -> Float[Array, " samples"]:
    """`losses` of mixtures whose exponents are polynomials, with coefficients in the order of `mixture.monomials`."""
    monomials = monomials_at(centres(volumes))
    return losses(at_once, coefficients, volumes.reshape(len(volumes), -1), point_loss, monomials)
