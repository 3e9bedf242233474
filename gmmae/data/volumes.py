"""What every data source returns, and the way from Hounsfield units to densities and back.

Array axes are z, y, x. A volume has `size` samples along each axis; voxel centres lie on [-1, 1]
(see `gmmae.models.mixture.grid`).
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float32, Int16, Shaped

from gmmae.base.errors import InputError

Point = tuple[float, float, float]
"""A place in the world, or a length along each of its axes: x, y, z in mm, LPS as in ITK."""


class DataError(InputError):
    """Data that cannot be used; the message names the volume or file and its fault."""


class TransientError(DataError):
    """Data that could not be read for a reason that may pass: the same command may succeed later."""

    exit_code = 75  # EX_TEMPFAIL of sysexits.h


class Nodules(NamedTuple):
    """Nodule cubes in Hounsfield units, with what is known of each.

    Attributes:
      hu: the cubes, HU, axes z, y, x.
      names: one for each cube, unique.
      groups: the patient that each cube comes from where one is named, otherwise the scan; a split never divides a group.
      categories: the class of each nodule, or an empty string where none is known.
      masks: the nodule's voxels, where known.
    """

    hu: Int16[np.ndarray, "samples size size size"]
    names: tuple[str, ...]
    groups: tuple[str, ...]
    categories: tuple[str, ...]
    masks: Shaped[np.ndarray, "samples size size size"] | None = None


class Targets(NamedTuple):
    """Volumes as densities that integrate to one over the domain, and the mass that was divided out."""

    density: Float32[np.ndarray, "samples ..."]
    mass: Float32[np.ndarray, " samples"]


def central_section(hu: Int16[np.ndarray, "samples ..."], ndim: int) -> Int16[np.ndarray, "samples ..."]:
    """The central slice (`ndim` 2) or central line (`ndim` 1) of each cube; the cube itself for 3."""
    while hu.ndim > ndim + 1:
        hu = hu[:, hu.shape[1] // 2]
    return hu


def to_density(hu: Int16[np.ndarray, "samples ..."], hu_window: tuple[float, float]) -> Targets:
    """Window to [0, 1], then divide by the mass, so that each volume integrates to one over [-1, 1]^n.

    The mass is `Σ x · (2/S)^n`, the integral of the windowed volume; `to_hu` needs it back.

    Args:
      hu: volumes in HU, `samples` × S along each of n axes.
      hu_window: HU mapped to 0 and to 1.

    Raises:
      DataError: a volume lies wholly at or below the window, so it has no mass.
    """
    low, high = hu_window
    windowed = np.clip((hu.astype(np.float64) - low) / (high - low), 0, 1)
    axes = tuple(range(1, hu.ndim))
    mass = windowed.sum(axes) * np.prod([2 / size for size in hu.shape[1:]])
    if (mass <= 0).any():
        raise DataError(
            f"each volume must have voxels above the HU window's lower end, {low:g}; volume {int(np.argmin(mass))} has none: "
            "lower data.hu_window"
        )
    density = windowed / np.expand_dims(mass, axes)
    return Targets(density.astype(np.float32), mass.astype(np.float32))


def to_hu(
    density: Float32[np.ndarray, "samples ..."], mass: Float32[np.ndarray, " samples"], hu_window: tuple[float, float]
) -> Float32[np.ndarray, "samples ..."]:
    """The inverse of `to_density` inside the window: HU of a density with the given mass."""
    low, high = hu_window
    windowed = density * np.expand_dims(mass, tuple(range(1, density.ndim)))
    return (windowed * (high - low) + low).astype(np.float32)
