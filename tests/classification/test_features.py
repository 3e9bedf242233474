"""Features of mixtures: invariant under reordering and the 48 symmetries, and not of all mixtures alike."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import multivariate_normal

from gmmae.classification import features
from gmmae.classification.features import block_means, mixture_features
from gmmae.models.mixture import Mixture, density, grid


def mixtures(count=3, k=7, n=3, seed=0):
    rng = np.random.default_rng(seed)
    weights = rng.dirichlet(np.ones(k), count)
    means = rng.uniform(-0.6, 0.6, (count, k, n))
    factors = rng.normal(0, 0.12, (count, k, n, n))
    return weights, means, factors @ factors.swapaxes(-1, -2) + 0.003 * np.eye(n)


def symmetries(n):
    for order in itertools.permutations(range(n)):
        for signs in itertools.product((1.0, -1.0), repeat=n):
            yield np.eye(n)[list(order)] * np.array(signs)[:, None]


@pytest.mark.parametrize("n", [1, 2, 3])
def test_they_are_the_same_for_all_symmetries_of_the_cube(n):
    weights, means, covariances = mixtures(n=n)
    expected = mixture_features(weights, means, covariances)
    turns = list(symmetries(n))
    assert len(turns) == {1: 2, 2: 8, 3: 48}[n]
    for turn in turns:
        turned = mixture_features(weights, means @ turn.T, turn @ covariances @ turn.T)
        np.testing.assert_allclose(turned, expected, rtol=1e-6, atol=1e-9)


def test_they_are_the_same_for_any_order_of_the_components():
    arrays = mixtures()
    order = np.random.default_rng(1).permutation(7)
    np.testing.assert_allclose(
        mixture_features(*(a[:, order] for a in arrays)), mixture_features(*arrays), rtol=1e-9, atol=1e-12
    )


def test_they_tell_mixtures_apart():
    weights, means, covariances = mixtures(k=2)
    found = mixture_features(weights, means, covariances)
    assert np.isfinite(found).all()
    others = [(weights[:, ::-1], means, covariances), (weights, 1.1 * means, covariances), (weights, means, 1.1 * covariances)]
    for other in others:
        assert (np.abs(mixture_features(*other) - found) > 1e-4).sum() > 20
    # A rotation that is no symmetry of the cube changes the cells.
    c = np.sqrt(0.5)
    turn = np.array([[c, -c, 0], [c, c, 0], [0, 0, 1.0]])
    assert np.abs(mixture_features(weights, means @ turn.T, turn @ covariances @ turn.T) - found).max() > 1e-3


def test_moments_are_those_of_samples():
    weights, means, covariances = mixtures(1, 4)
    rng = np.random.default_rng(2)
    part = rng.choice(4, 400_000, p=weights[0])
    points = np.empty((len(part), 3))
    for i in range(4):
        drawn = multivariate_normal(means[0, i], covariances[0, i]).rvs((part == i).sum(), random_state=rng)
        points[part == i] = drawn
    centred = points - points.mean(0)
    third = np.einsum("pi,pj,pk->ijk", centred, centred, centred, optimize=True) / len(points)
    covariance = np.cov(points.T)
    square = (centred**2).sum(1)
    expected = [
        np.linalg.norm(points.mean(0)),
        *np.sqrt(np.linalg.eigvalsh(covariance)),
        np.cbrt(np.linalg.norm(third)),
        np.cbrt(np.linalg.norm(np.einsum("iij->j", third))),
        (square**2).mean() / square.mean() ** 2,
        (np.einsum("pi,ij,pj->p", centred, np.linalg.inv(covariance), centred, optimize=True) ** 2).mean(),
        (centred**4).sum(1).mean() / square.mean() ** 2,
    ]
    np.testing.assert_allclose(features._moment_features(weights, means, covariances)[0], expected, rtol=0.03)


def test_masses_of_cells_are_those_of_the_density_without_correlations():
    weights, means, covariances = mixtures(1, 4)
    covariances = covariances * np.eye(3)
    found = features._cell_masses(weights, means, covariances)[0]
    values = density(Mixture.of(*(jnp.asarray(a[0]) for a in (weights, means, covariances))), grid(64, 3))
    cells = np.asarray(values).reshape(4, 16, 4, 16, 4, 16).sum((1, 3, 5)) * (2 / 64) ** 3
    np.testing.assert_allclose(np.sort(found), np.sort(cells.ravel()), atol=2e-3)
    assert [(features._orbits(3) == i).sum() for i in range(4)] == [8, 24, 24, 8]


def test_block_means_of_a_size_that_is_no_multiple():
    values = np.arange(2 * 5.0 * 5 * 5).reshape(2, 5, 5, 5)
    found = block_means(values, (0.0, 250.0), 2)
    assert found.shape == (2, 8)
    assert found[0, 0] == pytest.approx(values[0, :3, :3, :3].mean() / 250)
    assert block_means(values, (0.0, 250.0), 9).shape == (2, 125)
