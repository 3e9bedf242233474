import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gmmae.models import mixture
from gmmae.models.kernels.log_density import Ranges, coefficients
from gmmae.models.mixture import from_logits, head_planes


def reference(planes, ranges):
    """The same by way of means and factors."""
    return mixture.coefficients_of(from_logits(planes, **ranges._asdict()))


@pytest.mark.parametrize(
    ("n", "covariance", "rho"),
    [(1, "partial", "sigmoid"), (2, "partial", "tanh"), (2, "paper", "sigmoid")]
    + [(3, covariance, rho) for covariance in ("partial", "paper") for rho in ("sigmoid", "tanh")],
)
def test_coefficients_are_those_of_the_mixture(n, covariance, rho):
    planes = np.random.default_rng(n).standard_normal((20, sum(head_planes(n).values()), 7))
    ranges = Ranges(covariance, rho, (0.1, 0.05, 0.02)[:n], 0.9)
    with jax.enable_x64(True):
        found = jnp.stack(jax.jit(coefficients, static_argnums=1)(list(np.moveaxis(planes, 1, 0)), ranges), axis=-1)
        expected = jax.jit(reference, static_argnums=1)(planes, ranges)
    assert found.shape == (20, 7, sum(head_planes(n).values()))
    undefined = np.isnan(expected).any(-1)
    assert undefined.any() == (n == 3 and covariance == "paper")  # Eq. 6 to the letter
    np.testing.assert_array_equal(np.isnan(found).any(-1), undefined)
    np.testing.assert_allclose(found[~undefined], expected[~undefined], rtol=1e-10, atol=1e-10)  # float64


def test_a_component_without_weight_changes_nothing_and_has_no_gradient():
    ranges = Ranges("partial", "tanh", (0.1, 0.1), 0.9)
    planes = jnp.asarray(np.random.default_rng(0).standard_normal((6, 4)), jnp.float32)

    def total(planes):
        return jnp.stack([jnp.exp(term[:3]) for term in coefficients(list(planes), ranges)]).sum()

    value, gradient = jax.jit(jax.value_and_grad(total))(planes.at[0, 3].set(-jnp.inf))
    np.testing.assert_allclose(value, jax.jit(total)(planes[:, :3]), rtol=1e-6)
    assert jnp.isfinite(gradient).all()
    assert not gradient[0, 3]
