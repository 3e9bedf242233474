from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gmmae.models.encoder import ACTIVATIONS, Encoder, Heads
from gmmae.models.mixture import head_planes


def encoder(padding="VALID", activation="relu") -> Any:
    return Encoder(filters=(4, 6), kernels=(3, 2), padding=padding, activation=activation, latent_dim=5)


def shapes_of(tree):
    return jax.tree.map(lambda leaf: leaf.shape, tree)


@pytest.mark.parametrize("size", [(8,), (6, 9), (6, 8, 5)], ids=str)
@pytest.mark.parametrize(("padding", "lost"), [("VALID", 3), ("SAME", 0)])  # 2 by the first kernel, 1 by the second
def test_encoder_shapes(size, padding, lost):
    n, left = len(size), np.prod(np.array(size) - lost)
    volumes = jnp.zeros((2, *size))
    latent, variables = jax.eval_shape(lambda v: encoder(padding).init_with_output(jax.random.key(0), v), volumes)
    assert latent.shape == (2, 5)
    assert shapes_of(variables["params"]) == {
        "Conv_0": {"kernel": (*[3] * n, 1, 4), "bias": (4,)},
        "Conv_1": {"kernel": (*[2] * n, 4, 6), "bias": (6,)},
        "Dense_0": {"kernel": (left * 6, 5), "bias": (5,)},
    }


def test_biases_start_at_zero_and_kernels_within_glorots_bound():
    key, components = jax.random.key(0), 50
    heads = jax.jit(Heads(components, 2).init)(key, jnp.zeros((1, 5)))["params"]
    assert not heads["bias"].any()
    params = jax.jit(encoder().init)(key, jnp.zeros((1, 8, 8)))["params"]
    for name, layer in params.items():
        assert not layer["bias"].any(), name
        assert_glorot(layer["kernel"], name)
    first = 0
    for name, planes in head_planes(2).items():  # each as a layer of its own
        assert_glorot(heads["kernel"][:, first * components : (first + planes) * components], name)
        first += planes


def assert_glorot(kernel, name):
    *taps, inputs, outputs = kernel.shape
    bound = np.sqrt(6 / (np.prod(taps) * (inputs + outputs)))
    # Of at least 36 uniform draws the largest is above 0.75 of the bound but for a chance of 0.75^36 = 3e-5.
    assert 0.75 * bound < jnp.abs(kernel).max() <= bound * (1 + 1e-6), name


def test_relu_is_jax_s_with_its_gradient():
    x = jnp.array([-2.0, -0.0, 0.0, 1e-30, 3.0])
    (ours, to_ours), (theirs, to_theirs) = (jax.vjp(relu, x) for relu in (ACTIVATIONS["relu"], jax.nn.relu))
    np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_array_equal(to_ours(jnp.ones(5))[0], to_theirs(jnp.ones(5))[0])


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_activation_follows_every_layer(activation):
    """One filter of one voxel is a product, so the latent is the activation applied twice; n = 1."""
    module: Any = Encoder(filters=(1,), kernels=(1,), padding="VALID", activation=activation, latent_dim=4)
    params = {
        "Conv_0": {"kernel": -2 * jnp.ones((1, 1, 1)), "bias": jnp.ones(1)},
        "Dense_0": {"kernel": -jnp.eye(4), "bias": jnp.ones(4)},
    }
    volumes = jnp.array([[-1.0, 0.0, 0.5, 2.0]])
    activate = ACTIVATIONS[activation]
    np.testing.assert_allclose(
        module.apply({"params": params}, volumes), activate(1 - activate(1 - 2 * volumes)), rtol=1e-5, atol=1e-6
    )


@pytest.mark.slow
def test_each_volume_is_encoded_by_itself():
    volumes = jax.random.normal(jax.random.key(0), (3, 8, 8))
    module = encoder()
    params = module.init(jax.random.key(1), volumes)
    apply = jax.jit(module.apply)
    np.testing.assert_allclose(apply(params, volumes)[1:2], apply(params, volumes[1:2]), rtol=1e-5, atol=1e-6)  # float32 sums
