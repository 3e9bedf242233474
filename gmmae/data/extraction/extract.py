"""The work of one worker process: it cuts all nodules of one scan. Neither this module nor its imports import jax."""

import time
from collections.abc import Callable
from contextlib import suppress
from typing import ParamSpec, TypeVar

from gmmae.data.extraction import geometry
from gmmae.data.extraction.annotations import Fault
from gmmae.data.extraction.grids import Volume
from gmmae.data.extraction.opening import Opened, centre_mm, open_all, with_mask
from gmmae.data.extraction.tasks import Cube, Extracted, Task, Transient, place_of, stamps
from gmmae.data.settings import DataConfig
from gmmae.data.volumes import DataError, Point, error_line

P = ParamSpec("P")
T = TypeVar("T")


def extract(task: Task, config: DataConfig) -> Extracted | Transient:
    """Cuts all nodules of one scan. A broken file or nodule becomes a fault.

    A system error (disk, network, memory) is transient and no fault of the scan. So is any result of files that have changed
    since they were listed.
    """
    clock = _Clock()
    cubes: list[Cube] = []
    faults: list[Fault] = []
    preloaded: Volume | None = None
    volumes = open_all(task, config.least_axes)
    try:
        while (opened := clock.timed(next)(volumes, None)) is not None:
            volume = opened.volume._replace(read=clock.timed(opened.volume.read))
            if volume.one_pass:
                volume = preloaded = preloaded or _preloaded(volume, task, config)
            try:
                cubes.append(_cut(opened._replace(volume=volume), config))
            except DataError as error:
                faults.append(Fault("nodule", place_of(task, opened.item), str(error), 1))
    except DataError as error:
        left = len(task.items) - len(cubes) - len(faults)
        faults.append(Fault("unreadable", task.label, str(error), left))
    except (OSError, MemoryError) as error:
        return Transient(error_line(error))
    if stamps([stamp.path for stamp in task.stamps]) != task.stamps:
        return Transient("its files have changed, or have gone, since they were listed")
    return Extracted(tuple(cubes), tuple(faults), clock.read_s, time.perf_counter() - clock.start)


class _Clock:
    """Counts the seconds that a task takes, and those of its functions that read."""

    def __init__(self) -> None:
        self.start = time.perf_counter()
        self.read_s = 0.0

    def timed(self, function: Callable[P, T]) -> Callable[P, T]:
        def call(*arguments: P.args, **options: P.kwargs) -> T:
            before = time.perf_counter()
            try:
                return function(*arguments, **options)
            finally:
                self.read_s += time.perf_counter() - before

        return call


def _shape(volume: Volume, config: DataConfig) -> geometry.Shape:
    """Voxels of a cube of this volume, along each of its axes."""
    return config.volume_shape[3 - volume.axes :]


def _preloaded(volume: Volume, task: Task, config: DataConfig) -> Volume:
    """Reads the slices of a compressed volume that its nodules need, at once."""
    places: list[tuple[Point, float]] = []
    for item in task.items:
        opened = Opened(item, volume)
        with suppress(DataError):  # `_cut` reports it
            places.append((centre_mm(opened), _edge_mm(opened, config)))
    return geometry.preload(volume, places, _shape(volume, config))


def _edge_mm(opened: Opened, config: DataConfig) -> float:
    item, volume, shape = opened.item, opened.volume, _shape(opened.volume, config)
    if opened.bare and item.centre_mm is None and volume.size[: volume.axes][::-1] == shape:
        return float(max(shape))  # the array is the cube already
    return geometry.edge_mm(config.crop, item.diameter_mm, volume, shape)


def _cut(opened: Opened, config: DataConfig) -> Cube:
    shape, edge, centre = _shape(opened.volume, config), _edge_mm(opened, config), centre_mm(opened)
    if config.averages and all(n <= size for n, size in zip(shape, reversed(opened.volume.size), strict=False)):
        return Cube(opened.item, geometry.averaged(opened.volume, shape, config.hu), None, centre, edge, 0.0)
    values, filled = geometry.cut(opened.volume, centre, edge, shape, config.outside, config.hu)
    mask = with_mask(opened, lambda mask: geometry.cut_mask(mask, centre, edge, shape))
    return Cube(opened.item, values, mask, centre, edge, filled)
