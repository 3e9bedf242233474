import itertools
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jax.test_util import check_grads
from scipy.stats import multivariate_normal, norm

from gmmae.models import mixture as gm
from gmmae.models.mixture import Mixture, Ranges, coefficients_from_logits, grid, head_planes

# Compiled whole: operation by operation, this file takes minutes.
from_logits = jax.jit(gm.from_logits, static_argnames="ranges")
density = jax.jit(gm.density)
log_density = jax.jit(gm.log_density)
sample = jax.jit(Mixture.sample, static_argnums=2)

SIZES = {1: 16, 2: 8, 3: 8}  # edges of the grid: 512 points at most keep SciPy's part short


def random_logits(rng, n, components, batch=(), dtype: Any = np.float32):
    numbers = [rng.standard_normal((*batch, components, count)) for count in head_planes(n).values()]
    return jnp.asarray(np.concatenate(numbers, axis=-1).swapaxes(-1, -2), dtype)


def scipy_density(mixture, points):
    """M(x) of a batch of mixtures, one component at a time, in float64; covariance matrices go in, not their factors."""
    weights = np.exp(np.asarray(mixture.log_weights, np.float64))
    means, factors, points = (np.asarray(a, np.float64) for a in (mixture.means, mixture.scale_tril, points))
    covariances = factors @ factors.swapaxes(-1, -2)
    pdf: Any = multivariate_normal.pdf
    total = np.zeros((len(means), len(points)))
    for i, k in np.ndindex(weights.shape):
        total[i] += weights[i, k] * pdf(points, means[i, k], covariances[i, k])
    return total


# Density


@pytest.mark.parametrize(
    ("n", "seed"), [(n, n) for n in (1, 2, 3)] + [pytest.param(3, seed, marks=pytest.mark.slow) for seed in range(4, 8)]
)
def test_density_equals_scipy_for_a_hundred_random_mixtures(n, seed):
    """Each case is a hundred mixtures in both precisions.

    Logits are standard normal, as the heads give at the start. The monomial form cancels (see the module's docstring). In
    float32 it loses about eps · |x - μ|² / (σ² (1 - ρ²)): 5e-5 here at worst, and 3e-3 for logits of twice the standard
    deviation. In float64 the same cancellation leaves 1e-12. The float32 density is compared with the float64 density of the
    same float32 numbers, so that only its own rounding counts. Below 1e-30 a float32 exponential nears the subnormals and has
    few digits; the same holds in float64 below 1e-290.
    """
    rng = np.random.default_rng(seed)
    mixture = from_logits(random_logits(rng, n, int(rng.integers(1, 51)), batch=(100,)))
    single = density(mixture, grid(SIZES[n], n))
    assert single.dtype == jnp.float32
    with jax.enable_x64(True):
        points = grid(SIZES[n], n, jnp.float64)
        double = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), mixture)  # the very same numbers
        exact, logarithm = density(double, points), log_density(double, points)
    reference = scipy_density(mixture, points)
    for found, smallest, worst in ((single, 1e-30, 1e-4), (exact, 1e-290, 1e-10), (np.exp(logarithm), 1e-290, 1e-10)):
        keep = reference > smallest
        assert keep.mean() > 0.9
        np.testing.assert_allclose(np.asarray(found)[keep], reference[keep], rtol=worst)


def test_log_density_is_finite_where_density_underflows():
    mixture, point = Mixture(jnp.zeros(1), jnp.array([[-0.9]]), jnp.array([[[0.05]]])), jnp.array([[0.9]])
    assert density(mixture, point)[0] == 0
    expected = norm.logpdf(0.9, -0.9, 0.05)  # -645.9
    np.testing.assert_allclose(log_density(mixture, point), [expected], rtol=1e-5)  # float32: terms of 162 · (1, 2, 1) add up


# Parameters


