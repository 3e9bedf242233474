"""Opens the volumes and masks of one task: from files, arrays, or one file of several arrays.

The extraction of cubes and the reading of native volumes both begin here.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from jaxtyping import Real

from gmmae.data.extraction import voxels
from gmmae.data.extraction.arrays import (
    ARRAY_SUFFIXES,
    VOLUMES_ARRAY,
    array_header,
    array_names,
    check_array,
    open_array,
    stream,
)
from gmmae.data.extraction.grids import Volume, index_of, middle_mm
from gmmae.data.extraction.scans import array_volume, open_scan, open_stored
from gmmae.data.extraction.tasks import Item, Task
from gmmae.data.volumes import DataError, Point

T = TypeVar("T")


class Opened(NamedTuple):
    """An opened nodule.

    Attributes:
      item: the nodule.
      volume: the volume that it lies in; nodules of one file share it.
      mask: opens the mask; None where there is none. Only `with_mask` may call it, because that checks the mask.
      mask_name: of the mask in messages.
      bare: the volume is an array without a spacing.
    """

    item: Item
    volume: Volume
    mask: Callable[[], Volume] | None = None
    mask_name: str = "the mask"
    bare: bool = False


def open_all(task: Task, least_axes: int) -> Iterator[Opened]:
    """Yields the nodules of a task. Their volume is opened once.

    Args:
      task: the file and its nodules.
      least_axes: the fewest axes that volumes may have.

    Raises:
      DataError: the volume cannot be used, and so no nodule of it.
      OSError: the system failed, not the file.
    """
    for opened in _open_all(task):
        if opened.volume.axes < least_axes:
            raise DataError(f"a volume must have at least data.ndim = {least_axes} axes; this one has {opened.volume.axes}")
        yield opened


def read_scan(path: Path) -> tuple[Volume, Real[np.ndarray, "z y x"]]:
    """Reads a whole scan in HU, its axes as they are stored.

    Raises:
      DataError: it cannot be used.
      OSError: the system failed, not the file.
    """
    volume = open_stored(path)
    return volume, voxels.read_whole(volume, hu=True)


def edges_mm(path: Path) -> tuple[float, ...]:
    """Returns the edges of a volume file along x, y, z in mm.

    Raises:
      DataError: it cannot be used.
      OSError: the system failed, not the file.
    """
    volume = open_scan(path)
    return tuple(count * spacing for count, spacing in zip(volume.size, volume.frame.GetSpacing(), strict=True))


def shape(path: Path) -> tuple[int, ...]:
    """Returns the number of voxels of a volume, or of each in a file of several, along z, y, x. It reads only headers.

    Raises:
      DataError: it cannot be read.
      OSError: the system failed, not the file.
    """
    if path.suffix == ".npz" and VOLUMES_ARRAY in array_names(path):
        return array_header(path, VOLUMES_ARRAY)[0][1:]
    return open_array(path).shape if path.name.endswith(ARRAY_SUFFIXES) else open_scan(path).size[::-1]


def centre_mm(opened: Opened) -> Point:
    """Returns the world point of a nodule, by default the middle of its volume.

    Raises:
      DataError: its coordinates are too few for the volume's axes.
    """
    if opened.item.centre_mm is None:
        return middle_mm(opened.volume)
    return _three(opened.item.centre_mm, opened.volume.axes, 0.0, "coordX, coordY, coordZ")


def with_mask(opened: Opened, use: Callable[[Volume], T]) -> T | None:
    """Applies a function to the nodule's mask; returns None where there is no mask.

    Raises:
      DataError: the nodule lies outside its volume, the mask does not fit, or as the function.
    """
    if opened.mask is None:
        return None
    centre = None if opened.item.centre_mm is None else centre_mm(opened)
    if centre is not None:
        index_of(opened.volume, centre)
    with at(opened.mask_name):
        mask = opened.mask()
        voxels.require_mask_of(mask, opened.volume, centre)
        return use(mask)


@contextmanager
def at(place: str) -> Iterator[None]:
    """Puts a place before the message of a `DataError`."""
    try:
        yield
    except DataError as error:
        raise type(error)(f"{place}: {error}") from error


def _open_all(task: Task) -> Iterator[Opened]:
    if task.items[0].part is not None:
        yield from _open_stack(task)
    elif task.file.name.endswith(ARRAY_SUFFIXES):
        array = open_array(task.file)
        inner = open_array(task.file, "mask") if task.file.suffix == ".npz" and "mask" in array_names(task.file) else None
        for item in task.items:
            yield _array(item, array, item.mask or inner)
    else:
        volume = open_scan(task.file)
        for item in task.items:
            yield Opened(item, volume, *_mask_file(item.mask))


def _open_stack(task: Task) -> Iterator[Opened]:
    """Yields the volumes of one `.npz`, one after the other."""
    wanted, volumes = {item.part: item for item in task.items}, task.items[0].array
    masks = stream(task.file, "masks") if "masks" in array_names(task.file) else None
    for name in (volumes, *(["masks"] if masks else [])):
        check_array(task.file, name)
    for i, array in enumerate(stream(task.file, volumes)):
        mask = None if masks is None else next(masks)
        if i in wanted:
            yield _array(wanted[i], array, mask)


def _array(item: Item, array: np.ndarray, mask: Path | np.ndarray | None) -> Opened:
    spacing = _three(item.spacing_mm or (1.0,) * array.ndim, array.ndim, 1.0, "spacingX, spacingY, spacingZ")
    volume = array_volume(array, spacing)

    if isinstance(mask, Path) and not mask.name.endswith(ARRAY_SUFFIXES):
        return Opened(item, volume, *_mask_file(mask), bare=item.spacing_mm is None)

    def open_mask() -> Volume:
        values = open_array(mask, "mask") if isinstance(mask, Path) else mask
        assert values is not None
        if values.shape != array.shape:
            raise DataError(f"must have the shape of its volume, {array.shape}; got {values.shape}")
        return array_volume(values, spacing)

    name = f"the mask {mask.name}" if isinstance(mask, Path) else "the mask"
    return Opened(item, volume, None if mask is None else open_mask, name, item.spacing_mm is None)


def _mask_file(path: Path | None) -> tuple[Callable[[], Volume] | None, str]:
    if path is None:
        return None, ""
    return lambda: open_scan(path), f"the mask {path.name}"


def _three(known: tuple[float, ...], axes: int, rest: float, columns: str) -> Point:
    """Returns three numbers: the known ones for the volume's axes, and `rest` for the other axes."""
    if len(known) < axes:
        raise DataError(f"{columns} must be given for each of the volume's {axes} axes; got {len(known)} of them")
    x, y, z = (*known[:axes], rest, rest, rest)[:3]
    return (x, y, z)
