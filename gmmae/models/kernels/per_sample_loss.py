"""Losses sample by sample, and their gradient with them, for CPUs.

What one mixture's density needs on its way stays in a core's cache, what a batch needs does not; and as the gradient is
computed with the loss, each is computed once. Between the samples only the parameters' gradients are kept.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from gmmae.models.losses import PointLoss
from gmmae.models.mixture import at_once

OfOne = Callable[[Any, Any, Any], Float[Array, ""]]
"""`(parameters of a sample, its target, what all share) -> its loss`."""


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def losses(of_one: OfOne, parameters: Any, targets: Any, shared: Any) -> Float[Array, " samples"]:
    """The loss of each sample.

    Args:
      of_one: differentiable by its first argument.
      parameters: arrays whose first axis is the samples.
      targets: the same; constants, as what is shared: no gradient by them is computed (it is zero).
      shared: arrays, or None.
    """
    return lax.map(lambda sample: of_one(sample[0], sample[1], shared), (parameters, targets))


Saved = tuple[Any, Any, Any]


def _forward(of_one: OfOne, parameters: Any, targets: Any, shared: Any) -> tuple[Array, Saved]:
    both = jax.value_and_grad(of_one)
    values, slopes = lax.map(lambda sample: both(*sample, shared), (parameters, targets))
    return values, (slopes, targets, shared)


def _backward(_: OfOne, saved: Saved, g: Array) -> Saved:
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
    """The mean of `point_loss` over the points of each sample.

    Args:
      coefficients: of the components' exponents, in the order of `mixture.monomials`.
      monomials: `mixture.monomials_at` the points.
      targets: densities at the points.
      point_loss: differentiable, element by element.
    """

    def of_one(coefficients: Array, target: Array, monomials: Array) -> Array:
        return point_loss(at_once(coefficients, monomials), target).mean()

    return losses(of_one, coefficients, targets, monomials)
