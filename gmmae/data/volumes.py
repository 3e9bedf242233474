"""What every data source returns, and the way from its values to densities.

Array axes are z, y, x. A volume has `size` samples along each axis; voxel centres lie on [-1, 1]
(see `gmmae.models.mixture.grid`).
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float32, Int, Real, Shaped

from gmmae.base.errors import InputError

Point = tuple[float, float, float]
"""A place in the world, or a length along each of its axes: x, y, z in mm, LPS as in ITK."""


class DataError(InputError):
    """Data that cannot be used; the message names the volume or file and its fault."""


class TransientError(DataError):
    """Data that could not be read for a reason that may pass: the same command may succeed later."""

    exit_code = 75  # EX_TEMPFAIL of sysexits.h


class Nodules(NamedTuple):
    """Volumes around nodules, with what is known of each.

    Attributes:
      values: the volumes: int16 in HU, or float32 in a unit of their own.
      names: one for each cube, unique.
      groups: the patient that each cube comes from where one is named, otherwise the scan; a split never divides a group.
      categories: the class of each nodule, or an empty string where none is known.
      masks: the nodule's voxels, where known.
    """

    values: Real[np.ndarray, "samples *volume"]
    names: tuple[str, ...]
    groups: tuple[str, ...]
    categories: tuple[str, ...]
    masks: Shaped[np.ndarray, "samples *volume"] | None = None

    def take(self, index: Int[np.ndarray, " chosen"]) -> "Nodules":
        """Some of them, in the order of their indices."""
        names, groups, categories = (tuple(column[i] for i in index) for column in (self.names, self.groups, self.categories))
        return Nodules(self.values[index], names, groups, categories, None if self.masks is None else self.masks[index])


def central_section(values: Real[np.ndarray, "samples ..."], ndim: int) -> Real[np.ndarray, "samples ..."]:
    """The central slice (`ndim` 2) or central line (`ndim` 1) of each volume; what has `ndim` axes stays as it is."""
    while values.ndim > ndim + 1:
        values = values[:, values.shape[1] // 2]
    return values


def to_density(values: Real[np.ndarray, "samples ..."], window: tuple[float, float]) -> Float32[np.ndarray, "samples ..."]:
    """Window to [0, 1], then divide by the mass, so that each volume integrates to one over [-1, 1]^n.

    The mass is the integral of the windowed volume, `Σ x` times the volume of a voxel, `(2/S)^n`.

    Args:
      values: volumes, `samples` × S along each of n axes.
      window: the values mapped to 0 and to 1.

    Raises:
      DataError: a volume lies wholly at or below the window, so it has no mass.
    """
    low, high = window
    windowed = np.clip((values.astype(np.float64) - low) / (high - low), 0, 1)
    axes = tuple(range(1, values.ndim))
    mass = windowed.sum(axes) * np.prod([2 / size for size in values.shape[1:]])
    if (mass <= 0).any():
        raise DataError(
            f"each volume must have voxels above the window's lower end, {low:g}; volume {int(np.argmin(mass))} has none: "
            "lower data.window"
        )
    return (windowed / np.expand_dims(mass, axes)).astype(np.float32)
