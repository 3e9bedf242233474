import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gmmae.models.kernels import per_sample_loss
from gmmae.models.losses import LOSSES
from gmmae.models.mixture import at_once, grid, head_planes, monomials_at


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("name", LOSSES)
def test_losses_and_gradients_are_those_of_the_whole_batch(n, name):
    rng, loss, count = np.random.default_rng(n), LOSSES[name], sum(head_planes(n).values())
    with jax.enable_x64(True):
        monomials = monomials_at(grid(5, n, jnp.float64))
        coefficients = -jnp.abs(jnp.asarray(rng.standard_normal((4, 7, count))))
        targets, weights = jnp.asarray(rng.exponential(0.1, (4, 5**n))), jnp.asarray(rng.standard_normal(4))

        def whole(coefficients):
            return loss(at_once(coefficients, monomials), targets).mean(1)

        def one_by_one(coefficients) -> jax.Array:
            found: jax.Array = per_sample_loss.of_polynomials(coefficients, monomials, targets, loss)
            return found

        (expected, to_expected), (found, to_found) = (jax.vjp(form, coefficients) for form in (whole, one_by_one))
        np.testing.assert_allclose(found, expected, rtol=1e-12)
        np.testing.assert_allclose(to_found(weights)[0], to_expected(weights)[0], rtol=1e-10, atol=1e-13)
        np.testing.assert_allclose(jax.jit(one_by_one)(coefficients), expected, rtol=1e-12)  # as in a validation
