"""A decoder that places components in the cells of a lattice, and the autoencoder that goes with it.

The 50 components of the paper's heads leave out the fine structure of a nodule. Here each cell of the cube has a few normal
distributions whose axes are those of the cube (`gmmae.models.kernels.axis_aligned`). On a grid the density of these hundreds of
components costs less than a tenth as many components with correlations.

To make nodules from latent vectors, two more heads give a mask of the nodule's own voxels, and the logarithm of the mass that
`gmmae.data.volumes.to_density` divided out.
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
from gmmae.models.settings import ModelConfig

FEATURES = 32
"""The number of features that each cell gets from the latent vector."""
HIDDEN, CELL_HIDDEN = 512, 64
"""Widths of the dense layers of the whole cube and of each cell."""
REACH = 1.5
"""The largest distance of a mean from its cell's middle, in half widths of a cell. It reaches into the neighbours."""


class Decoded(NamedTuple):
    """The output of the heads for latent vectors.

    Attributes:
      mask: logits of the nodule's voxels.
      log_mass: the logarithm of the windowed volume's integral.
    """

    mixture: AxisAligned
    mask: Float[Array, "samples *volume"]
    log_mass: Float[Array, " samples"]


class LatticeDecoder(nn.Module):
    """Maps latent vectors to mixtures in cells, masks and masses.

    Attributes:
      cells: their number along each axis.
      components: their number in each cell.
      sigma_floor: smallest standard deviation along each axis, in voxels.
    """

    shape: tuple[int, ...]
    cells: int
    components: int
    sigma_floor: float

    @nn.compact
    def __call__(self, latent: Float[Array, "samples latent"]) -> Decoded:
        """Returns mixtures, masks and masses of latent vectors."""
        dense = partial(nn.Dense, dot_general=dense_product)
        count, n = self.cells ** len(self.shape), len(self.shape)
        hidden = jax.nn.leaky_relu(dense(HIDDEN)(latent))
        place = self.param("place", nn.initializers.normal(0.1), (count, FEATURES))
        cells = dense(count * FEATURES)(hidden).reshape(-1, count, FEATURES) + place
        local = jax.nn.leaky_relu(dense(CELL_HIDDEN)(cells.reshape(-1, FEATURES)))
        logits = dense(self.components * (1 + 2 * n))(local).reshape(len(latent), count * self.components, 1 + 2 * n)
        logits = logits + self.param("bias", nn.initializers.zeros, logits.shape[1:])
        mask = dense(math.prod(self.shape), name="mask")(hidden).reshape(len(latent), *self.shape)
        log_mass = dense(1, kernel_init=nn.initializers.zeros, name="mass")(latent)[:, 0]
        return Decoded(self._mixture(logits), mask, log_mass)

    def _mixture(self, logits: Float[Array, "samples k logits"]) -> AxisAligned:
        n, width = len(self.shape), 2 / self.cells
        alpha, mu, sigma = logits[..., 0], logits[..., 1 : 1 + n], logits[..., 1 + n :]
        middles = jnp.stack(jnp.meshgrid(*[(jnp.arange(self.cells) + 0.5) * width - 1] * n, indexing="ij"), -1).reshape(-1, n)
        means = jnp.repeat(middles, self.components, axis=0).astype(logits.dtype) + REACH * width / 2 * jnp.tanh(mu)
        floor = jnp.array([self.sigma_floor * 2 / edge for edge in reversed(self.shape)], logits.dtype)
        return AxisAligned(jax.nn.log_softmax(alpha), means, floor + width / 2 * jax.nn.softplus(sigma))


class LatticeAutoencoder(nn.Module):
    """An encoder and a decoder in cells, for volumes of n = 1, 2 or 3 axes."""

    encoder: Encoder
    decoder: LatticeDecoder

    def __call__(self, volumes: Float[Array, "samples *volume"]) -> Decoded:
        """Returns mixtures, masks and masses of volumes."""
        return self.decode(self.encode(volumes))

    def encode(self, volumes: Float[Array, "samples *volume"]) -> Float[Array, "samples latent"]:
        """Returns the latent vectors of volumes."""
        return self.encoder(volumes)

    def decode(self, latent: Float[Array, "samples latent"]) -> Decoded:
        """Returns mixtures, masks and masses of latent vectors."""
        return self.decoder(latent)


def lattice_autoencoder(config: ModelConfig, shape: tuple[int, ...]) -> LatticeAutoencoder:
    """Returns the lattice autoencoder of a configuration for volumes of this shape."""
    sizes = (config.filters, config.kernels, config.padding, config.activation, config.latent_dim)
    decoder = LatticeDecoder(shape, config.lattice_size, config.cell_components, config.sigma_floor)
    return LatticeAutoencoder(Encoder(*sizes, linear_path=True), decoder)


def mask_losses(logits: Float[Array, "samples *volume"], masks: Float[Array, "samples *volume"]) -> Float[Array, " samples"]:
    """Returns the mean cross-entropy of each mask, and 0 for a mask without voxels."""
    crossed = mean_of_each(jax.nn.softplus(logits) - masks * logits)
    return jnp.where(masks.reshape(len(masks), -1).any(-1), crossed, 0)
