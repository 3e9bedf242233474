"""The groups that no split divides: everything that belongs together, as connected components.

Nodules belong together if they share a patient, a scan (its file, a copy of it in any format, or its series) or their voxels.
Equal coordinates in two files say nothing, because cut volumes may have coordinates of their own. A component is named after
the first by alphabet of its patients or scans.
"""

import hashlib
import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from gmmae.data.extraction.annotations import GROUP, OTHERWISE_PATIENTS, PATIENTS, Item, patient_key
from gmmae.data.extraction.arrays import member
from gmmae.data.extraction.tasks import Plan, Task
from gmmae.data.volumes import letters


class Groups(NamedTuple):
    """The groups of nodules."""

    names: dict[str, str]  # by the nodule's name
    by: str  # what a split by them keeps whole
    lines: list[str]  # what joined groups, and where a split may divide a patient


def join(plan: Plan, read: Mapping[str, tuple[np.ndarray, str]]) -> Groups:
    """The groups of a plan's nodules, given the voxels and the origin of those that were read, by name."""
    own = dict[str, str]()
    sharing = defaultdict[tuple[str, str], list[str]](list)
    columns = [
        [plan.header.index(plan.used[name]) for name in names if name in plan.used] for names in (PATIENTS, OTHERWISE_PATIENTS)
    ]
    dropped = (item._replace(name=item.place, group=item.group or item.file) for item in plan.dropped)
    for name, kind, key in itertools.chain(
        *(_keys(task, read, columns) for task in plan.tasks), *(_related(item, item.file, columns) for item in dropped)
    ):
        if key:
            sharing[kind, key].append(name)
            own.setdefault(name, key)  # the first key names the nodule's own group
    groups, before = own, {}
    while groups != before:
        before, groups = groups, dict(groups)
        for names in sharing.values():
            groups |= dict.fromkeys(names, min(groups[name] for name in names))
    joined, patients = set[str](), set[str]()
    for (kind, _), names in sharing.items():
        if len({own[name] for name in names}) > 1 or (kind == "voxels" and len(set(names)) > 1):
            joined.add(f"{names[0]} and {names[-1]} share the {kind}")
        if kind == "patient":
            patients |= {groups[name] for name in names}
    lines = [f"what belongs together is one group for the split: {min(joined)}, the first of {len(joined)}"] if joined else []
    alone, by = sum(groups[name] not in patients for name in read), "patient"
    if alone:
        by = (
            "scan or volume, because no patient is known" if alone == len(read) else f"patient, but by scan for {alone} nodules"
        )
        lines.append(f"the split is by {by}: a patient with several may be in both training and validation")
        case = [name for name in plan.header if letters(name) == "case" and name not in plan.used.values()]
        if GROUP not in plan.used and case:
            lines.append(
                f"the column {case[0]} has two values, so it names no patients: give it as data.group_column if it does"
            )
    return Groups(groups, by, lines)


def _keys(
    task: Task, read: Mapping[str, tuple[np.ndarray, str]], columns: Sequence[list[int]]
) -> Iterator[tuple[str, str, str]]:
    """Yields a nodule's name, a kind of relation, and a text that all nodules related in this way share."""
    stack = task.items[0].part is not None
    volumes = [_digest(array) for array in member(task.file, task.items[0].array)] if stack else []
    for item in task.items:
        name, volume = item.name, volumes[item.part or 0] if stack else ""
        # Not the file's name: a renamed copy is divided as the file is.
        yield from _related(
            item._replace(group=item.group or (volume and f"volume {volume[:12]}")), "" if stack else task.label, columns
        )
        if name in read:
            values, origin = read[name]
            yield name, "voxels" if stack else "scan", origin
            yield name, "voxels", _digest(values)


def _related(item: Item, scan: str, columns: Sequence[list[int]]) -> Iterator[tuple[str, str, str]]:
    """Yields as `_keys` does, the patients by each of the first `columns`, or else by each of the others."""
    yield item.name, "", item.group or item.name
    yield item.name, "group", patient_key(item.group)
    yield item.name, "patient", item.patient
    yield item.name, "scan", scan
    yield item.name, "scan", item.series
    first, others = ([(i, key) for i in of if (key := patient_key(item.cells[i]))] for of in columns)
    yield from ((item.name, "patient", f"{i} {key}") for i, key in first or others)


def _digest(array: np.ndarray) -> str:
    return hashlib.sha256((array + array.dtype.type(0)).tobytes()).hexdigest()  # -0 is 0
