import jax
import numpy as np
import pytest

from gmmae.models.kernels.axis_aligned import AxisAligned, density_on_grid
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
