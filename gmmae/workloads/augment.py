"""Random symmetries of the cube, on the device: flips and turns by 90 degrees.

A sample's key, and so its symmetry, depends neither on the number of devices nor on its place in a batch. An n-axis volume has
2, 8 or 48: its axes' permutations, each with any axes flipped.
"""

import itertools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key


def symmetry(volume: Float[Array, "*volume"], key: Array) -> Float[Array, "*volume"]:
    """One of the symmetries, all equally likely; only axes with equal edges change places."""
    permute, flip = jax.random.split(key)
    turns = map(volume.transpose, itertools.permutations(range(volume.ndim)))
    permutations = [turn for turn in turns if turn.shape == volume.shape]
    turned = jnp.stack(permutations)[jax.random.randint(permute, (), 0, len(permutations))]
    for axis, flipped in enumerate(jax.random.bernoulli(flip, shape=(volume.ndim,))):
        turned = jnp.where(flipped, jnp.flip(turned, axis), turned)
    return turned


def symmetries(volumes: Float[Array, "samples *volume"], keys: Key[Array, " samples"]) -> Float[Array, "samples *volume"]:
    """Each volume in a symmetry drawn from its key."""
    return jax.vmap(symmetry)(volumes, keys)
