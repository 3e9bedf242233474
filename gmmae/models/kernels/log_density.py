"""The exponents of a mixture's components from its logits, element by element.

`gmmae.models.mixture` computes the mixture's means and factors, which are small matrices. Training needs only the coefficients
of the exponents. Here they are written out for n = 1, 2 and 3 in operations on single numbers. A compiler makes one loop of
them, and they can be part of a kernel (`gmmae.models.kernels.loss_kernel`).
"""

import itertools
import operator
from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from gmmae.models.mixture import LOG_2PI, axes


class Ranges(NamedTuple):
    """The ranges of a mixture's numbers, as in `gmmae.models.mixture.from_logits`, with a `sigma_floor` for each of x, y, z."""

    covariance: str
    rho: str
    sigma_floor: tuple[float, ...]
    rho_limit: float


def coefficients(planes: Sequence[Float[Array, "*b k"]], ranges: Ranges) -> list[Float[Array, "*b k"]]:
    """Returns the coefficients of `log α + log N(x; μ, Σ)` of each component, in the order of `mixture.monomials`.

    With the inverse I of Σ's Cholesky factor and y = Iμ the exponent is
    `log α + log det I - ½ |y|² - (n/2) log 2π + (Iᵀy)·x - ½ |Ix|²`.

    Args:
      planes: logits in the order of `mixture.head_planes`. A component whose α is -inf has no weight.
      ranges: of the mixture's numbers.
    """
    n = axes(len(planes))
    alpha, mu, sigma, rho = planes[0], planes[1 : 1 + n], planes[1 + n : 1 + 2 * n], planes[1 + 2 * n :]
    means = [jnp.tanh(logit) for logit in mu]
    inverse = _inverse(
        [floor + (1 - floor) * jax.nn.sigmoid(logit) for floor, logit in zip(ranges.sigma_floor, sigma, strict=True)],
        [ranges.rho_limit * {"sigmoid": jax.nn.sigmoid, "tanh": jnp.tanh}[ranges.rho](logit) for logit in rho],
        ranges.covariance,
    )
    white = [_sum([entry * mean for entry, mean in zip(row, means, strict=False)]) for row in inverse]  # y
    shifted = alpha - lax.stop_gradient(alpha.max(-1, keepdims=True))
    log_weights = shifted - jnp.log(jnp.exp(shifted).sum(-1, keepdims=True))
    log_det = jnp.log(reduce(operator.mul, [row[-1] for row in inverse]))
    constant = log_weights + log_det - 0.5 * _sum([y * y for y in white]) - 0.5 * n * LOG_2PI
    linear = [_sum([row[j] * y for row, y in zip(inverse[j:], white[j:], strict=True)]) for j in range(n)]
    pairs = itertools.combinations_with_replacement(range(n), 2)
    quadratic = [-(0.5 if i == j else 1.0) * _sum([row[i] * row[j] for row in inverse[j:]]) for i, j in pairs]
    return [constant, *linear, *quadratic]


def _sum(terms: Sequence[Array]) -> Array:
    return reduce(operator.add, terms)


def _inverse(sigma: list[Array], rho: list[Array], covariance: str) -> list[list[Array]]:
    """Returns the rows of the inverse of Σ's Cholesky factor, up to the diagonal."""
    rows = [[1 / sigma[0]]]
    if len(sigma) == 1:
        return rows
    r12 = rho[0]
    a = jnp.sqrt(1 - r12 * r12)
    rows.append([-r12 / (a * sigma[0]), 1 / (a * sigma[1])])
    if len(sigma) == 2:
        return rows
    r13 = rho[1]
    b = jnp.sqrt(1 - r13 * r13)
    partial = (rho[2] - r12 * r13) / (a * b) if covariance == "paper" else rho[2]
    c = jnp.sqrt(1 - partial * partial)
    rows.append([(partial * r12 / a - r13 / b) / (c * sigma[0]), -partial / (a * c * sigma[1]), 1 / (b * c * sigma[2])])
    return rows
