"""The gradient noise scale: the batch whose mean gradient has as much noise as signal (McCandlish et al., arXiv:1812.06162).

The mean gradient of b samples has the expected squared norm |G|² + tr(Σ) / b. Two batch sizes separate the two terms. Their
ratio tr(Σ) / |G|² is the noise scale, in samples. Norms are those that the optimiser sees, |P^(-1/2) g|². P is √v̂ + ε for Adam
and its relatives, and 1 for optimisers without a second moment.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jaxtyping import Array

from gmmae.scaling.strategies import WITH_BETAS
from gmmae.training import compilation, per_sample
from gmmae.training.compilation import TrainSetup
from gmmae.training.fetching import Fetcher
from gmmae.training.step import TrainState, take
from gmmae.workloads.interface import Params, Samples
from gmmae.workloads.sources import CheckedSource, one_sample

NORM_STEPS = 8
"""Largest number of batches whose gradients the noise scale is computed from."""


class Norms(NamedTuple):
    """Squared norms of gradients as the optimiser sees them, |P^(-1/2) g|², a number a step."""

    batch: int
    of_one: list[float]  # the mean over the samples of a step, each alone
    of_batch: list[float]  # of their mean gradient


def gradient_norms(setup: TrainSetup, state: TrainState, fetcher: Fetcher) -> Callable[[TrainState], Norms]:
    """Compiles a program for the gradient norms of the noise scale at a state of a run.

    Args:
      setup: of the run; one device computes.
      state: a state on the host, for its shapes.
      fetcher: reads the samples of a source. The returned function needs it.
    """
    config, batch = setup.config, setup.train_plan.batch
    order = np.random.default_rng(0).permutation(setup.train_plan.samples)[: batch * NORM_STEPS]
    indices = order[: len(order) // batch * batch].reshape(-1, batch)

    optimizer = setup.optimization.optimizer
    log_beta2 = math.log(optimizer.beta2) if optimizer.beta2 else -math.inf

    def scales_of(state: TrainState) -> Params:
        """Returns P for each parameter."""
        if optimizer.name not in WITH_BETAS:
            return jax.tree.map(jnp.ones_like, state.params)
        count = optax.tree_utils.tree_get_all_with_path(state.opt_state, "count")[0][1]
        unbiased = -jnp.expm1(jnp.maximum(count, 1) * log_beta2)
        return jax.tree.map(
            lambda v: jnp.sqrt(v / unbiased) + optimizer.epsilon, optax.tree_utils.tree_get(state.opt_state, "nu")
        )

    def squares(state: TrainState, data: Samples, rows: Array, index: Array) -> tuple[Array, Array]:
        scales = scales_of(state)

        def norm(rows: Array, index: Array) -> Array:
            keys = jax.vmap(lambda sample: jax.random.fold_in(jax.random.key(0), sample))(index)
            samples = take(data, rows)
            gradient = jax.grad(lambda params: per_sample.losses(setup.workload, params, samples, keys).mean())(state.params)
            return jax.tree.reduce(jnp.add, jax.tree.map(lambda g, scale: jnp.sum(g**2 / scale), gradient, scales))

        return lax.map(lambda one: norm(*(number[None] for number in one)), (rows, index)).mean(), norm(rows, index)

    train = setup.data.train
    like = compilation.cast(config, one_sample(train))
    # All samples of arrays are on the device, and of a source only those of a batch.
    whole = None if isinstance(train, CheckedSource) else jax.device_put(compilation.cast(config, train))

    def arguments(index: np.ndarray) -> tuple[Samples, np.ndarray, np.ndarray]:
        if isinstance(train, CheckedSource):
            return fetcher.take(train, like, index), np.arange(batch), index
        return whole, index, index

    compiled = jax.jit(squares).lower(state, *arguments(indices[0])).compile()

    def norms(state: TrainState) -> Norms:
        squared = [compiled(state, *arguments(index)) for index in indices]
        return Norms(batch, [float(one) for one, _ in squared], [float(many) for _, many in squared])

    return norms


def signal_and_noise(norms: Norms) -> tuple[np.ndarray, np.ndarray]:
    """Returns estimates of |G|² and tr(Σ) for each step, unbiased (appendix A.1 there). They may be negative."""
    batch, of_one, of_batch = norms.batch, np.array(norms.of_one), np.array(norms.of_batch)
    return (batch * of_batch - of_one) / (batch - 1), (of_one - of_batch) / (1 - 1 / batch)


def noise_of(norms: Norms, blocks: int = 8) -> float | None:
    """Returns the noise scale in samples: the median over blocks of consecutive steps of the ratio of their means.

    A few steps have gradients far above all others and would decide a ratio of means over all steps. Returns None where the
    signal of most blocks is lost in the noise.

    >>> noise_of(Norms(10, [11.0] * 16, [2.0] * 16))  # |G|² = 1, tr(Σ) = 10
    10.0
    """
    signal, noise = signal_and_noise(norms)
    count = min(blocks, len(signal))
    means = [[block.mean() for block in np.array_split(part, count)] for part in (signal, noise)]
    ratios = [noise / signal if signal > 0 else np.inf for signal, noise in zip(*means, strict=True)]
    median = float(np.median(ratios))
    return median if 0 < median < np.inf else None
