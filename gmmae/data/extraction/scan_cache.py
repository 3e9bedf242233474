"""What has been read of an extraction that is not finished: a file for each scan, so that nothing is read twice.

A part is named by a hash of all that determines it, so another CSV, or a scan mended meanwhile, costs only what it changes.
Parts are removed when the whole is kept; those of an extraction that is never taken up again, when they are old.
"""

import zipfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from gmmae.data.extraction import cache
from gmmae.data.extraction.extract import Options
from gmmae.data.extraction.extracted import Cube, Extracted
from gmmae.data.extraction.tasks import Task
from gmmae.system.files import whole_file


def name(version: int, task: Task, options: Options) -> str:
    """The name of a scan's part: from its files, and where and how it is cut; not from what is only said of a nodule."""
    where = [[item.centre_mm, item.diameter_mm, item.spacing_mm, item.part, str(item.mask)] for item in task.items]
    files = [[str(stamp.path.absolute()), stamp.size, stamp.mtime_ns] for stamp in task.stamps]
    return cache.key([version, options, where, files])


def save(path: Path, task: Task, result: Extracted) -> None:
    """Keep a result, whole or not at all. One with faults is not kept: it is read again rather than believed.

    Raises:
      OSError: the file cannot be written.
    """
    if len(result.cubes) < len(task.items):
        return
    cubes = {cube.item: cube for cube in result.cubes}
    ordered = [cubes[item] for item in task.items]
    arrays: dict[str, np.ndarray] = {
        "values": np.stack([cube.values for cube in ordered]),
        "centre_mm": np.array([cube.centre_mm for cube in ordered]),
        "edge_mm": np.array([cube.edge_mm for cube in ordered]),
        "filled": np.array([cube.filled for cube in ordered]),
        "masked": np.array([cube.mask is not None for cube in ordered]),
        "masks": np.stack([np.zeros(cube.values.shape, np.uint8) if cube.mask is None else cube.mask for cube in ordered]),
    }
    path.parent.mkdir(exist_ok=True)
    with whole_file(path, durable=True) as part, part.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)


def load(path: Path, task: Task) -> Extracted | None:
    """What was kept of a scan, with what the task says of its nodules now; None where nothing can be read."""
    try:
        # NumPy leaves a damaged file open if it opens it itself.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as content:
            arrays: dict[str, Any] = dict(content)
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
    return Extracted(cubes, (), 0.0, 0.0)


def remove(folder: Path, names: Iterable[str]) -> None:
    """The parts of these names, and old ones, as far as this process may: another may remove them at the same time."""
    done = set(names)
    with suppress(OSError):
        for path in folder.iterdir():
            with suppress(FileNotFoundError):
                if path.stem in done or cache.old(path):
                    path.unlink()
        # Fails where parts of another extraction are left.
        folder.rmdir()
