"""Losses of mixtures on a grid and their gradient, in plain operations that XLA compiles to few kernels of a GPU.

The exponents are samples × components × points: 26 MB for 32 of the paper's volumes. No array of that size is written here.
Along a line of voxels, in x, an exponent is `a + b x + c x²`. Each line of a component has its a and b, and each component its
c. The density is one reduction over the components, which computes the exponentials. The gradient by a, b and c is three sums
over the voxels of a line, which compute them again.
"""

import itertools
import math
import operator
from functools import partial, reduce

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from gmmae.models.losses import PointLoss, mean_of_each

LONGEST = 64
"""The number of voxels along x up to which this form is used. Its sums are written out, so the program grows with it."""

Line = Float[Array, "samples lines k"]


def losses(
    coefficients: Float[Array, "samples k monomials"], targets: Float[Array, "samples *volume"], point_loss: PointLoss
) -> Float[Array, " samples"]:
    """Returns the mean of `point_loss` over the voxels of each volume, for exponents that are polynomials.

    Args:
      coefficients: of the components' exponents, in the order of `mixture.monomials`.
      targets: densities of n = 1, 2 or 3 axes. They are constants: their gradient is zero and is not computed.
      point_loss: differentiable, element by element.
    """
    lines = targets.reshape(len(targets), -1, targets.shape[-1])
    return _losses(*_along_lines(coefficients, targets.shape[1:]), lines, point_loss)


def _along_lines(coefficients: Array, edges: tuple[int, ...]) -> tuple[Line, Line, Float[Array, "samples 1 k"]]:
    """Returns a, b and c."""
    n = len(edges)
    across = np.meshgrid(*[_centres(edge, coefficients.dtype) for edge in edges[:-1]], indexing="ij")
    one = np.ones((1, 1), coefficients.dtype)
    # Of the lines, along x (which is left out), y, z.
    coordinates = [one, *(along.reshape(-1, 1) for along in reversed(across))]
    monomials = [axes for degree in range(3) for axes in itertools.combinations_with_replacement(range(n), degree)]
    terms: list[list[Array]] = [[], [], []]
    for place, axes in enumerate(monomials):
        factor = reduce(operator.mul, [coordinates[axis] for axis in axes], one)
        terms[axes.count(0)].append(coefficients[:, None, :, place] * factor)
    a, b, c = (reduce(operator.add, each) for each in terms)
    return a, b, c


def _centres(edge: int, dtype: DTypeLike) -> np.ndarray:
    """Returns the coordinates of the voxel centres along an axis, as in `mixture.grid`. They are constants of the program."""
    return (2 * np.arange(edge, dtype=dtype) + 1) / np.asarray(edge, dtype) - 1


@partial(jax.custom_vjp, nondiff_argnums=(4,))
def _losses(
    a: Line, b: Line, c: Array, targets: Float[Array, "samples lines x"], point_loss: PointLoss
) -> Float[Array, " samples"]:
    return mean_of_each(point_loss(_density(a, b, c, targets.shape[-1]), targets))


def _density(a: Line, b: Line, c: Array, edge: int) -> Float[Array, "samples lines x"]:
    a, b, c = (each[:, :, None] for each in (a, b, c))
    return _exponentials(a, b, c, _centres(edge, a.dtype)[:, None]).sum(-1)


def _exponentials(a: Array, b: Array, c: Array, x: np.ndarray) -> Array:
    return jnp.exp(a + x * (b + x * c))


Saved = tuple[Line, Line, Array, Array]


def _forward(a: Line, b: Line, c: Array, targets: Array, point_loss: PointLoss) -> tuple[Array, Saved]:
    values, to_density = jax.vjp(lambda density: point_loss(density, targets), _density(a, b, c, targets.shape[-1]))
    (slopes,) = to_density(jnp.full_like(values, 1 / math.prod(values.shape[1:])))
    a, b, c, slopes = lax.optimization_barrier((a, b, c, slopes))  # so that XLA does not keep the exponentials of the density
    by_power: list[list[Array]] = [[], [], []]
    # XLA would write the exponentials for three reductions. It computes these sums in one kernel, from registers.
    for place, x in enumerate(_centres(targets.shape[-1], a.dtype)):
        steep = _exponentials(a, b, c, x) * slopes[..., place, None]
        for power, terms in enumerate(by_power):
            terms.append(steep * x**power)
    to_a, to_b, to_c = (reduce(operator.add, terms) for terms in by_power)
    return mean_of_each(values), (to_a, to_b, to_c.sum(1, keepdims=True), targets)


def _backward(_: PointLoss, saved: Saved, g: Float[Array, " samples"]) -> Saved:
    *slopes, targets = saved
    to_a, to_b, to_c = (g[:, None, None] * slope for slope in slopes)
    return to_a, to_b, to_c, jnp.zeros_like(targets)


_losses.defvjp(_forward, _backward)
