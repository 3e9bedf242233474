"""Test-time optimisation of a mixture for its volume, from the network's mixture.

The network finds mixtures by one rule for all volumes (amortised). A few steps of Adam remove much of the error, by the
logarithms of the weights, before a softmax, the means, the logarithms of the standard deviations σ, kept above a floor, and
with correlations the rows of the Cholesky factor in units of their diagonal.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jaxtyping import Array, Float

from gmmae.models.kernels import axis_aligned, per_sample_loss
from gmmae.models.kernels.axis_aligned import AxisAligned
from gmmae.models.losses import PointLoss, mean_of_each
from gmmae.models.mixture import Mixture, coefficients_of, density

RATE, BETA1, BETA2 = 0.15, 0.7, 0.9
"""Of Adam. The rate falls to zero along half a cosine. A few steps need a short memory: with 0.9 and 0.999 the loss after 120
steps is nearly twice as large (docs/measurements/speed.md)."""
MEANS_RATE = 0.15
"""Factor of the learning rate for the means, in half side lengths of the volume."""
MIN_LOG_WEIGHT = -30.0
"""At the start: a weight of zero has no gradient; from here a component may come back."""


class Refined(NamedTuple):
    """Refined mixtures, their densities at the voxel centres, and the loss of each sample before and after."""

    mixture: Mixture
    density: Float[Array, "samples *volume"]
    before: Float[Array, " samples"]
    after: Float[Array, " samples"]


Free = dict[str, Array]
"""log_weights, means, log_sigma, and rows where components have correlations."""


def refine(
    mixture: Mixture,
    volumes: Float[Array, "samples *volume"],
    point_loss: PointLoss,
    *,
    steps: int,
    sigma_floor: float = 0.5,
    diagonal: bool = False,
) -> Refined:
    """Takes steps of Adam on each sample's mixture to reduce the mean of `point_loss` between its density and its volume.

    A mixture whose loss does not become smaller stays as it was, and correlations that are zero stay zero. A σ below
    `sigma_floor` voxels of its axis is raised to it. Where no component has correlations, `diagonal` takes a tenth of the time.
    """
    least = jnp.log(sigma_floor * 2 / jnp.array(volumes.shape[:0:-1], volumes.dtype))  # along x, y, z

    def losses(mixture: Mixture | AxisAligned) -> Array:
        if isinstance(mixture, AxisAligned):
            return axis_aligned.losses(mixture, volumes, point_loss)
        return per_sample_loss.of_polynomials(coefficients_of(mixture), volumes, point_loss)

    axes = jnp.diagonal(mixture.scale_tril, axis1=-2, axis2=-1)
    sigma = axes if diagonal else jnp.linalg.norm(mixture.scale_tril, axis=-1)
    start = {
        "log_weights": jnp.maximum(mixture.log_weights, MIN_LOG_WEIGHT),
        "means": mixture.means,
        "log_sigma": jnp.maximum(jnp.log(sigma), least),
    }
    scales: dict[str, Any] = {**dict.fromkeys(start, 1.0), "means": MEANS_RATE}
    if not diagonal:
        start["rows"] = jnp.tril(mixture.scale_tril / axes[..., None], -1)
        scales["rows"] = jnp.where(start["rows"] == 0, 0, 1)
    optimizer = optax.adam(optax.cosine_decay_schedule(RATE, max(steps, 1)), BETA1, BETA2)

    def step(state: tuple[Free, optax.OptState], _: None) -> tuple[tuple[Free, optax.OptState], None]:
        free, moments = state
        slopes = jax.grad(lambda free: losses(_mixture(free)).sum())(free)
        updates, moments = optimizer.update(slopes, moments)
        free = jax.tree.map(lambda old, update, scale: old + scale * update, free, updates, scales)
        return ({**free, "log_sigma": jnp.maximum(free["log_sigma"], least)}, moments), None

    (end, _), _ = lax.scan(step, (start, optimizer.init(start)), length=steps)
    refined = _mixture(end)
    with_factors = refined.mixture if isinstance(refined, AxisAligned) else refined
    first = AxisAligned(mixture.log_weights, mixture.means, axes) if diagonal else mixture
    densities = [_density(each, volumes) for each in (first, refined)]
    before, after = (mean_of_each(point_loss(density, volumes)) for density in densities)

    def better(old: Array, new: Array) -> Array:
        return jnp.where((after < before).reshape(-1, *(1,) * (new.ndim - 1)), new, old)

    return Refined(jax.tree.map(better, mixture, with_factors), better(*densities), before, better(before, after))


def _mixture(free: Free) -> Mixture | AxisAligned:
    log_weights, sigma = jax.nn.log_softmax(free["log_weights"]), jnp.exp(free["log_sigma"])
    if "rows" not in free:
        return AxisAligned(log_weights, free["means"], sigma)
    rows = jnp.tril(free["rows"], -1) + jnp.eye(sigma.shape[-1], dtype=sigma.dtype)
    directions = rows / jnp.sqrt(jnp.square(rows).sum(-1, keepdims=True))
    return Mixture(log_weights, free["means"], sigma[..., None] * directions)


def _density(mixture: Mixture | AxisAligned, volumes: Array) -> Array:
    if isinstance(mixture, AxisAligned):
        return axis_aligned.density_on_grid(mixture, volumes.shape[1:])
    return density(mixture, per_sample_loss.centres(volumes)).reshape(volumes.shape)
