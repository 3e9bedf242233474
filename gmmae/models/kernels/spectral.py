"""Convolutions as products of real spectra: `out = Rᵀ ((D x) ⊙ (E k))` for matrices D, E and R, by axes (Winograd, 1980).

D and E are discrete Fourier transforms of the volume's length, as real matrix products. A product of complex numbers takes
three products of real ones (Gauss): `(a + ib)(c + id) = c(a + b) - b(c + d) + i (c(a + b) + a(d - c))`. The last stage of D
gives a + b, a and b of each frequency. That of E gives c, d - c and c + d. Rᵀ begins with their products. So no complex number
appears.
The gradients are the transposed products: `Dᵀ ((R g) ⊙ (E k))` of x and `Eᵀ ((D x) ⊙ (R g))` of k.

`every_axis` transforms all axes. With several channels it takes a tenth of the operations of the sum over the kernel's taps.
`first_axis` transforms one axis and adds the taps along the others. It is for one channel, where most of the full spectrum
would be transforms of the result.

Arrays are `*volume samples channels`, so that a transform along any axis multiplies a matrix from the left and moves nothing.
The signal is real, so half the frequencies along its first axis determine the rest.
"""

import math
from functools import cache
from typing import Literal

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Float64

from gmmae.models.kernels.precision import FULL

Role = Literal["data", "kernel", "result"]
"""The matrix: D, E or R."""

Gradients = tuple[Array, Array, Array]
"""The gradients of x, of the kernel and of the bias."""

_FACTORS: dict[Role, list[list[int]]] = {
    "data": [[1, 1], [1, 0], [0, 1]],
    "kernel": [[1, 0], [-1, -1], [1, -1]],  # of the conjugate, for a correlation
    "result": [[1, 1], [0, 1], [-1, 0]],
}
"""The last stage's factors of a real and an imaginary part: (factor, part)."""


def every_axis(x: Array, kernel: Array, precision: lax.Precision = FULL) -> Array:
    """Returns `out[p] = Σ_q x[p + q] kernel[q]`; shapes are as in `gmmae.models.kernels.convolution.convolve`."""
    period = x.shape[:-2]
    product = jnp.matmul(_to("data", x, period, precision), _to("kernel", kernel, period, precision), precision=precision)
    return _from("result", product, period, (*_valid(x, kernel), x.shape[-2], kernel.shape[-1]), precision)


def every_axis_gradients(x: Array, kernel: Array, g: Array, precision: lax.Precision = FULL) -> Gradients:
    """Returns the gradients of `every_axis`. XLA computes the spectra of x and kernel once for both passes.

    Small products with a transposed factor take twice as long, so only g and the results are transposed.
    """
    period = x.shape[:-2]
    of_x, of_kernel, of_g = (
        _to("data", x, period, precision),
        _to("kernel", kernel, period, precision),
        _to("result", g.mT, period, precision),
    )
    to_x, to_kernel = jnp.matmul(of_kernel, of_g, precision=precision), jnp.matmul(of_g, of_x, precision=precision)
    edges, (samples, channels), features = kernel.shape[:-2], x.shape[-2:], kernel.shape[-1]
    return (
        _from("data", to_x, period, (*period, channels, samples), precision).mT,
        _from("kernel", to_kernel, period, (*edges, features, channels), precision).mT,
        bias_gradient(g),
    )


def bias_gradient(g: Array) -> Float[Array, " features"]:
    """Returns the gradient of a number that is added to all results of a feature."""
    return g.sum(tuple(range(g.ndim - 1)))


def first_axis(x: Array, kernel: Array, precision: lax.Precision = FULL) -> Array:
    """Returns `out[p] = Σ_q x[p + q] kernel[q]`; shapes are as in `gmmae.models.kernels.convolution.convolve`."""
    factor = _to("kernel", kernel.reshape(len(kernel), -1, kernel.shape[-1]), x.shape[:1], precision)
    # The larger factor on the right, untransposed; the smaller result is put in order.
    product = jnp.matmul(factor.mT, _patches(x, kernel, precision), precision=precision)
    first, *others = _valid(x, kernel)
    out = _from("result", product, x.shape[:1], (first, kernel.shape[-1], *others, x.shape[-2]), precision)
    return jnp.moveaxis(out, 1, -1)


