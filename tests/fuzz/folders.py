"""The clean folders of the fuzz test: small, made from formulas, and the same in every call.

Voxels are a linear field of the world's coordinates, another one in each volume. Linear interpolation reproduces such a field
on every grid, so a volume that is written on another grid must give the same cube.
"""

import csv
from pathlib import Path
from typing import NamedTuple

import numpy as np
import SimpleITK as sitk

from tests.volume_folders import image

CSV = "nodules.csv"
COLUMNS = ("file", "patient", "coordX", "coordY", "coordZ", "diameter_mm", "category")
IDENTITY = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0)


class Grid(NamedTuple):
    """The geometry of a volume: voxels along z, y, x; spacing, origin and direction as SimpleITK has them."""

    shape: tuple[int, int, int] = (10, 16, 14)
    spacing: tuple[float, float, float] = (0.8, 0.9, 1.5)
    origin: tuple[float, float, float] = (10.0, -20.0, 30.0)
    direction: tuple[float, ...] = IDENTITY

    @property
    def matrix(self) -> np.ndarray:
        """The map from indices x, y, z to millimetres."""
        return np.array(self.direction).reshape(3, 3) * np.array(self.spacing)

    @property
    def middle(self) -> np.ndarray:
        """The world point in the middle of the volume."""
        return self.matrix @ ((np.array(self.shape[::-1]) - 1) / 2) + self.origin

    def points(self) -> np.ndarray:
        """The world points of all voxels, in array order."""
        index = np.stack(np.meshgrid(*(np.arange(n) for n in self.shape), indexing="ij")[::-1], -1)
        return index @ self.matrix.T + self.origin

    def around(self, point: np.ndarray, **changes: tuple) -> "Grid":
        """A grid with other values whose middle is a point."""
        grid = self._replace(**changes)
        return grid._replace(origin=tuple((point - grid.middle + grid.origin).tolist()))


GRID = Grid()
OFFSET_MM = np.array([0.7, -0.5, 0.9])
"""The nodules' distance from the middle of their volumes."""


class Nodule(NamedTuple):
    """What is written of one nodule."""

    name: str
    patient: str
    diameter_mm: float
    category: str
    level: float
    slope: tuple[float, float, float]

    def field(self, grid: Grid = GRID) -> np.ndarray:
        """The nodule's HU on a grid, not rounded."""
        return self.level + (grid.points() - GRID.middle - OFFSET_MM) @ np.array(self.slope)

    def ball(self, grid: Grid = GRID) -> np.ndarray:
        """The nodule's voxels on a grid."""
        inside = np.linalg.norm(grid.points() - GRID.middle - OFFSET_MM, axis=-1) < self.diameter_mm / 2
        return inside.astype(np.uint8)


def _nodule(number: int) -> Nodule:
    rng = np.random.default_rng(number)
    slope = tuple((rng.uniform(4, 16, 3) * rng.choice([-1, 1], 3)).tolist())
    patient = f"p{max(number - 1, 0)}"
    return Nodule(f"n{number}", patient, 4.6 + number / 4, ("solid", "part-solid")[number % 2], -400 + 50 * number, slope)


NODULES = tuple(map(_nodule, range(6)))
"""The nodules of the folder; the first two are of one patient."""


def write_image(path: Path, voxels: np.ndarray, grid: Grid = GRID, compressed: bool = False) -> None:
    """Writes an array with a geometry in the format of the file's ending."""
    path.parent.mkdir(parents=True, exist_ok=True)
    sitk.WriteImage(image(voxels, grid.origin, grid.spacing, grid.direction), str(path), compressed)


def hu(values: np.ndarray) -> np.ndarray:
    """Values as whole HU."""
    return np.rint(values).astype(np.int16)


def cubes(folder: Path) -> None:
    """Writes a folder of volumes and masks with a CSV."""
    rows: list[list[str]] = [list(COLUMNS)]
    for nodule in NODULES:
        write_image(folder / "images" / f"{nodule.name}.nii.gz", hu(nodule.field()))
        write_image(folder / "masks" / f"{nodule.name}.nii.gz", nodule.ball())
        centre = [f"{mm:.2f}" for mm in GRID.middle + OFFSET_MM]
        rows.append([f"{nodule.name}.nii.gz", nodule.patient, *centre, f"{nodule.diameter_mm:g}", nodule.category])
    write_rows(folder / CSV, rows)


SCANS = {"1.2.840.1": (0, 1), "1.2.840.2": (2,), "1.2.840.3": (3, 4)}
"""The nodules of each scan, by series UID."""
STEPS_MM = (4.0, 3.0, -3.0)
SCAN_GRID = Grid((16, 26, 26), (0.8, 0.9, 1.5), (10.0, -20.0, 30.0))


def luna16(folder: Path) -> None:
    """Writes a folder in LUNA16's shape."""
    rows = [["seriesuid", "coordX", "coordY", "coordZ", "diameter_mm"]]
    for number, (uid, members) in enumerate(SCANS.items()):
        write_image(folder / f"subset{number % 2}" / f"{uid}.mhd", hu(NODULES[number].field(SCAN_GRID)))
        for turn, member in enumerate(members):
            centre = SCAN_GRID.middle + np.array(STEPS_MM) * (-1) ** turn * bool(len(members) - 1)
            rows.append([uid, *(f"{mm:.2f}" for mm in centre), f"{NODULES[member].diameter_mm:g}"])
    write_rows(folder / "annotations.csv", rows)


def npz(folder: Path) -> None:
    """Writes a folder with one file of arrays."""
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / "all.npz", allow_pickle=False, **arrays())


def arrays() -> dict[str, np.ndarray]:
    """The arrays of the clean `.npz`."""
    return {
        "volumes": np.stack([hu(nodule.field()) for nodule in NODULES]),
        "masks": np.stack([nodule.ball() for nodule in NODULES]),
        "names": np.array([nodule.name for nodule in NODULES]),
        "groups": np.array([nodule.patient for nodule in NODULES]),
        "categories": np.array([nodule.category for nodule in NODULES]),
        "diameter_mm": np.array([nodule.diameter_mm for nodule in NODULES]),
        "spacing_mm": np.array([GRID.spacing] * len(NODULES)),
    }


CHEST_GRID = Grid((40, 80, 72), (1.0, 1.0, 2.0), (-12.3, 45.5, -300.25))


def chest(folder: Path) -> None:
    """Writes two scans that have a lung, with the row of one nodule: nodules can be inserted into them."""
    z, y, x = (np.arange(n) / n for n in CHEST_GRID.shape)
    squared = ((z[:, None, None] - 0.8) / 0.6) ** 2 + ((y[:, None] - 0.5) / 0.45) ** 2 + ((x - 0.5) / 0.45) ** 2
    for number, uid in enumerate("ab"):
        noise = np.random.default_rng(number).normal(0, 25, CHEST_GRID.shape)
        write_image(folder / f"subset{number}" / f"{uid}.mhd", hu(np.where(squared < 1, -850, 40) + noise), CHEST_GRID)
    columns = ["seriesuid", "coordX", "coordY", "coordZ", "diameter_mm"]
    write_rows(folder / "annotations.csv", [columns, ["a", "20.0", "85.5", "-250.0", "6.5"]])


def table_path(folder: Path) -> Path:
    """The CSV of a folder."""
    return next(path for name in (CSV, "annotations.csv") if (path := folder / name).is_file())


def read_rows(folder: Path) -> list[list[str]]:
    """The cells of a folder's CSV, the header first."""
    with table_path(folder).open(newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


def write_rows(path: Path, rows: list[list[str]]) -> None:
    """Writes cells as a CSV."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)
