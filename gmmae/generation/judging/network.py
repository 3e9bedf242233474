"""A small 3-D network that tells two sets of volumes apart, a second opinion beside the linear classifier on features.

It reads the voxels. Each fold trains on some patients, is stopped by others, and is tested on the rest.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from jaxtyping import Array, Float, Int

from gmmae.generation.judging.bootstrap import Estimate
from gmmae.generation.judging.two_samples import FOLDS, folds, mean_auc
from gmmae.models.kernels.convolution import Conv
from gmmae.models.unet import ActivatedNorm, Down
from gmmae.workloads.augment import symmetries

FEATURES = (8, 16, 32)
"""Channels of the stages. A stage after the first begins with half of the voxels along each axis."""
BATCH, EPOCHS, LEARNING_RATE, WEIGHT_DECAY = 32, 24, 2e-3, 1e-2
"""Set before the first measurement, without a search."""


class Network(nn.Module):
    """Maps volumes to one logit each: convolutions of 3 voxels, halvings, and the mean over the voxels."""

    @nn.compact
    def __call__(self, volumes: Float[Array, "samples z y x"]) -> Float[Array, " samples"]:
        """Returns the logits. Each axis needs a multiple of 4 voxels."""
        x = jnp.moveaxis(volumes, 0, -1)[..., None]
        for stage, features in enumerate(FEATURES):
            x = Down(features)(x) if stage else x
            x = ActivatedNorm(0)(Conv(features, 3, "SAME", use_bias=False)(x))
        pooled = jnp.concatenate([x.mean((0, 1, 2)), x.std((0, 1, 2))], -1)
        return nn.Dense(1)(pooled)[:, 0]


class _Fold(NamedTuple):
    fit: Int[np.ndarray, " fit"]
    stop: Int[np.ndarray, " stop"]
    test: Int[np.ndarray, " test"]


def c2st(
    volumes: Float[np.ndarray, "samples z y x"], labels: Int[np.ndarray, " samples"], groups: np.ndarray, seed: int
) -> Estimate:
    """Returns the mean AUC of the network over the folds, with its interval by group; 0.5 is perfect.

    The epoch with the smallest loss on the stopping patients gives the scores of the test patients.

    Args:
      volumes: volumes of both sets, as shares of the window.
      labels: 0 for the first set, 1 for the second.
      groups: group of each volume, which no fold divides.
      seed: seed of folds, initial parameters, batches and symmetries.

    Raises:
      InputError: there are too few groups for a fold with both sets.
    """
    inputs = jnp.asarray(_padded(_standardised(volumes)), jnp.float32)
    scored = []
    for number, (train, test) in enumerate(folds(labels, groups, seed)):
        divided = folds(labels[train], groups[train], seed)
        if not divided:
            continue
        fit, stop = (train[part] for part in divided[0])
        losses, scores = _trained(inputs, jnp.asarray(labels), _Fold(fit, stop, test), seed * FOLDS + number)
        scored.append((test, scores[int(np.argmin(losses))][test]))
    return mean_auc(scored, labels, groups, seed)


def _standardised(volumes: Float[np.ndarray, "samples z y x"]) -> Float[np.ndarray, "samples z y x"]:
    return (volumes - volumes.mean()) / max(float(volumes.std()), 1e-9)


def _padded(volumes: Float[np.ndarray, "samples z y x"]) -> Float[np.ndarray, "samples z y x"]:
    """Repeats the outermost voxels up to a multiple of 4 voxels along each axis."""
    more = [-size % 4 for size in volumes.shape[1:]]
    return np.pad(volumes, ((0, 0), *((n // 2, n - n // 2) for n in more)), mode="edge")


def _trained(inputs: Array, labels: Array, fold: _Fold, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Trains a network. Returns the stopping loss and the scores of all samples after each epoch."""
    key = jax.random.key(seed)
    params = Network().init(key, inputs[:1])
    state = _optimizer().init(params)
    rng = np.random.default_rng(seed)
    losses, scores = [], []
    # Both sets fill half of each batch. All batches have one size, so one program serves all folds.
    sets = [fold.fit[np.asarray(labels)[fold.fit] == label] for label in (0, 1)]
    steps = max(1, round(len(fold.fit) / BATCH))
    for epoch in range(EPOCHS):
        batches = np.concatenate([rng.choice(part, (steps, BATCH // 2)) for part in sets], axis=1)
        params, state = _epoch(params, state, inputs, labels, jnp.asarray(batches), jax.random.fold_in(key, epoch))
        logits = np.asarray(_scores(params, inputs), np.float64)
        truth = np.asarray(labels)
        losses.append(np.mean(np.logaddexp(0, logits[fold.stop]) - truth[fold.stop] * logits[fold.stop]))
        scores.append(logits)
    return np.array(losses), np.array(scores)


def _optimizer() -> optax.GradientTransformation:
    return optax.adamw(LEARNING_RATE, weight_decay=WEIGHT_DECAY)


@jax.jit
def _scores(params: Any, inputs: Array) -> Array:  # noqa: ANN401
    return Network().apply(params, inputs)  # pyright: ignore[reportReturnType]


@partial(jax.jit, donate_argnums=(0, 1))
def _epoch(params: Any, state: Any, inputs: Array, labels: Array, batches: Array, key: Array) -> tuple[Any, Any]:  # noqa: ANN401
    def loss(params: Any, batch: Array, key: Array) -> Array:  # noqa: ANN401
        volumes = symmetries(inputs[batch], jax.random.split(key, len(batch)))
        logits = jnp.asarray(Network().apply(params, volumes))
        return optax.sigmoid_binary_cross_entropy(logits, labels[batch]).mean()

    def step(carry: tuple[Any, Any], batch_and_key: tuple[Array, Array]) -> tuple[tuple[Any, Any], None]:
        params, state = carry
        updates, state = _optimizer().update(jax.grad(loss)(params, *batch_and_key), state, params)
        return (optax.apply_updates(params, updates), state), None

    carry, _ = jax.lax.scan(step, (params, state), (batches, jax.random.split(key, len(batches))))
    return carry
