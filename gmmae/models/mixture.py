"""Mixtures of normal distributions on [-1, 1]^n, n = 1, 2 or 3, and their density on a grid (Eq. 5 to 8 of the paper).

The density is fast: `log α_k + log N(x; μ_k, Σ_k)` is a quadratic polynomial in x, so it is linear in the monomials (1, x, y,
z, x², xy, …), and for all points and components one matrix product, then one exponential and one sum.

The density is finite: a component is stored by the Cholesky factor of its covariance, and `Ranges` keep standard deviations
above a floor and correlations below a limit. They also bound the rounding, as terms are of x and μ, not of their difference: a
relative error of up to about `eps · (|x|² + |μ|²) / (σ² (1 - ρ²))`, at x = μ too.
"""

import itertools
import math
import operator
from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from gmmae.models.kernels.precision import FULL

LOG_2PI = math.log(2 * math.pi)


class Mixture(NamedTuple):
    """A mixture of K normal distributions in n dimensions, or a batch of them (leading axes `*b`).

    Attributes:
      log_weights: log α, whose exponentials sum to one (Eq. 8).
      means: μ, world axes x, y, z.
      scale_tril: lower-triangular L with Σ = L Lᵀ and a positive diagonal.
    """

    log_weights: Float[Array, "*b k"]
    means: Float[Array, "*b k n"]
    scale_tril: Float[Array, "*b k n n"]

    @classmethod
    def of(
        cls, weights: Float[Array, "*b k"], means: Float[Array, "*b k n"], covariances: Float[Array, "*b k n n"]
    ) -> "Mixture":
        """The mixture of weights α, means μ and covariance matrices Σ; one that is not positive definite gives NaN.

        >>> standard = Mixture.of(jnp.ones(1), jnp.zeros((1, 1)), jnp.ones((1, 1, 1)))
        >>> round(float(density(standard, jnp.zeros((1, 1)))[0]), 4)
        0.3989
        """
        return cls(jnp.log(weights), means, jnp.linalg.cholesky(covariances))

    @property
    def weights(self) -> Float[Array, "*b k"]:
        """α, non-negative, with sum one (Eq. 8)."""
        return jnp.exp(self.log_weights)

    @property
    def covariances(self) -> Float[Array, "*b k n n"]:
        """Σ = L Lᵀ (Eq. 6)."""
        return jnp.matmul(self.scale_tril, self.scale_tril.mT, precision=FULL)

    def sample(self, key: Array, count: int) -> Float[Array, "*b count n"]:
        """`count` independent points of each mixture, world axes x, y, z; they may lie outside [-1, 1]^n."""
        batch = self.means.shape[:-2]
        pick, noise = jax.random.split(key)
        component = jax.random.categorical(pick, self.log_weights[..., None, :], shape=(*batch, count))
        means = jnp.take_along_axis(self.means, component[..., None], axis=-2)
        factors = jnp.take_along_axis(self.scale_tril, component[..., None, None], axis=-3)
        normal = jax.random.normal(noise, means.shape, means.dtype)
        return means + jnp.einsum("...ij,...j->...i", factors, normal)


