"""The paper's workload: the Gaussian-mixture autoencoder of lung nodules, whose input and target are the same density."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from gmmae.config.rules import ConfigError, Section
from gmmae.data.settings import DataConfig
from gmmae.data.volumes import to_density
from gmmae.models.settings import ModelConfig
from gmmae.workloads.interface import Events, Params, PerSample, Samples, Snapshot, Splits, Workload

if TYPE_CHECKING:
    from jax import Array

    from gmmae.data.sources import SplitNodules

# The command line reads `Config` before JAX may be imported, so what needs JAX is imported in the functions.


@dataclass(frozen=True)
class Config(Section):
    loss: Literal["msle", "mse", "mae"] = "msle"  # what the density is compared by
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        left = min(self.data.sample_shape) - sum(kernel - 1 for kernel in self.model.kernels)
        if self.model.padding == "VALID" and left < 1:
            raise ConfigError(
                f"model.kernels must leave at least 1 voxel of data.shape = {self.data.shape} under VALID padding; got "
                f"{self.model.kernels}, which leaves {left}: use smaller kernels or model.padding = SAME"
            )


def build(config: Config) -> Workload:
    """Returns the workload; its samples are densities, an array `samples × *volume`."""
    if config.model.decoder == "lattice":
        from gmmae.workloads import lattice

        return lattice.workload(config.model, config.data, config.loss)
    import jax
    import jax.numpy as jnp

    from gmmae.data import sources
    from gmmae.models.autoencoder import autoencoder
    from gmmae.models.losses import LOSSES
    from gmmae.models.mixture import Mixture
    from gmmae.workloads.augment import symmetries

    module, loss = autoencoder(config.model, config.data.ndim), LOSSES[config.loss]

    def init(key: "Array") -> Params:
        return module.init(key, jnp.zeros((1, *config.data.sample_shape), jnp.float32))

    def reconstruct(params: Params, volumes: "Array") -> "Array":
        density = module.apply(params, volumes)
        assert isinstance(density, jax.Array)
        return density

    def losses(params: Params, volumes: "Array", keys: "Array | None") -> "Array":
        if config.data.augment and keys is not None:
            volumes = symmetries(volumes, keys)
        found = module.apply(params, volumes, loss, method=module.losses)
        assert isinstance(found, jax.Array)
        return found

    def describe(params: Params, volumes: "Array") -> PerSample:
        mixture = module.apply(params, volumes, method=module.mixture)
        assert isinstance(mixture, Mixture)
        return {
            "inputs": volumes,
            "density": reconstruct(params, volumes),
            "weights": jnp.exp(mixture.log_weights),
            "means": mixture.means,
            "covariances": mixture.covariances,
        }

    def load() -> Splits:
        whole = sources.load(config.data)
        density = to_density(whole.nodules.values, config.data.window, whole.nodules.places)
        return splits_of(whole, density, f"{config.data.source} volumes")

    return Workload(
        load,
        init,
        losses,
        describe=describe,
        refine=mixture_refinement(config.loss, config.model.sigma_floor, diagonal=config.data.ndim == 1),
    )


def splits_of(whole: "SplitNodules", samples: Samples, about: str, may_be_undefined: Sequence[str] = ()) -> Splits:
    """Divides the samples of all nodules of a source, with their names and groups, as the source is divided."""
    import jax

    def words(of_nodules: Sequence[str]) -> dict[str, list[str]]:
        return {name: [of_nodules[i] for i in part.tolist()] for name, part in whole.split._asdict().items()}

    train, validation = (jax.tree.map(lambda array, part=part: array[part], samples) for part in whole.split)
    return Splits(train, validation, about, words(whole.nodules.names), words(whole.nodules.groups), may_be_undefined)


def mixture_refinement(loss: str, sigma_floor: float, diagonal: bool) -> "Callable[[PerSample, int], PerSample]":
    """Returns `Workload.refine` of a workload that describes samples by `inputs` and a mixture.

    Args:
      loss: its name in `gmmae.models.losses`.
      sigma_floor: smallest standard deviation, in voxels.
      diagonal: no component of a mixture has correlations.
    """
    from gmmae.models.losses import LOSSES
    from gmmae.models.mixture import Mixture
    from gmmae.models.refine import refine

    def refined(described: PerSample, steps: int) -> PerSample:
        mixture = Mixture.of(*(described[name] for name in ("weights", "means", "covariances")))
        result = refine(mixture, described["inputs"], LOSSES[loss], steps=steps, sigma_floor=sigma_floor, diagonal=diagonal)
        return {
            "weights": result.mixture.weights,
            "means": result.mixture.means,
            "covariances": result.mixture.covariances,
            "density": result.density,
            "loss_before": result.before,
            "loss": result.after,
        }

    return refined


def draw(snapshots: Sequence[Snapshot], folder: Path, title: str, ending: str = "png") -> Path:
    """Nodules, and the mixtures that the model made of them after some epochs."""
    from gmmae.plotting import mixtures

    shown = [
        mixtures.Snapshot(epoch=snapshot.epoch, val_loss=snapshot.val_loss, **{name: snapshot.arrays[name] for name in MIXTURE})
        for snapshot in snapshots
    ]
    return mixtures.reconstructions(snapshots[-1].arrays["inputs"], shown, folder / f"reconstructions.{ending}", title=title)


MIXTURE = ("density", "weights", "means", "covariances")


def events(arrays: Mapping[str, np.ndarray]) -> Events:
    """Histograms of α, μ, σ and ρ, and central slices of each shown nodule: input left, reconstruction right."""
    images = {
        f"nodule_{i}/input_and_reconstruction": slices(volume, density)
        for i, (volume, density) in enumerate(zip(arrays["inputs"], arrays["density"], strict=True))
        if volume.ndim > 1
    }
    return Events(histograms={f"mixture/{name}": values for name, values in _parameters(arrays).items()}, images=images)


def _parameters(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    variances = np.diagonal(arrays["covariances"], axis1=-2, axis2=-1)
    sigma = np.sqrt(variances)
    rows, columns = np.triu_indices(sigma.shape[-1], k=1)
    rho = arrays["covariances"][..., rows, columns] / (sigma[..., rows] * sigma[..., columns])
    return {"alpha": arrays["weights"], "mu": arrays["means"], "sigma": sigma, "rho": rho}


def slices(volume: np.ndarray, density: np.ndarray, zoom: int = 8) -> np.ndarray:
    """Central slices side by side on one grey scale in [0, 1], input left, reconstruction right, magnified `zoom` times.

    The scale is the input's range; NaN is drawn black.
    """
    while volume.ndim > 2:
        volume, density = volume[len(volume) // 2], density[len(density) // 2]
    low, high = float(volume.min()), float(volume.max())
    pair = np.hstack([volume, np.full((len(volume), 1), high), density])
    grey = np.clip((np.nan_to_num(pair, nan=low) - low) / max(high - low, 1e-12), 0, 1)
    return np.kron(grey, np.ones((zoom, zoom)))
