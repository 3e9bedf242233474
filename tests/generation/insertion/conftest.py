"""A small chest in LUNA16's shape, and nodules as cubes: balls in lung tissue."""

import csv
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import SimpleITK as sitk

from gmmae.data.extraction.prepare import Details
from gmmae.data.volumes import Nodules

LUNG_HU, WALL_HU = -850, 40


@pytest.fixture
def chest() -> Callable[..., Path]:
    """Writes one scan: a lung, an ellipsoid that the scan's upper end crops, in a wall; noise of 25 HU."""

    def write(
        path: Path, spacing=(1.0, 1.0, 2.0), direction=(1, 1, 1), shape=(40, 80, 72), compressed=False, lung=True
    ) -> Path:
        rng = np.random.default_rng(len(path.stem))
        z, y, x = (np.arange(n) / n for n in shape)
        squared = ((z[:, None, None] - 0.8) / 0.6) ** 2 + ((y[:, None] - 0.5) / 0.45) ** 2 + ((x - 0.5) / 0.45) ** 2
        voxels = np.where((squared < 1) & lung, LUNG_HU, WALL_HU) + rng.normal(0, 25, shape)
        image = sitk.GetImageFromArray(np.rint(voxels).astype(np.int16))
        image.SetSpacing(spacing)
        image.SetDirection(np.diag(direction).astype(float).ravel().tolist())
        image.SetOrigin((-12.345678, 45.5, -300.25))
        path.parent.mkdir(parents=True, exist_ok=True)
        sitk.WriteImage(image, str(path), compressed)
        return path

    return write


@pytest.fixture
def scans(tmp_path, chest) -> Path:
    """Two scans, one of them turned as prone patients are, with the rows of one nodule that is there already."""
    root = tmp_path / "scans"
    chest(root / "subset0" / "a.mhd", compressed=True)
    chest(root / "subset1" / "turned.mhd", direction=(-1, -1, 1))
    with (root / "annotations.csv").open("w", newline="") as file:
        rows = [("seriesuid", "coordX", "coordY", "coordZ", "diameter_mm", "patient"), ("a", 20.0, 85.5, -250.125, 6.50, "p1")]
        csv.writer(file).writerows(rows)
    return root


@pytest.fixture
def balls() -> Callable[..., tuple[Nodules, Details]]:
    """Balls of tissue in cubes of 1.25 diameters, off their cubes' centres; one with a wall beside it where asked for."""

    def make(count=6, diameter_mm=8.0, size=16, wall=False) -> tuple[Nodules, Details]:
        edge = 1.25 * diameter_mm
        z, y, x = np.moveaxis((np.indices((size,) * 3) - (size - 1) / 2) * edge / size, 0, 0)
        mask = np.sqrt((z - 0.3) ** 2 + (y + 0.2) ** 2 + x**2) < 0.42 * diameter_mm
        values = np.where(mask, 20, -800)
        if wall:
            values[y > 0.45 * diameter_mm] = 50
        stack = np.repeat(values[None].astype(np.int16), count, 0)
        names = tuple(f"n{i}" for i in range(count))
        masks = np.repeat(mask[None].astype(np.uint8), count, 0)
        known = np.full(count, edge), np.full(count, diameter_mm), np.zeros(count)
        return Nodules(stack, names, names, ("solid",) * count, masks), Details(names, np.zeros((count, 3)), *known)

    return make
