"""Convolutions as products of spectra, by discrete Fourier transforms that are matrix products.

A circular cross-correlation is a product of spectra, and one whose period is the volume's size is wrong only where the kernel
would reach over the edge, so without padding it is exact. Volumes of the sizes at hand (6 to 32) need no fast transform:
along one axis it is a product with a small matrix. `every_axis` transforms all axes: a tenth of the operations of the sum
over the kernel's taps, where there are several channels. `first_axis` transforms one, and adds the taps along the others: for
one channel, whose full spectrum would be mostly transforms of the result.

Arrays are laid out `*volume samples channels`, so that a transform along any axis multiplies a matrix from the left and moves
nothing. The gradients are convolutions of the same kind: with `out = x ★ k`, and hats for spectra, `out^ = x^ conj(k^)`,
`to_x^ = g^ k^` and `to_k^ = x^ conj(g^)`.
"""

import itertools
import math
from collections.abc import Sequence
from functools import cache

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float64

from gmmae.models.products import FULL

Spectrum = Float[Array, "frequencies rows columns"]
"""Rows are (part, sample) where it has both parts: first the real parts of all samples, then the imaginary ones."""


def every_axis(x: Array, kernel: Array) -> Array:
    """`out[p] = Σ_q x[p + q] kernel[q]`: shapes as in `gmmae.models.convolution.convolve`."""
    period = x.shape[:-2]
    [of_x], (real, imag) = _spectrum(x, period, "both"), _spectrum(kernel, period, "real", "imaginary")
    product = _plus_i_times(_product("fnc,fco->fno", of_x, real), _product("fnc,fco->fno", of_x, imag), -1)
    return _from_spectrum([product], period, _valid(x, kernel), (x.shape[-2], kernel.shape[-1]))


def every_axis_gradients(x: Array, kernel: Array, g: Array) -> tuple[Array, Array]:
    """Of `every_axis`. The spectra of x and kernel are those of the forward pass, and XLA computes them once."""
    period = x.shape[:-2]
    [of_x], (real, imag) = _spectrum(x, period, "both"), _spectrum(kernel, period, "real", "imaginary")
    of_g, of_ig = _spectrum(g, period, "both", "both times i")
    to_x = _plus_i_times(_product("fno,fco->fnc", of_g, real), _product("fno,fco->fnc", of_g, imag), 1)
    to_kernel = [_product("fnc,fno->fco", of_x, factor) for factor in (of_g, of_ig)]
    return (
        _from_spectrum([to_x], period, period, x.shape[-2:]),
        _from_spectrum(to_kernel, period, kernel.shape[:-2], kernel.shape[-2:]),
    )


def first_axis(x: Array, kernel: Array) -> Array:
    """`out[p] = Σ_q x[p + q] kernel[q]`: shapes as in `gmmae.models.convolution.convolve`."""
    period, out, features = x.shape[:1], _valid(x, kernel), kernel.shape[-1]
    real, imag = _spectrum(kernel.reshape(len(kernel), -1, features), period, "real", "imaginary")
    factors = (jnp.concatenate([real, imag], axis=1), jnp.concatenate([-imag, real], axis=1))
    product = [_product("ftr,fto->fro", _patches(x, kernel), factor) for factor in factors]
    return _from_spectrum(product, period, out[:1], (-1, features)).reshape(*out, -1, features)


def first_axis_gradients(x: Array, kernel: Array, g: Array) -> tuple[Array, Array]:
    """Of `first_axis`. That of x is taken along every axis; where x is data, nobody asks for it."""
    period, features = x.shape[:1], kernel.shape[-1]
    patches = _patches(x, kernel)
    factors = _spectrum(g.reshape(len(g), -1, features), period, "real", "imaginary")
    by_real, by_imag = (jnp.split(_product("ftr,fro->fto", patches, factor), 2, axis=1) for factor in factors)
    product = [by_real[0] + by_imag[1], by_real[1] - by_imag[0]]
    to_kernel = _from_spectrum(product, period, kernel.shape[:1], (-1, features)).reshape(kernel.shape)
    return every_axis_gradients(x, kernel, g)[0], to_kernel


def windows(volume: Sequence[int], edges: Sequence[int]) -> list[tuple[slice, ...]]:
    """What each tap of a kernel sees of a volume without padding, along as many axes as are given."""
    corners = itertools.product(*(range(edge) for edge in edges))
    reach = [size - edge + 1 for size, edge in zip(volume, edges, strict=True)]
    return [tuple(slice(at, at + size) for at, size in zip(corner, reach, strict=True)) for corner in corners]


def _valid(x: Array, kernel: Array) -> tuple[int, ...]:
    return tuple(size - edge + 1 for size, edge in zip(x.shape[:-2], kernel.shape[:-2], strict=True))


