"""Volumes as they were scanned, with the voxels of their nodule: no cube is cut out, and nothing is resampled."""

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Int16, UInt8

from gmmae.data.config import DataConfig
from gmmae.data.volumes import DataError

if TYPE_CHECKING:
    import SimpleITK as sitk

    from gmmae.data.extraction.tasks import Item


class Scanned(NamedTuple):
    """A volume around one nodule.

    Attributes:
      name, group, category: as in `gmmae.data.volumes.Nodules`.
      values: HU.
      mask: 1 in the nodule.
      centre: of the nodule, z, y, x, in voxels from the first one.
      spacing_mm: between voxels, z, y, x.
      diameter_mm: NaN where not known.
    """

    name: str
    group: str
    category: str
    values: Int16[np.ndarray, "z y x"]
    mask: UInt8[np.ndarray, "z y x"]
    centre: tuple[float, float, float]
    spacing_mm: tuple[float, float, float]
    diameter_mm: float


def read(config: DataConfig) -> tuple[Scanned, ...]:
    """The volumes of a folder of cubes that has masks, in the order of their names.

    Args:
      config: root, csv, category_column and group_column say what is read, and how nodules are named and grouped.

    Raises:
      DataError: something is missing or cannot be read; nothing is left out.
    """
    from gmmae.data.extraction import cubes
    from gmmae.data.extraction.annotations import refuse

    if Path(config.root).suffix == ".npz":
        raise DataError(f"data.root must be a folder of volumes with masks for a segmentation; got the file {config.root}")
    plan = cubes.plan(config)
    refuse(plan.faults)
    return _read_all(tuple((task.file, item) for task in plan.tasks for item in task.items), plan.inputs)


@lru_cache(maxsize=1)  # the folds of a cross-validation read one folder
def _read_all(sources: tuple[tuple[Path, "Item"], ...], inputs: object) -> tuple[Scanned, ...]:
    """`inputs` are the files' stamps: what has changed is read again."""
    return tuple(sorted((_scanned(file, item) for file, item in sources), key=lambda scanned: scanned.name))


def _scanned(file: Path, item: "Item") -> Scanned:
    import SimpleITK as sitk

    if item.mask is None:
        raise DataError(
            f"a volume must have a mask to be segmented; got none for {item.name}: add {Path(item.name).name} to masks/"
        )
    image, mask = _image(file), _image(item.mask)
    values, voxels = sitk.GetArrayFromImage(image), sitk.GetArrayFromImage(mask) > 0
    if voxels.shape != values.shape or not voxels.any():
        what = f"voxels of the shape {voxels.shape}" if voxels.any() else "no voxel at all"
        raise DataError(f"a mask must hold voxels of its volume, {values.shape}; got {what} in {item.mask}")
    z, y, x = np.argwhere(voxels).mean(0)
    if item.centre_mm is not None and len(item.centre_mm) == 3:
        x, y, z = image.TransformPhysicalPointToContinuousIndex(item.centre_mm)
    sz, sy, sx = image.GetSpacing()[::-1]
    bounds = np.iinfo(np.int16)
    return Scanned(
        item.name,
        item.group,
        item.category,
        np.clip(np.rint(values), bounds.min, bounds.max).astype(np.int16),
        voxels.astype(np.uint8),
        (float(z), float(y), float(x)),
        (sz, sy, sx),
        float("nan") if item.diameter_mm is None else item.diameter_mm,
    )


def _image(path: Path) -> "sitk.Image":
    from gmmae.data.extraction.scans import open_scan

    try:
        volume = open_scan(path)
        return volume.read((0, 0, 0), volume.size)
    except DataError as error:
        raise DataError(f"{path}: {error}") from error
