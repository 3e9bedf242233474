"""Workload of the follow-up study's U-Net on fewer training slices, for configurations and `experiments.size`.

Whole nodules are taken at random until there are enough slices. Surplus slices of the last one are dropped. The validation
set is that of all slices.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from gmmae.config.rules import NonNegativeInt, require
from gmmae.workloads import segmentation
from gmmae.workloads.interface import Splits, Workload
from gmmae.workloads.segmentation import draw, events

__all__ = ["Config", "build", "draw", "events"]


@dataclass(frozen=True)
class Config(segmentation.Config):
    """Configuration with a number of training slices."""

    slices: NonNegativeInt = 0  # training slices; 0: all


def build(config: Config) -> Workload:
    """Returns the workload with at most the given number of training slices.

    Raises:
      DataError: the data cannot be used.
      ConfigError: there are fewer training slices.
    """
    workload = segmentation.build(config)
    if not config.slices:
        return workload
    assert workload.names is not None
    assert workload.groups is not None
    names, groups = np.array(workload.names.train), np.array(workload.groups.train)
    require(config.slices <= len(names), "slices", f"at most {len(names)}, the training slices there are", config.slices)
    index = of_whole_nodules([name.rpartition(" slice ")[0] for name in names], config.slices)
    train: Any = {name: array[index] for name, array in workload.data.train.items()}
    return workload._replace(
        data=workload.data._replace(train=train),
        names=Splits(names[index].tolist(), workload.names.validation),
        groups=Splits(groups[index].tolist(), workload.groups.validation),
        about=f"{workload.about}, {config.slices} of the slices for training",
    )


def of_whole_nodules(nodules: list[str], count: int) -> np.ndarray:
    """Returns increasing indices of `count` slices of random nodules, from the nodule of each slice.

    >>> of_whole_nodules(["a", "a", "b", "b", "c", "c"], 4).tolist()
    [2, 3, 4, 5]
    """
    different, of = np.unique(nodules, return_inverse=True)
    place = np.random.default_rng(0).permutation(len(different))
    return np.sort(np.argsort(place[of], kind="stable")[:count])
