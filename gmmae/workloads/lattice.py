"""The workload of nodules with the lattice decoder, which also decodes latent vectors drawn at random.

Its samples are {"density", "mask", "log_mass"}. `describe` and `encode` also take densities alone.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from gmmae.data import sources
from gmmae.data.settings import DataConfig
from gmmae.data.volumes import masses, to_density
from gmmae.models.kernels import axis_aligned
from gmmae.models.kernels.axis_aligned import density_on_grid
from gmmae.models.lattice import lattice_autoencoder, mask_losses
from gmmae.models.losses import LOSSES, dice
from gmmae.models.mixture import Mixture, grid
from gmmae.models.mixture import density as mixture_density
from gmmae.models.settings import ModelConfig
from gmmae.system.errors import write_error
from gmmae.workloads.augment import symmetries
from gmmae.workloads.interface import Params, PerSample, Samples, Splits, Workload
from gmmae.workloads.mixtures import mixture_refinement, splits_of


def samples_of(loaded: sources.SplitNodules, data: DataConfig) -> Splits:
    """Samples of divided nodules; raises DataError where a volume has no mass."""
    values, masks, places = loaded.nodules.values, loaded.nodules.masks, loaded.nodules.places
    masks = np.zeros(values.shape, np.float32) if masks is None else masks.astype(np.float32)
    log_mass = np.log(masses(values, data.window, places)).astype(np.float32)
    samples = {"density": to_density(values, data.window), "mask": masks, "log_mass": log_mass}
    bare = np.flatnonzero(~loaded.nodules.masked)
    if 0 < len(bare) < len(values):
        write_error(
            f"warning: {len(bare)} of {len(values)} nodules have no mask, or an empty one, such as {places[bare[0]]}: "
            "give them one\n"
        )
    return splits_of(loaded, samples, f"{data.source} volumes", may_be_undefined=("dice",) * bool(len(bare)))


def _density(samples: Samples) -> Array:
    return samples["density"] if isinstance(samples, dict) else samples


def density_at(
    weights: np.ndarray,
    means: np.ndarray,
    covariances: np.ndarray,
    shape: tuple[int, ...],
    stretch: Float[np.ndarray, " axes"],
) -> Float[np.ndarray, "samples ..."]:
    """Densities at the voxel centres of volumes of any shape, one mixture at a time.

    `stretch` has the lengths of the volume's axes (z, y, x) relative to those of the mixtures' domain.
    """
    points = grid(shape, len(shape)) * stretch[::-1].astype(np.float32)
    mixtures = zip(*map(jnp.asarray, (weights, means, covariances)), strict=True)
    return np.stack([np.asarray(mixture_density(Mixture.of(*mixture), points)).reshape(shape) for mixture in mixtures])


def workload(model: ModelConfig, data: DataConfig, loss: str) -> Workload:
    """The workload of a configuration whose `model.decoder` is "lattice"."""
    module, point_loss = lattice_autoencoder(model, data.sample_shape), LOSSES[loss]

    def init(key: Array) -> Params:
        return module.init(key, jnp.zeros((1, *data.sample_shape)))

    def losses(params: Params, samples: Samples, keys: Array | None) -> Array:
        samples = jax.tree.map(jnp.asarray, samples)
        density, mask = samples["density"], samples["mask"]
        if data.augment and keys is not None:
            density, mask = symmetries(density, keys), symmetries(mask, keys)
        decoded = module.bind(params)(density)
        density_losses = axis_aligned.losses(decoded.mixture, density, point_loss)
        mass_losses = jnp.square(decoded.log_mass - samples["log_mass"])
        return density_losses + model.mask_weight * mask_losses(decoded.mask, mask) + model.mass_weight * mass_losses

    def metrics(params: Params, samples: Samples) -> PerSample:
        samples = jax.tree.map(jnp.asarray, samples)
        decoded = module.bind(params)(samples["density"])
        truth = samples["mask"] > 0
        return {
            "density": axis_aligned.losses(decoded.mixture, samples["density"], point_loss),
            "dice": jnp.where(truth.any(tuple(range(1, truth.ndim))), dice(decoded.mask, truth), jnp.nan),
            "log_mass": jnp.abs(decoded.log_mass - samples["log_mass"]),
        }

    def encode(params: Params, samples: Samples) -> Array:
        return module.bind(params).encoder(jnp.asarray(_density(samples)))

    def decode(params: Params, latent: Array) -> PerSample:
        decoded = module.bind(params).decoder(jnp.asarray(latent))
        mixture = decoded.mixture.mixture
        return {
            "density": density_on_grid(decoded.mixture, data.sample_shape),
            "weights": mixture.weights,
            "means": mixture.means,
            "covariances": mixture.covariances,
            "mask": jax.nn.sigmoid(decoded.mask),
            "log_mass": decoded.log_mass,
        }

    def describe(params: Params, samples: Samples) -> PerSample:
        return {"inputs": _density(samples), **decode(params, encode(params, samples))}

    refine = mixture_refinement(loss, model.sigma_floor, diagonal=True)
    return Workload(lambda: samples_of(sources.load(data), data), init, losses, metrics, describe, encode, decode, refine)
