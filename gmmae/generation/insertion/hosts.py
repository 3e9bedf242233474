"""A folder of scans in LUNA16's format, and its annotations. One scan is in memory at a time."""

import os
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import numpy as np
import SimpleITK as sitk
from jaxtyping import Float, Real

from gmmae.data.extraction.annotations import Item, read_table
from gmmae.data.extraction.luna16 import ANNOTATIONS, COLUMNS, find_scans
from gmmae.data.extraction.scan import read_scan
from gmmae.data.settings import DataConfig
from gmmae.data.volumes import DataError


class Annotations(NamedTuple):
    """The content of `annotations.csv`, with this program's names of the columns.

    Attributes:
      columns: columns of the CSV.
      lines: all lines of each scan, without spaces around cells.
      rows: usable rows of each scan.
      faults: a message for each unusable row.
    """

    columns: tuple[str, ...]
    lines: dict[str, list[dict[str, str]]]
    rows: dict[str, list[Item]]
    faults: tuple[str, ...] = ()


class Grid(NamedTuple):
    """The geometry of a scan's voxels: world = origin + matrix @ (i, j, k), in mm along x, y, z.

    The matrix includes the direction matrix.
    """

    origin_mm: Float[np.ndarray, "3"]
    matrix_mm: Float[np.ndarray, "3 3"]
    shape: tuple[int, ...]

    @property
    def spacing_mm(self) -> Float[np.ndarray, "3"]:
        """The voxels' spacing along z, y, x."""
        return np.linalg.norm(self.matrix_mm, axis=0)[::-1]

    def world(self, index: Real[np.ndarray, "*points 3"]) -> Float[np.ndarray, "*points 3"]:
        """Returns world points (x, y, z) of indices (z, y, x)."""
        return index[..., ::-1] @ self.matrix_mm.T + self.origin_mm

    def indices(self, world_mm: Real[np.ndarray, "*points 3"]) -> Float[np.ndarray, "*points 3"]:
        """Returns indices (z, y, x) of world points (x, y, z)."""
        return ((world_mm - self.origin_mm) @ np.linalg.inv(self.matrix_mm).T)[..., ::-1]

    def holds(self, world_mm: Real[np.ndarray, "3"]) -> bool:
        """Tells whether a world point lies in a voxel."""
        index = self.indices(world_mm)
        return bool(((index >= -0.5) & (index <= np.array(self.shape) - 0.5)).all())


class Host(NamedTuple):
    """A scan: its header's path, its voxels in HU along z, y, x, their geometry, and an image with the same geometry."""

    uid: str
    path: Path
    voxels: Real[np.ndarray, "z y x"]
    grid: Grid
    frame: sitk.Image


def list_scans(root: Path) -> tuple[dict[str, Path], list[str]]:
    """Returns the headers of a folder's scans by series UID, and a message for each scan that the folder contains twice.

    Raises:
      DataError: the folder does not exist, or has no scans.
    """
    if not root.is_dir():
        raise DataError(f"SCANS must be a folder of .mhd scans; got {root}, which is no folder")
    scans, repeated = find_scans(root)
    if not scans:
        raise DataError(f"SCANS must hold .mhd scans, in subset*/ or directly; got {root}, which has none")
    return dict(sorted(scans.items())), [fault.line() for fault in repeated]


def require_scans(root: Path) -> None:
    """Checks a folder of scans before longer work.

    Raises:
      DataError: it has no scans, or its `annotations.csv` cannot be read.
    """
    list_scans(root)
    read_annotations(root)


def read_annotations(root: Path) -> Annotations:
    """Reads the folder's `annotations.csv`; the file may be missing.

    Raises:
      DataError: it is no file, no CSV, or lacks a column of LUNA16.
    """
    path = root / ANNOTATIONS
    lines: dict[str, list[dict[str, str]]] = defaultdict(list)
    rows: dict[str, list[Item]] = defaultdict(list)
    if not os.path.lexists(path):
        return Annotations(("seriesuid", *COLUMNS), lines, rows)
    table = read_table(path, DataConfig(source="luna16"), "seriesuid", COLUMNS)
    for row in table.rows:
        rows[row.file].append(row)
    faults = tuple(fault.line() for fault in table.faults if fault.lost)
    for line in table.lines:
        lines[line["seriesuid"]].append(line)
    return Annotations(table.columns, lines, rows, faults)


def read_host(uid: str, path: Path) -> Host:
    """Reads a whole scan, with the checks of the extraction of cubes.

    Raises:
      DataError: it cannot be read, or its voxels are not in HU. The message names the file.
    """
    try:
        volume, voxels = read_scan(path)
    except (DataError, OSError) as error:
        raise DataError(f"{path.name}: {error}") from error
    at = volume.frame.TransformContinuousIndexToPhysicalPoint
    origin = np.array(at((0.0, 0.0, 0.0)))
    columns = [np.array(at(unit)) - origin for unit in np.eye(3).tolist()]
    return Host(uid, path, voxels, Grid(origin, np.stack(columns, axis=1), voxels.shape), volume.frame)


def annotated(rows: list[Item]) -> list[tuple[Float[np.ndarray, "3"], float]]:
    """Returns centre (world mm) and diameter (mm) of a scan's annotated nodules."""
    return [(np.array(row.centre_mm), row.diameter_mm) for row in rows if row.centre_mm and row.diameter_mm]


def rows_in_scan(host: Host, rows: list[Item]) -> list[Item]:
    """Returns the rows with a centre in the scan, or without a centre."""
    return [row for row in rows if not row.centre_mm or host.grid.holds(np.array(row.centre_mm))]


def outside(host: Host, rows: list[Item]) -> list[str]:
    """Returns a message for each row with a centre outside the scan."""
    kept = rows_in_scan(host, rows)
    return [
        f"{ANNOTATIONS} line {row.number}: the point ({', '.join(f'{c:g}' for c in row.centre_mm or ())}) mm lies outside the "
        f"scan {host.path.name}"
        for row in rows
        if row not in kept
    ]
