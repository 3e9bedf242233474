"""A decoder that places components in the cells of a lattice, and the autoencoder that goes with it.

The 50 components of the paper's heads miss the fine structure of a nodule. On a grid, hundreds of components along the cube's
axes, a few in each cell (`gmmae.models.kernels.axis_aligned`), cost less than a tenth as many with correlations.
"""

import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from gmmae.models.encoder import Encoder
from gmmae.models.kernels.axis_aligned import AxisAligned
from gmmae.models.kernels.precision import dense_product
from gmmae.models.losses import mean_of_each
from gmmae.models.mixture import grid
from gmmae.models.settings import ModelConfig

FEATURES = 32
"""Features that each cell gets from the latent vector."""
HIDDEN, CELL_HIDDEN = 512, 64
"""Widths of the cube's and each cell's dense layers."""
REACH = 1.5
"""Largest distance of a mean from its cell's middle, in half widths of a cell."""


class Decoded(NamedTuple):
    """Mixtures, logits of the nodules' masks, and logarithms of the mass that `to_density` divided out."""

    mixture: AxisAligned
    mask: Float[Array, "samples *volume"]
    log_mass: Float[Array, " samples"]


class LatticeDecoder(nn.Module):
    """Maps latent vectors to mixtures in cells, masks of the shape, and masses."""

    shape: tuple[int, ...]
    config: ModelConfig

    @nn.compact
    def __call__(self, latent: Float[Array, "samples latent"]) -> Decoded:
        """One mixture, mask and mass for each latent vector."""
        dense, n, components = partial(nn.Dense, dot_general=dense_product), len(self.shape), self.config.cell_components
        count = self.config.lattice_size**n
        hidden = jax.nn.leaky_relu(dense(HIDDEN)(latent))
        place = self.param("place", nn.initializers.normal(0.1), (count, FEATURES))
        cells = dense(count * FEATURES)(hidden).reshape(-1, count, FEATURES) + place
        local = jax.nn.leaky_relu(dense(CELL_HIDDEN)(cells))
        logits = dense(components * (1 + 2 * n))(local).reshape(len(latent), count * components, 1 + 2 * n)
        logits = logits + self.param("bias", nn.initializers.zeros, logits.shape[1:])
        mask = dense(math.prod(self.shape), name="mask")(hidden).reshape(len(latent), *self.shape)
        log_mass = dense(1, kernel_init=nn.initializers.zeros, name="mass")(latent)[:, 0]
        width = 2 / self.config.lattice_size
        alpha, mu, sigma = logits[..., 0], logits[..., 1 : 1 + n], logits[..., 1 + n :]
        middles = grid(self.config.lattice_size, n)[:, ::-1]  # in the order of the cells
        means = jnp.repeat(middles, components, axis=0).astype(logits.dtype) + REACH * width / 2 * jnp.tanh(mu)
        floor = jnp.array([self.config.sigma_floor * 2 / edge for edge in reversed(self.shape)], logits.dtype)
        mixture = AxisAligned(jax.nn.log_softmax(alpha), means, floor + width / 2 * jax.nn.softplus(sigma))
        return Decoded(mixture, mask, log_mass)


class LatticeAutoencoder(nn.Module):
    """For volumes of n = 1, 2 or 3 axes."""

    encoder: Encoder
    decoder: LatticeDecoder

    def __call__(self, volumes: Float[Array, "samples *volume"]) -> Decoded:
        """One mixture, mask and mass for each volume."""
        return self.decoder(self.encoder(volumes))


def lattice_autoencoder(config: ModelConfig, shape: tuple[int, ...]) -> LatticeAutoencoder:
    """The lattice autoencoder of a configuration, for volumes of this shape."""
    return LatticeAutoencoder(Encoder(config, linear_path=True), LatticeDecoder(shape, config))


def mask_losses(logits: Float[Array, "samples *volume"], masks: Float[Array, "samples *volume"]) -> Float[Array, " samples"]:
    """The mean cross-entropy of each mask, 0 for one without voxels."""
    crossed = mean_of_each(jax.nn.softplus(logits) - masks * logits)
    return jnp.where(masks.reshape(len(masks), -1).any(-1), crossed, 0)
