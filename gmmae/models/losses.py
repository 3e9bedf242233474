"""Losses between a density M and its target x, one number a volume, so that masks and shards are applied outside."""

from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Float

PerSample = Callable[[Float[Array, "samples *volume"], Float[Array, "samples *volume"]], Float[Array, " samples"]]


def _per_sample(values: Float[Array, "samples *volume"]) -> Float[Array, " samples"]:
    return values.mean(axis=tuple(range(1, values.ndim)))


def msle(prediction: Float[Array, "samples *volume"], target: Float[Array, "samples *volume"]) -> Float[Array, " samples"]:
    """Mean squared logarithmic error, `mean((log(1 + M) - log(1 + x))²)` over the voxels: the paper's loss.

    Args:
      prediction: densities, above -1.
      target: densities of the same shape.

    >>> msle(jnp.e * jnp.ones((1, 2)) - 1, jnp.zeros((1, 2))).tolist()
    [1.0]
    """
    return _per_sample(jnp.square(jnp.log1p(prediction) - jnp.log1p(target)))


def mse(prediction: Float[Array, "samples *volume"], target: Float[Array, "samples *volume"]) -> Float[Array, " samples"]:
    """Mean squared error over the voxels."""
    return _per_sample(jnp.square(prediction - target))


def mae(prediction: Float[Array, "samples *volume"], target: Float[Array, "samples *volume"]) -> Float[Array, " samples"]:
    """Mean absolute error over the voxels."""
    return _per_sample(jnp.abs(prediction - target))


LOSSES: dict[str, PerSample] = {"msle": msle, "mse": mse, "mae": mae}


def weighted_sum(losses: Float[Array, " samples"], weights: Float[Array, " samples"]) -> Float[Array, ""]:
    """`Σ w l`: the masked mean when the weights are 1/count for real samples and 0 for padding.

    A weight of zero does not hide an undefined loss (0 · NaN is NaN), so padding repeats a sample that is counted anyway.
    """
    return jnp.sum(losses * weights)
