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
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Float64

PRECISION = lax.Precision.HIGHEST


class Spectrum(NamedTuple):
    """Real and imaginary part, kept apart because products of complex matrices are slow."""

    real: Float[Array, "frequencies rows columns"]
    imag: Float[Array, "frequencies rows columns"]


def every_axis(x: Array, kernel: Array) -> Array:
    """`out[p] = Σ_q x[p + q] kernel[q]`: shapes as in `gmmae.models.convolution.convolve`."""
    period = x.shape[:-2]
    product = _times("fnc,fco->fno", _spectrum(x, period), _spectrum(kernel, period), conjugate=True)
    return _from_spectrum(product, period, _valid(x, kernel))


def every_axis_gradients(x: Array, kernel: Array, g: Array) -> tuple[Array, Array]:
    """Of `every_axis`. The spectra of x and kernel are those of the forward pass, and XLA computes them once."""
    period = x.shape[:-2]
    spectrum = _spectrum(g, period)
    to_x = _times("fno,fco->fnc", spectrum, _spectrum(kernel, period), conjugate=False)
    to_kernel = _times("fnc,fno->fco", _spectrum(x, period), spectrum, conjugate=True)
    return _from_spectrum(to_x, period, period), _from_spectrum(to_kernel, period, kernel.shape[:-2])


def first_axis(x: Array, kernel: Array) -> Array:
    """`out[p] = Σ_q x[p + q] kernel[q]`: shapes as in `gmmae.models.convolution.convolve`."""
    period, features = x.shape[:1], kernel.shape[-1]
    taps = _spectrum(kernel.reshape(len(kernel), -1, features), period)
    to_real = jnp.concatenate([taps.real, taps.imag], axis=1)
    to_imag = jnp.concatenate([-taps.imag, taps.real], axis=1)
    product = Spectrum(*(_product("ftr,fto->fro", _patches(x, kernel), to) for to in (to_real, to_imag)))
    out = _valid(x, kernel)
    return _from_spectrum(product, period, out[:1]).reshape(*out, -1, features)


def first_axis_gradients(x: Array, kernel: Array, g: Array) -> tuple[Array, Array]:
    """Of `first_axis`. That of x is taken along every axis; where x is data, nobody asks for it."""
    period, features = x.shape[:1], kernel.shape[-1]
    seen = _spectrum(g.reshape(len(g), -1, features), period)
    patches = _patches(x, kernel)
    by_real, by_imag = (jnp.split(_product("ftr,fro->fto", patches, part), 2, axis=1) for part in seen)
    product = Spectrum(by_real[0] + by_imag[1], by_real[1] - by_imag[0])
    to_kernel = _from_spectrum(product, period, kernel.shape[:1]).reshape(kernel.shape)
    return every_axis_gradients(x, kernel, g)[0], to_kernel


def _valid(x: Array, kernel: Array) -> tuple[int, ...]:
    return tuple(size - edge + 1 for size, edge in zip(x.shape[:-2], kernel.shape[:-2], strict=True))


def _patches(x: Array, kernel: Array) -> Float[Array, "frequencies taps rows"]:
    """What the kernel reaches along all axes but the first, at each frequency along the first; real parts, then imaginary."""
    channels_first = jnp.moveaxis(x, -1, 1)
    spectrum = _spectrum(channels_first.reshape(len(x), x.shape[-1], -1), x.shape[:1])
    parts = [part.reshape(len(part), *channels_first.shape[1:]) for part in spectrum]
    out = _valid(x, kernel)[1:]
    corners = list(itertools.product(*(range(edge) for edge in kernel.shape[1:-2])))
    windows = [tuple(slice(at, at + size) for at, size in zip(corner, out, strict=True)) for corner in corners]
    taps = jnp.stack([part[(slice(None), slice(None), *window)] for part in parts for window in windows], axis=1)
    return taps.reshape(len(taps), -1, math.prod(out) * x.shape[-2])


def _spectrum(x: Array, period: tuple[int, ...]) -> Spectrum:
    """The discrete Fourier transform along the leading axes, zeros up to `period` appended; half of it along the last axis."""
    *volume, rows, columns = x.shape
    matrices = [
        _transform(p, points, axis == len(volume) - 1) for axis, (p, points) in enumerate(zip(period, volume, strict=True))
    ]
    for axis in reversed(range(1, len(volume))):
        x = _from_left(matrices[axis], x.reshape(math.prod(volume[:axis]), matrices[axis].shape[1], -1))
    x = x.reshape(1, matrices[0].shape[1], -1)
    return Spectrum(*(_from_left(half, x).reshape(-1, rows, columns) for half in np.split(matrices[0], 2)))


def _from_spectrum(spectrum: Spectrum, period: tuple[int, ...], volume: tuple[int, ...]) -> Array:
    """The inverse of `_spectrum`, as much of it as `volume` says."""
    *_, rows, columns = spectrum.real.shape
    matrices = [
        _inverse(p, points, axis == len(volume) - 1) for axis, (p, points) in enumerate(zip(period, volume, strict=True))
    ]
    real, imag = (
        _from_left(half, part.reshape(1, half.shape[1], -1))
        for half, part in zip(np.split(matrices[0], 2, axis=1), spectrum, strict=True)
    )
    x = real + imag
    for axis in range(1, len(volume)):
        x = _from_left(matrices[axis], x.reshape(math.prod(volume[:axis]), matrices[axis].shape[1], -1))
    return x.reshape(*volume, rows, columns)


def _transform(period: int, points: int, last: bool) -> Float64[np.ndarray, "frequencies points"]:
    """The matrix of `exp(-2πi f p / period)` for real numbers: its rows are (part, frequency).

    Its columns are the points of the last axis, where data are real and half the frequencies determine it, else (point, part).
    """
    angle = 2 * np.pi * (np.outer(np.arange(period // 2 + 1 if last else period), np.arange(points)) % period) / period
    real, imag = np.cos(angle), -np.sin(angle)
    if last:
        return np.concatenate([real, imag])
    return np.stack([np.stack([real, -imag], axis=-1), np.stack([imag, real], axis=-1)]).reshape(2 * period, 2 * points)


def _inverse(period: int, points: int, last: bool) -> Float64[np.ndarray, "points frequencies"]:
    """Of `_transform`. On the last axis a frequency also stands for its conjugate, where that is another one."""
    frequencies = np.arange(period // 2 + 1)
    count = np.tile(np.where(frequencies * 2 % period == 0, 1, 2), 2) if last else 1
    return _transform(period, points, last).T * count / period


def _from_left(matrix: np.ndarray, x: Float[Array, "lead size rest"]) -> Float[Array, "lead out rest"]:
    # One matrix an entry of the leading axis: XLA would otherwise move that axis to the end, and back.
    each = np.broadcast_to(matrix.astype(x.dtype), (len(x), *matrix.shape))
    return jnp.matmul(each, x, precision=PRECISION)


def _product(subscripts: str, a: Array, b: Array) -> Array:
    return jnp.einsum(subscripts, a, b, precision=PRECISION)


def _times(subscripts: str, a: Spectrum, b: Spectrum, *, conjugate: bool) -> Spectrum:
    """The products of complex matrices, a frequency each; with `conjugate`, of b's conjugate."""
    rr, ii, ri, ir = (_product(subscripts, p, q) for p, q in ((a[0], b[0]), (a[1], b[1]), (a[0], b[1]), (a[1], b[0])))
    return Spectrum(rr + ii, ir - ri) if conjugate else Spectrum(rr - ii, ir + ri)
