from typing import Any, get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gmmae.models.encoder import Encoder, Heads, relu
from gmmae.models.mixture import head_planes
from gmmae.models.settings import Activation, ModelConfig


def test_biases_start_at_zero_and_kernels_within_glorots_bound():
    key, components = jax.random.key(0), 50
    heads = jax.jit(Heads(components, 2).init)(key, jnp.zeros((1, 5)))["params"]
    encoder = Encoder(ModelConfig(filters=(4, 6), kernels=(3, 2), latent_dim=5))
    params = jax.jit(encoder.init)(key, jnp.zeros((1, 8, 8)))["params"]
    for layer in (*params.values(), heads):
        assert not layer["bias"].any()
    ends = components * np.cumsum([*head_planes(2).values()])[:-1]
    # Each head is initialised as a layer of its own.
    for kernel in [*(layer["kernel"] for layer in params.values()), *jnp.split(heads["kernel"], ends, axis=1)]:
        *taps, inputs, outputs = kernel.shape
        bound = np.sqrt(6 / (np.prod(taps) * (inputs + outputs)))
        # Of at least 36 uniform draws the largest is above 0.75 of the bound but for a chance of 0.75^36 = 3e-5.
        assert 0.75 * bound < jnp.abs(kernel).max() <= bound * (1 + 1e-6), kernel.shape


def test_relu_is_jax_s_with_its_gradient():
    x = jnp.array([-2.0, -0.0, 0.0, 1e-30, 3.0])
    (ours, to_ours), (theirs, to_theirs) = (jax.vjp(f, x) for f in (relu, jax.nn.relu))
    np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_array_equal(to_ours(jnp.ones(5))[0], to_theirs(jnp.ones(5))[0])


@pytest.mark.parametrize("activation", get_args(Activation))
def test_the_activation_follows_every_layer(activation):
    """One filter of one voxel is a product, so the latent is the activation applied twice; n = 1."""
    module: Any = Encoder(ModelConfig(filters=(1,), kernels=(1,), activation=activation, latent_dim=4))
    params = {
        "Conv_0": {"kernel": -2 * jnp.ones((1, 1, 1)), "bias": jnp.ones(1)},
        "Dense_0": {"kernel": -jnp.eye(4), "bias": jnp.ones(4)},
    }
    volumes = jnp.array([[-1.0, 0.0, 0.5, 2.0]])
    activate = getattr(jax.nn, activation)
    np.testing.assert_allclose(
        module.apply({"params": params}, volumes), activate(1 - activate(1 - 2 * volumes)), rtol=1e-5, atol=1e-6
    )
