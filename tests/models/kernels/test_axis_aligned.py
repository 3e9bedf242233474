import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gmmae.models.kernels.axis_aligned import AxisAligned, density_on_grid
from gmmae.models.mixture import density, grid


@pytest.mark.parametrize("shape", [(16,), (8, 12), (6, 5, 7)])
def test_the_density_on_a_grid_is_that_of_the_mixture_with_matrices(shape):
    rng, size = np.random.default_rng(0), (3, 5, len(shape))
    mixture = AxisAligned(
        jax.nn.log_softmax(jnp.asarray(rng.normal(size=size[:2]), jnp.float32)),
        *(jnp.asarray(rng.uniform(*ends, size), jnp.float32) for ends in ((-1, 1), (0.05, 0.5))),
    )
    expected = jax.jit(lambda one: density(one.mixture, grid(shape, len(shape))))(mixture).reshape(3, *shape)
    # float32: the expected one is a polynomial whose terms cancel.
    np.testing.assert_allclose(jax.jit(density_on_grid, static_argnums=1)(mixture, shape), expected, rtol=2e-4, atol=1e-5)
