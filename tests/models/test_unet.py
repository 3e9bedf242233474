"""The U-Net against Flax's own layers, and its loss on cases made for the test."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from gmmae.models import losses, unet
from gmmae.models.unet import SLOPE, ActivatedNorm, UNet

RTOL = 1e-12  # float64
dice, mask_losses = jax.jit(losses.dice), jax.jit(unet.mask_losses)  # compiled whole: operation by operation takes seconds


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


def blocks_of(kernel, n):
    """A kernel of Flax's strided convolution as the matrix over blocks."""
    return kernel.reshape(2**n * kernel.shape[-2], kernel.shape[-1])


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
            ours[f"Down_{i}"] = {"Linear_0": {"kernel": blocks_of(down["kernel"], n), "bias": down["bias"]}}
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


@pytest.mark.parametrize(("groups", "together"), [(0, 1), (2, 3)])
def test_normalisation_is_by_sample_and_by_group_of_channels(groups, together):
    x = 3 + 2 * drawn(5, 4, 2, 6)
    activated, _ = ActivatedNorm(groups).init_with_output(jax.random.key(0), x)
    normal = jnp.where(activated < 0, activated / SLOPE, activated)
    parts = normal.reshape(5, 4, 2, -1, together)
    np.testing.assert_allclose(parts.mean((0, 1, 4)), 0, atol=1e-12)
    np.testing.assert_allclose(parts.var((0, 1, 4)), 1, rtol=1e-4)  # but for the 1e-5 beside the variance
    other = x.at[..., 1, :].multiply(7)
    of_other, _ = ActivatedNorm(groups).init_with_output(jax.random.key(0), other)
    np.testing.assert_array_equal(of_other[..., 0, :], activated[..., 0, :])


@pytest.mark.parametrize("groups", [0, 1, 3])
def test_the_gradients_of_the_normalisation_are_those_of_its_formula(groups):
    x, weights = 3 + 2 * drawn(5, 4, 2, 6), drawn(5, 4, 2, 6) + 0.3
    params = {"params": {"scale": drawn(6) + 2, "bias": drawn(6) / 2}}

    def formula(params, x):
        parts = x.reshape(5, 4, 2, groups or 6, -1)
        centred = parts - parts.mean((0, 1, 4), keepdims=True)
        normal = centred / jnp.sqrt((centred**2).mean((0, 1, 4), keepdims=True) + 1e-5)
        return nn.leaky_relu(normal.reshape(x.shape) * params["params"]["scale"] + params["params"]["bias"], SLOPE)

    ours: Any = ActivatedNorm(groups).apply
    found, expected = (
        jax.value_and_grad(lambda params, x, f=f: (f(params, x) * weights).sum(), (0, 1))(params, x) for f in (ours, formula)
    )
    jax.tree.map(lambda ours, theirs: np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-10), found, expected)


def masks(*rows):
    return jnp.asarray(rows, bool)[:, None]


def test_the_loss_of_cases_made_by_hand():
    zero, one = jnp.zeros((1, 1, 4)), masks([1, 0, 0, 0])
    # p = ½ everywhere: D = (2 · ½ + 1) / (2 + 1 + 1), H = log 2.
    np.testing.assert_allclose(mask_losses(zero, one, jnp.ones_like(one)), [0.5 + np.log(2)], rtol=RTOL)
    # Of the first two voxels alone: D = 2 / 3.
    np.testing.assert_allclose(mask_losses(zero, one, masks([1, 1, 0, 0])), [1 / 3 + np.log(2)], rtol=RTOL)
    sure = jnp.where(one, 50.0, -50.0)
    np.testing.assert_allclose(mask_losses(sure, one, jnp.ones_like(one)), [0], atol=1e-12)
    empty = jnp.zeros_like(one)
    np.testing.assert_allclose(mask_losses(zero - 50, empty, jnp.ones_like(one)), [0], atol=1e-12)


def test_what_is_not_counted_has_no_influence():
    logits, truth, counted = drawn(2, 3, 4), drawn(2, 3, 4) > 0.5, drawn(2, 3, 4) < 0.8

    def total(logits):
        return mask_losses(logits, truth, counted).sum()

    gradient = jax.jit(jax.grad(total))(logits)
    assert not gradient[~counted].any()
    assert gradient[counted].all()
    other = jnp.where(counted, truth, ~truth)
    np.testing.assert_array_equal(mask_losses(logits, other, counted), mask_losses(logits, truth, counted))
    np.testing.assert_array_equal(dice(logits, other, counted), dice(logits, truth, counted))
