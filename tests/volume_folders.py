"""Folders of small volumes with masks, sound or spoilt in one place."""

import csv
from typing import Any, NamedTuple

import numpy as np
import SimpleITK as sitk

COLUMNS = ("file", "patient", "coordX", "coordY", "coordZ", "diameter_mm")


class Grid(NamedTuple):
    """The geometry of a volume: voxels along z, y, x; spacing, origin and direction as SimpleITK has them."""

    shape: tuple[int, ...] = (10, 16, 14)
    spacing: Any = (0.8, 0.9, 1.5)
    origin: Any = (10.0, -20.0, 30.0)
    direction: Any = tuple(np.eye(3).ravel())

    def at(self, index):
        """The world points of indices x, y, z."""
        return index @ (np.array(self.direction).reshape(3, 3) * self.spacing).T + self.origin

    @property
    def middle(self):
        """The world point in the middle of the volume."""
        return self.at((np.array(self.shape[::-1]) - 1) / 2)

    def around(self, point, **changes):
        """A grid with other values whose middle is a point."""
        grid = self._replace(**changes)
        return grid._replace(origin=point - grid.middle + grid.origin)


CASES = Grid((5, 16, 16), (0.7, 0.8, 2.0), (-20.0, 12.0, -150.0))


class Case(NamedTuple):
    """A volume and its mask as arrays, and the row of the CSV."""

    values: np.ndarray
    mask: np.ndarray
    row: list[object]


def image(values, origin, spacing, direction):
    """Returns an image of an array with a geometry."""
    image = sitk.GetImageFromArray(values)
    image.SetSpacing(spacing)
    image.SetOrigin(origin)
    image.SetDirection(direction)
    return image


def world(index_zyx):
    """Returns the world point of an index, rounded as in a CSV."""
    return CASES.at(index_zyx[::-1]).round(4).tolist()


def case(number):
    """Returns a ball of tissue in noisy lung, off the middle. Its CSV row names the centre."""
    rng = np.random.default_rng(number)
    centre = np.array([2, 7, 8]) + rng.integers(-1, 2, 3)
    z, y, x = np.indices(CASES.shape)
    mask = (4 * (z - centre[0]) ** 2 + (y - centre[1]) ** 2 + (x - centre[2]) ** 2) <= 7
    values = np.where(mask, -50, -850) + np.rint(rng.normal(0, 30, CASES.shape))
    row = [f"n{number}.mha", f"P{number}", *world(centre), 4.0]
    return Case(values.astype(np.int16), mask.astype(np.uint8), row)


def write(root, count=4, spoil=lambda sound, _: sound):
    """Writes a folder of `count` volumes with `images/`, `masks/` and `nodules.csv`, each case changed by `spoil` first."""
    rows = []
    for number in range(count):
        changed = spoil(case(number), number)
        rows.append(changed.row)
        write_image(root / "images" / str(changed.row[0]), changed.values, CASES)
        write_image(root / "masks" / str(changed.row[0]), changed.mask, CASES)
    write_rows(root / "nodules.csv", rows)
    return root


def write_rows(path, rows, columns=COLUMNS):
    """Writes a CSV."""
    with path.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([columns, *rows])


# Folders whose voxels are a linear field of the world's coordinates, another one in each volume. Linear interpolation
# reproduces such a field on every grid, so a volume that is written on another grid must give the same cube.

CSV, ANNOTATIONS = "nodules.csv", "annotations.csv"


GRID = Grid()
SCAN_GRID = Grid((16, 26, 26))
CENTRE = np.add(GRID.middle, (0.7, -0.5, 0.9))
"""The nodules' place in the world, off the middle of their volumes."""


class Nodule(NamedTuple):
    """What is written of one nodule."""

    name: str
    patient: str
    diameter_mm: float
    category: str
    level: float
    slope: np.ndarray

    def _points(self, grid):
        return grid.at(np.moveaxis(np.indices(grid.shape)[::-1], 0, -1)) - CENTRE

    def field(self, grid=GRID):
        """The nodule's HU on a grid."""
        return np.rint(self.level + self._points(grid) @ self.slope).astype(np.int16)

    def ball(self, grid=GRID):
        """The nodule's voxels on a grid."""
        return (np.linalg.norm(self._points(grid), axis=-1) < self.diameter_mm / 2).astype(np.uint8)


def _nodule(number):
    rng = np.random.default_rng(number)
    slope = rng.uniform(4, 16, 3) * rng.choice([-1, 1], 3)
    category = ("solid", "part-solid")[number % 2]
    return Nodule(f"n{number}", f"p{max(number - 1, 0)}", 4.6 + number / 4, category, -400 + 50 * number, slope)


NODULES = tuple(map(_nodule, range(6)))
"""The nodules of the folder; the first two are of one patient."""


def write_image(path, voxels, grid=GRID, compressed=False):
    """Writes an array with a geometry in the format of the file's ending."""
    path.parent.mkdir(parents=True, exist_ok=True)
    sitk.WriteImage(image(voxels, grid.origin, grid.spacing, grid.direction), str(path), compressed)


def write_cubes(folder):
    """Writes a folder of volumes and masks with a CSV."""
    rows = []
    for nodule in NODULES:
        write_image(folder / f"images/{nodule.name}.nii.gz", nodule.field())
        write_image(folder / f"masks/{nodule.name}.nii.gz", nodule.ball())
        centre = (f"{mm:.2f}" for mm in CENTRE)
        rows.append([f"{nodule.name}.nii.gz", nodule.patient, *centre, f"{nodule.diameter_mm:g}", nodule.category])
    write_rows(folder / CSV, rows, (*COLUMNS, "category"))


def write_luna16(folder):
    """Writes three scans in LUNA16's shape, the first and the last of two nodules."""
    rows = []
    for number, (uid, sides) in enumerate({"1.2.840.1": (-1, 1), "1.2.840.2": (0,), "1.2.840.3": (-1, 1)}.items()):
        write_image(folder / f"subset{number % 2}" / f"{uid}.mhd", NODULES[number].field(SCAN_GRID))
        for side in sides:
            centre = SCAN_GRID.middle + np.array([4, 3, -3]) * side
            rows.append([uid, *(f"{mm:.2f}" for mm in centre), f"{5 + number + side / 4:g}"])
    write_rows(folder / ANNOTATIONS, rows, ("seriesuid", *COLUMNS[2:]))


def arrays():
    """Returns the arrays of an `.npz` of volumes."""
    return {
        "volumes": np.stack([nodule.field() for nodule in NODULES]),
        "masks": np.stack([nodule.ball() for nodule in NODULES]),
        "names": np.array([nodule.name for nodule in NODULES]),
        "groups": np.array([nodule.patient for nodule in NODULES]),
        "categories": np.array([nodule.category for nodule in NODULES]),
        "diameter_mm": np.array([nodule.diameter_mm for nodule in NODULES]),
        "spacing_mm": np.array([GRID.spacing] * len(NODULES)),
    }


def read_rows(path):
    """Returns the cells of a CSV, the header first."""
    with path.open(newline="") as file:
        return list(csv.reader(file))


def table_path(folder):
    """Returns the CSV of a folder."""
    return next(path for name in (CSV, ANNOTATIONS) if (path := folder / name).is_file())
