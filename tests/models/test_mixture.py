from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jax.test_util import check_grads
from scipy.stats import multivariate_normal

from gmmae.models import mixture as gm
from gmmae.models.mixture import Mixture, Ranges, axes, coefficients_from_logits, grid, head_planes

# Compiled whole: operation by operation, this file takes minutes.
from_logits = jax.jit(gm.from_logits, static_argnames="ranges")
density = jax.jit(gm.density)
log_density = jax.jit(gm.log_density)
sample = jax.jit(Mixture.sample, static_argnums=2)

SIZES = {1: 16, 2: 8, 3: 8}  # edges of the grid: 512 points at most keep SciPy's part short


def random_logits(rng, n, components, batch=(), dtype: Any = np.float32):
    numbers = [rng.standard_normal((*batch, components, count)) for count in head_planes(n).values()]
    return jnp.asarray(np.concatenate(numbers, axis=-1).swapaxes(-1, -2), dtype)


def double(mixture):
    """The very same numbers in float64."""
    return Mixture(*(jnp.asarray(np.asarray(leaf), jnp.float64) for leaf in mixture))


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


def worst_error(density, reference, smallest):
    """The largest relative error where the reference is above `smallest`, and the share of points that this is."""
    keep = reference > smallest
    error = np.abs(np.asarray(density, np.float64) - reference)[keep] / reference[keep]
    return error.max(), keep.mean()


# Density


