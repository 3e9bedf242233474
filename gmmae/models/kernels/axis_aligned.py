"""Mixtures along the axes of the volume, whose density on a grid is a product of matrices."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from gmmae.models.kernels import per_sample_loss
from gmmae.models.kernels.precision import FULL
from gmmae.models.losses import PointLoss
from gmmae.models.mixture import LOG_2PI, Mixture, grid


class AxisAligned(NamedTuple):
    """A `gmmae.models.mixture.Mixture` with diagonal covariances; `sigma` has the standard deviations along x, y, z."""

    log_weights: Float[Array, "*b k"]
    means: Float[Array, "*b k n"]
    sigma: Float[Array, "*b k n"]

    @property
    def mixture(self) -> Mixture:
        """The same mixture with Cholesky factors."""
        return Mixture(
            self.log_weights, self.means, self.sigma[..., None] * jnp.eye(self.sigma.shape[-1], dtype=self.sigma.dtype)
        )


def density_on_grid(mixture: AxisAligned, shape: tuple[int, ...]) -> Float[Array, "..."]:
    """The density at the voxel centres of a volume of this shape, in array order (z, y, x).

    `Σ_k α_k N(x) N(y) N(z)` is one product of two matrices, (voxels of all axes but x) × K and K × (voxels along x), and a
    component takes one exponential for each voxel along each axis.
    """

    def normal(axis: int, edge: int) -> Float[Array, "*b edge k"]:
        means, sigma = mixture.means[..., None, :, axis], mixture.sigma[..., None, :, axis]
        return jnp.exp(-0.5 * jnp.square((grid(edge, 1, means.dtype) - means) / sigma) - jnp.log(sigma) - 0.5 * LOG_2PI)

    along_x, *others = (normal(axis, edge) for axis, edge in enumerate(reversed(shape)))
    rest = jnp.exp(mixture.log_weights)[..., None, :]  # *b 1 k
    for along in others:  # y, then z before it: the voxels' order is that of the array
        rest = (along[..., :, None, :] * rest[..., None, :, :]).reshape(*rest.shape[:-2], -1, rest.shape[-1])
    values = jnp.matmul(rest, along_x.mT, precision=FULL)
    return values.reshape(*values.shape[:-2], *shape)


def losses(mixture: AxisAligned, volumes: Float[Array, "samples *volume"], point_loss: PointLoss) -> Float[Array, " samples"]:
    """The mean of `point_loss` between each density and its volume."""
    return per_sample_loss.losses(lambda one, _: density_on_grid(one, volumes.shape[1:]), mixture, volumes, point_loss)
