import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from jax import lax

from gmmae.models.kernels import winograd
from gmmae.models.kernels.convolution import FORMS, Conv, convolve, form_of

CASES = [(n, size, kernel) for n in (1, 2, 3) for size, kernel in [(5, 3), (6, 2), (5, 5), (4, 1)]]
CASES += [(2, (7, 4), 3), (3, (4, 7, 5), 2), (1, 8, 3), (2, (4, 8), 3), (3, (4, 8, 6), 3)]
RTOL = 1e-12  # float64: sums of at most 375 terms of size one, in another order


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def arrays(n, size, kernel, channels=3, features=4, samples=2):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((*([size] * n if isinstance(size, int) else size), samples, channels))
    return jnp.asarray(x), jnp.asarray(rng.standard_normal((*[kernel] * n, channels, features)))


def library(x, kernel):
    axes = "012"[: x.ndim - 2]
    numbers = (f"{axes}NC", f"{axes}IO", f"{axes}NC")
    return lax.conv_general_dilated(x, kernel, (1,) * len(axes), "VALID", dimension_numbers=numbers)


def assert_close(ours, theirs):
    np.testing.assert_allclose(ours, theirs, rtol=RTOL, atol=RTOL * float(jnp.abs(theirs).max()))


def value_and_gradients(function, x, weights):
    @jax.jit
    def run(x, weights):
        value, back = jax.vjp(function, x, weights)
        return value, *back(jnp.sin(jnp.arange(value.size, dtype=value.dtype)).reshape(value.shape))

    return run(x, weights)


@pytest.mark.parametrize(("n", "size", "kernel"), CASES)
def test_every_form_and_its_gradients_equal_the_librarys(n, size, kernel):
    x, weights = arrays(n, size, kernel)
    value, *gradients = value_and_gradients(library, x, weights)
    g = jnp.sin(jnp.arange(value.size, dtype=value.dtype)).reshape(value.shape)
    expected = (value, *gradients, g.sum(range(n + 1)))
    for name, form in FORMS.items():
        if name == "tiles" and not winograd.fits(x, weights):
            continue
        got = (jax.jit(form.apply)(x, weights), *jax.jit(form.gradients)(x, weights, g))
        for ours, theirs in zip(got, expected, strict=True):
            assert ours.shape == theirs.shape
            assert_close(ours, theirs)
    assert all(gradient.any() for gradient in gradients)


def test_the_kernels_gradient_by_tiles_may_have_fewer_features_than_channels():
    x, weights = arrays(2, 8, 3, channels=5, features=2)
    _, *gradients = value_and_gradients(library, x, weights)
    g = jnp.sin(jnp.arange(6 * 6 * 2 * 2, dtype=x.dtype)).reshape(6, 6, 2, 2)
    for ours, theirs in zip(jax.jit(FORMS["tiles"].gradients)(x, weights, g)[:2], gradients, strict=True):
        assert_close(ours, theirs)


# One sample of three channels is convolved tap by tap, 40 in spectra along every axis, one channel in spectra along the first.
# A GPU takes more samples to be worth the spectra.
@pytest.mark.parametrize(("channels", "samples", "form"), [(3, 1, "direct"), (3, 38, "every axis"), (1, 2, "first axis")])
def test_the_form_follows_samples_and_channels(channels, samples, form):
    x, weights = arrays(3, 6, 3, channels, samples=samples)
    assert form_of(x, weights, "cpu") == FORMS[form]
    assert form_of(x[:, :, :, :37], weights, "cuda") == FORMS["direct" if form == "every axis" else form]
    assert form_of(x, weights, "cuda") == FORMS[form]
    assert form_of(x, weights, "tpu") == FORMS["library"]
    for ours, theirs in zip(value_and_gradients(convolve, x, weights), value_and_gradients(library, x, weights), strict=True):
        assert_close(ours, theirs)


@pytest.mark.parametrize(
    ("n", "size", "kernel", "padding"), [(2, (7, 4), 3, "VALID"), *((*case, "SAME") for case in CASES)], ids=str
)
def test_layer_equals_flax(n, size, kernel, padding):
    x, weights = arrays(n, size, kernel)
    params = {"params": {"kernel": weights, "bias": jnp.arange(4.0)}}
    ours = jnp.moveaxis(jax.jit(Conv(4, kernel, padding).apply)(params, x), -2, 0)
    reference = nn.Conv(4, (kernel,) * n, padding=padding, param_dtype=jnp.float64)
    theirs = jax.jit(reference.apply)(params, jnp.moveaxis(x, -2, 0))
    assert ours.shape == theirs.shape
    assert_close(ours, theirs)


@pytest.mark.parametrize(
    ("size", "channels", "features", "form"),
    [((6, 8), 32, 16, "tiles"), ((6, 8), 16, 16, "direct"), ((6, 7), 32, 16, "direct"), (6, 32, 16, "every axis")],
)
def test_a_cpu_takes_tiles_for_many_channels_in_two_dimensions_of_even_size(size, channels, features, form):
    x, weights = arrays(3 if size == 6 else 2, size, 3, channels, features, samples=16)
    assert form_of(x, weights, "cpu") == FORMS[form]
    assert form_of(x, weights, "cuda") in (FORMS["direct"], FORMS["every axis"])
    for ours, theirs in zip(value_and_gradients(convolve, x, weights), value_and_gradients(library, x, weights), strict=True):
        assert_close(ours, theirs)


def test_tiles_round_float32_like_the_direct_form():
    x, weights = arrays(2, 18, 3, 64, 64, samples=1)
    g, apart = jnp.cos(jnp.arange(16 * 16 * 64.0)).reshape(16, 16, 1, 64), {}
    for name in ("tiles", "direct"):
        form = FORMS[name]
        wanted = (form.apply(x, weights), *form.gradients(x, weights, g))
        got = (form.apply(*single(x, weights)), *form.gradients(*single(x, weights, g)))
        apart[name] = [float(jnp.abs(a - b).max() / jnp.abs(b).max()) for a, b in zip(got, wanted, strict=True)]
    assert all(tiles < 4 * direct + 1e-7 for tiles, direct in zip(apart["tiles"], apart["direct"], strict=True)), apart


def single(*given):
    return tuple(array.astype(jnp.float32) for array in given)
