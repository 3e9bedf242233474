"""A small chest in LUNA16's shape, and nodules as cubes: balls in lung tissue."""

from pathlib import Path

import numpy as np
import SimpleITK as sitk

from gmmae.data.extraction.luna16 import COLUMNS
from gmmae.data.volumes import Nodules, make_table
from gmmae.generation.insertion.noise import draw
from tests.volume_folders import write_rows

LUNG_HU, WALL_HU = -850, 40


def write_chest(
    path: Path,
    spacing=(1.0, 1.0, 2.0),
    direction=(1, 1, 1),
    shape=(40, 80, 72),
    compressed=False,
    lung=True,
) -> Path:
    """Writes one scan: a lung, an ellipsoid that the scan's upper end crops, in a wall; noise of 25 HU."""
    rng = np.random.default_rng(len(path.stem))
    z, y, x = (np.arange(n) / n for n in shape)
    squared = ((z[:, None, None] - 0.8) / 0.6) ** 2 + ((y[:, None] - 0.5) / 0.45) ** 2 + ((x - 0.5) / 0.45) ** 2
    voxels = np.where((squared < 1) & lung, LUNG_HU, WALL_HU) + 25 * draw(rng, 0.0, shape)
    image = sitk.GetImageFromArray(np.rint(voxels).astype(np.int16))
    image.SetSpacing(spacing)
    image.SetDirection(np.diag(direction).astype(float).ravel().tolist())
    image.SetOrigin((-12.345678, 45.5, -300.25))
    path.parent.mkdir(parents=True, exist_ok=True)
    sitk.WriteImage(image, str(path), compressed)
    return path


def write_scans(root: Path) -> Path:
    """Writes two scans, one rotated as of prone patients, and the row of one annotated nodule."""
    write_chest(root / "subset0" / "a.mhd", compressed=True)
    write_chest(root / "subset1" / "turned.mhd", direction=(-1, -1, 1))
    write_annotations(root, [("a", 20.0, 85.5, -250.125, 6.50, "p1")], "patient")
    return root


def write_annotations(root: Path, rows, *more: str) -> None:
    write_rows(root / "annotations.csv", rows, ("seriesuid", *COLUMNS, *more))


def tissue_balls(count=6, diameter_mm=8.0, size=16, wall=False) -> Nodules:
    """Returns equal balls in cubes of 1.25 diameters, off their cubes' centres; with a wall beside them if asked for."""
    edge = 1.25 * diameter_mm
    z, y, x = np.moveaxis((np.indices((size,) * 3) - (size - 1) / 2) * edge / size, 0, 0)
    mask = np.sqrt((z - 0.3) ** 2 + (y + 0.2) ** 2 + x**2) < 0.42 * diameter_mm
    values = np.where(mask, 20, -800)
    if wall:
        values[y > 0.45 * diameter_mm] = 50
    stack, masks = (np.repeat(array[None], count, 0) for array in (values.astype(np.int16), mask.astype(np.uint8)))
    sizes = {"edge_mm": np.full(count, edge), "diameter_mm": np.full(count, diameter_mm)}
    return Nodules(stack, masks, make_table([f"n{i}" for i in range(count)], category=["solid"] * count, **sizes))
