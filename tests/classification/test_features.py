"""Features of mixtures: invariant under reordering and the 48 symmetries, and not of all mixtures alike."""

import itertools

import numpy as np
import pytest

from gmmae.classification.features import block_means, mixture_features


def mixtures(k=7, n=3):
    rng = np.random.default_rng(0)
    factors = rng.normal(0, 0.12, (3, k, n, n))
    covariances = factors @ factors.swapaxes(-1, -2) + 0.003 * np.eye(n)
    return rng.dirichlet(np.ones(k), 3), rng.uniform(-0.6, 0.6, (3, k, n)), covariances


@pytest.mark.parametrize("n", [1, 2, 3])
def test_they_are_the_same_for_all_symmetries_of_the_cube_and_any_order(n):
    weights, means, covariances = mixtures(n=n)
    expected = mixture_features(weights, means, covariances)
    for axes, signs in itertools.product(itertools.permutations(np.eye(n)), itertools.product((1, -1), repeat=n)):
        turn = np.array(axes) * signs
        turned = mixture_features(weights[:, ::-1], means[:, ::-1] @ turn.T, turn @ covariances[:, ::-1] @ turn.T)
        np.testing.assert_allclose(turned, expected, rtol=1e-6, atol=1e-9)


def test_they_tell_mixtures_apart():
    weights, means, covariances = mixtures(k=2)
    found = mixture_features(weights, means, covariances)
    for other in (
        (weights[:, ::-1], means, covariances),
        (weights, 1.1 * means, covariances),
        (weights, means, 1.1 * covariances),
    ):
        assert (np.abs(mixture_features(*other) - found) > 1e-4).sum() > 20


def test_moments_and_masses_of_cells_are_those_of_samples():
    weights, means, covariances = mixtures(k=4)
    rng = np.random.default_rng(2)
    part, noise = rng.choice(4, 400_000, p=weights[0]), rng.normal(size=(400_000, 3))
    points = means[0, part] + np.einsum("pij,pj->pi", np.linalg.cholesky(covariances[0])[part], noise)
    centred = points - points.mean(0)
    third = np.einsum("pi,pj,pk->ijk", centred, centred, centred, optimize=True) / len(points)
    covariance, square = np.cov(points.T), (centred**2).sum(1)
    expected = [
        np.linalg.norm(points.mean(0)),
        *np.sqrt(np.linalg.eigvalsh(covariance)),
        np.cbrt(np.linalg.norm(third)),
        np.cbrt(np.linalg.norm(np.einsum("iij->j", third))),
        (square**2).mean() / square.mean() ** 2,
        np.square(np.sum(centred @ np.linalg.inv(covariance) * centred, axis=1)).mean(),
        (centred**4).sum(1).mean() / square.mean() ** 2,
    ]
    found = mixture_features(weights, means, covariances)[0]
    np.testing.assert_allclose(found[27:36], expected, rtol=0.03)
    # The masses leave correlations out.
    points = means[0, part] + np.sqrt(np.diagonal(covariances[0], axis1=1, axis2=2))[part] * noise
    masses = np.histogramdd(points, 4, [(-1, 1)] * 3)[0] / len(points)
    np.testing.assert_allclose(np.sort(found[36:]), np.sort(masses, axis=None), atol=2e-3)


def test_block_means_of_a_size_that_is_no_multiple():
    values = np.arange(125.0).reshape(1, 5, 5, 5)
    found = block_means(values, (0.0, 250.0), 2)
    assert found.shape == (1, 8)
    assert found[0, 0] == pytest.approx(values[0, :3, :3, :3].mean() / 250)
