"""Convolutions of 3 samples along each axis as products of tiles: F(4, 3) and F(2, 3) of Lavin and Gray (arXiv:1509.09308).

A tile of 6 samples along an axis gives 4 results by 6 multiplications, where the sum over the taps takes 12. The formulas are
those of `gmmae.models.kernels.spectral`, with polynomials at a few points in place of Fourier transforms.

Factors have an axis for each axis of the volume, the last axis's first.
"""

from collections.abc import Sequence
from functools import cache, reduce

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from gmmae.models.kernels.spectral import Gradients

POINTS = {2: (1, -1), 4: (0.5**0.5, -(0.5**0.5), 2**0.5, -(2**0.5))}
"""By the results of a tile; 0 and infinity are points too. With 1 and 2 the errors of float32 would be five times as large."""

EDGE = 3
ROUNDING = 1e-12
"""Of an inverse's zeros."""

LARGE = 16
"""Edge of the result from which on tiles of 4 take less time on a CPU than tiles of 2."""


def fits(x: Array, kernel: Array) -> bool:
    """Whether the kernel has 3 taps along each axis, and every axis of x is even."""
    return all(edge == EDGE and size % 2 == 0 for edge, size in zip(kernel.shape[:-2], x.shape[:-2], strict=True))


def tiles(x: Array, kernel: Array, precision: lax.Precision) -> Array:
    """As `gmmae.models.kernels.convolution.convolve`, where `fits`."""
    tile = _tile(x)
    data, of_kernel, result = _matrices(tile)
    of_x = _forward(data, tile, x)
    products = jnp.matmul(_factors(of_x), _factors(_forward(of_kernel, EDGE, kernel)), precision=precision)
    return _adjoint(result, tile, products.reshape(*of_x.shape[:-1], -1))


def tiles_gradients(x: Array, kernel: Array, g: Array, precision: lax.Precision) -> Gradients:
    """The gradients of `tiles`; XLA computes D x once for both passes."""
    tile = _tile(x)
    data, of_kernel, result = _matrices(tile)
    of_x, kernels, of_g = _forward(data, tile, x), _forward(of_kernel, EDGE, kernel), _forward(result, tile, g)
    rows, columns = _factors(of_x), _factors(of_g)
    to_x = jnp.matmul(columns, _factors(kernels).mT, precision=precision)
    # A CPU takes half the time where the factor with fewer columns is the first one.
    if x.shape[-1] <= g.shape[-1]:
        to_kernel = jnp.matmul(rows.mT, columns, precision=precision)
    else:  # the barrier keeps XLA from moving the transposition into the product
        to_kernel = lax.optimization_barrier(jnp.matmul(columns.mT, rows, precision=precision)).mT
    return _adjoint(data, tile, to_x.reshape(of_x.shape)), _adjoint(of_kernel, EDGE, to_kernel.reshape(kernels.shape))


def _tile(x: Array) -> int:
    return 4 if all(size - 2 >= LARGE and (size - 2) % 4 == 0 for size in x.shape[:-2]) else 2


@cache
def _matrices(tile: int) -> list[np.ndarray]:
    """D, E and R: E and R have powers of the points, and D is the transposed inverse of such a matrix."""
    points = [0, *POINTS[tile]]
    sizes = tile + EDGE - 1, EDGE, tile
    powers, *others = (np.vstack([np.vander(points, size, increasing=True), np.eye(size)[-1]]) for size in sizes)
    return [np.linalg.inv(powers).T, *others]


def _forward(matrix: np.ndarray, step: int, x: Array) -> Array:
    """A matrix times the pieces of a volume, `step` apart, along every axis; the factors' axes come first."""
    for axis in range(0, 2 * (x.ndim - 2), 2):
        last = x.shape[axis] - matrix.shape[1] + 1
        pieces = [lax.slice_in_dim(x, first, first + last, step, axis) for first in range(matrix.shape[1])]
        x = jnp.stack(_combined(matrix, pieces))
    return x


def _adjoint(matrix: np.ndarray, step: int, x: Array) -> Array:
    for axis in reversed(range(0, x.ndim - 2, 2)):
        pieces = _combined(matrix.T, jnp.unstack(x))
        size = step * (pieces[0].shape[axis] - 1) + len(pieces)
        if beyond := pieces[step:]:
            after, before = ([(0, 0)] * axis + [pad] + [(0, 0)] * (x.ndim - axis - 2) for pad in ((0, 1), (1, 0)))
            pieces = [jnp.pad(piece, after) for piece in pieces[:step]]
            for i, piece in enumerate(beyond):
                pieces[i] += jnp.pad(piece, before)
        x = jnp.stack(pieces, axis + 1)
        x = lax.slice_in_dim(x.reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :]), 0, size, axis=axis)
    return x


def _combined(matrix: np.ndarray, pieces: Sequence[Array]) -> list[Array]:
    return [
        reduce(lax.add, [weight * piece for weight, piece in zip(row, pieces, strict=True) if abs(weight) > ROUNDING])
        for row in matrix.tolist()
    ]


def _factors(x: Array) -> Array:
    return x.reshape(x.shape[0] ** (x.ndim // 2 - 1), -1, x.shape[-1])
