"""A file for each scan that was read, kept until the extraction is finished.

The name of a part is a hash of its files and of the way it is cut. So another CSV, or a fixed scan, costs only the scans that
it changes.
"""

import hashlib
import json
import time
import zipfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from gmmae.data.extraction.tasks import Cube, Extracted, Plan, Task
from gmmae.data.settings import DataConfig
from gmmae.system.files import whole_file

CUT_FIELDS = ("volume_shape", "least_axes", "crop", "outside", "hu")
"""Fields of the configuration on which the cubes of a scan depend."""

STALE_AFTER_S = 30 * 24 * 3600.0
"""Age after which the remains of a killed process are removed."""


def key(inputs: object) -> str:
    """Returns twenty hexadecimal digits of the SHA-256 of any JSON value.

    >>> key({"size": 16}) == key({"size": 16}) != key({"size": 32})
    True
    """
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:20]


def is_stale(path: Path) -> bool:
    """Returns whether a path is older than `STALE_AFTER_S`."""
    return time.time() - path.stat().st_mtime > STALE_AFTER_S


def forget(config: DataConfig, plan: Plan, version: int, folder: Path) -> None:
    """Removes a plan's parts, what a killed process was writing of them, and old ones. Others may do so at the same time."""
    done = {part_path(folder, version, task, config).stem for task in plan.tasks}
    with suppress(OSError):
        for path in folder.iterdir():
            with suppress(FileNotFoundError):
                if path.name.lstrip(".").split(".")[0] in done or is_stale(path):
                    path.unlink()
        folder.rmdir()  # fails where parts of another extraction are left


def part_path(folder: Path, version: int, task: Task, config: DataConfig) -> Path:
    """Returns the path of a scan's part. It depends on the files and on the cut, but not on group or category."""
    cuts = [[item.centre_mm, item.diameter_mm, item.spacing_mm, item.part, item.array, str(item.mask)] for item in task.items]
    files = [[str(stamp.path.absolute()), *stamp[1:]] for stamp in task.stamps]
    return folder / f"{key([version, [getattr(config, name) for name in CUT_FIELDS], cuts, files])}.npz"


def cube_arrays(cubes: Sequence[Cube]) -> dict[str, np.ndarray]:
    """Returns the fields of cubes as arrays. `masked` says which have a mask; the others get zeros."""
    fields = ("values", "centre_mm", "edge_mm", "filled")
    return {name: np.array([getattr(cube, name) for cube in cubes]) for name in fields} | {
        "masked": np.array([cube.mask is not None for cube in cubes]),
        "masks": np.array([np.zeros(cube.values.shape, np.uint8) if cube.mask is None else cube.mask for cube in cubes]),
    }


def save(path: Path, task: Task, result: Extracted) -> None:
    """Keeps a result, whole or not at all. A result with faults is not kept, so such a scan is read again.

    Raises:
      OSError: the file cannot be written.
    """
    if len(result.cubes) < len(task.items):
        return
    by_item = {cube.item: cube for cube in result.cubes}
    cubes = [by_item[item] for item in task.items]
    # A process that prepares the same scans for another entry may `forget` them at this moment. The result is here anyway.
    with suppress(FileNotFoundError):
        path.parent.mkdir(exist_ok=True)
        with whole_file(path, durable=True) as part, part.open("wb") as file:
            np.savez(file, allow_pickle=False, **cube_arrays(cubes))


def load(path: Path, task: Task) -> Extracted | None:
    """Returns the kept result of a scan with the task's present items, or None where no part can be read."""
    try:
        # NumPy leaves a damaged file open if it opens it itself.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as content:
            arrays: dict[str, np.ndarray] = dict(content)
        cubes = tuple(
            Cube(
                item,
                arrays["values"][i],
                arrays["masks"][i] if arrays["masked"][i] else None,
                tuple(arrays["centre_mm"][i].tolist()),
                float(arrays["edge_mm"][i]),
                float(arrays["filled"][i]),
            )
            for i, item in enumerate(task.items)
        )
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None
    return Extracted(cubes, ())
