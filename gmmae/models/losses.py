"""Losses between a density M and its target x, point by point and by volume."""

from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

PointLoss = Callable[[Float[Array, "*points"], Float[Array, "*points"]], Float[Array, "*points"]]
"""`(density, target) -> loss` of each point, by itself: so a kernel may take the points in any groups."""


def msle(density: Float[Array, "*points"], target: Float[Array, "*points"]) -> Float[Array, "*points"]:
    """Squared logarithmic error, `(log(1 + M) - log(1 + x))²`, whose mean is the paper's loss.

    >>> msle(jnp.e * jnp.ones(2) - 1, jnp.zeros(2)).round(6).tolist()
    [1.0, 1.0]
    """
    return jnp.square(jnp.log1p(density) - jnp.log1p(target))


LOSSES: dict[str, PointLoss] = {
    "msle": msle,
    "mse": lambda density, target: jnp.square(density - target),
    "mae": lambda density, target: jnp.abs(density - target),
}


def mean_of_each(values: Float[Array, "samples *volume"]) -> Float[Array, " samples"]:
    """The mean over the voxels of each volume."""
    return values.mean(axis=tuple(range(1, values.ndim)))


def weighted_sum(losses: Float[Array, " samples"], weights: Float[Array, " samples"]) -> Float[Array, ""]:
    """`Σ w l`: padding has weight 0, and repeats a counted sample, because that does not hide an undefined loss (0 · NaN)."""
    return jnp.sum(losses * weights)


def dice(
    logits: Float[Array, "samples *volume"],
    truth: Bool[Array, "samples *volume"],
    counted: Bool[Array, "samples *volume"] | bool = True,
) -> Float[Array, " samples"]:
    """`2 |A ∩ B| / (|A| + |B|)` of logits above 0 and the true mask, where `counted`; NaN where both are empty."""
    axes = tuple(range(1, logits.ndim))
    predicted, true = (mask.astype(logits.dtype) for mask in ((logits > 0) & counted, truth & counted))
    total = (predicted + true).sum(axes)
    return jnp.where(total > 0, 2 * (predicted * true).sum(axes) / jnp.maximum(total, 1), jnp.nan)
