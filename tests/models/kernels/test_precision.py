"""Products in TF32: what a CPU computes with rounded operands."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from gmmae.models.encoder import Encoder, Heads
from gmmae.models.kernels.convolution import convolve
from gmmae.models.kernels.precision import TF32, matmul


def tf32(x: Any) -> Any:
    """Float32 with 10 bits after the point: half of the last kept bit is added, and the 13 bits below cut off.

    Ties go up here and to even in IEEE; random numbers have none that matter.
    """
    bits = np.asarray(x, np.float32).view(np.uint32)
    return ((bits + 0x1000) & 0xFFFFE000).view(np.float32)


def draw(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def value_and_gradients(function, *arguments, g) -> tuple[Any, ...]:
    value, back = jax.vjp(function, *map(jnp.asarray, arguments))
    return value, *back(jnp.asarray(g))


def test_tf32_rounds_the_operands_of_a_product_and_of_its_gradients():
    x, y, g = draw(5, 7), draw(7, 3), draw(5, 3)
    rx, ry, rg = (tf32(a).astype(np.float64) for a in (x, y, g))
    expected = (rx @ ry, rg @ ry.T, rx.T @ rg)
    # Float32 sums of at most 7 terms of size one: an error of 1e-6, where rounding to 10 bits makes one of 1e-3.
    for ours, by_hand in zip(value_and_gradients(lambda x, y: matmul(x, y, True), x, y, g=g), expected, strict=True):
        np.testing.assert_allclose(ours, by_hand, atol=3e-6)
    for ours, by_hand in zip(value_and_gradients(lambda x, y: matmul(x, y, False), x, y, g=g), expected, strict=True):
        assert 1e-5 < np.abs(ours - by_hand).max() < 1e-2


@pytest.mark.slow
def test_a_convolution_in_tf32_is_that_of_rounded_operands():
    x, kernel, g = draw(6, 6, 6, 2, 3), draw(3, 3, 3, 3, 4), draw(4, 4, 4, 2, 4)

    def library(x, kernel):
        numbers = ("012NC", "012IO", "012NC")
        return lax.conv_general_dilated(x, kernel, (1, 1, 1), "VALID", dimension_numbers=numbers, precision="highest")

    expected = value_and_gradients(library, tf32(x), tf32(kernel), g=tf32(g))
    for ours, theirs in zip(value_and_gradients(partial(convolve, tf32=True), x, kernel, g=g), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)  # sums of at most 81 terms of size one
    for ours, theirs in zip(value_and_gradients(convolve, x, kernel, g=g), expected, strict=True):
        assert np.abs(ours - theirs).max() > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("module", [Encoder((4,), (3,), "VALID", "silu", 5), Heads(3, 2)], ids=["encoder", "heads"])
def test_the_model_takes_tf32(module):
    x = jnp.asarray(draw(2, 8, 8) if isinstance(module, Encoder) else draw(2, 8))
    params = module.init(jax.random.key(0), x)

    def flat(output):
        return np.concatenate([leaf.ravel() for leaf in jax.tree.leaves(output)])

    full = flat(module.apply(params, x))
    with jax.default_matmul_precision(TF32):
        rounded = flat(module.apply(params, x))
    assert 1e-5 < np.abs(full - rounded).max() < 1e-2
