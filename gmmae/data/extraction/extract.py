"""The work of one worker process: it cuts all nodules of one scan. Neither this module nor its imports import jax."""

import time
from collections.abc import Iterator
from typing import NamedTuple

from gmmae.data.extraction import geometry
from gmmae.data.extraction.annotations import Fault
from gmmae.data.extraction.grids import Index, Volume
from gmmae.data.extraction.opening import Opened, centre_mm, open_all, with_mask
from gmmae.data.extraction.tasks import Cube, Extracted, Task, Transient, place_of, stamps
from gmmae.data.volumes import DataError, Point


class Options(NamedTuple):
    """The options of the cuts; the names are those of `DataConfig`."""

    volume_shape: tuple[int, int, int]
    least_axes: int
    crop: str
    outside: float | None
    hu: bool


def extract(task: Task, options: Options) -> Extracted | Transient:
    """Cuts all nodules of one scan. A broken file or nodule becomes a fault.

    A system error (disk, network, memory) is transient and no fault of the scan. So is any result of files that have changed
    since they were listed.
    """
    clock = _Clock()
    cubes: list[Cube] = []
    faults: list[Fault] = []
    try:
        volumes = open_all(task, options.least_axes, clock.timed, lambda volume: _preloaded(volume, task, options))
        for opened in clock.each(volumes):
            try:
                cubes.append(_cut(opened, options))
            except DataError as error:
                faults.append(Fault("nodule", place_of(task, opened.item), str(error), 1))
    except DataError as error:
        left = len(task.items) - len(cubes) - len(faults)
        faults.append(Fault("unreadable", task.label, str(error), left))
    except (OSError, MemoryError) as error:
        return Transient(" ".join(str(error).split()) or type(error).__name__)
    if stamps([stamp.path for stamp in task.stamps]) != task.stamps:
        return Transient("its files have changed, or have gone, since they were listed")
    return Extracted(tuple(cubes), tuple(faults), clock.read_s, time.perf_counter() - clock.start)


def _shape(volume: Volume, options: Options) -> geometry.Shape:
    """Voxels of a cube of this volume, along each of its axes."""
    return options.volume_shape[3 - volume.axes :]


def _preloaded(volume: Volume, task: Task, options: Options) -> Volume:
    """Reads the slices of a compressed volume that its nodules need, at once."""
    if not volume.one_pass or volume.axes < options.least_axes:
        return volume
    places = [_place(Opened(item, volume), options) for item in task.items]
    return geometry.preload(volume, [place for place in places if place is not None], _shape(volume, options))


def _place(opened: Opened, options: Options) -> tuple[Point, float] | None:
    try:
        return centre_mm(opened), _edge_mm(opened, options)
    except DataError:
        return None  # `_cut` reports it


def _edge_mm(opened: Opened, options: Options) -> float:
    item, volume, shape = opened.item, opened.volume, _shape(opened.volume, options)
    if opened.bare and item.centre_mm is None and volume.size[: volume.axes][::-1] == shape:
        return float(max(shape))  # the array is the cube already
    return geometry.edge_mm(options.crop, item.diameter_mm, volume, shape)


def _cut(opened: Opened, options: Options) -> Cube:
    shape, edge, centre = _shape(opened.volume, options), _edge_mm(opened, options), centre_mm(opened)
    values, filled = geometry.cut(opened.volume, centre, edge, shape, options.outside, options.hu)
    mask = with_mask(opened, lambda mask: geometry.cut_mask(mask, centre, edge, shape))
    return Cube(opened.item, values, mask, centre, edge, filled)


class _Clock:
    """Seconds spent reading: in the iterator that opens scans, and in the reads it hands out."""

    def __init__(self) -> None:
        self.start = time.perf_counter()
        self.read_s = 0.0

    def each(self, volumes: Iterator[Opened]) -> Iterator[Opened]:
        while True:
            before = time.perf_counter()
            inside = self.read_s
            try:
                value = next(volumes)
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
