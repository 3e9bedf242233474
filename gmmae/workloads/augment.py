"""Random symmetries of the cube, on the device: flips and turns by 90 degrees.

Each sample's symmetry is drawn from (seed, epoch, sample), so it does not depend on the number of devices, nor on the sample's
place in a batch. The symmetries of an n-axis volume are its axes' permutations, each with any axes flipped: 2, 8 or 48.
"""

import itertools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def symmetry(volume: Float[Array, "*volume"], key: Array) -> Float[Array, "*volume"]:
    """One of the symmetries of a volume, each as likely as the others; only axes with equal edges change places."""
    permute, flip = jax.random.split(key)
    turns = (volume.transpose(order) for order in itertools.permutations(range(volume.ndim)))
    permutations = [turn for turn in turns if turn.shape == volume.shape]
    turned = jnp.stack(permutations)[jax.random.randint(permute, (), 0, len(permutations))]
    for axis, flipped in enumerate(jax.random.bernoulli(flip, shape=(volume.ndim,))):
        turned = jnp.where(flipped, jnp.flip(turned, axis), turned)
    return turned


def gather(
    volumes: Float[Array, "samples *volume"], index: Int[Array, " device_batch"], epoch: Int[Array, ""], *, seed: int
) -> Float[Array, "device_batch *volume"]:
    """The volumes at `index`, each in a symmetry drawn from (seed, epoch, its position in the data set)."""
    of_epoch = jax.random.fold_in(jax.random.key(seed), epoch)
    keys = jax.vmap(lambda sample: jax.random.fold_in(of_epoch, sample))(index)
    return jax.vmap(symmetry)(volumes[index], keys)
