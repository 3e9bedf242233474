"""The U-Net of the follow-up study on fewer training slices. A workload's file: configurations and `experiments.size` name it.

Whole nodules are taken at random until there are as many slices as asked for, the last one's as far as they are needed. The
validation set is that of all slices.
"""

from dataclasses import dataclass, replace

import numpy as np

from gmmae.config.rules import NonNegativeInt, require
from gmmae.workloads import segmentation
from gmmae.workloads.interface import Splits, Workload
from gmmae.workloads.segmentation import draw, events

__all__ = ["Config", "build", "draw", "events"]


@dataclass(frozen=True)
class Config(segmentation.Config):
    """The configuration with a number of training slices."""

    slices: NonNegativeInt = 0  # training slices; 0: all


def build(config: Config) -> Workload:
    """Returns the U-Net's workload with no more training slices than `slices` says."""
    workload = segmentation.build(config)
    return workload._replace(load=lambda: fewer_slices(workload.load(), config.slices)) if config.slices else workload


def fewer_slices(data: Splits, count: int) -> Splits:
    """Returns the data with a number of training slices.

    Raises:
      ConfigError: there are fewer.
    """
    assert data.names is not None
    assert data.groups is not None
    names, groups = np.array(data.names["train"]), np.array(data.groups["train"])
    require(count <= len(names), "slices", f"at most {len(names)}, the training slices there are", count)
    index = of_whole_nodules([name.rpartition(" slice ")[0] for name in names], count)
    return replace(
        data,
        train={name: array[index] for name, array in data.train.items()},
        names={**data.names, "train": names[index].tolist()},
        groups={**data.groups, "train": groups[index].tolist()},
        about=f"{data.about}, {count} of the slices for training",
    )


def of_whole_nodules(nodules: list[str], count: int) -> np.ndarray:
    """The numbers, in their order, of a number of slices of nodules taken at random, given the nodule of each slice.

    >>> of_whole_nodules(["a", "a", "b", "b", "c", "c"], 4).tolist()
    [2, 3, 4, 5]
    """
    different, of = np.unique(nodules, return_inverse=True)
    place = np.random.default_rng(0).permutation(len(different))
    return np.sort(np.argsort(place[of], kind="stable")[:count])
