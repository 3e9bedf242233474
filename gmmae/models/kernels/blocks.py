"""Blocks of a volume whose voxels become channels, as strides that do not overlap take them."""

from collections.abc import Sequence

import jax.numpy as jnp
from jaxtyping import Array, Float


def blocked(x: Float[Array, "*volume rows channels"], edges: Sequence[int]) -> Float[Array, "*blocks rows more"]:
    """Blocks of so many voxels along each axis, which they divide."""
    *volume, rows, channels = x.shape
    n = len(volume)
    pairs = ((size // edge, edge) for size, edge in zip(volume, edges, strict=True))
    x = x.reshape(*(size for pair in pairs for size in pair), rows, channels)
    x = jnp.moveaxis(x, range(1, 2 * n, 2), range(n + 1, 2 * n + 1))
    return x.reshape(*x.shape[: n + 1], -1)


def unblocked(x: Float[Array, "*blocks rows channels"], edges: Sequence[int]) -> Float[Array, "*volume rows fewer"]:
    """Inverts `blocked`."""
    *blocks, rows, _ = x.shape
    n = len(blocks)
    x = jnp.moveaxis(x.reshape(*blocks, rows, *edges, -1), range(n + 1, 2 * n + 1), range(1, 2 * n, 2))
    return x.reshape(*(size * edge for size, edge in zip(blocks, edges, strict=True)), rows, -1)
