"""Measures the gradient's noise scale at the target of each base run of the zoo.

    python -m experiments.zoo.noise     # reads results/zoo/cases.csv; writes noise.csv beside it

The noise scale is tr(Σ) / |G|² (McCandlish et al. 2018, arXiv 1812.06162), in samples. It comes from the squared norms of the
gradients of one batch and of eight. Both are means over the validations in the last quarter of the base run.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from benchmarks.options import Parser, guarded
from experiments import tables
from experiments.zoo import cases as zoo
from experiments.zoo.cases import BASES, CASES, Case
from experiments.zoo.runs import RATE_FACTORS, SEEDS, batches, training_step
from experiments.zoo.workloads import WORKLOADS, Workload
from gmmae.planner.measurements import validation_spacing
from gmmae.training.noise_scale import Norms, signal_and_noise

NOISE = CASES.with_name("noise.csv")
BATCHES = 8
"""Batches of the larger gradient."""
LAST = 0.75
"""Share of the base run's steps after which norms count."""


def norms(workload: Workload, spacing: int, count: int) -> Float[np.ndarray, "seeds rates validations 2"]:
    """Returns the squared norms of the gradients of one batch and of several at each of `count` validations.

    Args:
      workload: that trains.
      spacing: steps between validations.
      count: number of validations.
    """
    data = workload.data()
    inputs, outputs, *_ = map(jnp.asarray, data)
    optimizer, step = training_step(workload, inputs, outputs)
    samples, batch = len(inputs), workload.batch_size
    few = np.random.default_rng(0).permutation(samples)[: BATCHES * batch]
    few = few[: len(few) // batch * batch].reshape(-1, batch)

    def squared(gradient: Any) -> Array:
        return jnp.sum(jnp.stack([jnp.sum(leaf**2) for leaf in jax.tree.leaves(gradient)]))

    def of_gradients(params: Any) -> Array:
        gradients = [jax.grad(workload.loss)(params, inputs[index], outputs[index]) for index in few]
        mean = jax.tree.map(lambda *leaves: sum(leaves) / len(few), *gradients)
        return jnp.stack([jnp.mean(jnp.stack([squared(one) for one in gradients])), squared(mean)])

    def run(params: Any, indices: Array, learning_rate: Array) -> Array:
        def until_validation(carry: Any, indices: Array) -> tuple[Any, Array]:
            carry, _ = lax.scan(lambda carry, index: step(carry, index, learning_rate), carry, indices)
            return carry, of_gradients(carry[0])

        return lax.scan(until_validation, (params, optimizer.init(params)), indices)[1]

    params = jax.vmap(workload.init)(jax.random.split(jax.random.key(7), SEEDS))
    orders = [batches(samples, batch, seed) for seed in range(SEEDS)]
    indices = np.stack([[next(order) for _ in range(count * spacing)] for order in orders])
    rates = workload.learning_rate * np.array([RATE_FACTORS[base] for base in BASES], np.float32)
    of_rates = jax.jit(jax.vmap(jax.vmap(run, in_axes=(None, None, 0)), in_axes=(0, 0, None)))
    return np.asarray(of_rates(params, indices.reshape(SEEDS, count, spacing, batch), rates), float)


def scale(of: Float[np.ndarray, "validations 2"], batch: int, several: int) -> float:
    """Returns the noise scale from squared norms; infinite where no signal is seen.

    >>> scale(np.array([[1.0 + 8.0, 1.0 + 1.0]]), 10, 8)
    80.0
    """
    one, many = of.mean(0)
    signal, noise = signal_and_noise(Norms(several, [one], [many]))  # a batch takes the place of a sample
    return float(batch * noise[0] / signal[0]) if signal[0] > 0 else np.inf


def measure(name: str, of: Sequence[Case]) -> list[dict[str, Any]]:
    """Returns a row for each case of a workload."""
    workload = WORKLOADS[name]
    spacing = validation_spacing(of[0].samples, workload.batch_size)
    found = norms(workload, spacing, int(np.ceil(max(case.steps for case in of) / spacing)) + 1)
    several = min(BATCHES, of[0].samples // workload.batch_size)
    rows = []
    for case in of:
        steps = spacing * (1 + np.arange(found.shape[2]))
        late = (steps >= LAST * case.steps) & (steps < case.steps + spacing)
        value = scale(found[case.seed, BASES.index(case.base), late], case.batch, several)
        rows.append(dict(zip(zoo.KEY, (*case.setting, case.seed), strict=True)) | {"noise_scale": f"{value:.4g}"})
    return rows


def main() -> None:
    """Writes the noise scales of the cases."""
    Parser(__doc__).parse_args()
    cases = zoo.load()
    rows: list[dict[str, Any]] = []
    for name in dict.fromkeys(case.workload for case in cases):
        rows += measure(name, [case for case in cases if case.workload == name])
        print(name, flush=True)
        tables.write(NOISE, rows)


if __name__ == "__main__":
    guarded(main)