def _patches(x: Array, kernel: Array) -> Float[Array, "frequencies taps rows"]:
    """What the kernel reaches along all axes but the first, at each frequency along the first; real parts, then imaginary."""
    channels_first = jnp.moveaxis(x, -1, 1)
    parts = _spectrum(channels_first.reshape(len(x), x.shape[-1], -1), x.shape[:1], "real", "imaginary")
    volumes = [part.reshape(len(part), *channels_first.shape[1:]) for part in parts]
    seen = windows(x.shape[1:-2], kernel.shape[1:-2])
    taps = jnp.stack([part[(slice(None), slice(None), *window)] for part in volumes for window in seen], axis=1)
    return taps.reshape(len(taps), -1, math.prod(_valid(x, kernel)[1:]) * x.shape[-2])


def _spectrum(x: Array, period: tuple[int, ...], *parts: str) -> list[Spectrum]:
    """The discrete Fourier transform along the leading axes, zeros up to `period` appended; half of it along the first.

    Args:
      parts: what of it is wanted, as `_matrix` calls it.
    """
    *volume, _, columns = x.shape
    frequencies = _frequencies(period)
    last = len(volume) - 1
    for axis in range(last):
        x = _from_left("both", period, volume, axis, x)
    found = [_from_left(part, period, volume, last, x) for part in parts]
    return [each.reshape(math.prod(frequencies), -1, columns) for each in found]


def _from_spectrum(parts: list[Spectrum], period: tuple[int, ...], volume: tuple[int, ...], shape: tuple[int, ...]) -> Array:
    """The inverse of `_spectrum`, as much of it as `volume` says, of one array with both parts or of one for each."""
    names = ["inverse"] if len(parts) == 1 else ["inverse of real", "inverse of imaginary"]
    last = len(volume) - 1
    x = sum(_from_left(name, period, volume, last, part) for name, part in zip(names, parts, strict=True))
    for axis in reversed(range(last)):
        x = _from_left("inverse", period, volume, axis, jnp.asarray(x))
    return jnp.asarray(x).reshape(*volume, *shape)


def _frequencies(period: tuple[int, ...]) -> tuple[int, ...]:
    return (period[0] // 2 + 1, *period[1:])


def _from_left(name: str, period: tuple[int, ...], volume: Sequence[int], axis: int, x: Array) -> Float[Array, "lead out rest"]:
    """A matrix of `_matrix` times an axis of x; the axes before it are in frequencies, those after it in points."""
    # One matrix an entry of the leading axis: XLA would otherwise move that axis to the end, and back.
    matrices = _matrices(name, period[axis], volume[axis], axis == 0, math.prod(_frequencies(period)[:axis]), str(x.dtype))
    return jnp.matmul(matrices, x.reshape(len(matrices), matrices.shape[-1], -1), precision=FULL)


# Kept, because XLA sees that two results are the same only where the constants are the same object.
@cache
def _matrices(
    name: str, period: int, points: int, first: bool, copies: int, dtype: str
) -> Float[np.ndarray, "copies rows columns"]:
    matrix = _matrix(name, period, points, first).astype(dtype)
    return np.ascontiguousarray(np.broadcast_to(matrix, (copies, *matrix.shape)))


def _matrix(name: str, period: int, points: int, first: bool) -> Float64[np.ndarray, "rows columns"]:
    """A matrix of `exp(-2πi f p / period)` in real numbers.

    Its rows are (frequency, part), or frequency where one part is asked for; its columns the points of the first axis, where
    data are real and half the frequencies determine them, else (part, point). The inverse is its transpose, scaled; along the
    first axis a frequency then stands for its conjugate too, where that is another one.
    """
    frequencies = np.arange(period // 2 + 1 if first else period)
    angle = 2 * np.pi * (np.outer(frequencies, np.arange(points)) % period) / period
    real, imag = np.cos(angle), -np.sin(angle)
    if not first:
        real, imag = np.concatenate([real, -imag], axis=1), np.concatenate([imag, real], axis=1)
    count = np.where(frequencies * 2 % period == 0, 1, 2) if first else np.ones(period)
    scaled_real, scaled_imag = (part.T * count / period for part in (real, imag))
    return {
        "both": np.stack([real, imag], axis=1).reshape(-1, real.shape[1]),
        "both times i": np.stack([-imag, real], axis=1).reshape(-1, real.shape[1]),
        "real": real,
        "imaginary": imag,
        "inverse": np.stack([scaled_real, scaled_imag], axis=2).reshape(len(scaled_real), -1),
        "inverse of real": scaled_real,
        "inverse of imaginary": scaled_imag,
    }[name]


def _product(subscripts: str, a: Array, b: Array) -> Array:
    return jnp.einsum(subscripts, a, b, precision=FULL)


def _plus_i_times(a: Spectrum, b: Spectrum, sign: int) -> Spectrum:
    """`a + sign i b` of spectra with both parts."""
    real, imag = jnp.split(b, 2, axis=1)
    return a + jnp.concatenate([-sign * imag, sign * real], axis=1)
