"""The kernel as the GPU computes it, against float64 and beside the product."""

import jax
import jax.numpy as jnp
import pytest

from gmmae.models.kernels import loss_kernel
from gmmae.models.losses import msle
from tests.models.kernels.by_product import RANGES, errors, problems, product, with_gradient

pytestmark = pytest.mark.usefixtures("optimised")


@pytest.mark.parametrize("spread", [1.0, 2.0])
def test_losses_and_gradients_are_those_of_float64(gpus, spread):
    forms = with_gradient(product), with_gradient(loss_kernel.losses)
    for planes, targets in problems(spread):
        with jax.enable_x64(True):
            exact = forms[0](*(jnp.asarray(x, jnp.float64) for x in (planes, targets)), msle, RANGES)
        theirs, ours = (errors(jax.device_get(form(planes, targets, msle, RANGES)), jax.device_get(exact)) for form in forms)
        assert ours[0] < max(4 * theirs[0], 1e-6)  # as in tests/models/kernels/test_loss_kernel.py
        assert ours[1] < max(4 * theirs[1], 1e-5)
