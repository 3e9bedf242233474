"""The nodules that every data source returns, and their densities.

Array axes are z, y, x. Voxel centres lie on [-1, 1] (see `gmmae.models.mixture.grid`).
"""

import errno
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Float32, Float64, Real, Shaped, UInt8

from gmmae.system.errors import InputError, printable

OWN = "csv."
"""The beginning of the names of the user's columns in a table."""

Values = Real[np.ndarray, "samples ..."]
Shares = Float64[np.ndarray, "samples ..."]
Column = Float[np.ndarray, " samples"]
Point = tuple[float, float, float]
"""A place in the world, or a length along each of its axes: x, y, z in mm, LPS as in ITK."""


class DataError(InputError):
    """Data that cannot be used; the message, one line, names the volume or file and its fault."""

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


class TransientError(DataError):
    """Data that could not be read this time."""

    exit_code = 75  # EX_TEMPFAIL of sysexits.h


def error_line(error: BaseException) -> str:
    """The text of an error in one line, or its type where it has none."""
    return " ".join(str(error).split()) or type(error).__name__


def letters(name: str) -> str:
    """What all spellings of a column's name share.

    >>> letters("Patient ID") == letters("patient_id")
    True
    """
    return re.sub(r"[\W_]", "", name).casefold()


def unreadable_root(error: OSError) -> DataError:
    """The error for a folder that cannot be listed; only some reasons are transient."""
    text = f"data.root must be a folder that can be read; got {error}"
    if error.errno in (errno.ENAMETOOLONG, errno.ELOOP):
        return DataError(text)
    return TransientError(f"{text}: try the same command again")


class Nodules(NamedTuple):
    """Volumes around nodules, and a table of what is known of each.

    Columns of the table, besides the user's as text, with `OWN` before their names:

    - `name`: unique. `place`: the CSV and its line, for messages. `path`: of the volume, relative to `data.root`.
    - `group`: the patient, or the scan where none is named. A split never divides a group.
    - `category` and `split` (train, validation or test): empty where not known.
    - `centre_mm` (samples × 3: x, y, z in the world) and `edge_mm` of the cube; `filled`, its share outside of the scan.
    - `diameter_mm`: NaN where not known. `origin`: the same for nodules of one scan or volume, however they are cut.

    Attributes:
      values: int16 in HU, or float32 in a unit of their own.
      masks: 1 in the nodule; zeros for a nodule without mask. None: no nodule has one.
      table: the columns.
      by: what a split keeps whole, as `gmmae.data.groups.Groups.by`.
    """

    values: Real[np.ndarray, "samples *volume"]
    masks: Shaped[np.ndarray, "samples *volume"] | None
    table: Mapping[str, Shaped[np.ndarray, "samples ..."]]
    by: str = "volume"

    @property
    def names(self) -> tuple[str, ...]:
        """Unique names."""
        return tuple(self.table["name"].tolist())

    @property
    def groups(self) -> tuple[str, ...]:
        """No split divides them."""
        return tuple(self.table["group"].tolist())

    @property
    def categories(self) -> tuple[str, ...]:
        """Empty where none is known."""
        return tuple(self.table["category"].tolist())

    @property
    def places(self) -> tuple[str, ...]:
        """Each nodule's name, CSV and line, for messages."""
        pairs = zip(self.names, self.table["place"].tolist(), strict=True)
        return tuple(name if name == place else f"{name} ({place})" for name, place in pairs)

    @property
    def centre_mm(self) -> Float[np.ndarray, "samples 3"]:
        """Centres of the cubes."""
        return self.table["centre_mm"]

    @property
    def edge_mm(self) -> Column:
        """Edges of the cubes."""
        return self.table["edge_mm"]

    @property
    def diameter_mm(self) -> Column:
        """NaN where not known."""
        return self.table["diameter_mm"]

    @property
    def masked(self) -> Shaped[np.ndarray, " samples"]:
        """Which of them have a mask with a voxel."""
        masks = np.zeros((len(self.values), 1)) if self.masks is None else self.masks
        return np.count_nonzero(masks.reshape(len(masks), -1), axis=1) > 0

    @property
    def filled(self) -> Column:
        """Shares of the cubes outside of the scans."""
        return self.table["filled"]

    def column(self, name: str) -> Shaped[np.ndarray, " samples"] | None:
        """A column of the user's CSV, whatever the case and signs of its name, or None."""
        alike = (key for key in self.table if key.startswith(OWN) and letters(key.removeprefix(OWN)) == letters(name))
        return self.table.get(f"{OWN}{name}", self.table.get(next(alike, "")))

    def take(self, index: Shaped[np.ndarray, " taken"]) -> "Nodules":
        """Some of them, in this order."""
        masks = None if self.masks is None else self.masks[index]
        return Nodules(self.values[index], masks, {name: column[index] for name, column in self.table.items()}, self.by)

    def with_columns(self, **columns: Sequence[Any] | np.ndarray) -> "Nodules":
        """Replaces or adds columns."""
        return self._replace(table={**self.table, **{name: np.asarray(column) for name, column in columns.items()}})


