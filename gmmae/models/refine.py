"""Test-time optimisation of a mixture for its volume, from the network's mixture.

The network finds each mixture by one rule for all volumes (amortised). A few steps of Adam on the mixture's own numbers remove
much of the resulting error: the logarithms of the weights, before a softmax, the means, the logarithms of the standard
deviations σ, kept above a floor, and with correlations the rows of the Cholesky factor in units of their diagonal. Every sample
is refined by itself.
"""

from collections.abc import Callable
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
"""Adam's learning rate at the first step, and its β1 and β2.

The learning rate falls to zero along half a cosine. A few steps need a short memory: with 0.9 and 0.999 the loss after 120
steps
is nearly twice as large (docs/measurements/speed.md)."""
MEANS_RATE = 0.15
"""The factor of the learning rate for the means, whose unit is half the volume's side length."""
MIN_LOG_WEIGHT = -30.0
"""The smallest log weight at the start. A weight of zero has no gradient; from here a component may come back."""


class Refined(NamedTuple):
    """Mixtures after refinement, their densities at the voxel centres, and the loss of each sample before and after it."""

    mixture: Mixture
    density: Float[Array, "samples *volume"]
    before: Float[Array, " samples"]
    after: Float[Array, " samples"]


Free = dict[str, Array]
"""The free numbers of mixtures: log_weights, means, log_sigma, and rows where components have correlations."""


def refine(
    mixture: Mixture,
    volumes: Float[Array, "samples *volume"],
    point_loss: PointLoss,
    *,
    steps: int,
    sigma_floor: float = 0.5,
    diagonal: bool = False,
) -> Refined:
    """Takes steps of Adam on each mixture, which reduce the mean of `point_loss` between its density and its volume.

    A mixture whose loss does not become smaller stays as it was. Correlations that are zero stay zero.

    Args:
      mixture: the first mixture of each sample. A σ below the floor is raised to the floor.
      volumes: densities of n = 1, 2 or 3 axes.
      point_loss: as in `gmmae.models.losses`.
      steps: how many.
      sigma_floor: smallest standard deviation, in voxels of its axis.
      diagonal: no component has correlations: the same numbers but for rounding, and each step takes a tenth of the time.
    """
    least = jnp.log(sigma_floor * 2 / jnp.array(volumes.shape[:0:-1], volumes.dtype))  # along x, y, z
    losses = _losses(volumes, point_loss)
    start = _free(mixture, least, diagonal)
    scales: dict[str, Any] = {**dict.fromkeys(start, 1.0), "means": MEANS_RATE}
    if not diagonal:
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
    densities = [_density(form, volumes) for form in (_form(mixture, diagonal), refined)]
    before, after = (mean_of_each(point_loss(density, volumes)) for density in densities)

    def better(old: Array, new: Array) -> Array:
        return jnp.where((after < before).reshape(-1, *(1,) * (new.ndim - 1)), new, old)

    return Refined(jax.tree.map(better, mixture, with_factors), better(*densities), before, better(before, after))


def _free(mixture: Mixture, least: Array, diagonal: bool) -> Free:
    axes = jnp.diagonal(mixture.scale_tril, axis1=-2, axis2=-1)
    sigma = axes if diagonal else jnp.linalg.norm(mixture.scale_tril, axis=-1)
    free = {
        "log_weights": jnp.maximum(mixture.log_weights, MIN_LOG_WEIGHT),
        "means": mixture.means,
        "log_sigma": jnp.maximum(jnp.log(sigma), least),
    }
    return free if diagonal else {**free, "rows": jnp.tril(mixture.scale_tril / axes[..., None], -1)}


def _form(mixture: Mixture, diagonal: bool) -> Mixture | AxisAligned:
    sigma = jnp.diagonal(mixture.scale_tril, axis1=-2, axis2=-1)
    return AxisAligned(mixture.log_weights, mixture.means, sigma) if diagonal else mixture


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


def _losses(volumes: Array, point_loss: PointLoss) -> Callable[[Mixture | AxisAligned], Array]:

    def losses(mixture: Mixture | AxisAligned) -> Array:
        if isinstance(mixture, AxisAligned):
            return axis_aligned.losses(mixture, volumes, point_loss)
        return per_sample_loss.of_polynomials(coefficients_of(mixture), volumes, point_loss)

    return losses
