"""A small chest in LUNA16's shape, and nodules as cubes: balls in lung tissue."""

import numpy as np

from gmmae.data.extraction.annotations import COLUMNS
from gmmae.data.volumes import Nodules, make_table
from gmmae.generation.insertion.noise import draw
from tests.volume_folders import Grid, write_image, write_rows

LUNG_HU, WALL_HU = -850, 40


def lung_voxels(shape):
    """Returns the voxels of the lung, an ellipsoid that the scan's upper end crops."""
    z, y, x = np.ix_(*(np.arange(n) / n for n in shape))
    return ((z - 0.8) / 0.6) ** 2 + ((y - 0.5) / 0.45) ** 2 + ((x - 0.5) / 0.45) ** 2 < 1


def write_chest(path, spacing=(1.0, 1.0, 2.0), direction=(1, 1, 1), shape=(40, 80, 72), lung=True, **options):
    """Writes one scan: a lung in a wall; noise of 25 HU."""
    voxels = np.where(lung_voxels(shape) & lung, LUNG_HU, WALL_HU) + 25 * draw(
        np.random.default_rng(len(path.stem)), 0.0, shape
    )
    grid = Grid(shape, spacing, (-12.345678, 45.5, -300.25), np.diag(direction).astype(float).ravel())
    write_image(path, np.rint(voxels).astype(np.int16), grid, **options)
    return path


def write_scans(root):
    """Writes two scans, one rotated as of prone patients, and the row of one annotated nodule."""
    write_chest(root / "subset0" / "a.mhd", compressed=True)
    write_chest(root / "subset1" / "turned.mhd", direction=(-1, -1, 1))
    write_annotations(root, [("a", 20.0, 85.5, -250.125, 6.50, "p1")], "patient")
    return root


def write_annotations(root, rows, *more):
    write_rows(root / "annotations.csv", rows, ("seriesuid", *COLUMNS, *more))


def tissue_balls(count=6, diameter_mm=8.0, wall=False):
    """Returns equal balls in cubes of 1.25 diameters, off their cubes' centres; with a wall beside them if asked for."""
    edge = 1.25 * diameter_mm
    z, y, x = np.moveaxis((np.indices((16, 16, 16)) - 7.5) * edge / 16, 0, 0)
    mask = np.sqrt((z - 0.3) ** 2 + (y + 0.2) ** 2 + x**2) < 0.42 * diameter_mm
    values = np.where(mask, 20, -800)
    if wall:
        values[y > 0.45 * diameter_mm] = 50
    stack, masks = (np.repeat(array[None], count, 0) for array in (values.astype(np.int16), mask.astype(np.uint8)))
    sizes = {"edge_mm": np.full(count, edge), "diameter_mm": np.full(count, diameter_mm)}
    return Nodules(stack, masks, make_table([f"n{i}" for i in range(count)], category=["solid"] * count, **sizes))
