"""Convolutions without stride, in the form that is fast on the device at hand.

In three dimensions XLA is slow on a CPU, above all inside a loop, and cuDNN reaches a tenth of an H100's rate for few channels.
So on both a convolution is made of matrix products; the forms agree to rounding.

The direct form lays patches side by side along every axis but the first; one product gives the contributions of all kernel
planes along the first axis, and shifted sums add these.

The axes of the volume come first, then the samples: contiguous memory on a CPU.
"""

import itertools
import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import lax
from jaxtyping import Array, Float

from gmmae.models.kernels import spectral, winograd
from gmmae.models.kernels.precision import FULL, wanted
from gmmae.models.kernels.spectral import Gradients

T = TypeVar("T")


class Conv(nn.Module):
    """A convolution with a kernel of the same size along every axis and Keras' initialisers: Glorot uniform, zero."""

    features: int
    kernel: int
    padding: str
    use_bias: bool = True

    @nn.compact
    def __call__(self, x: Float[Array, "*volume samples channels"]) -> Float[Array, "*out samples features"]:
        """Applies the layer."""
        ndim = x.ndim - 2
        kernel = self.param("kernel", nn.initializers.glorot_uniform(), (self.kernel,) * ndim + (x.shape[-1], self.features))
        if self.padding == "SAME":
            x = jnp.pad(x, [*[((self.kernel - 1) // 2, self.kernel // 2)] * ndim, (0, 0), (0, 0)])
        bias = self.param("bias", nn.initializers.zeros, (self.features,)) if self.use_bias else None
        return convolve(x, kernel, bias, wanted())


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def convolve(
    x: Float[Array, "*volume samples channels"],
    kernel: Float[Array, "*edge channels features"],
    bias: Float[Array, " features"] | None = None,
    precision: lax.Precision = FULL,
) -> Float[Array, "*out samples features"]:
    """The cross-correlation `out[p] = bias + Σ_q x[p + q] kernel[q]` without padding, for 1, 2 or 3 axes.

    The kernel has the same size k along every axis, and the result is k - 1 smaller along each. `precision` is that of all
    products, also of the gradients.
    """
    out = _by_platform(lambda form: form.apply, precision, x, kernel)
    return out if bias is None else out + bias


def _backward(
    precision: lax.Precision, saved: tuple[Array, Array, Array | None], g: Array
) -> tuple[Array, Array, Array | None]:
    x, kernel, bias = saved
    gradients = _by_platform(lambda form: form.gradients, precision, x, kernel, g)
    return *gradients, None if bias is None else g.sum(tuple(range(g.ndim - 1)))


def _by_platform(part: Callable[["Form"], Callable[..., T]], precision: lax.Precision, x: Array, kernel: Array, *g: Array) -> T:
    on = {name: partial(part(form_of(x, kernel, name)), precision=precision) for name in ("cpu", "cuda", "default")}
    return lax.platform_dependent(x, kernel, *g, **on)


convolve.defvjp(lambda *args: (convolve(*args), args[:3]), _backward)


class Form(NamedTuple):
    """One way to compute a convolution.

    Attributes:
      apply: `(x, kernel, precision) -> out`.
      gradients: `(x, kernel, gradient of out, precision) -> gradients of x and kernel`.
    """

    apply: Callable[..., Array]
    gradients: Callable[..., Gradients]


def _library(x: Array, kernel: Array, precision: lax.Precision) -> Array:
    axes = "012"[: x.ndim - 2]
    numbers = (f"{axes}NC", f"{axes}IO", f"{axes}NC")
    return lax.conv_general_dilated(x, kernel, (1,) * len(axes), "VALID", dimension_numbers=numbers, precision=precision)


def _library_gradients(x: Array, kernel: Array, g: Array, precision: lax.Precision) -> Gradients:
    return jax.vjp(partial(_library, precision=precision), x, kernel)[1](g)


def _direct(x: Array, kernel: Array, precision: lax.Precision) -> Array:
    edge, features = kernel.shape[0], kernel.shape[-1]
    out = x.shape[0] - edge + 1
    planes = jnp.moveaxis(kernel.reshape(edge, -1, features), 0, 1)  # (taps of a plane, planes, features)
    parts = jnp.tensordot(_patches(x, edge), planes, axes=1, precision=precision)
    return sum((parts[d : d + out, ..., d, :] for d in range(1, edge)), start=parts[:out, ..., 0, :])


def _direct_gradients(x: Array, kernel: Array, g: Array, precision: lax.Precision) -> Gradients:
    """That of x is `to_x[p] = Σ_q g[p - q] kernel[q]`: a product over filters and the kernel's last axis, then shifted sums.

    A convolution of g, padded along all axes, would take several times the operations of the forward pass.
    """
    edge, last = kernel.shape[0], kernel.ndim - 3
    shifts = [jnp.pad(g, [(d, edge - 1 - d), *[(0, 0)] * (g.ndim - 1)]) for d in range(edge)]
    planes = jnp.stack(shifts, axis=-2)  # the gradient at each position of each kernel plane
    patches = _patches(x, edge)
    rows = tuple(range(patches.ndim - 1))
    to_planes = jnp.tensordot(patches, planes, axes=(rows, rows), precision=precision)

    padded = jnp.pad(g, [(0, 0)] * last + [(edge - 1, edge - 1), (0, 0), (0, 0)])
    size = g.shape[last] + edge - 1
    taps = [lax.slice_in_dim(padded, d, d + size, axis=last) for d in reversed(range(edge))]
    factors = jnp.moveaxis(kernel, (last, -1), (0, 1))  # (edge, filters, the other axes, channels)
    columns = factors.reshape(edge * kernel.shape[-1], *factors.shape[2:])
    spread = jnp.tensordot(jnp.concatenate(taps, axis=-1), columns, axes=1, precision=precision)
    for axis in reversed(range(last)):  # out[p] = Σ_d spread[p - d, tap d]: the axis becomes `edge` - 1 longer
        pads = [[(0, 0)] * axis + [(d, edge - 1 - d)] + [(0, 0)] * (spread.ndim - 2 - axis) for d in range(edge)]
        first, *rest = (jnp.pad(lax.index_in_dim(spread, d, -2, keepdims=False), pad) for d, pad in enumerate(pads))
        spread = sum(rest, start=first)
    return spread, jnp.moveaxis(to_planes, 1, 0).reshape(kernel.shape)


def _patches(x: Array, edge: int) -> Array:
    slices = [[slice(first, first + size - edge + 1) for first in range(edge)] for size in x.shape[1:-2]]
    return jnp.concatenate([x[(slice(None), *window)] for window in itertools.product(*slices)], axis=-1)


FORMS = {
    "library": Form(_library, _library_gradients),
    "direct": Form(_direct, _direct_gradients),
    "first axis": Form(spectral.first_axis, spectral.first_axis_gradients),
    "every axis": Form(spectral.every_axis, spectral.every_axis_gradients),
    "tiles": Form(winograd.tiles, winograd.tiles_gradients),
}

MIN_WORK_OF_SPECTRA = {"cpu": 200, "cuda": 1000}
"""Smallest product of samples and taps for which the transforms of a kernel pay, by platform."""

MAX_DIRECT_TAPS = 9
"""3 × 3: no transform along a whole axis pays, except for 2 × 2 × 2 on a CPU."""

MIN_CHANNELS_OF_TILES = 16 * 16
"""Smallest product of channels and features for which tiles pay on a CPU."""


def form_of(x: Array, kernel: Array, platform: str) -> Form:
    """The fastest of `FORMS` on a platform, as JAX calls it; `default` stands for all others.

    A stride of 2 leaves 2 × 2 × 2 taps of 3 × 3 × 3. The times are in docs/measurements/convolutions.md.
    """
    *edges, channels, _ = kernel.shape
    if platform not in MIN_WORK_OF_SPECTRA:
        return FORMS["library"]
    eight_taps = platform == "cpu" and edges == [2, 2, 2] and channels > 1
    if math.prod(edges) <= MAX_DIRECT_TAPS and not eight_taps:
        pays = platform == "cpu" and len(edges) == 2 and channels * kernel.shape[-1] >= MIN_CHANNELS_OF_TILES
        return FORMS["tiles" if pays and winograd.fits(x, kernel) else "direct"]
    if platform == "cuda" and len(edges) < 3:
        return FORMS["library"]
    if channels == 1:
        return FORMS["first axis"]
    return FORMS["every axis" if x.shape[-2] * math.prod(edges) >= MIN_WORK_OF_SPECTRA[platform] else "direct"]
