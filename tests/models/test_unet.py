"""The U-Net against Flax's own layers, and its loss on cases made for the test."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from gmmae.models import unet
from gmmae.models.unet import SLOPE, ActivatedNorm, UNet

RTOL = 1e-12  # float64
mask_losses = jax.jit(unet.mask_losses)  # compiled whole: operation by operation takes seconds


pytestmark = pytest.mark.usefixtures("x64")


def drawn(*shape):
    return jnp.asarray(np.random.default_rng(0).standard_normal(shape))


DOUBLE = {"param_dtype": jnp.float64}


class Stage(nn.Module):
    """Two convolutions of Flax's layers."""

    features: int

    @nn.compact
    def __call__(self, x):
        for i in range(2):
            x = nn.Conv(self.features, (3,) * (x.ndim - 2), use_bias=False, **DOUBLE)(x)
            x = nn.leaky_relu(nn.InstanceNorm(epsilon=1e-5, name=f"Norm_{i}", **DOUBLE)(x), SLOPE)
        return x


class Reference(nn.Module):
    """The same network of Flax's layers, samples first, with the names of ours."""

    features: tuple[int, ...]

    @nn.compact
    def __call__(self, x):
        n, fine = x.ndim - 2, []
        half = {"kernel_size": (2,) * n, "strides": (2,) * n, **DOUBLE}
        for i, below in enumerate(self.features[1:]):
            fine.append(Stage(self.features[i])(x))
            x = nn.Conv(below, **half, name=f"Down_{i}")(fine[-1])
        x = Stage(self.features[-1])(x)
        for i, (features, beside) in enumerate(zip(self.features[-2::-1], fine[::-1], strict=True)):
            x = nn.ConvTranspose(features, **half, name=f"Up_{i}")(x)
            x = Stage(features)(jnp.concatenate([x, beside], -1))
        return nn.Dense(1, **DOUBLE, name="Linear_0")(x)[..., 0]


def of_flax(theirs, n):
    """The parameters of `Reference` as ours has them: where an edge is halved or doubled, as a matrix."""
    ours = dict(theirs)
    for name, layer in theirs.items():
        if name.startswith("Down"):
            ours[name] = {"Linear_0": layer | {"kernel": layer["kernel"].reshape(-1, layer["bias"].size)}}
        if name.startswith("Up"):
            # Flax's transposed convolution puts its kernel down mirrored.
            kernel = jnp.moveaxis(jnp.flip(layer["kernel"], range(n)), -2, 0)
            ours[name] = {"Linear_0": {"kernel": kernel.reshape(len(kernel), -1)}, "bias": layer["bias"]}
    return ours


@pytest.mark.parametrize(
    ("n", "size", "features"),
    [(2, 4, (2, 3)), *(pytest.param(*case, marks=pytest.mark.slow) for case in [(2, 8, (2, 3, 4)), (3, 4, (2, 3))])],
)
def test_the_network_is_that_of_flaxs_layers(n, size, features):
    images = drawn(2, *(size,) * n, 2)
    reference = Reference(features)
    theirs = jax.jit(reference.init)(jax.random.key(0), images)["params"]
    theirs = jax.tree.map(lambda leaf: leaf + 0.1 * jnp.cos(jnp.arange(leaf.size)).reshape(leaf.shape), theirs)
    expected = jax.jit(reference.apply)({"params": theirs}, images)
    found: Any = jax.jit(UNet(features).apply)({"params": of_flax(theirs, n)}, images)
    assert found.shape == images.shape[:-1]
    # Variances of the coarsest stage are of 4 or 1 values, and magnify what is left of the rounding.
    np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("groups", [0, 1, 3])
def test_the_normalisation_and_its_gradients_are_those_of_its_formula(groups):
    x, weights = 3 + 2 * drawn(5, 4, 2, 6), drawn(5, 4, 2, 6) + 0.3
    params = {"params": {"scale": drawn(6) + 2, "bias": drawn(6) / 2}}

    def formula(params, x):
        parts = x.reshape(5, 4, 2, groups or 6, -1)
        centred = parts - parts.mean((0, 1, 4), keepdims=True)
        normal = centred / jnp.sqrt((centred**2).mean((0, 1, 4), keepdims=True) + 1e-5)
        return nn.leaky_relu(normal.reshape(x.shape) * params["params"]["scale"] + params["params"]["bias"], SLOPE)

    def with_gradients(function):
        values, back = jax.vjp(function, params, x)
        return values, back(weights)

    both: Any = map(with_gradients, (ActivatedNorm(groups).apply, formula))
    jax.tree.map(lambda ours, theirs: np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-10), *both)


@pytest.mark.parametrize(
    ("logits", "truth"),
    [
        ([50, -50, -50, -50], [1, 0, 0, 0]),
        ([-50] * 4, [0] * 4),
    ],
)
def test_a_mask_that_is_right_and_sure_costs_nothing(logits, truth):
    """Other losses are in tests/workloads/test_segmentation.py."""
    given = jnp.array([[logits]], float), jnp.array([[truth]], bool), jnp.ones((1, 1, 4), bool)
    np.testing.assert_allclose(mask_losses(*given), 0, atol=1e-12)
