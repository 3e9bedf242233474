"""Workload of `benchmarks.sweep_overhead`: an MLP on 450 samples. An epoch takes milliseconds, so a sweep's overhead shows."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn

from gmmae.workloads.interface import Splits, Workload

VALIDATION_SAMPLES = 90


@dataclass(frozen=True)
class Config:
    """Settings of the workload."""

    samples: int = 450  # training samples
    features: int = 16  # numbers of a sample
    width: int = 32  # units of the hidden layer


class MLP(nn.Module):
    """A perceptron with one hidden layer and one output."""

    width: int

    @nn.compact
    def __call__(self, x):
        """Returns one number for each sample."""
        return nn.Dense(1)(nn.relu(nn.Dense(self.width)(x)))[..., 0]


def build(config: Config) -> Workload:
    """Returns the workload: the regression of a smooth function of the features."""
    model = MLP(config.width)

    def load() -> Splits:
        rng = np.random.default_rng(0)
        x = rng.normal(size=(config.samples + VALIDATION_SAMPLES, config.features)).astype(np.float32)
        y = np.sin(x @ rng.normal(size=config.features).astype(np.float32))
        held_out = VALIDATION_SAMPLES
        return Splits({"x": x[held_out:], "y": y[held_out:]}, {"x": x[:held_out], "y": y[:held_out]})

    def init(key):
        return model.init(key, jnp.zeros((1, config.features)))

    def losses(params, samples, keys):
        del keys  # no random numbers
        return optax.squared_error(model.apply(params, samples["x"]), samples["y"])

    return Workload(load, init, losses)
