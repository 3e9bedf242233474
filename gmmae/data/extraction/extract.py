"""Cutting all nodules of one scan: the work of one worker process. Nothing here, or below, imports jax."""

import functools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gmmae.data.extraction import geometry
from gmmae.data.extraction.annotations import Fault
from gmmae.data.extraction.arrays import ARRAY_SUFFIXES, array_names, open_array, stream
from gmmae.data.extraction.extracted import Cube, Extracted, Transient
from gmmae.data.extraction.geometry import Index, Volume
from gmmae.data.extraction.scans import array_volume, open_scan
from gmmae.data.extraction.tasks import Item, Task, stamps
from gmmae.data.volumes import DataError, Point


class Options(NamedTuple):
    """How cubes are cut: as `DataConfig` says by these names."""

    volume_shape: tuple[int, int, int]
    least_axes: int
    edge: str
    outside: float | None
    hu: bool


class _Source(NamedTuple):
    item: Item
    volume: Volume
    mask: Callable[[], Volume] | None
    edge_mm: float | None = None  # of an array that already is the cube; otherwise `data.edge` decides


def extract(task: Task, options: Options) -> Extracted | Transient:
    """Cut all nodules of one scan; what is broken becomes a fault that names the file.

    An error of the system (a disk, a network, too little memory) is no fault of the scan, and neither is what was found in
    files that are not those that were listed: replaced, still being copied, or away for a moment.
    """
    clock = _Clock()
    cubes: list[Cube] = []
    faults: list[Fault] = []
    try:
        for source in clock.each(_open(task, options, clock)):
            try:
                cubes.append(_cut(source, options))
            except DataError as error:
                faults.append(Fault("nodule", f"{task.label} ({source.item.place})", str(error), 1))
    except DataError as error:
        left = len(task.items) - len(cubes) - len(faults)
        faults.append(Fault("unreadable", task.label, str(error), left))
    except (OSError, MemoryError) as error:
        return Transient(" ".join(str(error).split()) or type(error).__name__)
    if stamps([stamp.path for stamp in task.stamps]) != task.stamps:
        return Transient("its files have changed, or have gone, since they were listed")
    return Extracted(tuple(cubes), tuple(faults), clock.read_s, time.perf_counter() - clock.start)


def _open(task: Task, options: Options, clock: "_Clock") -> Iterator[_Source]:
    """Each item with its volume, opened once for all items of a scan."""
    if task.items[0].part is not None:
        yield from _open_stack(task, options, clock)
    elif task.file.name.endswith(ARRAY_SUFFIXES):
        voxels = open_array(task.file)
        inner = open_array(task.file, "mask") if task.file.suffix == ".npz" and "mask" in array_names(task.file) else None
        for item in task.items:
            yield _array_source(item, voxels, item.mask or inner, options, clock)
    else:
        volume = clock.timed(open_scan(task.file))
        shape = _shape(volume, options)
        if volume.one_pass:
            cubes = [_place(item, volume, options) for item in task.items]
            volume = geometry.preload(volume, [cube for cube in cubes if cube is not None], shape)
        for item in task.items:
            yield _Source(item, volume, None if item.mask is None else functools.partial(_open_mask, item.mask, clock))


def _open_stack(task: Task, options: Options, clock: "_Clock") -> Iterator[_Source]:
    """The volumes of one `.npz`, read one after the other."""
    wanted = {item.part: item for item in task.items}
    masks = stream(task.file, "masks") if "masks" in array_names(task.file) else None
    for i, voxels in enumerate(stream(task.file, "volumes")):
        mask = None if masks is None else next(masks)
        if i in wanted:
            yield _array_source(wanted[i], voxels, mask, options, clock)


def _array_source(item: Item, voxels: np.ndarray, mask: Path | np.ndarray | None, options: Options, clock: "_Clock") -> _Source:
    spacing = _three(item.spacing_mm or (1.0,) * voxels.ndim, voxels.ndim, 1.0, "spacingX, spacingY, spacingZ")
    volume = clock.timed(array_volume(voxels, spacing))
    as_it_is = voxels.shape == _shape(volume, options) and item.spacing_mm is None and item.centre_mm is None

    def open_mask() -> Volume:
        assert mask is not None
        if isinstance(mask, Path) and not mask.name.endswith(ARRAY_SUFFIXES):
            return _open_mask(mask, clock)
        array = open_array(mask, "mask") if isinstance(mask, Path) else mask
        if array.shape != voxels.shape:
            raise DataError(f"the mask must have the shape of its volume, {voxels.shape}; got {array.shape}")
        return array_volume(array, spacing)

    return _Source(item, volume, None if mask is None else open_mask, float(max(voxels.shape)) if as_it_is else None)


def _shape(volume: Volume, options: Options) -> geometry.Shape:
    """Voxels of a cube of this volume, along each of its axes."""
    if volume.axes < options.least_axes:
        raise DataError(f"a volume must have at least data.ndim = {options.least_axes} axes; this one has {volume.axes}")
    return options.volume_shape[3 - volume.axes :]


def _three(known: tuple[float, ...], axes: int, rest: float, columns: str) -> Point:
    """As many of the numbers as a volume has axes, and `rest` for those that it lacks."""
    if len(known) < axes:
        raise DataError(f"{columns} must be given for each of the volume's {axes} axes; got {len(known)} of them")
    x, y, z = (*known[:axes], rest, rest)[:3]
    return (x, y, z)


def _centre(item: Item, volume: Volume) -> Point:
    if item.centre_mm is None:
        return geometry.middle_mm(volume)
    return _three(item.centre_mm, volume.axes, 0.0, "coordX, coordY, coordZ")


def _open_mask(path: Path, clock: "_Clock") -> Volume:
    try:
        return clock.timed(open_scan(path))
    except DataError as error:
        raise DataError(f"the mask {path.name}: {error}") from error


def _place(item: Item, volume: Volume, options: Options) -> tuple[Point, float] | None:
    try:
        shape = _shape(volume, options)
        return _centre(item, volume), geometry.edge_mm(options.edge, item.diameter_mm, volume, shape)
    except DataError:
        return None  # `_cut` reports it


def _cut(source: _Source, options: Options) -> Cube:
    item, volume = source.item, source.volume
    shape = _shape(volume, options)
    edge = source.edge_mm or geometry.edge_mm(options.edge, item.diameter_mm, volume, shape)
    centre = _centre(item, volume)
    values, filled = geometry.cut(volume, centre, edge, shape, options.outside, options.hu)
    mask = None
    if source.mask is not None:
        opened = source.mask()
        if opened.axes != volume.axes:
            raise DataError(f"the mask must have the {volume.axes} axes of its volume; it has {opened.axes}")
        mask = geometry.cut_mask(opened, centre, edge, shape)
    return Cube(item, values, mask, centre, edge, filled)


class _Clock:
    """Seconds spent reading: in the iterator that opens scans, and in the reads it hands out."""

    def __init__(self) -> None:
        self.start = time.perf_counter()
        self.read_s = 0.0

    def each(self, sources: Iterator[_Source]) -> Iterator[_Source]:
        while True:
            before = time.perf_counter()
            inside = self.read_s
            try:
                value = next(sources)
            except StopIteration:
                return
            finally:
                self.read_s = inside + time.perf_counter() - before
            yield value

    def timed(self, volume: Volume) -> Volume:
        def read(start: Index, shape: Index):
            before = time.perf_counter()
            try:
                return volume.read(start, shape)
            finally:
                self.read_s += time.perf_counter() - before

        return volume._replace(read=read)
