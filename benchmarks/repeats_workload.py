"""A convolutional and a recurrent classifier as a user would write them, for `benchmarks.repeats`."""

from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from jax import Array

from gmmae.workloads.interface import Splits, Workload


@dataclass(frozen=True)
class Config:
    """The kind of the network, which reads an image as an image, or as a sequence of its rows."""

    kind: Literal["convolutional", "recurrent"] = "convolutional"


class Network(nn.Module):
    """Returns ten logits an image."""

    kind: str

    @nn.compact
    def __call__(self, images: Array) -> Array:
        """Returns logits of shape `images × 10`, of images of shape `images × rows × columns`."""
        if self.kind == "recurrent":
            x = jnp.asarray(nn.RNN(nn.GRUCell(32))(images))[:, -1]
        else:
            x = images[..., None]
            for width in (8, 16):
                x = nn.relu(nn.GroupNorm(4)(nn.Conv(width, (3, 3))(x)))
                x = nn.max_pool(x, (2, 2), (2, 2))
            x = x.reshape(len(images), -1)
        return nn.Dense(10)(x)


def build(config: Config) -> Workload:
    """Returns the workload: 128 training images of 16 × 16, so four batches of 32."""
    model = Network(config.kind)

    def load() -> Splits:
        rng = np.random.default_rng(0)
        labels = rng.integers(0, 10, 160)
        images = rng.normal(rng.integers(0, 2, (10, 16, 16))[labels], 0.5).astype(np.float32)
        samples = {"image": images, "label": labels}
        return Splits({key: value[32:] for key, value in samples.items()}, {key: value[:32] for key, value in samples.items()})

    def losses(params, samples, keys):
        images = samples["image"]
        if keys is not None:
            images += 0.1 * jax.vmap(lambda key: jax.random.normal(key, (16, 16)))(keys)
        logits = jnp.asarray(model.apply(params, images))
        return optax.softmax_cross_entropy_with_integer_labels(logits, samples["label"])

    return Workload(load, lambda key: model.init(key, jnp.zeros((1, 16, 16))), losses)
