from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from jax import lax

from gmmae.models.kernels import winograd
from gmmae.models.kernels.convolution import FORMS, Conv, convolve, form_of
from gmmae.models.kernels.precision import FULL
from tests.models.test_convolutions import assert_close

CASES = [(n, size, kernel) for n in (1, 2, 3) for size, kernel in [(5, 3), (6, 2), (5, 5), (4, 1)]]
CASES += [(2, (7, 4), 3), (3, (4, 7, 5), 2), (1, 8, 3), (2, (4, 8), 3), (3, (4, 8, 6), 3)]


pytestmark = pytest.mark.usefixtures("x64")


def arrays(n, size, kernel, channels=3, features=4, samples=2):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((*([size] * n if isinstance(size, int) else size), samples, channels))
    return jnp.asarray(x), jnp.asarray(rng.standard_normal((*[kernel] * n, channels, features)))


def library(x, kernel, bias=0.0):
    axes = "012"[: x.ndim - 2]
    numbers = (f"{axes}NC", f"{axes}IO", f"{axes}NC")
    return lax.conv_general_dilated(x, kernel, (1,) * len(axes), "VALID", dimension_numbers=numbers) + bias


@partial(jax.jit, static_argnums=0)
def value_and_gradients(function, *args):
    value, back = jax.vjp(function, *args)
    return value, *back(jnp.sin(jnp.arange(value.size, dtype=value.dtype)).reshape(value.shape))


@pytest.mark.parametrize(
    ("n", "size", "kernel", "channels", "features"), [*((*case, 3, 4) for case in CASES), (2, 8, 3, 5, 2)], ids=str
)
def test_every_form_and_its_gradients_equal_the_librarys(n, size, kernel, channels, features):
    x, weights = arrays(n, size, kernel, channels, features)
    expected = value, *gradients = value_and_gradients(library, x, weights)
    g = jnp.sin(jnp.arange(value.size, dtype=value.dtype)).reshape(value.shape)
    assert all(gradient.any() for gradient in gradients)
    for name, form in FORMS.items():
        if name != "tiles" or winograd.fits(x, weights):
            apply, gradients = (jax.jit(partial(function, precision=FULL)) for function in form)
            assert_close((apply(x, weights), *gradients(x, weights, g)), expected)


@pytest.mark.parametrize(
    ("size", "channels", "features", "samples", "cpu", "cuda"),
    [
        ((6, 6, 6), 3, 4, 1, "direct", "direct"),
        ((6, 6, 6), 3, 4, 37, "every axis", "direct"),
        ((6, 6, 6), 3, 4, 38, "every axis", "every axis"),
        ((6, 6, 6), 1, 4, 2, "first axis", "first axis"),
        ((6, 6, 6), 32, 16, 16, "every axis", "direct"),
        ((6, 8), 32, 16, 16, "tiles", "direct"),
        ((18, 22), 16, 16, 2, "tiles", "direct"),
        ((6, 8), 16, 15, 16, "direct", "direct"),
        ((6, 7), 32, 16, 16, "direct", "direct"),
    ],
)
def test_the_form_follows_samples_channels_and_size(size, channels, features, samples, cpu, cuda):
    x, weights = arrays(len(size), size, 3, channels, features, samples)
    assert [form_of(x, weights, name) for name in ("cpu", "cuda", "tpu")] == [FORMS[name] for name in (cpu, cuda, "library")]
    given = x, weights, jnp.arange(float(features))
    assert_close(value_and_gradients(convolve, *given), value_and_gradients(library, *given))


@pytest.mark.parametrize("padding", ["VALID", "SAME"])
@pytest.mark.parametrize(("n", "size", "kernel"), CASES[::3], ids=str)
def test_layer_equals_flax(n, size, kernel, padding):
    x, weights = arrays(n, size, kernel)
    params = {"params": {"kernel": weights, "bias": jnp.arange(4.0)}}
    ours: Any = jax.jit(Conv(4, kernel, padding).apply)(params, x)
    reference = nn.Conv(4, (kernel,) * n, padding=padding, param_dtype=jnp.float64)
    assert_close([jnp.moveaxis(ours, -2, 0)], [jax.jit(reference.apply)(params, jnp.moveaxis(x, -2, 0))])


def test_tiles_round_float32_like_the_direct_form():
    x, weights = arrays(2, 18, 3, 64, 64, samples=1)
    given = x, weights, jnp.cos(jnp.arange(16 * 16 * 64.0)).reshape(16, 16, 1, 64)

    def errors(form):
        exact, rounded = (
            (form.apply(*arrays[:2], FULL), *form.gradients(*arrays, FULL))
            for arrays in (given, [array.astype(jnp.float32) for array in given])
        )
        return [float(jnp.abs(a - b).max() / jnp.abs(b).max()) for a, b in zip(rounded, exact, strict=True)]

    assert all(tiles < 4 * direct + 1e-7 for tiles, direct in zip(*map(errors, (FORMS["tiles"], FORMS["direct"])), strict=True))
