import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gmmae.models.kernels import per_sample_loss
from gmmae.models.kernels.axis_aligned import AxisAligned, density_on_grid
from gmmae.models.losses import LOSSES
from gmmae.models.mixture import at_once, grid, monomials_at


def polynomials(rng):
    """Exponents of mixtures with correlations, their density, and the monomials that all samples share."""
    return -jnp.abs(jnp.asarray(rng.standard_normal((4, 7, 10)))), at_once, monomials_at(grid(5, 3, jnp.float64))


def products(rng):
    """Mixtures without correlations and their density."""
    sizes = (4, 7), (4, 7, 3), (4, 7, 3)
    mixture = AxisAligned(*(jnp.asarray(rng.uniform(0.05, 0.5, size)) for size in sizes))
    return mixture, lambda one, _: density_on_grid(one, (4, 5, 6)), None


@pytest.mark.parametrize("draw", [polynomials, products])
@pytest.mark.parametrize("name", LOSSES)
def test_losses_and_gradients_are_those_of_the_whole_batch(x64, draw, name):
    rng, loss = np.random.default_rng(0), LOSSES[name]
    parameters, density, shared = draw(rng)
    targets = jnp.asarray(rng.exponential(0.1, density(parameters, shared).shape))
    weights = jnp.asarray(rng.standard_normal(4))

    def whole(parameters):
        return loss(density(parameters, shared), targets).reshape(4, -1).mean(1)

    def one_by_one(parameters) -> jax.Array:
        return per_sample_loss.losses(density, parameters, targets, loss, shared)

    def values_and_gradient(form):
        of_weights = jax.jit(jax.grad(lambda parameters: (form(parameters) @ weights, form(parameters)), has_aux=True))
        return of_weights(parameters)

    (to_expected, expected), (to_found, found) = map(values_and_gradient, (whole, one_by_one))
    for values in (found, jax.jit(one_by_one)(parameters)):  # the second as in a validation
        np.testing.assert_allclose(values, expected, rtol=1e-12)
    jax.tree.map(lambda *pair: np.testing.assert_allclose(*pair, rtol=1e-9, atol=1e-13), to_found, to_expected)