def head_planes(ndim: int) -> dict[str, int]:
    """Numbers (planes) of each head for a component: α; μ and σ along x, y, z; ρ12, ρ13, ρ23; in all (n² + 3n + 2) / 2.

    >>> sum(head_planes(3).values())
    10
    """
    return {"alpha": 1, "mu": ndim, "sigma": ndim, "rho": ndim * (ndim - 1) // 2}


class Ranges(NamedTuple):
    """The ranges of a mixture's numbers.

    Attributes:
      covariance: `partial` reads the third correlation as the partial correlation p of axes 2 and 3 given 1, so
        `ρ23 = ρ12 ρ13 + p √((1 - ρ12²)(1 - ρ13²))`, and the matrix is always positive definite; `paper` is Eq. 6 to the
        letter, where three inconsistent correlations give NaN. They differ for n = 3 only.
      rho: `sigmoid` for correlations in (0, 1), `tanh` for (-1, 1), both multiplied by `rho_limit`.
      sigma_floor: smallest standard deviation along x, y, z, in units of the domain [-1, 1]; the largest is 1.
      rho_limit: largest absolute correlation.
    """

    covariance: str = "partial"
    rho: str = "sigmoid"
    sigma_floor: tuple[float, ...] = (0.0625,) * 3
    rho_limit: float = 0.99


DEFAULT_RANGES = Ranges()


def _activated(planes: Sequence[Array], ranges: Ranges) -> tuple[Array, list[Array], list[Array], list[Array]]:
    """The log α, μ, σ and partial correlations (Eq. 10 to 13), by operations on single numbers."""
    n = {3: 1, 6: 2, 10: 3}[len(planes)]
    alpha, mu, sigma, rho = planes[0], planes[1 : 1 + n], planes[1 + n : 1 + 2 * n], planes[1 + 2 * n :]
    shifted = alpha - lax.stop_gradient(alpha.max(-1, keepdims=True))
    log_weights = shifted - jnp.log(jnp.exp(shifted).sum(-1, keepdims=True))
    sigmas = [floor + (1 - floor) * jax.nn.sigmoid(logit) for floor, logit in zip(ranges.sigma_floor, sigma, strict=False)]
    squash = {"sigmoid": jax.nn.sigmoid, "tanh": jnp.tanh}[ranges.rho]
    partial = [ranges.rho_limit * squash(logit) for logit in rho]
    if n == 3 and ranges.covariance == "paper":
        r12, r13, r23 = partial
        partial[2] = (r23 - r12 * r13) / (jnp.sqrt(1 - r12 * r12) * jnp.sqrt(1 - r13 * r13))
    return log_weights, [jnp.tanh(logit) for logit in mu], sigmas, partial


def from_logits(logits: Float[Array, "*b planes k"], ranges: Ranges = DEFAULT_RANGES) -> Mixture:
    """The mixture of the heads' finite logits, planes in the order of `head_planes`."""
    log_weights, means, sigma, partial = _activated(list(jnp.moveaxis(logits, -2, 0)), ranges)
    rest = [jnp.sqrt(1 - p * p) for p in partial]
    zero = jnp.zeros_like(log_weights)
    rows = [[sigma[0], zero, zero]]  # of the Cholesky factor: those of the correlations have norm one
    if len(means) >= 2:
        rows.append([sigma[1] * partial[0], sigma[1] * rest[0], zero])
    if len(means) == 3:
        rows.append([sigma[2] * partial[1], sigma[2] * (partial[2] * rest[1]), sigma[2] * (rest[1] * rest[2])])
    factors = jnp.stack([jnp.stack(row[: len(means)], axis=-1) for row in rows], axis=-2)
    return Mixture(log_weights, jnp.stack(means, axis=-1), factors)


def coefficients_from_logits(planes: Sequence[Float[Array, "*b k"]], ranges: Ranges) -> list[Float[Array, "*b k"]]:
    """`coefficients_of(from_logits)` for training; a component whose α is -inf has no weight."""
    log_weights, means, sigma, partial = _activated(planes, ranges)
    return _coefficients(log_weights, means, _factor_inverse(sigma, partial))


def _coefficients(log_weights: Array, means: Sequence[Array], inverse: Sequence[Sequence[Array]]) -> list[Array]:
    """The coefficients in the order of `monomials`, in operations on single numbers.

    With the inverse I of Σ's Cholesky factor, as rows up to the diagonal, and y = Iμ the exponent is
    `log α + log det I - ½ |y|² - (n/2) log 2π + (Iᵀy)·x - ½ |Ix|²`.
    """
    n = len(means)
    white = [_sum([entry * mean for entry, mean in zip(row, means, strict=False)]) for row in inverse]  # y
    log_det = jnp.log(reduce(operator.mul, [row[-1] for row in inverse]))
    constant = log_weights + log_det - 0.5 * _sum([y * y for y in white]) - 0.5 * n * LOG_2PI
    linear = [_sum([row[j] * y for row, y in zip(inverse[j:], white[j:], strict=True)]) for j in range(n)]
    pairs = itertools.combinations_with_replacement(range(n), 2)
    quadratic = [-(0.5 if i == j else 1.0) * _sum([row[i] * row[j] for row in inverse[j:]]) for i, j in pairs]
    return [constant, *linear, *quadratic]


def _sum(terms: Sequence[Array]) -> Array:
    return reduce(operator.add, terms)


def _factor_inverse(sigma: Sequence[Array], partial: Sequence[Array]) -> list[list[Array]]:
    """Rows of the inverse of Σ's Cholesky factor, up to the diagonal."""
    rows = [[1 / sigma[0]]]
    if len(sigma) == 1:
        return rows
    r12, a = partial[0], jnp.sqrt(1 - partial[0] * partial[0])
    rows.append([-r12 / (a * sigma[0]), 1 / (a * sigma[1])])
    if len(sigma) == 2:
        return rows
    _, r13, p = partial
    b, c = jnp.sqrt(1 - r13 * r13), jnp.sqrt(1 - p * p)
    rows.append([(p * r12 / a - r13 / b) / (c * sigma[0]), -p / (a * c * sigma[1]), 1 / (b * c * sigma[2])])
    return rows


def grid(size: int | tuple[int, ...], ndim: int, dtype: DTypeLike = jnp.float32) -> Float[Array, "points n"]:
    """The voxel centres `x_i = (2i + 1)/S - 1` of a volume in its array order (z, y, x); columns are x, y, z.

    A sum over the points times the volume of a voxel, `(2/S)^n`, approximates the integral over [-1, 1]^n. `size` is S, along
    every axis or along each in array order.

    >>> grid(2, 2)[1].tolist()
    [0.5, -0.5]
    >>> grid((1, 2), 2).tolist()
    [[-0.5, 0.0], [0.5, 0.0]]
    """
    edges = (size,) * ndim if isinstance(size, int) else size
    assert len(edges) == ndim, "one number for each axis"
    axes = jnp.meshgrid(*[(2 * jnp.arange(edge, dtype=dtype) + 1) / edge - 1 for edge in edges], indexing="ij")
    return jnp.stack([axis.ravel() for axis in reversed(axes)], axis=-1)


def monomials(coordinates: Sequence[Array]) -> list[Array]:
    """1, then x_i, then x_i x_j for i ≤ j."""
    products = [a * b for a, b in itertools.combinations_with_replacement(coordinates, 2)]
    return [jnp.ones_like(coordinates[0]), *coordinates, *products]


def monomials_at(points: Float[Array, "points n"]) -> Float[Array, "monomials points"]:
    """`monomials` of points."""
    return jnp.stack(monomials(list(points.T)))


def coefficients_of(mixture: Mixture) -> Float[Array, "*b k monomials"]:
    """The coefficients of `log α + log N(x; μ, Σ)` in the order of `monomials`."""
    factor, inverse = mixture.scale_tril, []
    for i in range(factor.shape[-1]):  # forward substitution, without a call of LAPACK
        known = [_sum([factor[..., i, m] * inverse[m][j] for m in range(j, i)]) for j in range(i)]
        inverse.append([*(-entry / factor[..., i, i] for entry in known), 1 / factor[..., i, i]])
    return jnp.stack(_coefficients(mixture.log_weights, jnp.unstack(mixture.means, axis=-1), inverse), axis=-1)


def _polynomials(
    coefficients: Float[Array, "*b k monomials"], monomials: Float[Array, "monomials points"]
) -> Float[Array, "*b k points"]:
    # The terms cancel: TF32 on a GPU would leave errors of several per cent.
    return jnp.matmul(coefficients, monomials, precision=FULL)


def log_density(mixture: Mixture, points: Float[Array, "points n"]) -> Float[Array, "*b points"]:
    """`log M(x)` (Eq. 7) at points x, y, z, as from `grid`; safe where M itself underflows."""
    return jax.nn.logsumexp(_polynomials(coefficients_of(mixture), monomials_at(points)), axis=-2)


def density(mixture: Mixture, points: Float[Array, "points n"]) -> Float[Array, "*b points"]:
    """`M(x) = Σ_k α_k N(x; μ_k, Σ_k)` at each point (Eq. 7); points as in `log_density`.

    >>> mixture = Mixture.of(jnp.ones(1), jnp.zeros((1, 3)), 0.04 * jnp.eye(3)[None])
    >>> mass = density(mixture, grid(16, 3)).sum() * (2 / 16) ** 3
    >>> round(float(mass), 4)
    1.0
    """
    return density_of(coefficients_of(mixture), points)


def density_of(coefficients: Float[Array, "*b k monomials"], points: Float[Array, "points n"]) -> Float[Array, "*b points"]:
    """`density` of components whose exponents have these coefficients, in the order of `monomials`."""
    return lax.platform_dependent(coefficients, monomials_at(points), cpu=_one_by_one, default=at_once)


def at_once(
    coefficients: Float[Array, "*b k monomials"], monomials: Float[Array, "monomials points"]
) -> Float[Array, "*b points"]:
    """`density_of` in one product."""
    return jnp.exp(_polynomials(coefficients, monomials)).sum(axis=-2)


def _one_by_one(coefficients: Float[Array, "*b k monomials"], monomials: Float[Array, "monomials points"]) -> Array:
    """Mixture by mixture, and again for the gradient: the exponentials of one stay in the cache."""
    batch = coefficients.reshape(-1, *coefficients.shape[-2:])
    densities = lax.map(jax.checkpoint(lambda mixture: at_once(mixture, monomials)), batch)
    return densities.reshape(*coefficients.shape[:-2], -1)
