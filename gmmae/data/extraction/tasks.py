"""The tasks of an extraction, one for each scan, and their results."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Real, UInt8

from gmmae.data.extraction.annotations import Fault, Item
from gmmae.data.extraction.arrays import ARRAY_SUFFIXES
from gmmae.data.extraction.headers import SUFFIXES, data_file
from gmmae.data.volumes import Point

ENDINGS = (*ARRAY_SUFFIXES, *SUFFIXES)
SAMPLE_BYTES = 2**16
"""Bytes of each part that stand for a file's content."""


class Stamp(NamedTuple):
    """A file as it was found: its size, and its time of change in ns; both -1 where there is none.

    `sample` is a hash of its size, first bytes and middle: `rsync -t` can replace a scan by another of the same size and time.
    """

    path: Path
    size: int
    mtime_ns: int
    sample: str = ""


class Task(NamedTuple):
    """A scan, its name in messages, the nodules to cut from it, and all files that are read."""

    file: Path
    label: str
    items: tuple[Item, ...]
    stamps: tuple[Stamp, ...]


class Cube(NamedTuple):
    """The cube of a nodule."""

    item: Item
    values: Real[np.ndarray, "*volume"]
    mask: UInt8[np.ndarray, "*volume"]  # 1 in the nodule
    masked: bool
    centre_mm: Point  # of the cube
    edge_mm: float  # the longest edge
    filled: float  # share of the voxels outside the scan
    origin: str = ""  # hash of the volume that it is cut from


class Reading(NamedTuple):
    """The result of a task."""

    task: Task
    cubes: list[Cube]
    faults: Sequence[Fault] = ()


class Plan(NamedTuple):
    """The tasks of a source."""

    tasks: tuple[Task, ...]
    faults: list[Fault]  # rows and scans that cannot be read
    annotations: int  # listed, duplicates and faulty ones included
    remedy: str = "set data.on_error = skip to leave such nodules out"  # the user's alternative to a fix
    header: tuple[str, ...] = ()  # the user's columns
    used: Mapping[str, str] = {}  # those that are used, by this program's names
    unread: Sequence[str] = ()  # arrays of an `.npz` that are no column
    dropped: Sequence[Item] = ()  # of rows that cannot be used, for what they say of patients and scans


def task(file: Path, label: str, items: list[Item]) -> Task:
    """A task with the stamps of its files as they are now."""
    masks = [item.mask for item in items if item.mask is not None]
    return Task(file, label, tuple(items), stamps(path for named in (file, *masks) for path in (named, data_file(named))))


def place_of(task: Task, item: Item) -> str:
    """A nodule in messages: volume and line."""
    return task.label if item.place == task.label else f"{task.label} ({item.place})"


def stamps(paths: Iterable[Path]) -> tuple[Stamp, ...]:
    """The stamps of the files, each once, in order."""
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


def relative(root: Path, path: Path) -> str:
    """A path relative to the root; one outside of it as it is."""
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else path.as_posix()


def sha256(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
