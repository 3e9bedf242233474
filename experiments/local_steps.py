"""Trains workloads of the zoo by local steps, all seeds and learning rates side by side in one program a cell.

    python -m experiments.local_steps --out runs/local [--workloads NAME ...]     # NAME.csv: steps to the target of each run

A cell is a number of devices, a number of local steps and a batch: the base batch, or as many times that as devices. One device
is strong scaling, or with the larger batch weak scaling. As in `gmmae train`, a round ends with an epoch.
"""

import itertools
import math
import time
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from benchmarks.options import guarded
from experiments import tables
from experiments.zoo.runs import BASE_MARGIN, Trainer, batches, files, levels, training_step
from experiments.zoo.workloads import WORKLOADS, Data, Workload
from gmmae.planner.step_ratios import MetricCurve, smooth

SEEDS = 3
DEVICES = (8, 32)
RATE_FACTORS = (1, 2, *(base * math.sqrt(n) for n in DEVICES for base in (1, 2)))
"""Learning rates over the lowest one of the zoo: two base rates, and each times the roots of the devices."""
LOCAL_STEPS = (4, 16, 64)
MOST = 2.5
"""Largest number of steps over those of the base run's length."""


def cells(workload: Workload) -> list[tuple[int, int, int]]:
    """Returns devices, local steps and batch of each cell, strong and weak scaling first."""
    base = workload.batch_size
    rules = [(1, 1, base), *((1, 1, n * base) for n in DEVICES)]
    shared = [n for n in DEVICES if n <= base]
    return [
        *rules,
        *((n, every, base) for n, every in itertools.product(shared, LOCAL_STEPS)),
        *((n, every, n * base) for n, every in itertools.product(DEVICES, LOCAL_STEPS)),
    ]


def averaged(of_replicas: Any) -> Any:
    """Returns the mean over the leading axis."""
    return jax.tree.map(lambda leaf: leaf.mean(0).astype(leaf.dtype), of_replicas)


def steps_to(
    target: float, trainer: Trainer, workload: Workload, data: Data, cell: tuple[int, int, int], most: int
) -> np.ndarray:
    """Returns the steps to the target by seed and learning rate, infinite where they are more than `most`."""
    devices, every, batch = cell
    inputs, outputs, *validation = map(jnp.asarray, data)
    _, step = training_step(workload, inputs, outputs)
    an_epoch = max(1, len(inputs) // batch)
    every = min(every, an_epoch)
    rounds = 1 if every >= 8 else 8 // every

    def replica(learning_rate: Array, carry: Any, indices: Array) -> Any:
        return lax.scan(lambda carry, index: step(carry, index, learning_rate), carry, indices)[0]

    def take_round(learning_rate: Array, carry: Any, indices: Array) -> tuple[Any, None]:
        return averaged(jax.vmap(partial(replica, learning_rate, carry), in_axes=1)(indices)), None

    def until_validation(learning_rate: Array, carry: Any, indices: Array) -> tuple[Any, Array]:
        carry = lax.scan(partial(take_round, learning_rate), carry, indices)[0]
        return carry, workload.loss(carry[0], *validation)

    def block(learning_rate: Array, carry: Any, indices: Array) -> tuple[Any, Array]:
        return lax.scan(partial(until_validation, learning_rate), carry, indices)

    run = jax.jit(jax.vmap(jax.vmap(block, (0, 0, None)), (None, 0, 0)))
    here = slice(SEEDS), slice(len(RATE_FACTORS))
    carry, losses = jax.tree.map(lambda leaf: leaf[here], trainer.start), [trainer.first_losses[here]]
    rates = workload.learning_rate * jnp.array(RATE_FACTORS)
    orders = [batches(len(inputs), batch, seed) for seed in range(SEEDS)]
    spacing, blocks, found = rounds * every, 8, np.array(math.inf)
    while (len(losses) - 1) * blocks * spacing < most and np.isinf(found).any():
        indices = np.stack([[next(order) for _ in range(blocks * spacing)] for order in orders])
        shared = indices.reshape(SEEDS, blocks, rounds, every, devices, -1)
        carry, of_blocks = run(rates, carry, shared)
        losses.append(np.asarray(of_blocks))
        curves = smooth(np.concatenate(losses, -1))
        steps = spacing * np.arange(curves.shape[-1])
        found = np.array([[MetricCurve(steps, one).reaches(target) for one in of_seed] for of_seed in curves])
    return found


def rows_of(name: str) -> list[dict[str, Any]]:
    """Returns a row for each run of a workload."""
    workload = WORKLOADS[name]
    data = workload.data()
    samples, trainer = len(data.inputs), Trainer(workload, data)
    length = workload.epochs * samples // workload.batch_size
    base = trainer.curves(workload.batch_size, lambda found: found.steps[-1] < BASE_MARGIN * length)
    target = levels(base, workload.epochs, samples)[-1]
    rows = []
    for cell in cells(workload):
        if cell[2] > samples or cell[1] >= 4 * max(1, samples // cell[2]):  # a round of an epoch is one of the cells before
            continue
        found = steps_to(target, trainer, workload, data, cell, int(MOST * length))
        for (seed, rate), steps in np.ndenumerate(found):
            rows.append(
                {"workload": name, "samples": samples, "base_batch": workload.batch_size, "devices": cell[0],
                 "local_steps": cell[1], "batch": cell[2], "seed": seed, "rate": f"{RATE_FACTORS[rate]:.4g}",
                 "steps": f"{steps:.4g}"}
            )  # fmt: skip
    return rows


def main() -> None:
    """Trains the workloads that are not there yet."""
    for name, path in files(__doc__).items():
        path = path.with_suffix(".csv")
        if not path.exists():
            began = time.perf_counter()
            tables.write(path, rows_of(name))
            print(f"{name}: {time.perf_counter() - began:.0f} s", flush=True)


if __name__ == "__main__":
    guarded(main)
