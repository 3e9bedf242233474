"""From a configuration to training and validation samples, whatever the source."""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Float32

from gmmae.data.extraction import prepare
from gmmae.data.settings import DataConfig
from gmmae.data.splits import Split, split
from gmmae.data.synthetic.volumes import synthetic_nodules
from gmmae.data.volumes import Nodules, central_section, joined, to_density


class Dataset(NamedTuple):
    """Training and validation samples, densities, and the nodules' names and groups."""

    train: Float32[np.ndarray, "train *volume"]
    validation: Float32[np.ndarray, "validation *volume"]
    train_names: tuple[str, ...]
    validation_names: tuple[str, ...]
    train_groups: tuple[str, ...]
    validation_groups: tuple[str, ...]


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
    if config.source != "synthetic" or config.augment_with:
        return len(load_whole(config).split.train)
    names = [str(number) for number in range(config.samples)]
    return len(split(names, [""] * config.samples, config.validation, config.seed).train)


class Whole(NamedTuple):
    """The nodules of a source as they are, central sections where these are asked for, and how they are divided."""

    nodules: Nodules
    split: Split


def load_whole(config: DataConfig) -> Whole:
    """Loads the source, and divides it by patient (by scan where none is named).

    Nodules of `data.augment_with` stand behind those of the source, and are training samples.

    Raises:
      DataError: the data cannot be used, or cannot be divided as asked.
    """
    nodules = _sections(SOURCES[config.source](config), config.ndim)
    divided = split(nodules.groups, nodules.categories, config.validation, config.seed)
    if config.augment_with:
        own = replace(config, source="cubes", root=config.augment_with, csv="", augment_with="")
        more = _sections(prepare.load(own), config.ndim)
        divided = divided._replace(train=np.concatenate([divided.train, len(nodules.names) + np.arange(len(more.names))]))
        nodules = joined(nodules, more)
    return Whole(nodules, divided)


def _sections(nodules: Nodules, ndim: int) -> Nodules:
    masks = None if nodules.masks is None else central_section(nodules.masks, ndim)
    return nodules._replace(values=central_section(nodules.values, ndim), masks=masks)


def load(config: DataConfig) -> Dataset:
    """Loads the source, divides it, and turns values into densities.

    Raises:
      DataError: as `load_whole`.
    """
    nodules, divided = load_whole(config)
    density = to_density(nodules.values, config.window, nodules.places)
    names, groups = divided_words(nodules.names, divided), divided_words(nodules.groups, divided)
    return Dataset(density[divided.train], density[divided.validation], *names, *groups)


def divided_words(words: tuple[str, ...], split: Split) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names, or the groups, of the training and of the validation samples."""
    return tuple(words[i] for i in split.train.tolist()), tuple(words[i] for i in split.validation.tolist())
