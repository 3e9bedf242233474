"""Convolutions as products of real spectra: `out = Rᵀ ((D x) ⊙ (E k))` for matrices D, E and R, by axes (Winograd, 1980).

D and E are discrete Fourier transforms of the volume's length, as real matrix products. A product of complex numbers takes
three products of real ones (Gauss): `(a + ib)(c + id) = c(a + b) - b(c + d) + i (c(a + b) + a(d - c))`. The last stage of D
gives a + b, a and b of each frequency, that of E c, d - c and c + d, and Rᵀ begins with their products.
The gradients are the transposed products: `Dᵀ ((R g) ⊙ (E k))` of x and `Eᵀ ((D x) ⊙ (R g))` of k.

`every_axis` takes a tenth of the operations of the sum over the kernel's taps. For one channel most would be transforms of
the result, so `first_axis` transforms one axis and adds the taps along the others.

Arrays are `*volume samples channels`, so no transform moves anything.
"""

import math
from functools import cache
from typing import Literal

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

Role = Literal["data", "kernel", "result"]
"""The matrix: D, E or R."""

Gradients = tuple[Array, Array]
"""Of x and of the kernel."""

_FACTORS: dict[Role, list[list[int]]] = {
    "data": [[1, 1], [1, 0], [0, 1]],
    "kernel": [[1, 0], [-1, -1], [1, -1]],  # of the conjugate, for a correlation
    "result": [[1, 1], [0, 1], [-1, 0]],
}
"""The last stage: (factor, real or imaginary part)."""


def every_axis(x: Array, kernel: Array, precision: lax.Precision) -> Array:
    """As `gmmae.models.kernels.convolution.convolve`, by spectra of all axes."""
    period = x.shape[:-2]
    product = jnp.matmul(
        _forward("data", x, period, precision), _forward("kernel", kernel, period, precision), precision=precision
    )
    return _adjoint("result", product, period, (*_valid(x, kernel), x.shape[-2], kernel.shape[-1]), precision)


def every_axis_gradients(x: Array, kernel: Array, g: Array, precision: lax.Precision) -> Gradients:
    """Small products with a transposed factor take twice as long, so only g and the results are transposed."""
    period = x.shape[:-2]
    of_g = _forward("result", g.mT, period, precision)
    to_x = jnp.matmul(_forward("kernel", kernel, period, precision), of_g, precision=precision)
    to_kernel = jnp.matmul(of_g, _forward("data", x, period, precision), precision=precision)
    edges, (samples, channels), features = kernel.shape[:-2], x.shape[-2:], kernel.shape[-1]
    return (
        _adjoint("data", to_x, period, (*period, channels, samples), precision).mT,
        _adjoint("kernel", to_kernel, period, (*edges, features, channels), precision).mT,
    )


def first_axis(x: Array, kernel: Array, precision: lax.Precision) -> Array:
    """As `gmmae.models.kernels.convolution.convolve`, by spectra of the first axis."""
    factor = _forward("kernel", kernel.reshape(len(kernel), -1, kernel.shape[-1]), x.shape[:1], precision)
    # The larger factor is on the right, untransposed, and the smaller result is put in order.
    product = jnp.matmul(factor.mT, _patches(x, kernel, precision), precision=precision)
    first, *others = _valid(x, kernel)
    out = _adjoint("result", product, x.shape[:1], (first, kernel.shape[-1], *others, x.shape[-2]), precision)
    return jnp.moveaxis(out, 1, -1)


def first_axis_gradients(x: Array, kernel: Array, g: Array, precision: lax.Precision) -> Gradients:
    """That of x is taken along every axis, and dropped where x is data."""
    of_g = _forward("result", g.reshape(len(g), -1, g.shape[-1]), x.shape[:1], precision)
    product = jnp.matmul(_patches(x, kernel, precision), of_g, precision=precision)
    to_kernel = _adjoint("kernel", product, x.shape[:1], kernel.shape, precision)
    return every_axis_gradients(x, kernel, g, precision)[0], to_kernel


def _valid(x: Array, kernel: Array) -> tuple[int, ...]:
    return tuple(size - edge + 1 for size, edge in zip(x.shape[:-2], kernel.shape[:-2], strict=True))


def _patches(x: Array, kernel: Array, precision: lax.Precision) -> Float[Array, "factors taps rows"]:
    samples, channels = x.shape[-2:]
    moved = jnp.moveaxis(x, -1, 1)
    patches = _forward("data", moved.reshape(len(x), channels, -1), x.shape[:1], precision)
    patches = patches.reshape(len(patches), *moved.shape[1:])
    _, *valid = _valid(x, kernel)
    # The taps of each axis are a new axis 1; taken axis by axis, patches are few copies of long pieces.
    for axis, size in reversed(list(enumerate(valid, -len(valid) - 1))):
        taps = range(moved.shape[axis] - size + 1)
        patches = jnp.stack([lax.slice_in_dim(patches, tap, tap + size, axis=axis) for tap in taps], axis=1)
    return patches.reshape(len(patches), -1, math.prod(valid) * samples)


def _forward(role: Role, x: Array, period: tuple[int, ...], precision: lax.Precision) -> Float[Array, "factors rows columns"]:
    *volume, rows, columns = x.shape
    for axis, points in enumerate(volume):
        matrices = _matrices(role, period, points, axis, str(x.dtype))
        x = jnp.matmul(matrices, x.reshape(len(matrices), matrices.shape[-1], -1), precision=precision)
    return x.reshape(-1, rows, columns)


def _adjoint(role: Role, x: Array, period: tuple[int, ...], shape: tuple[int, ...], precision: lax.Precision) -> Array:
    for axis, points in reversed(list(enumerate(shape[: len(period)]))):
        matrices = _matrices(role, period, points, axis, str(x.dtype)).swapaxes(1, 2)
        x = jnp.matmul(matrices, x.reshape(len(matrices), matrices.shape[-1], -1), precision=precision)
    return x.reshape(shape)


# XLA sees that two results are the same only where the constants are the same object.
@cache
def _matrices(
    role: Role, period: tuple[int, ...], points: int, axis: int, dtype: str
) -> Float[np.ndarray, "copies rows columns"]:
    """The transform along one axis; all but its first points are zero.

    Rows are (frequency, part), or (frequency, factor) along the last axis; columns are the points of the first axis, where the
    signal is real, and (part, point) along the others. R is the inverse's transpose. Along the first axis a frequency also
    stands for its conjugate, unless it is its own: then the signal's part is real, and one factor is enough.

    There is one copy for each frequency along the axes before, which XLA would otherwise move to the end and back.
    """
    first, length = axis == 0, period[axis]
    frequencies = np.arange(length // 2 + 1 if first else length)
    angle = 2 * np.pi * (np.outer(frequencies, np.arange(points)) % length) / length
    real, imag = np.cos(angle), -np.sin(angle)
    if not first:
        real, imag = np.concatenate([real, -imag], axis=1), np.concatenate([imag, real], axis=1)
    parts = np.stack([real, imag], axis=1)
    single = first & (frequencies * 2 % length == 0)
    if role == "result":
        parts *= (np.where(single | (not first), 1, 2) / length)[:, None, None]
    needed = np.ones(parts.shape[:2], bool)
    if axis == len(period) - 1:
        parts = np.einsum("kp,fpc->fkc", _FACTORS[role], parts)
        needed = ~single[:, None] | (np.arange(3) == 0)
    matrix = parts[needed].astype(dtype)
    copies = math.prod([period[0] // 2 + 1, *period[1:]][:axis])
    return np.ascontiguousarray(np.broadcast_to(matrix, (copies, *matrix.shape)))
