"""From a configuration to training and validation samples, whatever the source."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float32

from gmmae.data.config import DataConfig
from gmmae.data.extraction import prepare
from gmmae.data.splits import split
from gmmae.data.synthetic.volumes import synthetic_nodules
from gmmae.data.volumes import Nodules, central_section, to_density


class Dataset(NamedTuple):
    """Training and validation samples, densities, and the nodules' names."""

    train: Float32[np.ndarray, "train *volume"]
    validation: Float32[np.ndarray, "validation *volume"]
    train_names: tuple[str, ...]
    validation_names: tuple[str, ...]


def _synthetic(config: DataConfig) -> Nodules:
    return synthetic_nodules(config.samples, config.volume_shape, config.seed)


SOURCES: dict[str, Callable[[DataConfig], Nodules]] = {
    "synthetic": _synthetic,
    "luna16": prepare.load,
    "cubes": prepare.load,
}


def training_samples(config: DataConfig) -> int:
    """How many training samples `load` gives, without making synthetic nodules, each of which is its own group.

    Raises:
      DataError: as `load`.
    """
    if config.source == "synthetic":
        groups, categories = [str(number) for number in range(config.samples)], [""] * config.samples
    else:
        nodules = SOURCES[config.source](config)
        groups, categories = nodules.groups, nodules.categories
    return len(split(groups, categories, config.validation, config.seed).train)


def load(config: DataConfig) -> Dataset:
    """Loads the source, divides it by patient (by scan where none is named), and turns values into densities.

    Raises:
      DataError: the data cannot be used, or cannot be divided as asked.
    """
    nodules = SOURCES[config.source](config)
    train, validation = split(nodules.groups, nodules.categories, config.validation, config.seed)
    density = to_density(central_section(nodules.values, config.ndim), config.window)
    names = np.array(nodules.names)
    return Dataset(density[train], density[validation], tuple(names[train].tolist()), tuple(names[validation].tolist()))
