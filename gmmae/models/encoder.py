"""The convolutional encoder, and the dense heads from its latent vector to a mixture (Eq. 9 to 13)."""

from functools import partial

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from gmmae.models.kernels.convolution import Conv
from gmmae.models.kernels.precision import dense_product, matmul, wanted
from gmmae.models.mixture import head_planes
from gmmae.models.settings import ModelConfig


@jax.custom_vjp
def relu(x: Array) -> Array:
    """The gradient needs the result only, so a GPU's convolution applies it before it writes."""
    return jnp.maximum(x, 0)


# Not y > 0: the compiler would turn it back into a comparison of x.
relu.defvjp(lambda x: (relu(x),) * 2, lambda y, g: (jnp.where(y != 0, g, 0),))

LINEAR_SCALE = 8.0
"""Factor of the voxels on the linear path, whose standard deviation is about an eighth."""

_KERNEL_INIT = nn.initializers.glorot_uniform()  # Keras' default, which the paper's stack used


def _channels_first(channels: int, key: Array, shape: tuple[int, int], dtype: DTypeLike) -> Array:
    """Keras flattens with the channels last."""
    drawn = _KERNEL_INIT(key, shape, dtype)
    return drawn.reshape(-1, channels, shape[1]).swapaxes(0, 1).reshape(shape)


class Encoder(nn.Module):
    """Convolutions, flattening and one dense layer: `y = Φ(W₀ x + b₀)` (Eq. 9) with convolutions before it.

    With `linear_path` y also gets a linear function of the voxels, and no activation, so that no unit can become inactive.
    """

    config: ModelConfig
    linear_path: bool = False

    @nn.compact
    def __call__(self, volumes: Float[Array, "samples *volume"]) -> Float[Array, "samples latent"]:
        """One latent vector for each volume."""
        config = self.config
        activate = relu if config.activation == "relu" else getattr(jax.nn, config.activation)
        x = jnp.moveaxis(volumes, 0, -1)[..., None]
        for filters, kernel in zip(config.filters, config.kernels, strict=True):
            x = activate(Conv(filters, kernel, config.padding)(x))
        x = jnp.moveaxis(x, (-2, -1), (0, 1))  # channels first, as a GPU's convolutions leave them
        dense = nn.Dense(config.latent_dim, kernel_init=partial(_channels_first, x.shape[1]), dot_general=dense_product)
        latent = dense(x.reshape(len(volumes), -1))
        if not self.linear_path:
            return activate(latent)
        voxels = LINEAR_SCALE * (volumes - 2.0 ** (1 - volumes.ndim)).reshape(len(volumes), -1)  # a density's mean is 2⁻ⁿ
        path = nn.Dense(
            config.latent_dim, False, kernel_init=nn.initializers.normal(0.03), dot_general=dense_product, name="path"
        )
        return latent + path(voxels)


class Heads(nn.Module):
    """Dense layers from the latent vector to the logits of a mixture of K components in n dimensions (Eq. 10 to 13).

    They are one product, because a GPU takes longer to start three more than to compute them; each is initialised by itself.
    """

    components: int
    ndim: int

    @nn.compact
    def __call__(self, latent: Float[Array, "samples latent"]) -> Float[Array, "samples planes k"]:
        """A plane of K numbers for each of α, the μ and σ along x, y, z, and the ρ, in the order of `head_planes`."""
        inputs, planes = latent.shape[-1], head_planes(self.ndim)
        size = sum(planes.values()) * self.components

        def initial(_: Array) -> Array:
            if not self.is_initializing():  # Flax asks for the shape
                return jnp.zeros((inputs, size), latent.dtype)
            heads = [_Head(inputs, count, self.components, name=name)() for name, count in planes.items() if count]
            return jnp.concatenate(heads, axis=1)

        kernel, bias = self.param("kernel", initial), self.param("bias", nn.initializers.zeros, (size,))
        logits: Array = matmul(latent, kernel, wanted())
        return (logits + bias).reshape(len(latent), -1, self.components)


class _Head(nn.Module):
    """The initial kernel of one head; its name is part of its random key."""

    inputs: int
    planes: int
    components: int

    def __call__(self) -> Array:
        kernel = _KERNEL_INIT(self.make_rng("params"), (self.inputs, self.components * self.planes))
        return kernel.reshape(self.inputs, self.components, self.planes).swapaxes(1, 2).reshape(self.inputs, -1)