def first_axis_gradients(x: Array, kernel: Array, g: Array, precision: lax.Precision = FULL) -> Gradients:
    """Returns the gradients of `first_axis`. That of x is taken along every axis, and dropped where x is data."""
    of_g = _to("result", g.reshape(len(g), -1, g.shape[-1]), x.shape[:1], precision)
    product = jnp.matmul(_patches(x, kernel, precision), of_g, precision=precision)
    to_kernel = _from("kernel", product, x.shape[:1], kernel.shape, precision)
    return every_axis_gradients(x, kernel, g, precision)[0], to_kernel, bias_gradient(g)


def _valid(x: Array, kernel: Array) -> tuple[int, ...]:
    return tuple(size - edge + 1 for size, edge in zip(x.shape[:-2], kernel.shape[:-2], strict=True))


def _patches(x: Array, kernel: Array, precision: lax.Precision) -> Float[Array, "factors taps rows"]:
    samples, channels = x.shape[-2:]
    moved = jnp.moveaxis(x, -1, 1)
    patches = _to("data", moved.reshape(len(x), channels, -1), x.shape[:1], precision)
    patches = patches.reshape(len(patches), *moved.shape[1:])
    for axis in reversed(range(1, x.ndim - 2)):
        patches = _shifts(patches, axis - x.ndim + 1, kernel.shape[axis])
    return patches.reshape(len(patches), -1, math.prod(_valid(x, kernel)[1:]) * samples)


def _shifts(x: Array, axis: int, edge: int) -> Array:
    """Returns the samples of each tap of a kernel along an axis, without padding; the taps are a new axis 1.

    Taken axis by axis, a kernel's patches are few copies of long pieces.
    """
    size = x.shape[axis] - edge + 1
    return jnp.stack([lax.slice_in_dim(x, tap, tap + size, axis=axis) for tap in range(edge)], axis=1)


def _to(role: Role, x: Array, period: tuple[int, ...], precision: lax.Precision) -> Float[Array, "factors rows columns"]:
    *volume, rows, columns = x.shape
    for axis, points in enumerate(volume):
        matrices = _matrices(role, period, points, axis, str(x.dtype))
        x = jnp.matmul(matrices, x.reshape(len(matrices), matrices.shape[-1], -1), precision=precision)
    return x.reshape(-1, rows, columns)


def _from(role: Role, x: Array, period: tuple[int, ...], shape: tuple[int, ...], precision: lax.Precision) -> Array:
    for axis, points in reversed(list(enumerate(shape[: len(period)]))):
        matrices = _matrices(role, period, points, axis, str(x.dtype)).swapaxes(1, 2)
        x = jnp.matmul(matrices, x.reshape(len(matrices), matrices.shape[-1], -1), precision=precision)
    return x.reshape(shape)


# Kept, because XLA sees that two results are the same only where the constants are the same object.
@cache
def _matrices(
    role: Role, period: tuple[int, ...], points: int, axis: int, dtype: str
) -> Float[np.ndarray, "copies rows columns"]:
    """Returns the matrix of an axis, for each frequency along the axes before it.

    With a single matrix XLA would move these axes to the end and back.
    """
    matrix = _matrix(role, period[axis], points, first=axis == 0, last=axis == len(period) - 1)
    copies = math.prod([period[0] // 2 + 1, *period[1:]][:axis])
    return np.ascontiguousarray(np.broadcast_to(matrix.astype(dtype), (copies, *matrix.shape)))


def _matrix(role: Role, period: int, points: int, *, first: bool, last: bool) -> Float64[np.ndarray, "rows columns"]:
    """Returns the transform along one axis of length `period`; all but the first points are zero.

    Its rows are (frequency, part), or (frequency, factor) along the last axis. Its columns are the points of the first axis,
    where the signal is real, and (part, point) along the others. R is the inverse's transpose. Along the first axis a frequency
    also stands for its conjugate, unless it is its own: then the signal's part is real, and one factor is enough.
    """
    frequencies = np.arange(period // 2 + 1 if first else period)
    angle = 2 * np.pi * (np.outer(frequencies, np.arange(points)) % period) / period
    real, imag = np.cos(angle), -np.sin(angle)
    if not first:
        real, imag = np.concatenate([real, -imag], axis=1), np.concatenate([imag, real], axis=1)
    parts = np.stack([real, imag], axis=1)
    single = (frequencies * 2 % period == 0) if first else np.zeros(period, bool)
    if role == "result":
        parts *= (np.where(single | (not first), 1, 2) / period)[:, None, None]
    if not last:
        return parts.reshape(-1, parts.shape[-1])
    factors = np.einsum("kp,fpc->fkc", _FACTORS[role], parts)
    needed = np.ones(factors.shape[:2], bool)
    needed[single, 1:] = False
    return factors[needed]
