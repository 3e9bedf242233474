"""The kernel as a CPU interprets it, against float64 and beside the product."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gmmae.models.kernels import loss_kernel
from gmmae.models.losses import LOSSES, msle
from gmmae.models.mixture import Ranges, head_planes
from tests.models.kernels.by_product import errors, product, with_gradient

kernel = with_gradient(partial(loss_kernel.losses, interpret=True))
reference = with_gradient(product)


def problem(samples, edges, components, spread, seed=0):
    """Logits of that spread, which at 2 and more makes mixtures sharp, and densities to compare with."""
    rng = np.random.default_rng(seed)
    planes = spread * rng.standard_normal((samples, sum(head_planes(len(edges)).values()), components))
    return planes.astype(np.float32), rng.exponential(0.1, (samples, *edges)).astype(np.float32)


CASES = [
    ("msle", (8, 8, 8), 50, 3, 1.0),
    ("mse", (5, 7), 3, 2, 1.0),
    ("mae", (13,), 1, 1, 1.0),
    pytest.param("msle", (16, 16, 16), 50, 5, 3.0, marks=pytest.mark.slow),
    pytest.param("mse", (6, 4, 9), 200, 33, 2.0, marks=pytest.mark.slow),
    pytest.param("msle", (300,), 17, 7, 2.0, marks=pytest.mark.slow),
    pytest.param("msle", (11, 12), 64, 31, 2.0, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("loss", "edges", "components", "samples", "spread"), CASES)
@pytest.mark.parametrize("covariance", ["partial", "paper"])
def test_losses_and_gradients_are_those_of_float64(loss, edges, components, samples, spread, covariance):
    if covariance == "paper" and len(edges) == 3:
        covariance, spread = "partial", spread / 2  # Eq. 6 to the letter may be undefined; another spread instead
    ranges = Ranges(covariance, "tanh", tuple(1 / edge for edge in reversed(edges)), 0.99)
    planes, targets = problem(samples, edges, components, spread)
    with jax.enable_x64(True):
        exact = reference(*(jnp.asarray(x, jnp.float64) for x in (planes, targets)), LOSSES[loss], ranges)
    theirs, ours = (errors(form(planes, targets, LOSSES[loss], ranges), exact) for form in (reference, kernel))
    # The exponent cancels in float32 (gmmae.models.mixture) in both forms, in each by chance: so the bound is the product's.
    assert ours[0] < max(4 * theirs[0], 1e-6)
    assert ours[1] < max(4 * theirs[1], 1e-5)


def test_without_a_gradient_the_losses_are_the_same():
    planes, targets = problem(3, (6, 5), 7, 1.0)
    ranges = Ranges("partial", "sigmoid", (0.1, 0.1), 0.99)
    alone = jax.jit(lambda p, t: loss_kernel.losses(p, t, msle, ranges, True))(planes, targets)
    np.testing.assert_allclose(alone, kernel(planes, targets, msle, ranges)[0], rtol=1e-6)  # compiled apart


@pytest.mark.parametrize("value", [50.0, -50.0, 1e4, -1e4])
def test_extreme_logits_have_a_finite_loss_and_gradient(value):
    ranges = Ranges("partial", "tanh", (0.0625,) * 3, 0.99)
    planes = np.full((1, 10, 3), value, np.float32) * np.array([1, -1, 1], np.float32)
    for found in kernel(planes, np.full((1, 4, 4, 4), 0.125, np.float32), msle, ranges):
        assert jnp.isfinite(found).all()
