"""A U-Net (Ronneberger et al., arXiv:1505.04597) for images and volumes, like nnU-Net's, and the loss of its masks.

Kernels and strides of 2 on the way down and up do not overlap, so each is one matrix product over blocks.
Normalisation is by sample (instance or group), because strong scaling would not be sequential with that of a batch.
"""

import math
from functools import partial

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float

from gmmae.models.kernels.blocks import blocked, unblocked
from gmmae.models.kernels.convolution import Conv
from gmmae.models.kernels.precision import dense_product

EPSILON = 1e-5
"""Added to a variance."""
SLOPE = 0.01
"""Of the leaky ReLU."""

_linear = partial(nn.Dense, kernel_init=nn.initializers.glorot_uniform(), dot_general=dense_product, name="Linear_0")
"""The same linear function of the channels at every voxel."""


class UNet(nn.Module):
    """Maps images to logits of a mask.

    Attributes:
      features: channels of each stage, from the finest one. Every axis must be divisible by 2 to the number of halvings.
      groups: number of groups of channels that are normalised together; 0: each channel by itself.
    """

    features: tuple[int, ...]
    groups: int = 0

    @nn.compact
    def __call__(self, images: Float[Array, "samples *volume channels"]) -> Float[Array, "samples *volume"]:
        """Logits of the voxels."""
        x = jnp.moveaxis(images, 0, -2)
        fine = []
        for features in self.features[:-1]:
            x = Stage(features, self.groups)(x)
            fine.append(x)
            x = Down(self.features[len(fine)])(x)
        x = Stage(self.features[-1], self.groups)(x)
        for features, beside in zip(reversed(self.features[:-1]), reversed(fine), strict=True):
            x = jnp.concatenate([Up(features)(x), beside], axis=-1)
            x = Stage(features, self.groups)(x)
        return jnp.moveaxis(_linear(1)(x)[..., 0], -1, 0)


class Stage(nn.Module):
    """Two convolutions with kernels of 3 along each axis, each normalised and activated."""

    features: int
    groups: int

    @nn.compact
    def __call__(self, x: Float[Array, "*volume samples channels"]) -> Float[Array, "*volume samples features"]:
        """Applies the stage."""
        for i in range(2):
            x = Conv(self.features, 3, "SAME", use_bias=False)(x)
            x = ActivatedNorm(self.groups, name=f"Norm_{i}")(x)
        return x


class ActivatedNorm(nn.Module):
    """Normalises each channel, or group of channels, of a sample; scales, shifts and activates it."""

    groups: int

    @nn.compact
    def __call__(self, x: Float[Array, "*volume samples channels"]) -> Float[Array, "*volume samples channels"]:
        """Applies the layer."""
        scale = self.param("scale", nn.initializers.ones, x.shape[-1:])
        bias = self.param("bias", nn.initializers.zeros, x.shape[-1:])
        return _activated_norm(x, scale, bias, self.groups)


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def _activated_norm(x: Array, scale: Array, bias: Array, groups: int) -> Array:
    return _activated_norm_forward(x, scale, bias, groups)[0]


def _activated_norm_forward(
    x: Array, scale: Array, bias: Array, groups: int
) -> tuple[Array, tuple[Array, Array, Array, Array]]:
    centred = x - _group_means(_volume_mean(x), groups)
    deviation = jax.lax.rsqrt(_group_means(_volume_mean(jnp.square(centred)), groups) + EPSILON)
    normal = centred * deviation
    return jax.nn.leaky_relu(normal * scale + bias, SLOPE), (normal, deviation, scale, bias)


def _activated_norm_backward(groups: int, saved: tuple[Array, Array, Array, Array], g: Array) -> tuple[Array, Array, Array]:
    """Reads the features only twice: for the two means and for the gradient of x."""
    normal, deviation, scale, bias = saved
    g = jnp.where(normal * scale + bias >= 0, g, SLOPE * g)
    of_bias, of_scale = _volume_mean(g), _volume_mean(g * normal)
    along = normal * _group_means(scale * of_scale, groups)
    to_x = deviation * (scale * g - _group_means(scale * of_bias, groups) - along)
    voxels = math.prod(g.shape[:-2])
    return to_x, of_scale.sum(0) * voxels, of_bias.sum(0) * voxels


_activated_norm.defvjp(_activated_norm_forward, _activated_norm_backward)


def _volume_mean(x: Float[Array, "*volume samples channels"]) -> Float[Array, "samples channels"]:
    return x.mean(tuple(range(x.ndim - 2)))


def _group_means(x: Float[Array, "samples channels"], groups: int) -> Float[Array, "samples channels"]:
    samples, channels = x.shape
    if not groups:
        return x
    means = x.reshape(samples, groups, -1).mean(-1)
    return jnp.repeat(means, channels // groups, axis=-1)


class Down(nn.Module):
    """A convolution of kernel and stride 2."""

    features: int

    @nn.compact
    def __call__(self, x: Float[Array, "*volume samples channels"]) -> Float[Array, "*half samples features"]:
        """Applies the layer."""
        return _linear(self.features)(blocked(x, (2,) * (x.ndim - 2)))


class Up(nn.Module):
    """A transposed convolution of kernel and stride 2."""

    features: int

    @nn.compact
    def __call__(self, x: Float[Array, "*half samples channels"]) -> Float[Array, "*volume samples features"]:
        """Applies the layer."""
        n = x.ndim - 2
        doubled = unblocked(_linear(self.features * 2**n, use_bias=False)(x), (2,) * n)
        return doubled + self.param("bias", nn.initializers.zeros, (self.features,))


def mask_losses(
    logits: Float[Array, "samples *volume"], truth: Bool[Array, "samples *volume"], counted: Bool[Array, "samples *volume"]
) -> Float[Array, " samples"]:
    """`1 - D + H` as in nnU-Net, with `D = (2 Σ p t + 1) / (Σ p + Σ t + 1)` for probabilities p, and mean cross-entropy H.

    At least one voxel of each sample must be counted.
    """
    axes = tuple(range(1, logits.ndim))
    weight, target = counted.astype(logits.dtype), truth.astype(logits.dtype)
    probability = jax.nn.sigmoid(logits) * weight
    shared, total = (probability * target).sum(axes), (probability + target * weight).sum(axes)
    crossed = (jax.nn.softplus(logits) - target * logits) * weight
    return 1 - (2 * shared + 1) / (total + 1) + crossed.sum(axes) / weight.sum(axes)
