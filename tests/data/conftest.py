import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from gmmae.data.extraction import annotations
from gmmae.data.settings import DataConfig
from tests import volume_folders

COLUMNS = ("seriesuid", *annotations.COLUMNS)


class Scan(NamedTuple):
    """A scan's voxels and affine, kept apart from what SimpleITK makes of them: world = origin + matrix @ (i, j, k)."""

    voxels: np.ndarray
    matrix: np.ndarray
    origin: np.ndarray

    def write(self, path, compressed=False):
        """Writes it with SimpleITK, as any suffix it knows."""
        spacing = np.linalg.norm(self.matrix, axis=0)
        geometry = volume_folders.Grid(self.voxels.shape, spacing, self.origin, (self.matrix / spacing).ravel())
        volume_folders.write_image(path, self.voxels, geometry, compressed)
        return path


@pytest.fixture(scope="session")
def blob_scan():
    """A scan of a Gaussian blob at a world point on a ramp, with any direction and spacing; the point is its 0.4 to 0.6."""

    def make(point, direction, spacing, shape=(40, 50, 60)):
        size = np.array(shape[::-1])
        matrix = np.array(direction, float).reshape(3, 3) * np.array(spacing)
        origin = np.array(point) - matrix @ (size * (0.4, 0.5, 0.6) + (0.13, 0.37, 0.71))
        offset = np.moveaxis(np.indices(shape)[::-1], 0, -1) @ matrix.T + origin - point
        voxels = -900 + 1200 * np.exp(-(offset**2).sum(-1) / (2 * 3.0**2)) + offset @ (1.0, 2.0, -1.5)
        return Scan(np.rint(voxels).astype(np.int16), matrix, origin)

    return make


@pytest.fixture
def luna_folder(tmp_path, blob_scan):
    """A LUNA16 folder of sound scans `a`, `b`, …, one blob each at (10, -20, 30) mm, and the configuration that reads it."""

    def make(scans="ab", rows=None, columns=COLUMNS, compressed=False, **options):
        root = tmp_path / "luna"
        for i, uid in enumerate(scans):
            scan = blob_scan((10, -20, 30), np.eye(3), (0.7, 0.7, 1.25))
            scan = scan._replace(voxels=scan.voxels - i)  # equal scans would be one group
            scan.write(root / f"subset{i % 2}" / f"{uid}.mhd", compressed)
        root.mkdir(exist_ok=True)
        rows = [(uid, 10, -20, 30, 8) for uid in scans] if rows is None else rows
        volume_folders.write_rows(root / "annotations.csv", rows, columns)
        options = {"cache": str(tmp_path / "cache"), "workers": 1, "scan_time_limit_s": None, **options}
        return DataConfig(source="luna16", root=str(root), **options)

    return make


@pytest.fixture(scope="session")
def shared_data():
    """Real nodules, where they are: `$GMMAE_TEST_DATA`, or `shared/data` beside the project."""
    place = Path(os.environ.get("GMMAE_TEST_DATA", Path(__file__).parents[3] / "shared" / "data"))
    if not (place / "luna16_nodules").is_dir():
        pytest.skip(f"real nodules are not in {place}; set GMMAE_TEST_DATA")
    return place
