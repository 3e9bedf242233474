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


class Reference(nn.Module):
    """The same network of Flax's layers, samples first."""

    features: tuple[int, ...]

    @nn.compact
    def __call__(self, x):
        n, fine, kinds = x.ndim - 2, [], {"param_dtype": jnp.float64}
        half = {"kernel_size": (2,) * n, "strides": (2,) * n, **kinds}

        def stage(x, features):
            for _ in range(2):
                x = nn.Conv(features, (3,) * n, use_bias=False, **kinds)(x)
                x = nn.leaky_relu(nn.InstanceNorm(epsilon=1e-5, **kinds)(x), SLOPE)
            return x

        for features, below in zip(self.features, self.features[1:], strict=False):
            fine.append(stage(x, features))
            x = nn.Conv(below, **half)(fine[-1])
        x = stage(x, self.features[-1])
        for features, beside in zip(self.features[-2::-1], fine[::-1], strict=True):
            x = stage(jnp.concatenate([nn.ConvTranspose(features, **half)(x), beside], -1), features)
        return nn.Dense(1, **kinds)(x)[..., 0]


def of_flax(theirs, n):
    """The parameters of `Reference` where ours has them: by the order in which layers are made."""
    halvings = sum(name.startswith("ConvTranspose") for name in theirs)
    convolutions = [theirs[f"Conv_{i}"] for i in range(2 * (2 * halvings + 1) + halvings)]
    norms = iter(theirs[f"InstanceNorm_{i}"] for i in range(2 * (2 * halvings + 1)))
    ours: dict[str, Any] = {}
    for i in range(2 * halvings + 1):
        pair = [convolutions.pop(0) for _ in range(2)]
        ours[f"Stage_{i}"] = {f"Conv_{j}": one for j, one in enumerate(pair)} | {f"Norm_{j}": next(norms) for j in range(2)}
        if i < halvings:
            down = convolutions.pop(0)
            ours[f"Down_{i}"] = {"Linear_0": down | {"kernel": down["kernel"].reshape(-1, down["bias"].size)}}
    for i in range(halvings):
        up = theirs[f"ConvTranspose_{i}"]
        # Flax's transposed convolution puts its kernel down mirrored.
        kernel = jnp.flip(up["kernel"], range(n))
        matrix = jnp.moveaxis(kernel, -2, 0).reshape(kernel.shape[-2], -1)
        ours[f"Up_{i}"] = {"Linear_0": {"kernel": matrix}, "bias": up["bias"]}
    return ours | {"Linear_0": theirs["Dense_0"]}


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
    ("logits", "truth", "counted", "expected"),
    [
        # p = ½ everywhere, of the first two voxels alone: D = (2 · ½ + 1) / (1 + 1 + 1), H = log 2
        ([0] * 4, [1, 0, 0, 0], [1, 1, 0, 0], 1 / 3 + np.log(2)),
        ([50, -50, -50, -50], [1, 0, 0, 0], [1] * 4, 0),
        ([-50] * 4, [0] * 4, [1] * 4, 0),
    ],
)
def test_the_loss_of_cases_made_by_hand(logits, truth, counted, expected):
    given = jnp.array([[logits]], float), *(jnp.array([[mask]], bool) for mask in (truth, counted))
    np.testing.assert_allclose(mask_losses(*given), [expected], rtol=RTOL, atol=1e-12)
