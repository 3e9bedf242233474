"""Losses sample by sample, and their gradient with them, for CPUs.

Of one mixture all exponentials stay in a core's cache, those of a batch do not; and as the gradient is computed with the loss,
each is computed once. Between the samples only the coefficients' gradients are kept.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from gmmae.models.losses import PointLoss
from gmmae.models.mixture import at_once


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def losses(
    coefficients: Float[Array, "samples k monomials"],
    monomials: Float[Array, "monomials points"],
    targets: Float[Array, "samples points"],
    point_loss: PointLoss,
) -> Float[Array, " samples"]:
    """The mean of `point_loss` over the points of each sample.

    Args:
      coefficients: of the exponents, in the order of `mixture.monomials`.
      monomials: `mixture.monomials_at` the points; constants, as the targets: no gradient by them is computed (it is zero).
      targets: densities at the points.
      point_loss: differentiable, element by element.
    """
    return lax.map(lambda sample: _of_one(sample[0], sample[1], monomials, point_loss), (coefficients, targets))


def _of_one(coefficients: Array, target: Array, monomials: Array, point_loss: PointLoss) -> Array:
    return point_loss(at_once(coefficients, monomials), target).mean()


Saved = tuple[Array, Array, Array]


def _forward(coefficients: Array, monomials: Array, targets: Array, point_loss: PointLoss) -> tuple[Array, Saved]:
    both = jax.value_and_grad(_of_one)
    values, slopes = lax.map(lambda sample: both(*sample, monomials, point_loss), (coefficients, targets))
    return values, (slopes, monomials, targets)


def _backward(point_loss: PointLoss, saved: Saved, g: Array) -> Saved:
    slopes, monomials, targets = saved
    return g[:, None, None] * slopes, jnp.zeros_like(monomials), jnp.zeros_like(targets)


losses.defvjp(_forward, _backward)
