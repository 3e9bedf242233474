"""Nodules on the grids of their scans, with masks. Only masks are resampled."""

from functools import lru_cache
from pathlib import Path

import numpy as np

from gmmae.data.extraction.annotations import raise_first
from gmmae.data.extraction.extract import centre_mm, nodules_of, stored
from gmmae.data.extraction.folders import plan_cubes, source_of
from gmmae.data.extraction.prepare import say_on_stderr
from gmmae.data.extraction.scan import index_of, mask_on_grid, read_mask, region
from gmmae.data.extraction.tasks import Task, place_of
from gmmae.data.groups import join
from gmmae.data.settings import NODULES, DataConfig
from gmmae.data.volumes import DataError, NativeNodule, TransientError, error_line, masses, unreadable_root


def read(config: DataConfig) -> tuple[NativeNodule, ...]:
    """Reads a folder of cubes with masks, in the order of names, and says what groups them."""
    root = config.folder
    if root.suffix == ".npz" and not root.is_dir():
        raise DataError(f"data.root must be a folder of volumes with masks for a segmentation; got the file {root}")
    try:
        if source_of(root, config.csv) == "luna16":
            raise DataError(
                f"data.root must hold volumes with masks and {NODULES} for a segmentation; got {root}, which is shaped "
                "like LUNA16 and has no masks"
            )
        plan = plan_cubes(config)
    except OSError as error:
        raise unreadable_root(error) from error
    raise_first(plan.faults, "take its row out of the CSV")
    nodules = _read_all(plan.tasks, config.min_ndim, config.hu)
    for nodule in nodules:
        masses(nodule.values[None], config.window, [nodule.place])
    groups = join(plan, {nodule.name: (nodule.values, nodule.origin) for nodule in nodules})
    for line in groups.lines:
        say_on_stderr(line)
    own = {item.name: dict(zip(plan.header, item.cells, strict=True)) for task in plan.tasks for item in task.items}
    return tuple(nodule._replace(group=groups.names[nodule.name], own=own[nodule.name]) for nodule in nodules)


@lru_cache(maxsize=1)  # for the folds of a cross-validation
def _read_all(tasks: tuple[Task, ...], min_ndim: int, hu: bool) -> tuple[NativeNodule, ...]:
    """Tasks hold the files' stamps, so changed files are read again."""
    nodules = list[NativeNodule]()
    for task in tasks:
        place, voxels, values = task.label, None, np.empty(0)
        try:
            for item, scan, source, origin in nodules_of(task, min_ndim):
                place = place_of(task, item)
                if scan.voxels is not voxels:
                    voxels, values = scan.voxels, stored(region(scan, hu), hu)
                centre = None if item.centre_mm is None else centre_mm(item, scan)
                index = None if centre is None else index_of(scan, centre)[::-1]
                if source is None:
                    raise DataError(f"a volume must have a mask to be segmented; add {Path(item.name).name} to masks/")
                mask = mask_on_grid(read_mask(source, scan, centre), scan)
                if not mask.any():
                    raise DataError("the mask must hold voxels of its volume; got no voxel at all")
                z, y, x = (np.argwhere(mask).mean(0) if index is None else index).tolist()
                sx, sy, sz = scan.spacing_mm
                diameter_mm = float("nan") if item.diameter_mm is None else item.diameter_mm
                facts = (item.name, item.group, item.category, values, mask, (z, y, x), (sz, sy, sx), diameter_mm, place)
                nodules.append(NativeNodule(*facts, origin=origin, series=item.series))
                place = task.label
        except DataError as error:
            raise DataError(f"{place}: {error}") from error
        except (OSError, MemoryError) as error:
            raise TransientError(f"{task.label}: {error_line(error)}") from error
    return tuple(sorted(nodules, key=lambda nodule: nodule.name))
