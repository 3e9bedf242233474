import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gmmae.models.kernels.axis_aligned import AxisAligned, density_on_grid, losses
from gmmae.models.losses import LOSSES
from gmmae.models.mixture import density, grid

SHAPES = [(16,), (8, 12), (6, 5, 7)]


def mixtures(shape, batch=3, components=5, seed=0):
    keys = jax.random.split(jax.random.key(seed), 3)
    size = (batch, components, len(shape))
    return AxisAligned(
        jax.nn.log_softmax(jax.random.normal(keys[0], size[:2])),
        jax.random.uniform(keys[1], size, minval=-1, maxval=1),
        jax.random.uniform(keys[2], size, minval=0.05, maxval=0.5),
    )


@pytest.mark.parametrize("shape", SHAPES)
def test_the_density_on_a_grid_is_that_of_the_mixture_with_matrices(shape):
    mixture = mixtures(shape)
    expected = jax.jit(lambda one: density(one.mixture, grid(shape, len(shape))))(mixture).reshape(3, *shape)
    # float32: the expected one is a polynomial whose terms cancel.
    np.testing.assert_allclose(jax.jit(density_on_grid, static_argnums=1)(mixture, shape), expected, rtol=2e-4, atol=1e-5)


def test_a_narrow_component_within_the_cube_has_mass_one():
    one = AxisAligned(jnp.zeros((1, 1)), jnp.array([[[0.1, -0.2, 0.3]]]), jnp.full((1, 1, 3), 0.15))
    assert float(density_on_grid(one, (16, 16, 16)).sum() * (2 / 16) ** 3) == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", LOSSES)
def test_losses_and_gradients_are_those_of_the_whole_batch(shape, name):
    with jax.enable_x64(True):
        mixture = jax.tree.map(lambda part: part.astype(jnp.float64), mixtures(shape))
        rng = np.random.default_rng(0)
        volumes, weights = jnp.asarray(rng.exponential(0.1, (3, *shape))), jnp.asarray(rng.standard_normal(3))

        def whole(mixture):
            return LOSSES[name](density_on_grid(mixture, shape), volumes).reshape(3, -1).mean(1)

        def one_by_one(mixture) -> jax.Array:
            return losses(mixture, volumes, LOSSES[name])

        (expected, to_expected), (found, to_found) = (jax.vjp(form, mixture) for form in (whole, one_by_one))
        np.testing.assert_allclose(found, expected, rtol=1e-12)
        for one, other in zip(jax.tree.leaves(to_found(weights)), jax.tree.leaves(to_expected(weights)), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-13)
        np.testing.assert_allclose(jax.jit(one_by_one)(mixture), expected, rtol=1e-12)  # as in a validation