@pytest.mark.parametrize(
    ("n", "seed"),
    [
        *[(1, 0), (2, 2), (3, 4)],
        *(pytest.param(*case, marks=pytest.mark.slow) for case in [(1, 1), (2, 3), (3, 5), (3, 6), (3, 7), (3, 8), (3, 9)]),
    ],
)
def test_density_equals_scipy_for_a_hundred_random_mixtures(n, seed):
    """Ten cases: a thousand mixtures, each in both precisions.

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
        exact = density(double(mixture), points)
    reference = scipy_density(mixture, points)
    error, share = worst_error(single, reference, 1e-30)
    assert error < 1e-4
    assert share > 0.9
    error, share = worst_error(exact, reference, 1e-290)
    assert error < 1e-10
    assert share > 0.9


@pytest.mark.parametrize(
    ("sigma", "rho", "size"), [(0.0625, 0.0, 0.9), (0.0625, 0.9, 0.5), (0.0625, 0.99, 0.9), (0.25, 0.0, 0.9)]
)
def test_rounding_follows_the_size_of_the_coordinates_not_their_distance_from_the_mean(sigma, rho, size):
    rng = np.random.default_rng(0)
    means = rng.uniform(-1, 1, (20, 3))
    means = (size * means / np.abs(means).max(axis=1, keepdims=True)).astype(np.float32)
    factor = sigma * np.linalg.cholesky(np.array([[1, rho, 0], [rho, 1, 0], [0, 0, 1.0]])).astype(np.float32)
    one = Mixture(jnp.zeros(1), jnp.zeros((1, 3)), jnp.asarray(factor)[None])
    at_mean = jnp.stack([density(one._replace(means=jnp.asarray(mean)[None]), jnp.asarray(mean)[None])[0] for mean in means])
    reference = 1 / (np.prod(np.diag(factor.astype(np.float64))) * (2 * np.pi) ** 1.5)
    worst = np.abs(np.asarray(at_mean, np.float64) / reference - 1).max()
    eps = np.finfo(np.float32).eps
    assert worst < eps * 2 * (means**2).sum(axis=1).max() / (sigma**2 * (1 - rho**2))
    assert worst > 4 * eps  # the rounding of a sum in the coordinates' distance would be about 1 eps: it is zero here


@pytest.mark.parametrize("size", [(16,), (16, 16), (24, 16), (16, 16, 16), (16, 24, 20)], ids=str)
def test_a_narrow_inner_mixture_has_mass_one(x64, size):
    """There are 16 samples an axis or more, h = 1/8.

    The sum differs from the integral by terms of exp(-2π² gᵀΣg / h²) over integer g (Poisson's formula). Each is at most 3e-9
    for σ ≥ h and ρ ≤ 1/2. The part outside is 5 σ away, below 2e-6.
    """
    n = len(size)
    rng = np.random.default_rng(n)
    means = jnp.asarray(rng.uniform(-0.25, 0.25, (20, n)))
    sigma = jnp.asarray(rng.uniform(0.125, 0.15, (20, n)))
    correlation = jnp.eye(n) + 0.5 * (1 - jnp.eye(n))
    covariances = sigma[:, :, None] * sigma[:, None, :] * correlation
    mixture = Mixture.of(jnp.asarray(rng.dirichlet(np.ones(20))), means, covariances)
    mass = density(mixture, grid(size, n, jnp.float64)).sum() * np.prod(2 / np.array(size))
    assert mass == pytest.approx(1, abs=1e-5)


def test_log_density_is_finite_where_density_underflows():
    mixture = Mixture(jnp.zeros(1), jnp.array([[-0.9]]), jnp.array([[[0.05]]]))
    point = jnp.array([[0.9]])
    assert density(mixture, point)[0] == 0
    expected = -0.5 * (1.8 / 0.05) ** 2 - np.log(0.05) - 0.5 * np.log(2 * np.pi)  # -645.9
    np.testing.assert_allclose(log_density(mixture, point), [expected], rtol=1e-5)  # float32: terms of 162 · (1, 2, 1) add up


def test_log_density_is_the_logarithm_of_density(x64):
    mixture = from_logits(random_logits(np.random.default_rng(0), 3, 7, dtype=np.float64))
    points = grid(4, 3, jnp.float64)
    np.testing.assert_allclose(jnp.exp(log_density(mixture, points)), density(mixture, points), rtol=1e-12)


@pytest.mark.parametrize(("axis", "n"), [(axis, n) for n in (1, 2, 3) for axis in range(n)])
def test_world_axes_run_against_array_axes(axis, n):
    mean = np.zeros((1, n), np.float32)
    mean[0, axis] = 0.625  # voxel 6 of 8
    values = density(Mixture.of(jnp.ones(1), jnp.asarray(mean), 0.04 * jnp.eye(n)[None]), grid(8, n)).reshape((8,) * n)
    profile = values.max(axis=tuple(a for a in range(n) if a != n - 1 - axis))  # x is the last array axis, z the first of three
    assert int(profile.argmax()) == 6
    other = values.max(axis=n - 1 - axis)
    np.testing.assert_allclose(other, jnp.flip(other), rtol=1e-4)  # centred along the other axes


def test_the_axes_of_a_grid_may_have_different_edges():
    np.testing.assert_allclose(grid(4, 1)[:, 0], [-0.75, -0.25, 0.25, 0.75])
    uneven = np.asarray(grid((2, 3, 4), 3)).reshape(2, 3, 4, 3)
    for axis, size in enumerate((4, 3, 2)):  # x, y, z
        np.testing.assert_array_equal(np.unique(uneven[..., axis]), grid(size, 1)[:, 0])
    np.testing.assert_allclose(uneven[1, 0, 3], [0.75, -2 / 3, 0.5], rtol=1e-6)  # float32
    np.testing.assert_array_equal(grid((5, 5), 2), grid(5, 2))


# Parameters


def test_covariances_survive_the_way_through_the_factor(x64):
    rng = np.random.default_rng(0)
    root = rng.standard_normal((4, 6, 3, 3))
    covariances = jnp.asarray(root @ root.swapaxes(-1, -2) + 0.1 * np.eye(3))
    weights = jnp.asarray(rng.dirichlet(np.ones(6), 4))
    mixture = Mixture.of(weights, jnp.asarray(rng.standard_normal((4, 6, 3))), covariances)
    np.testing.assert_allclose(mixture.covariances, covariances, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(mixture.weights, weights, rtol=1e-12)


def test_a_covariance_that_is_not_positive_definite_gives_nan():
    mixture = Mixture.of(jnp.ones(1), jnp.zeros((1, 2)), jnp.array([[[1.0, 2.0], [2.0, 1.0]]]))
    assert jnp.isnan(density(mixture, grid(4, 2))).all()


@pytest.mark.parametrize("n", [1, 2, 3])
def test_planes_are_as_many_as_the_paper_says_and_in_their_order(n):
    count = sum(head_planes(n).values())
    assert count == (n**2 + 3 * n + 2) / 2
    assert axes(count) == n
    planes = random_logits(np.random.default_rng(n), n, 5, (2,))
    mixture = from_logits(planes, Ranges("partial", "tanh", (0.0,) * 3, 0.5))
    np.testing.assert_allclose(mixture.weights, jax.nn.softmax(planes[:, 0]), rtol=1e-5)
    for axis in range(n):
        np.testing.assert_allclose(mixture.means[..., axis], jnp.tanh(planes[:, 1 + axis]), rtol=1e-5)
        np.testing.assert_allclose(
            mixture.covariances[..., axis, axis], jax.nn.sigmoid(planes[:, 1 + n + axis]) ** 2, rtol=1e-5
        )
    sigma = jnp.sqrt(jnp.diagonal(mixture.covariances, axis1=-2, axis2=-1))
    for pair, axis in enumerate(range(1, n)):  # with the first axis; the third correlation is a partial one
        correlations = mixture.covariances[..., 0, axis] / (sigma[..., 0] * sigma[..., axis])
        np.testing.assert_allclose(correlations, 0.5 * jnp.tanh(planes[:, 1 + 2 * n + pair]), rtol=1e-4, atol=1e-6)


def correlations(logits, limit, squash):
    """σ and the full matrix of the three outputs, as Eq. 6 says."""
    planes = np.moveaxis(np.asarray(logits, np.float64), -2, -1)
    sigma = 1 / (1 + np.exp(-planes[..., 4:7]))
    rho = limit * squash(planes[..., 7:])
    matrix = np.broadcast_to(np.eye(3), (*rho.shape[:-1], 3, 3)).copy()
    for pair, (i, j) in enumerate([(0, 1), (0, 2), (1, 2)]):
        matrix[..., i, j] = matrix[..., j, i] = rho[..., pair]
    return sigma, matrix


@pytest.mark.parametrize(
    ("rho", "squash", "share"), [("sigmoid", lambda x: 1 / (1 + np.exp(-x)), 0.8), ("tanh", np.tanh, 0.62)]
)
def test_the_papers_covariance_is_equation_6_or_nan(x64, rho, squash, share):
    uniform = np.random.default_rng(0).uniform(1e-6, 1 - 1e-6, (2000, 3))  # then ρ is uniform, as in design.md's shares
    pre = np.log(uniform / (1 - uniform)) if rho == "sigmoid" else np.arctanh(2 * uniform - 1)
    logits = random_logits(np.random.default_rng(1), 3, 2000, dtype=np.float64).at[7:].set(pre.T)
    covariances = from_logits(logits, Ranges("paper", rho, (0.0,) * 3, 1.0)).covariances
    sigma, matrix = correlations(logits, 1.0, squash)
    valid = np.linalg.eigvalsh(matrix).min(-1) > 0
    expected = sigma[:, :, None] * sigma[:, None, :] * matrix
    # The factor goes through (ρ23 - ρ12 ρ13) / √…, which costs a few digits where a correlation is close to one.
    np.testing.assert_allclose(covariances[valid], expected[valid], rtol=1e-9)
    assert np.isnan(covariances[~valid]).any(axis=(1, 2)).all()
    assert valid.mean() == pytest.approx(share, abs=0.04)  # 4 standard errors of 2000 draws


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=6, max_size=6),
    st.sampled_from(["sigmoid", "tanh"]),
)
def test_partial_correlations_are_always_positive_definite(numbers, rho):
    mixture = from_logits(jnp.asarray([0.0] * 4 + numbers, jnp.float32)[:, None], Ranges(rho=rho))
    factor = np.asarray(mixture.scale_tril[0], np.float64)
    covariance = factor @ factor.T
    scale = np.sqrt(np.diag(covariance))
    assert scale.min() > 0.0624  # the floor of 1/16, to rounding
    assert scale.max() < 1.0001
    # At the limit of 0.99 the determinant of the correlations is at least (1 - 0.99²)³ = 8e-6, and their trace is 3.
    assert np.linalg.eigvalsh(covariance / np.outer(scale, scale)).min() > 8e-6 / 3**2


def test_limits_hold_at_the_ends(x64):
    ends = jnp.asarray([[0.0, 0.0]] + [[-1e4, 1e4]] * 9)
    mixture = from_logits(ends, Ranges("partial", "tanh", (0.1,) * 3, 0.9))
    covariances = np.asarray(mixture.covariances)
    np.testing.assert_allclose(np.sqrt(covariances[:, range(3), range(3)]), [[0.1] * 3, [1.0] * 3])
    np.testing.assert_allclose(covariances[:, 0, 1] / covariances[:, 0, 0], [-0.9, 0.9])
    np.testing.assert_allclose(mixture.means, [[-1.0] * 3, [1.0] * 3])


# Coefficients


@pytest.mark.parametrize(
    ("n", "covariance", "rho"),
    [(1, "partial", "sigmoid"), (2, "partial", "tanh"), (2, "paper", "sigmoid")]
    + [(3, covariance, rho) for covariance in ("partial", "paper") for rho in ("sigmoid", "tanh")],
)
def test_coefficients_from_logits_are_those_of_the_mixture(x64, n, covariance, rho):
    planes = random_logits(np.random.default_rng(n), n, 7, (20,), np.float64)
    ranges = Ranges(covariance, rho, (0.1, 0.05, 0.02), 0.9)
    found = jnp.stack(jax.jit(coefficients_from_logits, static_argnums=1)(list(jnp.moveaxis(planes, 1, 0)), ranges), axis=-1)
    expected = jax.jit(gm.coefficients_of)(from_logits(planes, ranges))
    assert found.shape == (20, 7, sum(head_planes(n).values()))
    undefined = np.isnan(expected).any(-1)
    assert undefined.any() == (n == 3 and covariance == "paper")  # Eq. 6 to the letter
    np.testing.assert_array_equal(np.isnan(found).any(-1), undefined)
    np.testing.assert_allclose(found[~undefined], expected[~undefined], rtol=1e-10, atol=1e-10)  # float64


def test_a_component_without_weight_changes_nothing_and_has_no_gradient():
    planes = random_logits(np.random.default_rng(0), 2, 4)

    def total(planes):
        terms = coefficients_from_logits(list(planes), Ranges(rho="tanh"))
        return jnp.stack([jnp.exp(term[:3]) for term in terms]).sum()

    value, gradient = jax.jit(jax.value_and_grad(total))(planes.at[0, 3].set(-jnp.inf))
    np.testing.assert_allclose(value, jax.jit(total)(planes[:, :3]), rtol=1e-6)
    assert jnp.isfinite(gradient).all()
    assert not gradient[0, 3]


# Loss and gradient


@partial(jax.jit, static_argnames=("covariance", "rho"))
def loss_and_gradient(logits, target, covariance, rho):
    """The paper's loss, and its gradient with respect to the logits."""

    def loss(logits):
        estimate = density(from_logits(logits, Ranges(covariance, rho)), grid(8, axes(len(logits))))
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
@example([50.0] * 20)
@example([-50.0] * 20)
@example([1e4] * 20)
@example([-1e4] * 20)
@example([50.0, -50.0] * 10)
@example([1e4, -1e4] * 10)
@example([1e4, -50.0, 0.0, 0.0] * 5)
def test_any_finite_logits_have_a_finite_loss_and_gradient(n, covariance, rho, numbers):
    planes = np.asarray(numbers[: 2 * sum(head_planes(n).values())], np.float32).reshape(-1, 2)
    loss, gradient = loss_and_gradient(planes, jnp.float32(0.125), covariance, rho)
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
def test_samples_have_the_mixtures_mean_and_covariance(n):
    mixture = from_logits(random_logits(np.random.default_rng(n), n, 5), Ranges(rho="tanh"))
    weights, means, covariances = (np.asarray(a, np.float64) for a in (mixture.weights, mixture.means, mixture.covariances))
    mean = weights @ means
    spread = means - mean
    covariance = np.einsum("k,kij->ij", weights, covariances + spread[:, :, None] * spread[:, None, :])
    count = 20_000
    points = np.asarray(sample(mixture, jax.random.key(n), count), np.float64)
    products = (points - mean)[:, :, None] * (points - mean)[:, None, :]
    # Five standard errors of each average: chance fails that once in 10⁶ draws of a key, and the keys are fixed.
    assert np.all(np.abs(points.mean(0) - mean) < 5 * points.std(0) / np.sqrt(count))
    assert np.all(np.abs(products.mean(0) - covariance) < 5 * products.std(0) / np.sqrt(count))


@pytest.mark.slow
@pytest.mark.parametrize("batch", [(), (2, 3)])
def test_batches_of_mixtures_are_sampled_each_by_itself(batch):
    logits = random_logits(np.random.default_rng(0), 3, 2, batch)
    means = jnp.tanh(jnp.moveaxis(logits[..., 1:4, :], -2, -1))
    mixture = Mixture(jnp.log(jnp.full((*batch, 2), 0.5)), means, jnp.broadcast_to(1e-4 * jnp.eye(3), (*batch, 2, 3, 3)))
    points = sample(mixture, jax.random.key(0), 10)
    assert points.shape == (*batch, 10, 3)
    distance = jnp.abs(points[..., None, :] - means[..., None, :, :]).max(-1).min(-1)
    assert distance.max() < 1e-3  # within 10 σ of a mean of its own mixture
    assert len(np.unique(np.asarray(points).reshape(-1, 3), axis=0)) == points.size // 3
