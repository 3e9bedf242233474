"""Losses and their gradients sample by sample, for CPUs.

The intermediate arrays of one mixture's density fit into a core's cache, those of a batch do not. The gradient is computed with
the loss, so each is computed once. Only the parameters' gradients are kept between the samples.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, PyTree

from gmmae.models.losses import PointLoss
from gmmae.models.mixture import at_once

SampleLoss = Callable[[PyTree, PyTree, PyTree], Float[Array, ""]]
"""`(parameters of a sample, its target, arrays that all share) -> its loss`."""


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def losses(of_one: SampleLoss, parameters: PyTree, targets: PyTree, shared: PyTree) -> Float[Array, " samples"]:
    """Returns the loss of each sample.

    Args:
      of_one: differentiable by its first argument.
      parameters: arrays whose first axis is the samples.
      targets: likewise. They and `shared` are constants: their gradient is zero and is not computed.
      shared: arrays, or None.
    """
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


losses.defvjp(_forward, _backward)


def of_polynomials(
    coefficients: Float[Array, "samples k monomials"],
    monomials: Float[Array, "monomials points"],
    targets: Float[Array, "samples points"],
    point_loss: PointLoss,
) -> Float[Array, " samples"]:
    """Returns the mean of `point_loss` over the points of each sample.

    Args:
      coefficients: of the components' exponents, in the order of `mixture.monomials`.
      monomials: `mixture.monomials_at` the points.
      targets: densities at the points.
      point_loss: differentiable, element by element.
    """

    def of_one(coefficients: Array, target: Array, monomials: Array) -> Array:
        return point_loss(at_once(coefficients, monomials), target).mean()

    return losses(of_one, coefficients, targets, monomials)
