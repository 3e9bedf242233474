"""Times training steps of several seeds on one device: by `vmap`, by `lax.map` and one seed after the other.

    python benchmarks/seeds.py [--config quickstart] [--batches 8 32] [--seeds 1 2 4 8] [--steps 4] [--rounds 5]

The three ways are timed alternately. Each seed has its own parameters, optimiser state and order of samples. `vmap` is faster
if the ratio is above 1.
"""

import dataclasses
import os
import platform
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.options import Parser, at_least, guarded
from gmmae.config.schema import Config
from gmmae.config.toml import find
from gmmae.scaling.batches import BatchPlan, epoch_order, shard_samples
from gmmae.training import compilation
from gmmae.training.step import TrainState, make_train_epoch
from gmmae.workloads.configuration import read_config


def seeds_of(config: Config, count: int, batch: int, steps: int) -> tuple[Callable[..., Any], list[tuple[Any, ...]]]:
    """Returns a function that trains one seed for some steps, and its arguments for each seed."""
    setup = compilation.prepare(dataclasses.replace(config, parallel=dataclasses.replace(config.parallel, devices=1)))
    samples = jax.tree.map(jnp.asarray, setup.data.train)
    plan = BatchPlan(steps * batch, batch, devices=1)
    arguments = []
    for seed in range(count):
        start = compilation.initial_state(setup._replace(config=dataclasses.replace(setup.config, seed=seed)))
        order = epoch_order(seed, 1, setup.train_plan.samples)
        indices, weights = (x[0] for x in shard_samples(np.resize(order, plan.samples), plan))
        arguments.append(jax.device_put((start, indices, weights)))

    train_epoch = make_train_epoch(setup.workload.losses, setup.optimizer)

    def train(state: TrainState, indices: jax.Array, weights: jax.Array) -> tuple[TrainState, jax.Array]:
        return train_epoch(state, samples, jnp.int32(1), indices, weights, None)

    return train, arguments


def ways(train: Callable[..., Any], arguments: list[tuple[Any, ...]]) -> dict[str, Callable[[], Any]]:
    """Returns the same work in three compiled and checked ways."""
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *arguments)
    alone = jax.jit(train).lower(*arguments[0]).compile()
    together = jax.jit(jax.vmap(train)).lower(*stacked).compile()
    mapped = jax.jit(partial(jax.lax.map, lambda seed: train(*seed))).lower(stacked).compile()
    found = {
        "one after the other": lambda: [jax.block_until_ready(alone(*seed)) for seed in arguments],
        "together": lambda: jax.block_until_ready(together(*stacked)),
        "lax.map": lambda: jax.block_until_ready(mapped(stacked)),
    }
    expected = np.stack([losses for _, losses in found["one after the other"]()])
    for name in ("together", "lax.map"):
        # The same sums in another order; after some steps they differ by more than rounding.
        np.testing.assert_allclose(found[name]()[1], expected, rtol=1e-2, err_msg=name)
    return found


def seconds(work: Callable[[], Any]) -> float:
    """Returns the seconds of a call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> None:
    """Prints the table."""
    parser = Parser(__doc__)
    parser.add_argument("--config", default="quickstart")
    parser.add_argument("--batches", type=at_least(1), nargs="+", default=[8, 32])
    parser.add_argument("--seeds", type=at_least(1), nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--steps", type=at_least(1), default=4, help="training steps in a timed block")
    parser.add_argument("--rounds", type=at_least(1), default=5, help="number of timed blocks of each way")
    asked = parser.parse_args()
    config = read_config(find(asked.config))
    print(f"{jax.devices()[0].device_kind}, {os.cpu_count()} cores, Python {platform.python_version()}, jax {jax.__version__}")
    print(f"{asked.config}, {asked.steps} steps, {asked.rounds} rounds; seconds a step and seed, medians; ratios (least, most)")
    print("| batch | seeds | one after the other | together | lax.map | other / together | other / lax.map |")
    print("|---|---|---|---|---|---|---|")
    for batch in asked.batches:
        for count in asked.seeds:
            with compilation.precision_context(config):
                work = ways(*seeds_of(config, count, batch, asked.steps))
                turns = np.array([[seconds(way) for way in work.values()] for _ in range(asked.rounds)])
            each = np.median(turns, axis=0) / (asked.steps * count)
            ratios = turns[:, :1] / turns[:, 1:]
            words = [f"{np.median(r):.2f} ({r.min():.2f}, {r.max():.2f})" for r in ratios.T]
            print(f"| {batch} | {count} | {' | '.join(f'{s:.4f}' for s in each)} | {' | '.join(words)} |", flush=True)


if __name__ == "__main__":
    guarded(main)
