"""The tasks of an extraction, one for each scan, and their results.

A source (`luna16`, `cubes`) lists the tasks, and `extract` carries them out.
"""

import hashlib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Real, UInt8

from gmmae.data.extraction.annotations import SKIP, Fault, Row, Table
from gmmae.data.extraction.headers import data_file_or_header
from gmmae.data.volumes import Point

SAMPLE_BYTES = 2**16
"""Bytes of each part of a file that stand for its content."""


class Item(NamedTuple):
    """One nodule in a scan.

    Attributes:
      name: unique in the data set.
      place: the CSV and its line, or the array and its index.
      group: name of a group that no split divides; empty for a volume of a file of several that names none.
      patient, series: as in `Row`. `gmmae.data.groups` joins groups by them.
      category: empty where not known.
      centre_mm: world x, y, z, or as many of them as are known; None for the middle of the volume.
      diameter_mm: or None where not known.
      spacing_mm: of an array without geometry, along x, y, z, or as many of them as are known; None where not given.
      part: index of the volume in a file of several, otherwise None.
      array: the array of such a file.
      split: training, validation or test, where the data are divided already (`gmmae.data.splits.SPLITS`); otherwise empty.
      mask: a file with the nodule's voxels, or None.
    """

    name: str
    place: str
    group: str
    category: str
    centre_mm: tuple[float, ...] | None
    diameter_mm: float | None
    spacing_mm: tuple[float, ...] | None = None
    part: int | None = None
    mask: Path | None = None
    patient: str = ""
    series: str = ""
    array: str = "volumes"
    split: str = ""


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
    """The cube of a nodule.

    Attributes:
      item: the nodule.
      values: voxels of the cube.
      mask: 1 in the nodule; None where no mask is known.
      centre_mm: world point in the middle of the cube.
      edge_mm: the longest edge.
      filled: share of the voxels that lie outside the scan.
    """

    item: Item
    values: Real[np.ndarray, "*volume"]
    mask: UInt8[np.ndarray, "*volume"] | None
    centre_mm: Point
    edge_mm: float
    filled: float


class Extracted(NamedTuple):
    """The result of a task, and the seconds that it took; `read_s` is for opening, checking and reading the scan."""

    cubes: tuple[Cube, ...]
    faults: tuple[Fault, ...]
    read_s: float = 0.0
    total_s: float = 0.0


class Transient(NamedTuple):
    """The reason of a transient failure. It says nothing about the scan, so it is never kept."""

    text: str


class Reading(NamedTuple):
    """A task, its result, and the reasons why earlier attempts failed."""

    task: Task
    result: Extracted
    failures: tuple[str, ...]


def task(file: Path, label: str, items: tuple[Item, ...]) -> Task:
    """Returns a task with the stamps of its files as they are now."""
    masks = [item.mask for item in items if item.mask is not None]
    return Task(file, label, items, stamps([path for named in (file, *masks) for path in (named, data_file_or_header(named))]))


def item_of(name: str, row: Row, csv: str, mask: Path | None = None) -> Item:
    """Returns the nodule of a row. Without a group, it is in that of its volume."""
    place, group = f"{csv} line {row.number}", row.group or row.file
    known = (row.category, row.centre_mm, row.diameter_mm, row.spacing_mm)
    return Item(name, place, group, *known, mask=mask, patient=row.patient, series=row.series)


def place_of(task: Task, item: Item) -> str:
    """Returns the name of a nodule in messages: its volume, and the line that lists it."""
    return task.label if item.place == task.label else f"{task.label} ({item.place})"


class Plan(NamedTuple):
    """The tasks of a source.

    Attributes:
      tasks: scans to read.
      faults: rows and scans that cannot be read.
      annotations: rows or volumes listed, duplicates and faulty ones included.
      inputs: the stamp of every file that determines the result, its path relative to the root.
      csv_sha256: of the CSV's bytes; empty where there is none.
      way_out: the user's alternative to a fix, where a fault ends the extraction.
      unread: arrays of an `.npz`, and a column of a split, that nothing reads.
    """

    tasks: tuple[Task, ...]
    faults: tuple[Fault, ...]
    annotations: int
    inputs: tuple[tuple[str, int, int, str], ...]
    csv_sha256: str
    way_out: str = SKIP
    unread: tuple[str, ...] = ()


def plan_of(root: Path, csv: Path, table: Table, tasks: Sequence[Task], faults: Iterable[Fault]) -> Plan:
    """Returns the plan of a folder with a CSV. `faults` are those that are not in the table."""
    annotations = len(table.rows) + len(table.faults)
    unread = tuple(name for name in table.columns if name == "split")
    return Plan(tuple(tasks), (*table.faults, *faults), annotations, fingerprint(root, tasks), sha256(csv), unread=unread)


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
