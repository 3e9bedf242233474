"""The Gaussian-mixture autoencoder: a volume in, its mixture and that mixture's density out."""

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
except ImportError:  # deprecated since JAX 0.11; without it a GPU runs one operation after the other
    loss_kernel = None


class MixtureAutoencoder(nn.Module):
    """Encoder, heads and the density layer ("DeepDensity" in the paper, Eq. 7), for volumes of n = 1, 2 or 3 axes."""

    encoder: Encoder
    heads: Heads
    config: ModelConfig

    def __call__(self, volumes: Float[Array, "samples *volume"]) -> Float[Array, "samples *volume"]:
        """The density M of each volume at its own voxel centres."""
        terms = self._terms(self.heads(self.encoder(volumes)), volumes)
        return density_of(terms, per_sample_loss.centres(volumes)).reshape(volumes.shape)

    def losses(self, volumes: Float[Array, "samples *volume"], point_loss: PointLoss) -> Float[Array, " samples"]:
        """The mean of `point_loss` over the voxels of each volume and its density."""

        def plain(planes: Array, volumes: Array) -> Array:
            return per_sample_loss.of_polynomials(self._terms(planes, volumes), volumes, point_loss)

        planes = self.heads(self.encoder(volumes))
        if loss_kernel is None or not self.config.fused or planes.dtype != jnp.float32:
            return plain(planes, volumes)
        kernel = partial(loss_kernel.losses, point_loss=point_loss, ranges=self._ranges(volumes))
        return lax.platform_dependent(planes, volumes, cuda=kernel, default=plain)

    def mixture(self, volumes: Float[Array, "samples *volume"]) -> Mixture:
        """The mixture that describes each volume; its leading axis is the samples."""
        return from_logits(self.heads(self.encoder(volumes)), self._ranges(volumes))

    def _terms(self, planes: Array, volumes: Array) -> Array:
        return jnp.stack(coefficients_from_logits(list(jnp.moveaxis(planes, -2, 0)), self._ranges(volumes)), axis=-1)

    def _ranges(self, volumes: Array) -> Ranges:
        config = self.config
        floor = tuple(config.sigma_floor * 2 / edge for edge in volumes.shape[:0:-1])  # along x, y, z
        return Ranges(config.covariance, config.rho, floor, config.rho_limit)


def autoencoder(config: ModelConfig, ndim: int) -> MixtureAutoencoder:
    """The autoencoder of a configuration, for volumes of `ndim` axes."""
    return MixtureAutoencoder(Encoder(config), Heads(config.components, ndim), config)
