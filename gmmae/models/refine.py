"""A mixture polished for its volume: gradient descent on the mixture itself, from what a network has said of it.

The network finds each mixture by one rule for all volumes (amortised); a few steps of Adam on the mixture's own numbers take
away much of what that costs. Free are the logarithms of the weights, before a softmax; the means; the logarithms of the
standard deviations σ, kept above a floor; and the rows of the Cholesky factor in units of their diagonal, which give the
correlations. Every sample is refined by itself, so a batch changes nothing but the time.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jaxtyping import Array, Float

from gmmae.models import together
from gmmae.models.losses import PointLoss, mean_of_each
from gmmae.models.mixture import Mixture, coefficients_of, density_of, grid, monomials_at

RATE = 0.05
"""Of Adam at the first step; it falls to zero by half a cosine."""
MEANS_RATE = 0.15
"""Of that for the means, whose unit is half the volume's edge."""
LEAST_LOG_WEIGHT = -30.0
"""A weight of zero has no gradient; from here a component may come back."""


class Refined(NamedTuple):
    """Mixtures after refinement, and the loss of each sample before and after it."""

    mixture: Mixture
    before: Float[Array, " samples"]
    after: Float[Array, " samples"]


class _Free(NamedTuple):
    log_weights: Float[Array, "samples k"]
    means: Float[Array, "samples k n"]
    log_sigma: Float[Array, "samples k n"]
    rows: Float[Array, "samples k n n"]


def refine(
    mixture: Mixture,
    volumes: Float[Array, "samples *volume"],
    point_loss: PointLoss,
    *,
    steps: int,
    sigma_floor: float = 0.5,
) -> Refined:
    """Adam's steps on each mixture, towards a smaller mean of `point_loss` between its density and its volume.

    A mixture whose loss has not become smaller stays as it was. Correlations that are zero stay zero: diagonal components
    stay diagonal.

    Args:
      mixture: where to begin, one a sample; none may have a smaller σ than the floor, or it is raised to that.
      volumes: densities of n = 1, 2 or 3 axes.
      point_loss: as in `gmmae.models.losses`.
      steps: how many.
      sigma_floor: smallest standard deviation, in voxels of its axis.
    """
    least = jnp.log(sigma_floor * 2 / jnp.array(volumes.shape[:0:-1], volumes.dtype))  # along x, y, z
    losses = _losses(volumes, point_loss)
    start = _free(mixture, least)
    optimizer = optax.adam(optax.cosine_decay_schedule(RATE, max(steps, 1)))

    def step(state: tuple[_Free, optax.OptState], _: None) -> tuple[tuple[_Free, optax.OptState], None]:
        free, moments = state
        slopes = jax.grad(lambda free: losses(_mixture(free)).sum())(free)
        updates, moments = optimizer.update(slopes, moments)
        assert isinstance(updates, _Free)
        updates = updates._replace(means=MEANS_RATE * updates.means, rows=jnp.where(start.rows == 0, 0, updates.rows))
        free = jax.tree.map(jnp.add, free, updates)
        return (free._replace(log_sigma=jnp.maximum(free.log_sigma, least)), moments), None

    (end, _), _ = lax.scan(step, (start, optimizer.init(start)), length=steps)
    return _better(mixture, losses(mixture), _mixture(end), losses(_mixture(end)))


def _better(mixture: Mixture, before: Array, refined: Mixture, after: Array) -> Refined:
    better = after < before

    def choose(new: Array, old: Array) -> Array:
        return jnp.where(better.reshape(-1, *(1,) * (new.ndim - 1)), new, old)

    return Refined(jax.tree.map(choose, refined, mixture), before, choose(after, before))


def _free(mixture: Mixture, least: Array) -> _Free:
    log_weights = jnp.maximum(mixture.log_weights, LEAST_LOG_WEIGHT)
    sigma = jnp.linalg.norm(mixture.scale_tril, axis=-1)
    diagonal = jnp.diagonal(mixture.scale_tril, axis1=-2, axis2=-1)
    rows = jnp.tril(mixture.scale_tril / diagonal[..., None], -1)
    return _Free(log_weights, mixture.means, jnp.maximum(jnp.log(sigma), least), rows)


def _mixture(free: _Free) -> Mixture:
    rows = jnp.tril(free.rows, -1) + jnp.eye(free.rows.shape[-1], dtype=free.rows.dtype)
    directions = rows / jnp.sqrt(jnp.square(rows).sum(-1, keepdims=True))
    return Mixture(jax.nn.log_softmax(free.log_weights), free.means, jnp.exp(free.log_sigma)[..., None] * directions)


def _losses(volumes: Array, point_loss: PointLoss) -> Callable[[Mixture], Array]:
    """The loss of each mixture; on a CPU sample by sample, with the gradient."""
    points = grid(volumes.shape[1:], volumes.ndim - 1, volumes.dtype)
    flat = volumes.reshape(len(volumes), -1)

    def by_sample(terms: Array) -> Array:
        return together.losses(terms, monomials_at(points), flat, point_loss)

    def plain(terms: Array) -> Array:
        return mean_of_each(point_loss(density_of(terms, points), flat))

    return lambda mixture: lax.platform_dependent(coefficients_of(mixture), cpu=by_sample, default=plain)
