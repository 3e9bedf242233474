"""A folder of scans shaped like LUNA16's, one scan in memory at a time."""

import os
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import numpy as np
import SimpleITK as sitk
from jaxtyping import Float, Real

from gmmae.data.extraction.annotations import Row, read_table
from gmmae.data.extraction.luna16 import ANNOTATIONS, COLUMNS, find_scans
from gmmae.data.extraction.opening import read_scan
from gmmae.data.settings import DataConfig
from gmmae.data.volumes import DataError

GROUPS = ("patient", "group")
"""Columns of a scan's patient, which its new rows get too, so that a split keeps them together."""


class Table(NamedTuple):
    """`annotations.csv` as it is, with the names of columns that this program knows.

    Attributes:
      columns: of the CSV.
      lines: of each scan, but for spaces around cells.
      rows: of each scan, those that can be used.
      faults: a line for each row that cannot.
    """

    columns: tuple[str, ...]
    lines: dict[str, list[dict[str, str]]]
    rows: dict[str, list[Row]]
    faults: tuple[str, ...] = ()

    def patient(self, uid: str) -> dict[str, str]:
        """The cells that name a scan's patient, where all its lines agree."""
        cells = {column: {line[column] for line in self.lines[uid]} for column in GROUPS if column in self.columns}
        return {column: values.pop() for column, values in cells.items() if len(values) == 1}


class Grid(NamedTuple):
    """Where voxels lie: world = origin + matrix @ (i, j, k), in mm along x, y, z; the direction matrix is in it."""

    origin_mm: Float[np.ndarray, "3"]
    matrix_mm: Float[np.ndarray, "3 3"]
    shape: tuple[int, ...]

    @property
    def spacing_mm(self) -> Float[np.ndarray, "3"]:
        """Along z, y, x."""
        return np.linalg.norm(self.matrix_mm, axis=0)[::-1]

    def world(self, index: Real[np.ndarray, "*points 3"]) -> Float[np.ndarray, "*points 3"]:
        """World points (x, y, z) of indices (z, y, x)."""
        return index[..., ::-1] @ self.matrix_mm.T + self.origin_mm

    def indices(self, world_mm: Real[np.ndarray, "*points 3"]) -> Float[np.ndarray, "*points 3"]:
        """Indices (z, y, x) of world points (x, y, z)."""
        return ((world_mm - self.origin_mm) @ np.linalg.inv(self.matrix_mm).T)[..., ::-1]

    def holds(self, world_mm: Real[np.ndarray, "3"]) -> bool:
        """Whether a world point lies in a voxel."""
        index = self.indices(world_mm)
        return bool(((index >= -0.5) & (index <= np.array(self.shape) - 0.5)).all())


class Host(NamedTuple):
    """A scan: its header's path, its voxels in HU along z, y, x, where they lie, and an image that carries its geometry."""

    uid: str
    path: Path
    voxels: Real[np.ndarray, "z y x"]
    grid: Grid
    frame: sitk.Image


def list_scans(root: Path) -> dict[str, Path]:
    """The headers of a folder's scans by their series UID.

    Raises:
      DataError: no such folder, or no scans.
    """
    if not root.is_dir():
        raise DataError(f"SCANS must be a folder of .mhd scans; got {root}, which is none")
    found, _ = find_scans(root)
    if not found:
        raise DataError(f"SCANS must hold .mhd scans, in subset*/ or directly; {root} has none")
    return dict(sorted(found.items()))


def repeated_scans(root: Path) -> list[str]:
    """A line for each scan that the folder has twice, of which one is used."""
    return [fault.line() for fault in find_scans(root)[1]]


def read_annotations(root: Path) -> Table:
    """The folder's `annotations.csv`; without one, none is annotated.

    Raises:
      DataError: it is no file, no CSV, or lacks a column of LUNA16's.
    """
    path = root / ANNOTATIONS
    lines: dict[str, list[dict[str, str]]] = defaultdict(list)
    rows: dict[str, list[Row]] = defaultdict(list)
    if not os.path.lexists(path):
        return Table(("seriesuid", *COLUMNS), lines, rows)
    table = read_table(path, DataConfig(source="luna16"), "seriesuid", COLUMNS)
    for row in table.rows:
        rows[row.file].append(row)
    faults = tuple(fault.line() for fault in table.faults if fault.lost)
    for line in table.lines:
        lines[line["seriesuid"]].append(line)
    return Table(table.columns, lines, rows, faults)


def read_host(uid: str, path: Path) -> Host:
    """A scan, whole, read and checked as those that cubes are cut from.

    Raises:
      DataError: it cannot be read, or its voxels are no HU; the message names the file.
    """
    try:
        volume, voxels = read_scan(path)
    except (DataError, OSError) as error:
        raise DataError(f"{path.name}: {error}") from error
    at = volume.frame.TransformContinuousIndexToPhysicalPoint
    origin = np.array(at((0.0, 0.0, 0.0)))
    columns = [np.array(at(unit)) - origin for unit in np.eye(3).tolist()]
    return Host(uid, path, voxels, Grid(origin, np.stack(columns, axis=1), voxels.shape), volume.frame)


def annotated(rows: list[Row]) -> list[tuple[Float[np.ndarray, "3"], float]]:
    """Centre (world mm) and diameter (mm) of the nodules that a scan has already."""
    return [(np.array(row.centre_mm), row.diameter_mm) for row in rows if row.centre_mm and row.diameter_mm]


def inside(host: Host, rows: list[Row]) -> list[Row]:
    """The rows whose nodule has its centre in the scan, or no centre at all."""
    return [row for row in rows if not row.centre_mm or host.grid.holds(np.array(row.centre_mm))]


def outside(host: Host, rows: list[Row]) -> list[str]:
    """A line for each row whose nodule has its centre outside the scan."""
    kept = inside(host, rows)
    return [
        f"{ANNOTATIONS} line {row.number}: the point ({', '.join(f'{c:g}' for c in row.centre_mm or ())}) mm lies outside the "
        f"scan {host.path.name}"
        for row in rows
        if row not in kept
    ]
