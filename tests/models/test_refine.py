"""Refinement: it lowers each sample's loss by itself, keeps the floor and the zeros, and finds what is known."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gmmae.models.losses import LOSSES
from gmmae.models.mixture import Mixture, Ranges, density, from_logits, grid, head_planes
from gmmae.models.refine import refine as refine_

SIZE = 8
# Compiled whole: operation by operation, this file takes minutes.
refine = jax.jit(refine_, static_argnames=("point_loss", "steps", "sigma_floor", "diagonal"))


@partial(jax.jit, static_argnums=range(4))
def mixtures(samples, components, ndim=3, seed=0):
    planes = jax.random.normal(jax.random.key(seed), (samples, sum(head_planes(ndim).values()), components))
    return from_logits(planes, Ranges(sigma_floor=(0.5 * 2 / SIZE,) * ndim))


@partial(jax.jit, static_argnums=1)
def volumes_of(mixture, ndim=3):
    return density(mixture, grid(SIZE, ndim)).reshape(-1, *(SIZE,) * ndim)


@pytest.mark.parametrize(("ndim", "loss"), [(1, "msle"), (2, "mse"), (3, "msle")])
def test_each_loss_becomes_much_smaller_and_is_that_of_the_density(ndim, loss):
    target = volumes_of(mixtures(3, 4, ndim, seed=1), ndim)
    start = mixtures(3, 4, ndim)
    found = refine(start, target, LOSSES[loss], steps=60)
    for mixture, losses in ((start, found.before), (found.mixture, found.after)):
        expected = LOSSES[loss](volumes_of(mixture, ndim), target).reshape(3, -1).mean(1)
        np.testing.assert_allclose(losses, expected, rtol=2e-4)  # rounding of the exponents, as in `mixture`
    assert (found.after < 0.5 * found.before).all()
    np.testing.assert_allclose(found.mixture.weights.sum(-1), 1, rtol=1e-6)


def test_a_mixture_that_is_right_stays_as_it_was():
    right = mixtures(2, 3)
    found = refine(right, volumes_of(right), LOSSES["msle"], steps=5)
    assert (found.after <= found.before).all()
    assert (found.before < 1e-9).all()


def test_standard_deviations_stay_above_the_floor():
    """The target is a single bright voxel, which is narrower than the floor allows."""
    target = np.zeros((1, SIZE, SIZE, SIZE), np.float32)
    target[0, 4, 4, 4] = (SIZE / 2) ** 3
    found = refine(mixtures(1, 4), jnp.array(target), LOSSES["mse"], steps=100, sigma_floor=0.5)  # later they may grow again
    sigma = jnp.sqrt(jnp.diagonal(found.mixture.covariances, axis1=-2, axis2=-1))
    floor = 0.5 * 2 / SIZE
    assert float(sigma.min()) == pytest.approx(floor, rel=1e-5)
    assert (sigma >= floor * (1 - 1e-5)).all()


def test_diagonal_components_stay_diagonal_and_others_turn():
    diagonal = Mixture.of(jnp.full((1, 4), 0.25), mixtures(1, 4).means, 0.05 * jnp.eye(3) * jnp.ones((1, 4, 1, 1)))
    target = volumes_of(mixtures(1, 4, seed=1))
    found = refine(diagonal, target, LOSSES["msle"], steps=20)
    assert (found.after < 0.8 * found.before).all()
    assert not (found.mixture.covariances * (1 - jnp.eye(3))).any()
    told = refine(diagonal, target, LOSSES["msle"], steps=20, diagonal=True)  # by products of matrices
    np.testing.assert_allclose(told.before, found.before, rtol=1e-3)
    np.testing.assert_allclose(told.after, found.after, rtol=0.02)  # 20 steps of other roundings
    np.testing.assert_allclose(told.density, volumes_of(told.mixture), rtol=1e-3, atol=1e-4)
    turned = refine(mixtures(1, 4), target, LOSSES["msle"], steps=20).mixture
    assert jnp.abs(turned.scale_tril - mixtures(1, 4).scale_tril).max() > 0.01


def test_samples_are_refined_by_themselves_without_harm_by_what_is_undefined_or_has_no_weight():
    start, target = mixtures(3, 4), volumes_of(mixtures(3, 4, seed=1))
    weights = start.log_weights.at[2].set(jnp.log(jnp.array([0.5, 0.25, 0.25, 0.0])))
    start = start._replace(log_weights=weights, means=start.means.at[0].set(jnp.nan))
    found = refine(start, target, LOSSES["msle"], steps=10)
    assert jnp.isnan(found.after[0])
    assert (found.after[1:] < found.before[1:]).all()
    alone = refine(Mixture(*(part[1:2] for part in start)), target[1:2], LOSSES["msle"], steps=10)
    np.testing.assert_allclose(found.after[1:2], alone.after, rtol=1e-5)
