"""What every data source returns, and the way from its values to densities.

Array axes are z, y, x. A volume has `size` samples along each axis; voxel centres lie on [-1, 1]
(see `gmmae.models.mixture.grid`).
"""

import errno
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Float32, Float64, Real, Shaped

from gmmae.system.errors import InputError, printable

Point = tuple[float, float, float]
"""A place in the world, or a length along each of its axes: x, y, z in mm, LPS as in ITK."""


class DataError(InputError):
    """Data that cannot be used; the message names the volume or file and its fault.

    It is one line, also where a name has a line end in it: a summary prints it as it is.
    """

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


class TransientError(DataError):
    """Data that could not be read for a reason that may pass: the same command may succeed later."""

    exit_code = 75  # EX_TEMPFAIL of sysexits.h


def unreadable_root(error: OSError) -> DataError:
    """What is said of a folder that cannot be listed. Only some reasons may pass."""
    text = f"data.root must be a folder that can be read; got {error}"
    if error.errno in (errno.ENAMETOOLONG, errno.ELOOP):
        return DataError(text)
    return TransientError(f"{text}: try the same command again")


class Details(NamedTuple):
    """What is known of each nodule besides `Nodules`: where it was cut (x, y, z in mm), how wide, how much was filled.

    `places` says where the user finds it (the CSV and its line); diameters are NaN where not known.
    """

    places: tuple[str, ...]
    centre_mm: Float[np.ndarray, "samples 3"]
    edge_mm: Float[np.ndarray, " samples"]
    diameter_mm: Float[np.ndarray, " samples"]
    filled: Float[np.ndarray, " samples"]

    def take(self, index: Shaped[np.ndarray, " taken"]) -> "Details":
        """Those of some nodules, in this order."""
        return Details(tuple(self.places[i] for i in index), *(values[index] for values in self[1:]))


class Nodules(NamedTuple):
    """Volumes around nodules, with what is known of each.

    Attributes:
      values: the volumes: int16 in HU, or float32 in a unit of their own.
      names: one for each cube, unique.
      groups: the patient that each cube comes from where one is named, otherwise the scan; a split never divides a group.
      categories: the class of each nodule, or an empty string where none is known.
      masks: the nodule's voxels, where known; of one whose mask is not known, zeros.
      details: where they were cut.
    """

    values: Real[np.ndarray, "samples *volume"]
    names: tuple[str, ...]
    groups: tuple[str, ...]
    categories: tuple[str, ...]
    masks: Shaped[np.ndarray, "samples *volume"] | None = None
    details: Details | None = None

    @property
    def places(self) -> tuple[str, ...]:
        """Each nodule's name and where the user finds it, for messages."""
        if self.details is None:
            return self.names
        pairs = zip(self.names, self.details.places, strict=True)
        return tuple(name if name == place else f"{name} ({place})" for name, place in pairs)

    def take(self, index: Shaped[np.ndarray, " taken"]) -> "Nodules":
        """Some of them, in this order."""
        names, groups, categories = ([list(values)[i] for i in index] for values in (self.names, self.groups, self.categories))
        masks = None if self.masks is None else self.masks[index]
        details = None if self.details is None else self.details.take(index)
        return Nodules(self.values[index], tuple(names), tuple(groups), tuple(categories), masks, details)


def joined(first: Nodules, second: Nodules) -> Nodules:
    """The nodules of both; a mask or a detail that one of them does not know is zero or NaN there.

    Raises:
      DataError: a name is in both.
    """
    if shared := set(first.names) & set(second.names):
        raise DataError(f"nodules that are put together must have names of their own; {min(shared)} is in both: rename it")
    masks = None
    if first.masks is not None or second.masks is not None:
        masks = np.concatenate([np.zeros_like(part.values) if part.masks is None else part.masks for part in (first, second)])
    details = None
    if first.details is not None and second.details is not None:
        columns = (np.concatenate(pair) for pair in zip(first.details[1:], second.details[1:], strict=True))
        details = Details(first.details.places + second.details.places, *columns)
    names, groups, categories = (a + b for a, b in zip(first[1:4], second[1:4], strict=True))
    return Nodules(np.concatenate([first.values, second.values]), names, groups, categories, masks, details)


def central_section(values: Real[np.ndarray, "samples ..."], ndim: int) -> Real[np.ndarray, "samples ..."]:
    """The central slice (`ndim` 2) or central line (`ndim` 1) of each volume; what has `ndim` axes stays as it is."""
    while values.ndim > ndim + 1:
        values = values[:, values.shape[1] // 2]
    return values


def windowed(values: Real[np.ndarray, "samples ..."], window: tuple[float, float]) -> Float64[np.ndarray, "samples ..."]:
    """The values as shares of the window, from 0 to 1."""
    low, high = window
    return np.clip((values.astype(np.float64) - low) / (high - low), 0, 1)


def masses(
    values: Real[np.ndarray, "samples ..."], window: tuple[float, float], places: Sequence[str] = ()
) -> Float64[np.ndarray, " samples"]:
    """The integral of each windowed volume over [-1, 1]^n, `Σ x` times the volume of a voxel, `(2/S)^n`.

    Args:
      values: volumes, `samples` × S along each of n axes.
      window: the values mapped to 0 and to 1.
      places: where the user finds each volume; empty: volumes go by their numbers.

    Raises:
      DataError: a volume lies wholly at or below the window, so it has no mass.
    """
    return _masses(windowed(values, window), window, places)


def _masses(
    shares: Float64[np.ndarray, "samples ..."], window: tuple[float, float], places: Sequence[str]
) -> Float64[np.ndarray, " samples"]:
    mass = shares.sum(tuple(range(1, shares.ndim))) * np.prod([2 / size for size in shares.shape[1:]])
    if (mass <= 0).any():
        which = int(mass.argmin())
        raise DataError(
            f"each volume must have voxels above the window's lower end, {window[0]:g}; "
            f"{places[which] if places else f'volume {which}'} has none: lower data.window"
        )
    return mass


def to_density(
    values: Real[np.ndarray, "samples ..."], window: tuple[float, float], places: Sequence[str] = ()
) -> Float32[np.ndarray, "samples ..."]:
    """Window to [0, 1], then divide by the mass, so that each volume integrates to one over [-1, 1]^n.

    Arguments and errors as in `masses`.
    """
    shares = windowed(values, window)
    mass = _masses(shares, window, places)
    return (shares / np.expand_dims(mass, tuple(range(1, shares.ndim)))).astype(np.float32)


def from_density(
    density: Real[np.ndarray, "samples ..."], mass: Real[np.ndarray, " samples"], window: tuple[float, float]
) -> Float64[np.ndarray, "samples ..."]:
    """Values whose density and mass these are, in the window's unit: what `to_density` has cut off stays cut off."""
    low, high = window
    return low + (high - low) * density.astype(np.float64) * np.expand_dims(mass, tuple(range(1, density.ndim)))