def test_covariances_survive_the_way_through_the_factor_and_are_nan_if_not_positive_definite(x64):
    root = np.random.default_rng(0).standard_normal((4, 6, 3, 3))
    covariances = (root @ root.swapaxes(-1, -2) + 0.1 * np.eye(3)).copy()
    covariances[0, 0] = 1 + np.ones((3, 3)) - 3 * np.eye(3)
    mixture = Mixture.of(jnp.full((4, 6), 1 / 6), jnp.zeros((4, 6, 3)), jnp.asarray(covariances))
    covariances[0, 0] = np.nan
    np.testing.assert_allclose(mixture.covariances, covariances, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(mixture.weights, 1 / 6, rtol=1e-12)


@pytest.mark.parametrize(
    ("n", "covariance", "rho", "share"),
    [(1, "paper", "tanh", 1), (2, "paper", "sigmoid", 1), (3, "paper", "sigmoid", 0.8), (3, "paper", "tanh", 0.62)]
    + [(3, "partial", rho, 1) for rho in ("sigmoid", "tanh")],
)  # fmt: skip
def test_mixtures_of_logits_are_those_of_equations_6_to_13(x64, n, covariance, rho, share):
    """Eq. 6 with `paper`, which is undefined for some correlations; design.md names the share of the others."""
    rng, limit, floor = np.random.default_rng(n), 1.0 if covariance == "paper" else 0.9, np.array([0.1, 0.05, 0.02][:n])
    planes = np.array(random_logits(rng, n, 2000, dtype=np.float64))
    uniform = rng.uniform(1e-6, 1 - 1e-6, (len(planes) - 2 * n - 1, 2000))  # then ρ is uniform
    planes[1 + 2 * n :] = np.log(uniform / (1 - uniform)) if rho == "sigmoid" else np.arctanh(2 * uniform - 1)
    planes[1 : 1 + 2 * n, :2] = [-1e4, 1e4]  # the ends of the ranges of μ and σ
    ranges = Ranges(covariance, rho, tuple(floor), limit)
    mixture = from_logits(jnp.asarray(planes), ranges)
    correlations = np.broadcast_to(np.eye(n), (2000, n, n)).copy()
    pairs = limit * (uniform if rho == "sigmoid" else 2 * uniform - 1)
    if n == 3 and covariance == "partial":
        pairs[2] = pairs[0] * pairs[1] + pairs[2] * np.sqrt((1 - pairs[0] ** 2) * (1 - pairs[1] ** 2))
    for pair, (i, j) in zip(pairs, itertools.combinations(range(n), 2), strict=True):
        correlations[:, i, j] = correlations[:, j, i] = pair
    valid = np.linalg.eigvalsh(correlations).min(-1) > 0
    assert valid.mean() == pytest.approx(share, abs=0.04 * (share < 1))  # 4 standard errors of 2000 draws
    sigma = (floor[:, None] + (1 - floor[:, None]) * scipy.special.expit(planes[1 + n : 1 + 2 * n])).T
    # The factor goes through (ρ23 - ρ12 ρ13) / √…, which costs a few digits where a correlation is close to one.
    expected = sigma[:, :, None] * sigma[:, None, :] * correlations
    np.testing.assert_allclose(mixture.covariances[valid], expected[valid], rtol=1e-8, atol=1e-12)
    assert np.isnan(mixture.covariances[~valid]).any(axis=(1, 2)).all()
    np.testing.assert_allclose(mixture.means, np.tanh(planes[1 : 1 + n]).T, rtol=1e-12)
    np.testing.assert_allclose(mixture.weights, scipy.special.softmax(planes[0]), rtol=1e-12)
    terms = jax.jit(coefficients_from_logits, static_argnums=1)(list(jnp.asarray(planes)), ranges)
    # As those of the covariance, digits are lost; what is undefined is undefined in both.
    np.testing.assert_allclose(jnp.stack(terms, -1), jax.jit(gm.coefficients_of)(mixture), rtol=1e-6, atol=1e-6)


# Loss and gradient


@partial(jax.jit, static_argnames=("n", "covariance", "rho"))
def loss_and_gradient(logits, target, n, covariance, rho):
    """The paper's loss, and its gradient with respect to the logits."""

    def loss(logits):
        estimate = density(from_logits(logits, Ranges(covariance, rho)), grid(8, n))
        return jnp.square(jnp.log1p(estimate) - jnp.log1p(target)).mean()

    return jax.value_and_grad(loss)(logits)


# For n = 3 the paper's covariance may be NaN; below that each covariance is tried with one range of ρ, as they agree.
MODES = [
    (1, "paper", "sigmoid"),
    (2, "paper", "tanh"),
    pytest.param(1, "partial", "tanh", marks=pytest.mark.slow),
    pytest.param(2, "partial", "sigmoid", marks=pytest.mark.slow),
    pytest.param(3, "partial", "sigmoid", marks=pytest.mark.slow),
    (3, "partial", "tanh"),
]
FINITE = st.one_of(
    st.sampled_from([-50.0, 50.0, -1e4, 1e4, 0.0, -0.0]),
    st.floats(-20, 20, width=32),
    st.floats(width=32, allow_nan=False, allow_infinity=False),
)


@pytest.mark.parametrize(("n", "covariance", "rho"), MODES)
@settings(max_examples=60, deadline=None)
@given(numbers=st.lists(FINITE, min_size=20, max_size=20))
@example([1e4] * 20)
@example([-1e4] * 20)
@example([1e4, -1e4] * 10)
@example([1e4, -50.0, 0.0, 0.0] * 5)
def test_any_finite_logits_have_a_finite_loss_and_gradient(n, covariance, rho, numbers):
    planes = np.asarray(numbers[: 2 * sum(head_planes(n).values())], np.float32).reshape(-1, 2)
    loss, gradient = loss_and_gradient(planes, jnp.float32(0.125), n, covariance, rho)
    assert jnp.isfinite(loss)
    assert jnp.isfinite(gradient).all()


@pytest.mark.parametrize(("n", "covariance", "rho"), MODES)
def test_gradient_equals_finite_differences(x64, n, covariance, rho):
    logits = random_logits(np.random.default_rng(n), n, 3, dtype=np.float64)

    @jax.jit
    def loss(logits):
        return jnp.log1p(density(from_logits(logits, Ranges(covariance, rho)), grid(4, n, jnp.float64))).sum()

    # Central differences in float64 with JAX's step leave about 1e-9 of the sum, which is below 64.
    check_grads(loss, (logits,), order=1, modes=["rev"], atol=1e-6, rtol=1e-6)


# Sampling


@pytest.mark.parametrize("n", [1, 2, 3])
def test_samples_have_the_mean_and_covariance_of_each_mixture(n):
    mixture = from_logits(random_logits(np.random.default_rng(n), n, 5, (2, 3)), Ranges(rho="tanh"))
    weights, means, covariances = (np.asarray(a, np.float64) for a in (mixture.weights, mixture.means, mixture.covariances))
    mean = np.einsum("...k,...ki->...i", weights, means)
    spread = means - mean[..., None, :]
    covariance = np.einsum("...k,...kij->...ij", weights, covariances + spread[..., :, None] * spread[..., None, :])
    count = 20_000
    points = np.asarray(sample(mixture, jax.random.key(n), count), np.float64)
    assert len(np.unique(points[..., 0])) > 0.99 * points[..., 0].size  # each is drawn by itself
    apart = points - mean[..., None, :]
    for found, expected in ((points, mean), (apart[..., :, None] * apart[..., None, :], covariance)):
        # Five standard errors of each average: chance fails that once in 10⁶ draws of a key, and the keys are fixed.
        assert (np.abs(found.mean(2) - expected) < 5 * found.std(2) / np.sqrt(count)).all()
