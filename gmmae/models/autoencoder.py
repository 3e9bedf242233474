"""The Gaussian-mixture autoencoder: a volume in, the mixture that describes it and that mixture's density out."""

from functools import partial

import jax.numpy as jnp
from flax import linen as nn
from jax import lax
from jaxtyping import Array, Float

from gmmae.models.encoder import Encoder, Heads
from gmmae.models.kernels import per_sample_loss
from gmmae.models.losses import PointLoss
from gmmae.models.mixture import Mixture, Ranges, coefficients_from_logits, density_of, from_logits
from gmmae.models.settings import ModelConfig

try:
    from gmmae.models.kernels import loss_kernel
except ImportError:  # JAX will part with Pallas' Triton, it says since 0.11; then a GPU computes one operation after the other
    loss_kernel = None


class MixtureAutoencoder(nn.Module):
    """Encoder, heads and the density layer ("DeepDensity" in the paper, Eq. 7), for volumes of n = 1, 2 or 3 axes.

    Attributes:
      encoder: maps volumes to latent vectors.
      heads: map latent vectors to logits.
      covariance, rho, rho_limit: as in `gmmae.models.mixture.Ranges`.
      sigma_floor: smallest standard deviation along each axis, in voxels of that axis: what is narrower falls between them.
      fused: whether an NVIDIA GPU computes `losses` of float32 in one kernel.
    """

    encoder: Encoder
    heads: Heads
    covariance: str
    rho: str
    sigma_floor: float
    rho_limit: float
    fused: bool

    def __call__(self, volumes: Float[Array, "samples *volume"]) -> Float[Array, "samples *volume"]:
        """The density M of each volume at its own voxel centres."""
        return density_of(self._terms(self._planes(volumes), volumes), per_sample_loss.centres(volumes)).reshape(volumes.shape)

    def losses(self, volumes: Float[Array, "samples *volume"], point_loss: PointLoss) -> Float[Array, " samples"]:
        """The mean over the voxels of what the loss finds between each volume and its density."""

        def plain(planes: Array, volumes: Array) -> Array:
            return per_sample_loss.of_polynomials(self._terms(planes, volumes), volumes, point_loss)

        planes = self._planes(volumes)
        if loss_kernel is None or not self.fused or planes.dtype != jnp.float32:
            return plain(planes, volumes)
        kernel = partial(loss_kernel.losses, point_loss=point_loss, ranges=self._ranges(volumes), interpret=False)
        return lax.platform_dependent(planes, volumes, cuda=kernel, default=plain)

    def encode(self, volumes: Float[Array, "samples *volume"]) -> Float[Array, "samples latent"]:
        """The latent vectors of volumes."""
        return self.encoder(volumes)

    def mixture(self, volumes: Float[Array, "samples *volume"]) -> Mixture:
        """The mixture that describes each volume; its leading axis is the samples."""
        return from_logits(self._planes(volumes), self._ranges(volumes))

    def _planes(self, volumes: Array) -> Array:
        return self.heads(self.encoder(volumes))

    def _terms(self, planes: Array, volumes: Array) -> Array:
        return jnp.stack(coefficients_from_logits(list(jnp.moveaxis(planes, -2, 0)), self._ranges(volumes)), axis=-1)

    def _ranges(self, volumes: Array) -> Ranges:
        floor = tuple(self.sigma_floor * 2 / edge for edge in volumes.shape[:0:-1])  # along x, y, z
        return Ranges(self.covariance, self.rho, floor, self.rho_limit)


def autoencoder(config: ModelConfig, ndim: int) -> MixtureAutoencoder:
    """The autoencoder of a configuration, for volumes of `ndim` axes."""
    encoder = Encoder(config.filters, config.kernels, config.padding, config.activation, config.latent_dim)
    ranges = (config.covariance, config.rho, config.sigma_floor, config.rho_limit)
    return MixtureAutoencoder(encoder, Heads(config.components, ndim), *ranges, config.fused)