def own_columns(table: Mapping[str, Any], taken: Iterable[str]) -> dict[str, Any]:
    """The user's columns, with `csv_` before names that an output has itself."""
    own: dict[str, Any] = {}
    for key in table:
        if key.startswith(OWN):
            name = key.removeprefix(OWN)
            while name in own or name in taken:
                name = f"csv_{name}"
            own[name] = table[key]
    return own


def make_table(names: Sequence[str], **columns: Sequence[Any] | np.ndarray) -> dict[str, np.ndarray]:
    """The table of `Nodules`; by default each is a group, lies in the origin and has no size."""
    nothing, zeros = np.full(len(names), ""), np.zeros(len(names))
    table = dict.fromkeys(("name", "group", "place"), np.array(names)) | dict.fromkeys(
        ("category", "split", "path", "origin"), nothing
    )
    table |= {"centre_mm": np.zeros((len(names), 3)), "edge_mm": zeros, "diameter_mm": zeros + np.nan, "filled": zeros}
    return table | {name: np.asarray(column) for name, column in columns.items()}


class NativeNodule(NamedTuple):
    """A volume around one nodule, on the grid of its scan; `centre` counts in voxels, and vectors are z, y, x."""

    name: str
    group: str
    category: str
    values: Real[np.ndarray, "z y x"]
    mask: UInt8[np.ndarray, "z y x"]
    centre: tuple[float, float, float]
    spacing_mm: tuple[float, float, float]
    diameter_mm: float
    place: str = ""
    own: Mapping[str, str] = {}
    origin: str = ""
    series: str = ""


def cut_from(origin: str, series: str) -> tuple[str, ...]:
    """Words for what a nodule is cut from: the hash of its volume, and the UID of its scan where there is one."""
    return (origin, series) if "." in series else (origin,)


def joined(first: Nodules, second: Nodules) -> Nodules:
    """Joins two sets of nodules."""
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
    columns = {
        name: np.concatenate([part.table.get(name, np.full(len(part.values), "")) for part in (first, second)])
        for name in {**first.table, **second.table}
    }
    return Nodules(np.concatenate([first.values, second.values]), masks, columns, first.by)


def central_section(values: Shaped[np.ndarray, "samples ..."], ndim: int) -> Shaped[np.ndarray, "samples ..."]:
    """The central slice (`ndim` 2) or line (`ndim` 1) of volumes with more axes."""
    while values.ndim > ndim + 1:
        values = values[:, values.shape[1] // 2]
    return values


def windowed(values: Values, window: tuple[float, float]) -> Shares:
    """The values as shares of the window, from 0 to 1."""
    low, high = window
    return np.clip((values.astype(np.float64) - low) / (high - low), 0, 1)


def masses(values: Values, window: tuple[float, float], places: Sequence[str] = ()) -> Float64[np.ndarray, " samples"]:
    """The integral of each windowed volume over [-1, 1]^n, `Σ x` times a voxel's volume, `(2/S)^n`.

    Raises:
      DataError: a volume lies wholly at or below the window; `places` names it.
    """
    return _masses(windowed(values, window), window, places)


def _masses(shares: Shares, window: tuple[float, float], places: Sequence[str]) -> Float64[np.ndarray, " samples"]:
    mass = shares.sum(tuple(range(1, shares.ndim))) * np.prod([2 / size for size in shares.shape[1:]])
    if (mass <= 0).any():
        which = int(mass.argmin())
        raise DataError(
            f"each volume must have voxels above the window's lower end, {window[0]:g}; "
            f"{places[which] if places else f'volume {which}'} has none: lower data.window"
        )
    return mass


def to_density(values: Values, window: tuple[float, float], places: Sequence[str] = ()) -> Float32[np.ndarray, "samples ..."]:
    """Windows to [0, 1] and divides by the mass, so that each volume integrates to one over [-1, 1]^n."""
    shares = windowed(values, window)
    mass = _masses(shares, window, places)
    return (shares / np.expand_dims(mass, tuple(range(1, shares.ndim)))).astype(np.float32)


def from_density(density: Values, mass: Real[np.ndarray, " samples"], window: tuple[float, float]) -> Shares:
    """The values of densities and masses, in the window's unit; they may lie beyond it."""
    low, high = window
    return low + (high - low) * density.astype(np.float64) * np.expand_dims(mass, tuple(range(1, density.ndim)))
