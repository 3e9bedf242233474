"""What comes of a scan: its cubes and faults, or the reason why it could not be read this time."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Real, UInt8

from gmmae.data.extraction.annotations import Fault
from gmmae.data.extraction.tasks import Item, Task
from gmmae.data.volumes import Point


class Cube(NamedTuple):
    """A nodule, cut: its item, the cube, where it was cut, and the share of voxels outside the scan."""

    item: Item
    values: Real[np.ndarray, "*volume"]
    mask: UInt8[np.ndarray, "*volume"] | None
    centre_mm: Point
    edge_mm: float
    filled: float


class Extracted(NamedTuple):
    """What came of a task, and the seconds it took; `read_s` is the part spent on opening, checking and reading the scan."""

    cubes: tuple[Cube, ...]
    faults: tuple[Fault, ...]
    read_s: float
    total_s: float


class Transient(NamedTuple):
    """Why a scan could not be read this time. Nothing about the scan follows from it, so it is never kept."""

    text: str


class Reading(NamedTuple):
    """A scan, what came of it, and why earlier attempts failed."""

    task: Task
    result: Extracted
    failures: tuple[str, ...]
