"""Convolutions without stride, in the form that is fast on the device at hand.

On a CPU, XLA computes 3-D convolutions and above all their gradients slowly, and inside a `while` loop, such as the scan of
an epoch, its gradients fall back to a form that is several times slower still. cuDNN, which computes them on an NVIDIA GPU,
has no good kernels for few channels either: in three dimensions an H100 reaches a tenth of its rate. So on both a convolution
is made of matrix products, in one of three forms that agree to rounding, each with a rule for its gradients (no scatter, no
transposed convolution). Two are products of spectra (`gmmae.models.kernels.spectral`). In the direct one patches are laid side
by side along every axis but the first, one product gives the contributions of all kernel planes along the first axis, and
shifted sums put these together. Elsewhere the library's convolution is used.

The axes of the volume come first, then the samples: XLA chooses the layout in memory by itself on a GPU, and on a CPU all
forms then work on contiguous memory.
"""

import itertools
import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import lax
from jaxtyping import Array, Float

from gmmae.models.kernels import spectral
from gmmae.models.kernels.precision import FULL, operands, precision, tf32_wanted


class Conv(nn.Module):
    """A convolution, the same kernel edge along every axis. Keras' initialisers: Glorot uniform, zero.

    Attributes:
      features: filters.
      kernel: kernel edge, samples.
      padding: `VALID` or `SAME`.
      use_bias: False where a normalisation follows, which would take the bias out again.
    """

    features: int
    kernel: int
    padding: str
    use_bias: bool = True

    @nn.compact
    def __call__(self, x: Float[Array, "*volume samples channels"]) -> Float[Array, "*out samples features"]:
        ndim = x.ndim - 2
        kernel = self.param("kernel", nn.initializers.glorot_uniform(), (self.kernel,) * ndim + (x.shape[-1], self.features))
        if self.padding == "SAME":
            x = _pad(x, (self.kernel - 1) // 2, self.kernel // 2)
        out = convolve(x, kernel, tf32_wanted())
        return out + self.param("bias", nn.initializers.zeros, (self.features,)) if self.use_bias else out


def convolve(
    x: Float[Array, "*volume samples channels"], kernel: Float[Array, "*edge channels features"], tf32: bool = False
) -> Float[Array, "*out samples features"]:
    """Cross-correlation without padding: `out[p] = Σ_q x[p + q] kernel[q]`, for 1, 2 or 3 axes.

    Args:
      x: any number of volumes; their axes first, then the samples.
      kernel: the same edge k along every axis; the result is k - 1 smaller along each.
      tf32: as in `gmmae.models.kernels.precision`.
    """
    out: Array = _convolve(x, kernel, tf32)
    return out


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def _convolve(x: Array, kernel: Array, tf32: bool) -> Array:
    x, kernel = operands(x, kernel, tf32=tf32)
    return _by_platform(lambda form: form.apply, tf32, x, kernel)


def _forward(x: Array, kernel: Array, tf32: bool) -> tuple[Array, tuple[Array, Array]]:
    return _convolve(x, kernel, tf32), (x, kernel)


def _backward(tf32: bool, saved: tuple[Array, Array], g: Array) -> tuple[Array, Array]:
    x, kernel, g = operands(*saved, g, tf32=tf32)
    return _by_platform(lambda form: form.gradients, tf32, x, kernel, g)


def _by_platform(part: Callable[["Form"], Callable[..., Any]], tf32: bool, x: Array, kernel: Array, *g: Array) -> Any:
    """A part of the form that each platform is best served with; a CPU's products are in full precision."""
    on = {platform: part(form_of(x, kernel, platform)) for platform in ("cpu", "cuda", "default")}
    precisions = {"cpu": FULL, "cuda": precision(tf32), "default": precision(tf32)}
    return lax.platform_dependent(x, kernel, *g, **{name: partial(on[name], precision=precisions[name]) for name in on})


_convolve.defvjp(_forward, _backward)


class Form(NamedTuple):
    """A way to compute a convolution.

    Attributes:
      apply: `(x, kernel, precision) -> out`; the precision is that of all products.
      gradients: `(x, kernel, gradient of out, precision) -> gradients of x and kernel`.
    """

    apply: Callable[..., Array]
    gradients: Callable[..., tuple[Array, Array]]


def _library(x: Array, kernel: Array, precision: lax.Precision = FULL) -> Array:
    axes = "012"[: x.ndim - 2]
    numbers = (f"{axes}NC", f"{axes}IO", f"{axes}NC")
    return lax.conv_general_dilated(x, kernel, (1,) * len(axes), "VALID", dimension_numbers=numbers, precision=precision)


def _library_gradients(x: Array, kernel: Array, g: Array, precision: lax.Precision = FULL) -> tuple[Array, Array]:
    return jax.vjp(partial(_library, precision=precision), x, kernel)[1](g)


def _direct(x: Array, kernel: Array, precision: lax.Precision = FULL) -> Array:
    edge, features = kernel.shape[0], kernel.shape[-1]
    out = x.shape[0] - edge + 1
    planes = jnp.moveaxis(kernel.reshape(edge, -1, features), 0, 1)  # (taps of a plane, planes, features)
    parts = jnp.tensordot(_patches(x, edge), planes, axes=1, precision=precision)
    return sum((parts[d : d + out, ..., d, :] for d in range(1, edge)), start=parts[:out, ..., 0, :])


def _direct_gradients(x: Array, kernel: Array, g: Array, precision: lax.Precision = FULL) -> tuple[Array, Array]:
    edge = kernel.shape[0]
    shifts = [jnp.pad(g, [(d, edge - 1 - d), *[(0, 0)] * (g.ndim - 1)]) for d in range(edge)]
    planes = jnp.stack(shifts, axis=-2)  # what each kernel plane saw, at the place where it saw it
    patches = _patches(x, edge)
    rows = tuple(range(patches.ndim - 1))
    to_planes = jnp.tensordot(patches, planes, axes=(rows, rows), precision=precision)
    return _input_gradient(kernel, g, precision), jnp.moveaxis(to_planes, 1, 0).reshape(kernel.shape)


def _input_gradient(kernel: Array, g: Array, precision: lax.Precision) -> Array:
    """`to_x[p] = Σ_q g[p - q] kernel[q]`: a product over the filters and the kernel's last axis, shifted sums along the others.

    Padding g along all axes and convolving it would have the same form as the forward pass, but several times its operations.
    """
    edge, last = kernel.shape[0], kernel.ndim - 3
    padded = jnp.pad(g, [(0, 0)] * last + [(edge - 1, edge - 1), (0, 0), (0, 0)])
    size = g.shape[last] + edge - 1
    taps = [lax.slice_in_dim(padded, d, d + size, axis=last) for d in reversed(range(edge))]
    factors = jnp.moveaxis(kernel, (last, -1), (0, 1))  # (edge, filters, the other axes, channels)
    columns = factors.reshape(edge * kernel.shape[-1], *factors.shape[2:])
    spread = jnp.tensordot(jnp.concatenate(taps, axis=-1), columns, axes=1, precision=precision)
    for axis in reversed(range(last)):
        spread = _shifted_sum(spread, axis, spread.ndim - 2, edge)
    return spread


def _shifted_sum(parts: Array, axis: int, taps: int, edge: int) -> Array:
    """`out[p] = Σ_d parts[p - d, tap d]` along an axis that becomes `edge` - 1 longer; the axis of the taps goes."""
    pads = [(0, 0)] * (parts.ndim - 1)
    shifted = [
        jnp.pad(lax.index_in_dim(parts, d, taps, keepdims=False), [*pads[:axis], (d, edge - 1 - d), *pads[axis + 1 :]])
        for d in range(edge)
    ]
    return sum(shifted[1:], start=shifted[0])


def _patches(x: Array, edge: int) -> Array:
    """The kernel's reach along every axis but the first, laid side by side as channels."""
    seen = [range(size - edge + 1) for size in x.shape[1:-2]]
    corners = itertools.product(range(edge), repeat=len(seen))
    windows = [tuple(slice(at, at + len(span)) for at, span in zip(corner, seen, strict=True)) for corner in corners]
    return jnp.concatenate([x[(slice(None), *window)] for window in windows], axis=-1)


def _pad(x: Array, before: int, after: int) -> Array:
    return jnp.pad(x, [*[(before, after)] * (x.ndim - 2), (0, 0), (0, 0)])


FORMS = {
    "library": Form(_library, _library_gradients),
    "direct": Form(_direct, _direct_gradients),
    "first axis": Form(spectral.first_axis, spectral.first_axis_gradients),
    "every axis": Form(spectral.every_axis, spectral.every_axis_gradients),
}

WORTH_SPECTRA = {"cpu": 200, "cuda": 1000}
"""Samples times taps from which the transforms of a kernel pay."""

FEW_TAPS = 9
"""Of a kernel: 3 × 3."""


def form_of(x: Array, kernel: Array, platform: str) -> Form:
    """The one of `FORMS` that is fastest on a platform, as JAX calls it (MEASUREMENT.md); `default` stands for all others.

    Few samples do not pay for the transforms of the kernel, and no samples do for a kernel of so few taps that these cost less
    than a transform. Larger kernels in two dimensions and in one are left to cuDNN.
    """
    *edges, channels, _ = kernel.shape
    if platform not in WORTH_SPECTRA:
        return FORMS["library"]
    if math.prod(edges) <= FEW_TAPS:
        return FORMS["direct"]
    if platform == "cuda" and len(edges) < 3:
        return FORMS["library"]
    if channels == 1:
        return FORMS["first axis"]
    return FORMS["every axis" if x.shape[-2] * math.prod(edges) >= WORTH_SPECTRA[platform] else "direct"]
