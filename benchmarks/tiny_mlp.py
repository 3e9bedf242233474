"""Workload of `benchmarks.sweep_overhead`: an MLP on 450 samples. An epoch takes milliseconds, so a sweep's overhead shows."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from gmmae.workloads.interface import Splits, Workload

VALIDATION_SAMPLES = 90


@dataclass(frozen=True)
class Config:
    """Settings of the workload."""

    samples: int = 450  # training samples
    features: int = 16  # numbers of a sample
    width: int = 32  # units of the hidden layer


def build(config: Config) -> Workload:
    """Returns the workload: the regression of a smooth function of the features."""

    def load() -> Splits:
        rng = np.random.default_rng(0)
        x = rng.normal(size=(config.samples + VALIDATION_SAMPLES, config.features)).astype(np.float32)
        y = np.sin(x @ rng.normal(size=config.features).astype(np.float32))
        held_out = VALIDATION_SAMPLES
        return Splits({"x": x[held_out:], "y": y[held_out:]}, {"x": x[:held_out], "y": y[:held_out]})

    def init(key):
        first, second = jax.random.split(key)
        return {
            "hidden": jax.random.normal(first, (config.features, config.width)) * config.features**-0.5,
            "bias": jnp.zeros(config.width),
            "output": jax.random.normal(second, (config.width,)) * config.width**-0.5,
        }

    def losses(params, samples, keys):
        del keys  # no random numbers
        units = jax.nn.relu(samples["x"] @ params["hidden"] + params["bias"])
        return jnp.square(units @ params["output"] - samples["y"])

    return Workload(load, init, losses)
