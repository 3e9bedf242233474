"""The kernel as a CPU interprets it, against float64 and beside the product."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gmmae.models.kernels import loss_kernel
from gmmae.models.losses import LOSSES, msle
from gmmae.models.mixture import Ranges
from tests.models.kernels.by_product import errors, problem, product, with_gradient

in_python = partial(loss_kernel.losses, interpret=True)
kernel = with_gradient(in_python)
reference = with_gradient(product)


CASES = [
    ("msle", (8, 8, 8), 50, 3, 1.0, "partial"),
    ("mse", (5, 7), 3, 2, 1.0, "paper"),
    ("mae", (13,), 1, 1, 1.0, "partial"),
]
CASES += [
    pytest.param(*case, marks=pytest.mark.slow)
    for case in [
        ("msle", (16, 16, 16), 50, 5, 3.0, "partial"),
        ("mse", (6, 4, 9), 200, 33, 2.0, "partial"),
        ("msle", (300,), 17, 7, 2.0, "paper"),
        ("msle", (11, 12), 64, 31, 2.0, "partial"),
    ]
]


@pytest.mark.parametrize(("loss", "edges", "components", "samples", "spread", "covariance"), CASES)
def test_losses_and_gradients_are_those_of_float64(loss, edges, components, samples, spread, covariance):
    ranges = Ranges(covariance, "tanh", tuple(1 / edge for edge in reversed(edges)), 0.99)
    planes, targets = problem(np.random.default_rng(0), samples, edges, components, spread)
    with jax.enable_x64(True):
        exact = reference(*(jnp.asarray(x, jnp.float64) for x in (planes, targets)), LOSSES[loss], ranges)
    theirs, ours = (errors(form(planes, targets, LOSSES[loss], ranges), exact) for form in (reference, kernel))
    # The exponent cancels in float32 (gmmae.models.mixture) in both forms, in each by chance: so the bound is the product's.
    assert ours[0] < max(4 * theirs[0], 1e-6)
    assert ours[1] < max(4 * theirs[1], 1e-5)
    alone = jax.jit(partial(in_python, point_loss=LOSSES[loss], ranges=ranges))(planes, targets)  # as in a validation
    np.testing.assert_allclose(alone, exact[0], rtol=max(4 * theirs[0], 1e-6))


@pytest.mark.parametrize("value", [50.0, -50.0, 1e4, -1e4])
def test_extreme_logits_have_a_finite_loss_and_gradient(value):
    ranges = Ranges("partial", "tanh", (0.0625,) * 3, 0.99)
    planes = np.full((1, 10, 3), value, np.float32) * np.array([1, -1, 1], np.float32)
    for found in kernel(planes, np.full((1, 4, 4, 4), 0.125, np.float32), msle, ranges):
        assert jnp.isfinite(found).all()
