"""The work of one worker process: it cuts all nodules of one scan. Neither this module nor its imports import jax."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from gmmae.data.extraction.annotations import Fault, Item
from gmmae.data.extraction.arrays import array_names, open_array
from gmmae.data.extraction.cutting import averaged, cut, cut_mask, edge_mm
from gmmae.data.extraction.scan import Scan, make_frame, of_array, read, read_mask
from gmmae.data.extraction.tasks import Cube, Reading, Task, place_of, stamps
from gmmae.data.settings import DataConfig
from gmmae.data.volumes import DataError, Point, error_line


def extract(task: Task, config: DataConfig) -> Reading | str:
    """Cuts all nodules of one scan. A broken file or nodule becomes a fault.

    A system error (disk, network, memory) is transient and no fault of the scan, so only its reason is returned. So is any
    result of files that have changed since they were listed.
    """
    cubes: list[Cube] = []
    faults: list[Fault] = []
    try:
        for item, scan, mask in nodules_of(task, config.least_axes):
            try:
                cubes.append(_cut(item, scan, mask, config))
            except DataError as error:
                faults.append(Fault("nodule", place_of(task, item), str(error), 1))
    except DataError as error:
        left = len(task.items) - len(cubes) - len(faults)
        faults.append(Fault("unreadable", task.label, str(error), left))
    except (OSError, MemoryError) as error:
        return error_line(error)
    if stamps([stamp.path for stamp in task.stamps]) != task.stamps:
        return "its files have changed, or have gone, since they were listed"
    return Reading(task, tuple(cubes), tuple(faults))


def nodules_of(task: Task, least_axes: int) -> Iterator[tuple[Item, Scan, Path | np.ndarray | None]]:
    """Yields the nodules of a task, their scans, and their masks for `scan.read_mask`. A scan is read once for all.

    Args:
      task: the file and its nodules.
      least_axes: the fewest axes that volumes may have.

    Raises:
      DataError: the volume cannot be used, and so no nodule of it.
      OSError: the system failed, not the file.
    """
    path, names = task.file, array_names(task.file) if task.file.suffix == ".npz" else ()
    stack = task.items[0].part is not None
    volumes = open_array(path, task.items[0].array) if stack else read(path)
    inner = "masks" if stack else "mask"
    masks = open_array(path, inner) if inner in names else None
    for item in task.items:
        scan = volumes if isinstance(volumes, Scan) else of_array(volumes[item.part])
        mask = masks[item.part] if stack and masks is not None else item.mask or masks
        if scan.axes < least_axes:
            raise DataError(f"a volume must have at least data.ndim = {least_axes} axes; this one has {scan.axes}")
        if scan.bare and item.spacing_mm is not None:
            scan = scan._replace(frame=make_frame(_three(item.spacing_mm, scan, 1.0, "spacingX, spacingY, spacingZ")))
        yield item, scan, mask


def centre_mm(item: Item, scan: Scan) -> Point:
    """Returns the world point of a nodule, by default the middle of its scan.

    Raises:
      DataError: its coordinates are too few for the scan's axes.
    """
    if item.centre_mm is None:
        return scan.frame.TransformContinuousIndexToPhysicalPoint([(n - 1) / 2 for n in scan.size])
    return _three(item.centre_mm, scan, 0.0, "coordX, coordY, coordZ")


def _three(known: tuple[float, ...], scan: Scan, rest: float, columns: str) -> Point:
    """Returns three numbers: the known ones for the scan's axes, and `rest` for the other axes."""
    if len(known) < scan.axes:
        raise DataError(f"{columns} must be given for each of the volume's {scan.axes} axes; got {len(known)} of them")
    x, y, z = (*known[: scan.axes], rest, rest, rest)[:3]
    return (x, y, z)


def _cut(item: Item, scan: Scan, mask: Path | np.ndarray | None, config: DataConfig) -> Cube:
    shape, size = config.volume_shape[3 - scan.axes :], scan.voxels.shape[3 - scan.axes :]
    if scan.bare and item.spacing_mm is None and item.centre_mm is None and size == shape:
        edge = float(max(shape))  # the array is the cube already
    else:
        edge = edge_mm(config.crop, item.diameter_mm, scan, shape)
    centre, filled, outline = centre_mm(item, scan), 0.0, np.zeros(shape, np.uint8)
    if config.averages and all(n <= there for n, there in zip(shape, size, strict=True)):
        values, mask = averaged(scan, shape, config.hu), None
    else:
        values, filled = cut(scan, centre, edge, shape, config.outside, config.hu)
    if mask is not None:
        outline = cut_mask(read_mask(mask, scan, None if item.centre_mm is None else centre), centre, edge, shape)
    return Cube(item, values, outline, mask is not None, centre, edge, filled)
