"""The workload of the paper: the Gaussian-mixture autoencoder of lung nodules, whose target is its input density."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from jax import Array
from threadpoolctl import threadpool_limits

from gmmae.data import sources
from gmmae.data.volumes import central_section, to_density
from gmmae.models.autoencoder import autoencoder
from gmmae.models.losses import LOSSES
from gmmae.workloads import lattice
from gmmae.workloads.augment import symmetries
from gmmae.workloads.interface import Events, Params, PerSample, Samples, Snapshot, Splits, Workload
from gmmae.workloads.mixtures import mixture_refinement, splits_of
from gmmae.workloads.settings import NodulesConfig as Config

MAX_BASELINE_VOLUMES = 2048
"""Training volumes, evenly spaced among all, whose principal components are computed: that takes less than a second."""


def build(config: Config) -> Workload:
    """The workload; its samples are densities, an array `samples × *volume`."""
    if config.model.decoder == "lattice":
        return lattice.workload(config.model, config.data, config.loss)
    module, loss = autoencoder(config.model, config.data.ndim), LOSSES[config.loss]

    def init(key: Array) -> Params:
        return module.init(key, jnp.zeros((1, *config.data.sample_shape), jnp.float32))

    def losses(params: Params, volumes: Array, keys: Array | None) -> Array:
        if config.data.augment and keys is not None:
            volumes = symmetries(volumes, keys)
        return module.bind(params).losses(volumes, loss)

    def describe(params: Params, volumes: Array) -> PerSample:
        bound = module.bind(params)
        mixture = bound.mixture(volumes)
        return {
            "inputs": volumes,
            "density": bound(volumes),
            "weights": mixture.weights,
            "means": mixture.means,
            "covariances": mixture.covariances,
        }

    def encode(params: Params, volumes: Array) -> Array:
        return module.bind(params).encoder(volumes)

    def load() -> Splits:
        loaded = sources.load(config.data)
        density = to_density(loaded.nodules.values, config.data.window, loaded.nodules.places)
        return splits_of(loaded, density, f"{config.data.source} volumes")

    return Workload(
        load,
        init,
        losses,
        describe=describe,
        encode=encode,
        refine=mixture_refinement(config.loss, config.model.sigma_floor, diagonal=config.data.ndim == 1),
    )


def draw(snapshots: Sequence[Snapshot], folder: Path, title: str, ending: str = "png") -> Path:
    """Draws nodules, and their mixtures after some epochs."""
    from gmmae.plotting import mixtures

    path = folder / f"reconstructions.{ending}"
    return mixtures.reconstructions(snapshots[-1].arrays["inputs"], snapshots, path, title=title)


def events(arrays: Mapping[str, np.ndarray]) -> Events:
    """Histograms of α, μ, σ and ρ, and central slices of each nodule: input left, reconstruction right."""
    images = {
        f"nodule_{i}/input_and_reconstruction": slices(volume, density)
        for i, (volume, density) in enumerate(zip(arrays["inputs"], arrays["density"], strict=True))
        if volume.ndim > 1
    }
    variances = np.diagonal(arrays["covariances"], axis1=-2, axis2=-1)
    sigma = np.sqrt(variances)
    rows, columns = np.triu_indices(sigma.shape[-1], k=1)
    rho = arrays["covariances"][..., rows, columns] / (sigma[..., rows] * sigma[..., columns])
    parameters = {"alpha": arrays["weights"], "mu": arrays["means"], "sigma": sigma, "rho": rho}
    return Events(histograms={f"mixture/{name}": values for name, values in parameters.items()}, images=images)


@threadpool_limits.wrap(1)  # several threads take three times as long where other work shares the cores
def baselines(config: Config, train: Samples) -> tuple[str, Callable[[Samples], dict[str, np.ndarray]]]:
    """Losses with the mean training volume, and with principal components of the training volumes.

    The squared error that components minimise is `mse`, and of log(1 + x) it is `msle`.
    """
    if config.model.decoder == "lattice":  # its loss has other parts too
        return "", lambda samples: {}

    def values(part: Samples) -> np.ndarray:
        return (np.log1p(part) if config.loss == "msle" else part).reshape(len(part), -1)

    train = values(train[:: -(-len(train) // MAX_BASELINE_VOLUMES)])
    mean, most = train.mean(0), min(len(train) - 1, train.shape[1], config.model.latent_dim)
    train = train - mean
    _, vectors = np.linalg.eigh(train @ train.T)  # faster than a singular value decomposition
    components, _ = np.linalg.qr(train.T @ vectors[:, : -most - 1 : -1])

    @threadpool_limits.wrap(1)
    def losses(samples: Samples) -> dict[str, np.ndarray]:
        rest, found = values(samples) - mean, {}
        for k in (0, min(5, most), most):
            axes = components[:, :k]
            errors = abs(rest - rest @ axes @ axes.T) ** (1 if config.loss == "mae" else 2)
            found[f"pca_{k}" if k else "mean_volume"] = errors.mean(1)
        return found

    return (
        f"mean_volume is the mean of {len(train)} training volumes, and pca_K their first K principal components (of "
        f"log(1 + x) for msle, and not the best for mae); the latent vector has {config.model.latent_dim} numbers, and "
        f"{len(train)} volumes give K < {len(train)}",
        losses,
    )


def slices(volume: np.ndarray, density: np.ndarray, zoom: int = 8) -> np.ndarray:
    """Central slices in grey levels from 0 to 1, input left, reconstruction right, magnified `zoom` times.

    The scale is the input's range; NaN is drawn black.
    """
    volume, density = (central_section(array[None], 2)[0] for array in (volume, density))
    low, high = float(volume.min()), float(volume.max())
    pair = np.hstack([volume, np.full((len(volume), 1), high), density])
    grey = np.clip((np.nan_to_num(pair, nan=low) - low) / max(high - low, 1e-12), 0, 1)
    return np.kron(grey, np.ones((zoom, zoom)))
