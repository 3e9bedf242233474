"""The nodules' workload with the decoder in cells: densities, masks and masses, from one latent vector that can be drawn anew.

Its samples are {"density", "mask", "log_mass"}. What only reads (`describe`, `encode`) takes densities alone as well.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from gmmae.data import sources
from gmmae.data.volumes import Nodules, masses, to_density
from gmmae.models.kernels import axis_aligned
from gmmae.models.kernels.axis_aligned import density_on_grid
from gmmae.models.lattice import Decoded, cell_autoencoder, mask_losses
from gmmae.models.losses import LOSSES, dice
from gmmae.models.mixture import Mixture, grid
from gmmae.models.mixture import density as mixture_density
from gmmae.models.settings import ModelConfig
from gmmae.workloads.augment import symmetries
from gmmae.workloads.interface import Params, PerSample, Samples, Splits, Workload
from gmmae.workloads.nodules import mixture_refinement, splits_of


def samples_of(nodules: Nodules, window: tuple[float, float]) -> dict[str, np.ndarray]:
    """The samples that nodules are.

    Raises:
      DataError: a volume has no mass.
    """
    masks = np.zeros(nodules.values.shape, np.float32) if nodules.masks is None else nodules.masks.astype(np.float32)
    log_mass = np.log(masses(nodules.values, window, nodules.places)).astype(np.float32)
    return {"density": to_density(nodules.values, window), "mask": masks, "log_mass": log_mass}


def _density(samples: Samples) -> Array:
    return samples["density"] if isinstance(samples, dict) else samples


def density_at(
    weights: np.ndarray,
    means: np.ndarray,
    covariances: np.ndarray,
    shape: tuple[int, ...],
    stretch: Float[np.ndarray, " axes"],
) -> Float[np.ndarray, "samples ..."]:
    """The density of each mixture at the voxel centres of a volume of any shape, one mixture at a time.

    Args:
      weights, means, covariances: of the mixtures.
      shape: of the volume.
      stretch: the lengths of the volume's axes (z, y, x), in those of the domain of the mixtures.
    """
    points = grid(shape, len(shape)) * stretch[::-1].astype(np.float32)
    each = zip(*map(jnp.asarray, (weights, means, covariances)), strict=True)
    return np.stack([np.asarray(mixture_density(Mixture.of(*one), points)).reshape(shape) for one in each])


def workload(model: ModelConfig, data: sources.DataConfig, loss: str) -> Workload:
    """Returns the workload of a configuration whose `model.decoder` is "lattice"."""
    module, point_loss = cell_autoencoder(model, data.sample_shape), LOSSES[loss]

    def init(key: Array) -> Params:
        return module.init(key, jnp.zeros((1, *data.sample_shape)))

    def apply(params: Params, given: Array, method: Any = None) -> Any:
        return module.apply(params, given, method=method)

    def density_losses(found: Decoded, density: Array) -> Float[Array, " samples"]:
        return axis_aligned.losses(found.mixture, density, point_loss)

    def losses(params: Params, samples: Samples, keys: Array | None) -> Array:
        samples = jax.tree.map(jnp.asarray, samples)
        density, mask = samples["density"], samples["mask"]
        if data.augment and keys is not None:
            density, mask = symmetries(density, keys), symmetries(mask, keys)
        found = apply(params, density)
        of_mass = jnp.square(found.log_mass - samples["log_mass"])
        return density_losses(found, density) + model.mask_weight * mask_losses(found.mask, mask) + model.mass_weight * of_mass

    def metrics(params: Params, samples: Samples) -> PerSample:
        samples = jax.tree.map(jnp.asarray, samples)
        found = apply(params, samples["density"])
        return {
            "density": density_losses(found, samples["density"]),
            "dice": dice(found.mask, samples["mask"] > 0),
            "log_mass": jnp.abs(found.log_mass - samples["log_mass"]),
        }

    def encode(params: Params, samples: Samples) -> Array:
        return apply(params, jnp.asarray(_density(samples)), module.encode)

    def decode(params: Params, latent: Array) -> PerSample:
        found: Decoded = apply(params, jnp.asarray(latent), module.decode)
        mixture = found.mixture.mixture
        return {
            "density": density_on_grid(found.mixture, data.sample_shape),
            "weights": mixture.weights,
            "means": mixture.means,
            "covariances": mixture.covariances,
            "mask": jax.nn.sigmoid(found.mask),
            "log_mass": found.log_mass,
        }

    def describe(params: Params, samples: Samples) -> PerSample:
        return {"inputs": _density(samples), **decode(params, encode(params, samples))}

    def load() -> Splits:
        whole = sources.load(data)
        samples = samples_of(whole.nodules, data.window)
        masked = samples["mask"].any(tuple(range(1, samples["mask"].ndim)))
        return splits_of(whole, samples, f"{data.source} volumes", may_be_undefined=() if masked.all() else ("dice",))

    refine = mixture_refinement(loss, model.sigma_floor, diagonal=True)
    return Workload(load, init, losses, metrics, describe, encode, decode, refine)
