"""What there is to extract: one task for each scan, found by a source, carried out by `gmmae.data.extract`."""

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from gmmae.data.annotations import Fault
from gmmae.data.volumes import Point


class Item(NamedTuple):
    """One nodule in a scan.

    Attributes:
      name: unique in the data set.
      place: where the user finds it: the CSV and its line, or the array and its index.
      group: what a split does not divide.
      category: empty where not known.
      centre_mm: world point, or None for the middle of the volume.
      diameter_mm: or None where not known.
      spacing_mm: of an array without geometry, or None where not given.
      part: index of the volume in a file of several, otherwise None.
      mask: a file with the nodule's voxels, or None.
    """

    name: str
    place: str
    group: str
    category: str
    centre_mm: Point | None
    diameter_mm: float | None
    spacing_mm: Point | None = None
    part: int | None = None
    mask: Path | None = None


class Task(NamedTuple):
    """A scan, its name in messages, and the nodules to cut from it."""

    file: Path
    label: str
    items: tuple[Item, ...]


class Plan(NamedTuple):
    """All that a source found.

    Attributes:
      tasks: what can be tried.
      faults: what cannot.
      annotations: rows or volumes listed, duplicates and faulty ones included.
      inputs: every file that determines the result, relative to the root; its size, and its time of change in ns.
      csv_sha256: of the CSV's bytes; empty where there is none.
    """

    tasks: tuple[Task, ...]
    faults: tuple[Fault, ...]
    annotations: int
    inputs: tuple[tuple[str, int, int], ...]
    csv_sha256: str


def fingerprint(root: Path, paths: Iterable[Path]) -> tuple[tuple[str, int, int], ...]:
    """Name relative to the root, size and time of change in ns of each file; both -1 where there is none."""
    entries: set[tuple[str, int, int]] = set()
    for path in paths:
        name = path.relative_to(root).as_posix() if path.is_relative_to(root) else path.as_posix()
        try:
            stat = path.stat()
        except OSError:
            entries.add((name, -1, -1))
        else:
            entries.add((name, stat.st_size, stat.st_mtime_ns))
    return tuple(sorted(entries))


def sha256(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
