"""The trainings of `experiments/curves_pytorch.py` as a workload of gmmae: the same data, model, first parameters and Adam.

gmmae plan --workload experiments/curves_workload.py --kind autoencoder --stop.target 0.35
"""

from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
import optax

from experiments.curves_pytorch import WORKLOADS, load
from gmmae.workloads.interface import Splits, Workload


@dataclass(frozen=True)
class Config:
    """Settings of the workload."""

    kind: Literal["classifier", "autoencoder"] = "classifier"  # the model


def build(config: Config) -> Workload:
    """Returns the workload. The first parameters have the distribution of PyTorch's `nn.Linear`."""
    outputs = 64 if config.kind == "autoencoder" else 10
    sizes = ((64, WORKLOADS[config.kind].hidden), (WORKLOADS[config.kind].hidden, outputs))

    def load_splits() -> Splits:
        train_x, train_y, held_x, held_y = load()
        return Splits({"image": train_x, "label": train_y}, {"image": held_x, "label": held_y})

    def init(key):
        keys = jax.random.split(key, 4)
        bounds = [1 / fan_in**0.5 for fan_in, _ in sizes]
        shapes = [(sizes[0], bounds[0]), (sizes[0][1:], bounds[0]), (sizes[1], bounds[1]), (sizes[1][1:], bounds[1])]
        return [
            jax.random.uniform(one, shape, jnp.float32, -bound, bound) for one, (shape, bound) in zip(keys, shapes, strict=True)
        ]

    def losses(params, samples, keys):
        w1, b1, w2, b2 = params
        images = samples["image"]
        out = jax.nn.relu(images @ w1 + b1) @ w2 + b2
        if config.kind == "autoencoder":
            return ((out - images) ** 2).mean(-1)
        return optax.softmax_cross_entropy_with_integer_labels(out, samples["label"])

    return Workload(load_splits, init, losses)
