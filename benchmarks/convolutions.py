"""Measures a step of Flax convolutions on a CPU: in a plain loop, and in gmmae without and with fast convolutions.

    python -m benchmarks.convolutions

Its own networks see images of 16 × 16 or volumes of 16³, 32 at a time. A plain loop calls a jitted step from Python.
"""

import time
from dataclasses import dataclass
from functools import partial, reduce

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from gmmae.config.schema import changed
from gmmae.training import preparation, programs
from gmmae.training.parallel import AXIS
from gmmae.training.step import Algorithm, Batch, train_step
from gmmae.workloads import registry
from gmmae.workloads.interface import Splits, Workload

FLAT, CUBE = (partial(nn.Conv, kernel_size=(3,) * n) for n in (2, 3))
NETWORKS = {
    "images": [*[FLAT(16) for _ in range(4)], FLAT(1)],
    "volumes": [nn.Conv(12, (5, 5, 5)), CUBE(12, strides=2), CUBE(24)],
    "dilated and transposed": [CUBE(8, strides=2), CUBE(16, kernel_dilation=2), nn.ConvTranspose(8, (2, 2, 2), (2, 2, 2))],
}


@dataclass(frozen=True)
class Config:
    """The network."""

    kind: str = "images"


def build(config: Config) -> Workload:
    """Returns a workload of noise."""
    model = nn.Sequential([part for layer in NETWORKS[config.kind] for part in (layer, nn.relu)])
    samples = np.random.default_rng(0).normal(size=(256, *(16,) * (2 if config.kind == "images" else 3), 1))
    losses = lambda params, samples, keys: (jnp.asarray(model.apply(params, samples)) ** 2).reshape(len(samples), -1).mean(1)  # noqa: E731
    return Workload(lambda: Splits(samples, samples[:32]), lambda key: model.init(key, samples[:1].astype("f")), losses)


def measure(config: Config) -> dict[str, float]:
    """Returns the least milliseconds of a step in each form."""
    setup = preparation.prepare(registry.configuration(__file__, settings=config))
    start = preparation.initial_state(setup)
    state = setup.devices.replicate(start)
    step = partial(train_step, algorithm=Algorithm(setup.workload.losses, setup.optimizer))
    alone = jax.vmap(step, None, None, axis_name=AXIS, axis_size=1)  # the mean over devices names their axis
    runs, least = {}, {}
    for on in (False, True):
        at = setup._replace(config=changed(setup.config, parallel__fast_convolutions=on))
        compiled, arguments, chunks = programs.compile_training(at, state)
        runs[f"fast: {on}"] = compiled
    given = arguments(1, chunks.of_epoch[0])
    _, _, data, slots = given
    one = jax.jit(lambda state, batch: alone(state, Batch(data[batch[0]]), batch[1], 1e-3)[0])
    batches = list(zip(*(np.asarray(array[0]) for array in (slots.rows, slots.weights)), strict=True))
    runs["plain loop"] = lambda state, *_: reduce(one, batches, state)
    for name, run in list(runs.items()) * 5:
        state, begin = setup.devices.replicate(start), time.perf_counter()
        jax.block_until_ready(run(state, *given))
        least[name] = min(time.perf_counter() - begin, least.get(name, np.inf))
    return {name: seconds / len(batches) * 1e3 for name, seconds in least.items()}


if __name__ == "__main__":
    for kind in NETWORKS:
        print(kind, measure(Config(kind)))
