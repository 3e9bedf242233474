"""The tasks of an extraction, one for each scan, and their results.

A source (`luna16`, `cubes`) lists the tasks, and `extract` carries them out.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Real, UInt8

from gmmae.data.extraction.annotations import SKIP, Fault, Item, Table
from gmmae.data.extraction.headers import data_file
from gmmae.data.volumes import Point

SAMPLE_BYTES = 2**16
"""Bytes of each part of a file that stand for its content."""


class Stamp(NamedTuple):
    """A file as it was found: its size, and its time of change in ns; both -1 where there is none.

    `sample` is a hash of its size, its first bytes and those in its middle: `rsync -t` can replace a scan by another one of the
    same size and time.
    """

    path: Path
    size: int
    mtime_ns: int
    sample: str = ""


class Task(NamedTuple):
    """A scan, its name in messages, the nodules to cut from it, and all files that are read for them."""

    file: Path
    label: str
    items: tuple[Item, ...]
    stamps: tuple[Stamp, ...]

    @property
    def volumes(self) -> int:
        """Number of volumes: 1 for a scan, or the parts of a file of several."""
        return 1 if self.items[0].part is None else len(self.items)


class Cube(NamedTuple):
    """The cube of a nodule."""

    item: Item
    values: Real[np.ndarray, "*volume"]
    mask: UInt8[np.ndarray, "*volume"]  # 1 in the nodule
    masked: bool  # whether a mask is known
    centre_mm: Point  # world point in the middle of the cube
    edge_mm: float  # the longest edge
    filled: float  # share of the voxels that lie outside the scan


class Extracted(NamedTuple):
    """The result of a task."""

    cubes: tuple[Cube, ...]
    faults: tuple[Fault, ...]


class Transient(NamedTuple):
    """The reason of a transient failure. It says nothing about the scan, so it is never kept."""

    text: str


class Reading(NamedTuple):
    """A task, its result, and the reasons why earlier attempts failed."""

    task: Task
    result: Extracted
    failures: tuple[str, ...]


class Plan(NamedTuple):
    """The tasks of a source."""

    tasks: tuple[Task, ...]  # scans to read
    faults: tuple[Fault, ...]  # rows and scans that cannot be read
    annotations: int  # rows or volumes listed, duplicates and faulty ones included
    inputs: tuple[tuple[str, int, int, str], ...]  # the stamp of each file that is read, its path relative to the root
    csv_sha256: str = ""  # of the CSV's bytes, where there is one
    way_out: str = SKIP  # the user's alternative to a fix, where a fault ends the extraction
    header: tuple[str, ...] = ()  # the user's columns
    used: Mapping[str, str] = {}  # those that are used, by this program's names for them
    unread: tuple[str, ...] = ()  # arrays of an `.npz` that are no column, because they have another shape


def task(file: Path, label: str, items: tuple[Item, ...]) -> Task:
    """Returns a task with the stamps of its files as they are now."""
    masks = [item.mask for item in items if item.mask is not None]
    return Task(file, label, items, stamps([path for named in (file, *masks) for path in (named, data_file(named))]))


def by_volume(table: Table) -> dict[str, list[Item]]:
    """Returns the nodules of each volume by its name. Those without a group are in that of their volume."""
    volumes: dict[str, list[Item]] = {name: [] for name in sorted({row.file for row in table.rows})}
    for row in table.rows:
        volumes[row.file].append(row._replace(group=row.group or row.file))
    return volumes


def place_of(task: Task, item: Item) -> str:
    """Returns the name of a nodule in messages: its volume, and the line that lists it."""
    return task.label if item.place == task.label else f"{task.label} ({item.place})"


def plan_of(root: Path, csv: Path, table: Table, tasks: Sequence[Task], faults: Iterable[Fault]) -> Plan:
    """Returns the plan of a folder with a CSV. `faults` are those that are not in the table."""
    digest = hashlib.sha256(csv.read_bytes()).hexdigest()
    faults, listed = (*table.faults, *faults), len(table.rows) + len(table.faults)
    return Plan(tuple(tasks), faults, listed, fingerprint(root, tasks), digest, header=table.header, used=table.used)


def stamps(paths: Iterable[Path]) -> tuple[Stamp, ...]:
    """Returns the stamps of the files, each once, in order."""
    return tuple(_stamp(path) for path in sorted(set(paths)))


def _stamp(path: Path) -> Stamp:
    try:
        stat = path.stat()
    except OSError:
        return Stamp(path, -1, -1)
    sample = hashlib.sha256(str(stat.st_size).encode())
    if path.is_file():
        with suppress(OSError), path.open("rb") as file:
            for place in (0, stat.st_size // 2):
                file.seek(place)
                sample.update(file.read(SAMPLE_BYTES))
    return Stamp(path, stat.st_size, stat.st_mtime_ns, sample.hexdigest())


def fingerprint(root: Path, tasks: Iterable[Task]) -> tuple[tuple[str, int, int, str], ...]:
    """Returns the stamps of the files of all tasks, their paths relative to the root."""
    all_stamps = {stamp for task in tasks for stamp in task.stamps}
    return tuple(sorted((relative(root, stamp.path), *stamp[1:]) for stamp in all_stamps))


def relative(root: Path, path: Path) -> str:
    """Returns a path below the root relative to it, and another one as it is."""
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else path.as_posix()


def sha256(path: Path) -> str:
    """Returns the SHA-256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
