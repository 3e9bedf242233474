"""The convolutional encoder of volumes and the four dense heads that read a mixture off its latent vector (Eq. 9 to 13)."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from gmmae.models.convolution import Conv
from gmmae.models.mixture import Logits, head_sizes
from gmmae.models.products import dense_product

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": jax.nn.relu,
    "leaky_relu": jax.nn.leaky_relu,
    "elu": jax.nn.elu,
    "gelu": jax.nn.gelu,
    "silu": jax.nn.silu,
    "tanh": jnp.tanh,
}

_KERNEL_INIT = nn.initializers.glorot_uniform()  # Keras' default, which the paper's stack used


def _dense(features: int, name: str | None = None) -> nn.Dense:
    return nn.Dense(features, kernel_init=_KERNEL_INIT, dot_general=dense_product, name=name)


class Encoder(nn.Module):
    """Convolutions, flattening and one dense layer: `y = Φ(W₀ x + b₀)` (Eq. 9) with convolutions before it.

    Attributes:
      filters: filters of each convolution.
      kernels: kernel edge of each convolution, voxels, the same along every axis.
      padding: `VALID` or `SAME`.
      activation: a name of `ACTIVATIONS`, after every layer.
      latent_dim: length of y.
    """

    filters: tuple[int, ...]
    kernels: tuple[int, ...]
    padding: str
    activation: str
    latent_dim: int

    @nn.compact
    def __call__(self, volumes: Float[Array, "samples *volume"]) -> Float[Array, "samples latent"]:
        activate = ACTIVATIONS[self.activation]
        x = jnp.moveaxis(volumes, 0, -1)[..., None]
        for filters, kernel in zip(self.filters, self.kernels, strict=True):
            x = activate(Conv(filters, kernel, self.padding)(x))
        x = jnp.moveaxis(x, -2, 0).reshape(len(volumes), -1)
        return activate(_dense(self.latent_dim)(x))


class Heads(nn.Module):
    """Four dense layers from the latent vector to the logits of a mixture of K components in n dimensions (Eq. 10 to 13).

    Attributes:
      components: K.
      ndim: n, the axes of a volume.
    """

    components: int
    ndim: int

    @nn.compact
    def __call__(self, latent: Float[Array, "samples latent"]) -> Logits:
        outputs = {}
        for name, size in head_sizes(self.components, self.ndim).items():
            values = _dense(size, name)(latent) if size else jnp.zeros((len(latent), 0), latent.dtype)
            outputs[name] = values if name == "alpha" else values.reshape(len(latent), self.components, -1)
        return Logits(**outputs)
