"""What the workloads that describe nodules by Gaussian mixtures share."""

from collections.abc import Callable, Sequence
from typing import Any

import jax

from gmmae.data.sources import SplitNodules, origins
from gmmae.data.volumes import own_columns
from gmmae.models.losses import LOSSES
from gmmae.models.mixture import Mixture
from gmmae.models.refine import refine
from gmmae.workloads.interface import PerSample, Samples, Splits


def splits_of(loaded: SplitNodules, samples: Samples, about: str, may_be_undefined: Sequence[str] = ()) -> Splits:
    """Divides the samples of all nodules as the nodules are divided."""
    parts = {**loaded.split._asdict(), "test": loaded.test}

    def by_split(words: Sequence[Any]) -> dict[str, list[Any]]:
        return {name: [words[i] for i in index] for name, index in parts.items()}

    train, validation, test = (jax.tree.map(lambda array, index=index: array[index], samples) for index in parts.values())
    table = loaded.nodules.table
    own, names, groups = own_columns(table, ()), *map(by_split, (table["name"].tolist(), table["group"].tolist()))
    columns = {part: {name: values[index].tolist() for name, values in own.items()} for part, index in parts.items()}
    test = test if len(loaded.test) else None
    return Splits(train, validation, about, names, groups, may_be_undefined, test, columns, by_split(origins(loaded.nodules)))


def mixture_refinement(loss: str, sigma_floor: float, *, diagonal: bool) -> Callable[[PerSample, int], PerSample]:
    """`Workload.refine` for a description by `inputs`, `weights`, `means` and `covariances`; floor in voxels."""

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
