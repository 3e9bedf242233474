"""Convolutions of 3 samples along each axis as products of tiles: F(2, 3) of Lavin and Gray (arXiv:1509.09308).

A tile of 4 samples along an axis gives 2 results by 4 multiplications, where the sum over the taps takes 6. The formulas are
those of `gmmae.models.kernels.spectral`; all elements of D, E and R are 0, 1, -1 or a half, so rounding grows little.

Factors have an entry for each place in a tile, the last axis fastest.
"""

from collections.abc import Callable, Sequence

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from gmmae.models.kernels.precision import FULL
from gmmae.models.kernels.spectral import Gradients


def fits(x: Array, kernel: Array) -> bool:
    """Whether the kernel has 3 taps along each axis, and every axis of x is even."""
    return all(edge == 3 and size % 2 == 0 for edge, size in zip(kernel.shape[:-2], x.shape[:-2], strict=True))


def tiles(x: Array, kernel: Array, precision: lax.Precision = FULL) -> Array:
    """As `gmmae.models.kernels.convolution.convolve`, where `fits`."""
    axes = range(x.ndim - 2)
    products = jnp.matmul(_forward(_data, x, axes), _forward(_kernel, kernel, axes), precision=precision)
    return _adjoint(_result, products, axes, _places(x))


def tiles_gradients(x: Array, kernel: Array, g: Array, precision: lax.Precision = FULL) -> Gradients:
    """The gradients of `tiles`; XLA computes D x once for both passes."""
    axes = range(x.ndim - 2)
    of_x, of_kernel, of_g = _forward(_data, x, axes), _forward(_kernel, kernel, axes), _forward(_gradient, g, axes)
    to_x = jnp.matmul(of_g, of_kernel.mT, precision=precision)
    # A CPU takes half the time where the factor with fewer columns is the first one.
    if x.shape[-1] <= g.shape[-1]:
        to_kernel = jnp.matmul(of_x.mT, of_g, precision=precision)
    else:  # the barrier keeps XLA from moving the transposition into the product
        to_kernel = lax.optimization_barrier(jnp.matmul(of_g.mT, of_x, precision=precision)).mT
    return _adjoint(_to_data, to_x, axes, _places(x)), _adjoint(_to_kernel, to_kernel, axes, kernel.shape[-2:-1])


def _places(x: Array) -> tuple[int, ...]:
    return *(size // 2 - 1 for size in x.shape[:-2]), x.shape[-2]


def _forward(transform: Callable[[Array, int], Sequence[Array]], x: Array, axes: range) -> Float[Array, "factors rows columns"]:
    parts = [x]
    for axis in axes:
        parts = [part for whole in parts for part in transform(whole, axis)]
    return jnp.stack([part.reshape(-1, x.shape[-1]) for part in parts])


def _adjoint(
    transform: Callable[[Sequence[Array], int], Array],
    products: Float[Array, "factors rows columns"],
    axes: range,
    rows: tuple[int, ...],
) -> Array:
    parts = [product.reshape(*rows, -1) for product in products]
    for axis in reversed(axes):
        parts = [transform(parts[first : first + 4], axis) for first in range(0, len(parts), 4)]
    return parts[0]


def _data(x: Array, axis: int) -> list[Array]:
    """D along an axis."""
    last = x.shape[axis] - 3
    a, b, c, d = (lax.slice_in_dim(x, first, first + last, 2, axis) for first in range(4))
    return [a - c, b + c, c - b, b - d]


def _to_data(parts: Sequence[Array], axis: int) -> Array:
    """Dᵀ along an axis: neighbouring tiles share two samples, whose parts are added."""
    a, b, c, d = parts
    pads = [(0, 0)] * a.ndim
    here, before = ([*pads[:axis], pad, *pads[axis + 1 :]] for pad in ((0, 1), (1, 0)))
    even = jnp.pad(a, here) + jnp.pad(b + c - a, before)
    odd = jnp.pad(b - c + d, here) - jnp.pad(d, before)
    return _interleaved(even, odd, axis)


def _kernel(kernel: Array, _: int) -> list[Array]:
    """E along the first axis, which disappears."""
    a, b, c = kernel
    return [a, (a + b + c) / 2, (a - b + c) / 2, c]


def _to_kernel(parts: Sequence[Array], _: int) -> Array:
    """Eᵀ along a new first axis."""
    a, b, c, d = parts
    return jnp.stack([a + (b + c) / 2, (b - c) / 2, (b + c) / 2 + d])


def _gradient(g: Array, axis: int) -> list[Array]:
    """R along an axis."""
    even, odd = (lax.slice_in_dim(g, first, g.shape[axis], 2, axis) for first in range(2))
    return [even, even + odd, even - odd, -odd]


def _result(parts: Sequence[Array], axis: int) -> Array:
    """Rᵀ along an axis."""
    a, b, c, d = parts
    return _interleaved(a + b + c, b - c - d, axis)


def _interleaved(even: Array, odd: Array, axis: int) -> Array:
    return jnp.stack([even, odd], axis + 1).reshape(*even.shape[:axis], -1, *even.shape[axis + 1 :])
