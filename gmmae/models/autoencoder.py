"""The Gaussian-mixture autoencoder: a volume in, the mixture that describes it and that mixture's density out."""

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from gmmae.models.config import ModelConfig
from gmmae.models.encoder import Encoder, Heads
from gmmae.models.mixture import Mixture, density, from_logits, grid


class MixtureAutoencoder(nn.Module):
    """Encoder, heads and the density layer ("DeepDensity" in the paper, Eq. 7), for volumes of n = 1, 2 or 3 axes.

    Attributes:
      encoder: maps volumes to latent vectors.
      heads: map latent vectors to logits.
      covariance, rho, rho_limit: as in `gmmae.models.mixture.from_logits`.
      sigma_floor: smallest standard deviation along each axis, in voxels of that axis: what is narrower falls between them.
    """

    encoder: Encoder
    heads: Heads
    covariance: str
    rho: str
    sigma_floor: float
    rho_limit: float

    def __call__(self, volumes: Float[Array, "samples *volume"]) -> Float[Array, "samples *volume"]:
        """The density M of each volume at its own voxel centres."""
        points = grid(volumes.shape[1:], volumes.ndim - 1, volumes.dtype)
        return density(self.mixture(volumes), points).reshape(volumes.shape)

    def mixture(self, volumes: Float[Array, "samples *volume"]) -> Mixture:
        """The mixture that describes each volume; its leading axis is the samples."""
        edges = volumes.shape[:0:-1]  # along x, y, z
        voxels = edges[0] if len(set(edges)) == 1 else jnp.array(edges, volumes.dtype)
        return from_logits(
            self.heads(self.encoder(volumes)),
            covariance=self.covariance,
            rho=self.rho,
            sigma_floor=self.sigma_floor * 2 / voxels,
            rho_limit=self.rho_limit,
        )


def autoencoder(config: ModelConfig, ndim: int) -> MixtureAutoencoder:
    """The autoencoder that a configuration asks for, of volumes of `ndim` axes."""
    encoder = Encoder(config.filters, config.kernels, config.padding, config.activation, config.latent_dim)
    heads = Heads(config.components, ndim)
    return MixtureAutoencoder(encoder, heads, config.covariance, config.rho, config.sigma_floor, config.rho_limit)
