"""The nodules that every data source returns, and their densities.

Array axes are z, y, x. A volume has `size` samples along each axis; voxel centres lie on [-1, 1]
(see `gmmae.models.mixture.grid`).
"""

import errno
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Float32, Float64, Real, Shaped, UInt8

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
    """Data that could not be read for a transient reason. The same command may succeed later."""

    exit_code = 75  # EX_TEMPFAIL of sysexits.h


def error_line(error: BaseException) -> str:
    """Returns the text of an error in one line, or its name where it has none."""
    return " ".join(str(error).split()) or type(error).__name__


def unreadable_root(error: OSError) -> DataError:
    """Returns the error for a folder that cannot be listed. Only some reasons are transient."""
    text = f"data.root must be a folder that can be read; got {error}"
    if error.errno in (errno.ENAMETOOLONG, errno.ELOOP):
        return DataError(text)
    return TransientError(f"{text}: try the same command again")


class Details(NamedTuple):
    """Further facts of each nodule: its cube's centre (x, y, z in mm) and edge, its diameter, and the cube's share outside.

    `places` are the CSV and its line, for messages. Diameters are NaN where not known.
    """

    places: tuple[str, ...]
    centre_mm: Float[np.ndarray, "samples 3"]
    edge_mm: Float[np.ndarray, " samples"]
    diameter_mm: Float[np.ndarray, " samples"]
    filled: Float[np.ndarray, " samples"]

    def take(self, index: Shaped[np.ndarray, " taken"]) -> "Details":
        """Returns those of some nodules, in this order."""
        return Details(tuple(self.places[i] for i in index), *(values[index] for values in self[1:]))


class Nodules(NamedTuple):
    """Volumes around nodules, with the facts of each.

    Attributes:
      values: the volumes: int16 in HU, or float32 in a unit of their own.
      names: one for each cube, unique.
      groups: the patient that each cube comes from where one is named, otherwise the scan; a split never divides a group.
      categories: the class of each nodule, or an empty string where none is known.
      masks: 1 in the nodule; zeros for a nodule without mask.
      details: of their cubes.
      splits: training, validation or test for each, where the data are divided already (`gmmae.data.splits.SPLITS`).
      by: what a split keeps whole, as `gmmae.data.groups.Groups.by`.
    """

    values: Real[np.ndarray, "samples *volume"]
    names: tuple[str, ...]
    groups: tuple[str, ...]
    categories: tuple[str, ...]
    masks: Shaped[np.ndarray, "samples *volume"] | None = None
    details: Details | None = None
    splits: tuple[str, ...] = ()
    by: str = "volume"

    @property
    def places(self) -> tuple[str, ...]:
        """Each nodule's name, and its CSV and line, for messages."""
        if self.details is None:
            return self.names
        pairs = zip(self.names, self.details.places, strict=True)
        return tuple(name if name == place else f"{name} ({place})" for name, place in pairs)

    def take(self, index: Shaped[np.ndarray, " taken"]) -> "Nodules":
        """Returns some of them, in this order."""
        names, groups, categories = ([list(values)[i] for i in index] for values in (self.names, self.groups, self.categories))
        masks = None if self.masks is None else self.masks[index]
        details = None if self.details is None else self.details.take(index)
        splits = tuple(self.splits[i] for i in index) if self.splits else ()
        return Nodules(self.values[index], tuple(names), tuple(groups), tuple(categories), masks, details, splits, self.by)


class NativeNodule(NamedTuple):
    """A volume around one nodule, on the grid of its scan.

    Attributes:
      name, group, category: as in `Nodules`.
      values: int16 in HU, or float32 in a unit of their own.
      mask: 1 in the nodule.
      centre: of the nodule, z, y, x, in voxels from the first one.
      spacing_mm: between voxels, z, y, x.
      diameter_mm: NaN where not known.
      place: the volume, and the line of the CSV.
    """

    name: str
    group: str
    category: str
    values: Real[np.ndarray, "z y x"]
    mask: UInt8[np.ndarray, "z y x"]
    centre: tuple[float, float, float]
    spacing_mm: tuple[float, float, float]
    diameter_mm: float
    place: str = ""


def joined(first: Nodules, second: Nodules) -> Nodules:
    """Joins two sets of nodules. Unknown masks become zero. Where the first set is divided, the second is for training.

    Raises:
      DataError: a name is in both, or one set is in HU and the other in a unit of its own.
    """
    if first.values.dtype != second.values.dtype:
        raise DataError(
            f"nodules that are joined must be in one unit, int16 in HU or float32; got {first.values.dtype} and "
            f"{second.values.dtype}: join others"
        )
    if shared := set(first.names) & set(second.names):
        raise DataError(f"nodules that are joined must have names of their own; {min(shared)} is in both: rename it")
    masks = None
    if first.masks is not None or second.masks is not None:
        masks = np.concatenate([np.zeros_like(part.values) if part.masks is None else part.masks for part in (first, second)])
    details = None
    if first.details is not None and second.details is not None:
        columns = (np.concatenate(pair) for pair in zip(first.details[1:], second.details[1:], strict=True))
        details = Details(first.details.places + second.details.places, *columns)
    names, groups, categories = (a + b for a, b in zip(first[1:4], second[1:4], strict=True))
    splits = first.splits + ("train",) * len(second.names) if first.splits else ()
    return Nodules(np.concatenate([first.values, second.values]), names, groups, categories, masks, details, splits, first.by)


def central_section(values: Real[np.ndarray, "samples ..."], ndim: int) -> Real[np.ndarray, "samples ..."]:
    """Returns the central slice (`ndim` 2) or central line (`ndim` 1) of each volume with more axes."""
    while values.ndim > ndim + 1:
        values = values[:, values.shape[1] // 2]
    return values


def windowed(values: Real[np.ndarray, "samples ..."], window: tuple[float, float]) -> Float64[np.ndarray, "samples ..."]:
    """Returns the values as shares of the window, from 0 to 1."""
    low, high = window
    return np.clip((values.astype(np.float64) - low) / (high - low), 0, 1)


def masses(
    values: Real[np.ndarray, "samples ..."], window: tuple[float, float], places: Sequence[str] = ()
) -> Float64[np.ndarray, " samples"]:
    """Returns the integral of each windowed volume over [-1, 1]^n, `Σ x` times the volume of a voxel, `(2/S)^n`.

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
    """Windows to [0, 1] and divides by the mass, so that each volume integrates to one over [-1, 1]^n.

    Arguments and errors are those of `masses`.
    """
    shares = windowed(values, window)
    mass = _masses(shares, window, places)
    return (shares / np.expand_dims(mass, tuple(range(1, shares.ndim)))).astype(np.float32)


def from_density(
    density: Real[np.ndarray, "samples ..."], mass: Real[np.ndarray, " samples"], window: tuple[float, float]
) -> Float64[np.ndarray, "samples ..."]:
    """Returns the values of densities and masses, in the window's unit. They stay clipped to the window."""
    low, high = window
    return low + (high - low) * density.astype(np.float64) * np.expand_dims(mass, tuple(range(1, density.ndim)))
