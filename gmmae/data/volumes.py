"""What every data source returns, and the way from its values to densities.

Array axes are z, y, x. A volume has `size` samples along each axis; voxel centres lie on [-1, 1]
(see `gmmae.models.mixture.grid`).
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float32, Float64, Real, Shaped

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


def central_section(values: Real[np.ndarray, "samples ..."], ndim: int) -> Real[np.ndarray, "samples ..."]:
    """The central slice (`ndim` 2) or central line (`ndim` 1) of each volume; what has `ndim` axes stays as it is."""
    while values.ndim > ndim + 1:
        values = values[:, values.shape[1] // 2]
    return values


def to_density(values: Real[np.ndarray, "samples ..."], window: tuple[float, float]) -> Float32[np.ndarray, "samples ..."]:
    """Window to [0, 1], then divide by the mass, so that each volume integrates to one over [-1, 1]^n.

    Args:
      values: volumes, `samples` × S along each of n axes.
      window: the values mapped to 0 and to 1.

    Raises:
      DataError: a volume lies wholly at or below the window, so it has no mass.
    """
    mass = masses(values, window)
    if (mass <= 0).any():
        raise DataError(
            f"each volume must have voxels above the window's lower end, {window[0]:g}; volume {mass.argmin()} has none: "
            "lower data.window"
        )
    return (_windowed(values, window) / np.expand_dims(mass, tuple(range(1, values.ndim)))).astype(np.float32)


def masses(values: Real[np.ndarray, "samples ..."], window: tuple[float, float]) -> Float64[np.ndarray, " samples"]:
    """What `to_density` divides each volume by: the integral of it windowed, `Σ x` times the volume of a voxel, `(2/S)^n`."""
    windowed = _windowed(values, window)
    return windowed.sum(tuple(range(1, values.ndim))) * np.prod([2 / size for size in values.shape[1:]])


def from_density(
    density: Real[np.ndarray, "samples ..."], mass: Real[np.ndarray, " samples"], window: tuple[float, float]
) -> Float64[np.ndarray, "samples ..."]:
    """Values whose density and mass these are, in the window's unit: what `to_density` has cut off stays cut off."""
    low, high = window
    return low + (high - low) * density.astype(np.float64) * np.expand_dims(mass, tuple(range(1, density.ndim)))


def _windowed(values: Real[np.ndarray, "samples ..."], window: tuple[float, float]) -> Float64[np.ndarray, "samples ..."]:
    low, high = window
    return np.clip((values.astype(np.float64) - low) / (high - low), 0, 1)
