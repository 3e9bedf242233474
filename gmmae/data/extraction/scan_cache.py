"""Reads all scans of a plan, and keeps a file for each scan until the extraction is finished.

After an interruption no scan is read twice. The name of a part is a hash of its files and of the way it is cut. So another
CSV, or a fixed scan, costs only the scans that it changes.
"""

import zipfile
from contextlib import closing, suppress
from pathlib import Path

import numpy as np

from gmmae.data.extraction import cache
from gmmae.data.extraction.annotations import refuse
from gmmae.data.extraction.extract import Options
from gmmae.data.extraction.processes import cores
from gmmae.data.extraction.progress import Progress, Say
from gmmae.data.extraction.retry import read_all
from gmmae.data.extraction.tasks import Cube, Extracted, Plan, Reading, Task
from gmmae.data.settings import DataConfig
from gmmae.system.files import whole_file


def read(config: DataConfig, plan: Plan, version: int, folder: Path, say: Say) -> list[Reading]:
    """Returns the results of all scans of a plan.

    Args:
      config: how cubes are cut, by how many processes, and whether broken scans end the extraction.
      plan: the scans.
      version: of the results.
      folder: of the parts.
      say: takes lines for the user.

    Raises:
      DataError: a scan is broken and `data.on_error` is "refuse".
      TransientError: as `retry.read_all`.
    """
    options = _options(config)
    paths = {task: part_path(folder, version, task, options) for task in plan.tasks}
    kept = {task: result for task, path in paths.items() if (result := load(path, task)) is not None}
    readings = [Reading(task, result, ()) for task, result in kept.items()]
    left = [task for task in plan.tasks if task not in kept]
    if kept:
        say(f"{len(kept)} of {len(plan.tasks)} scans were read before, {len(left)} are left")
    # Only another process can be killed. Without a time limit, one worker may as well be this process.
    limit_s = config.scan_time_limit_s or 0.0
    wanted = cores() if config.workers == "auto" else config.workers
    workers = 0 if config.workers == 1 and not limit_s else wanted
    with (
        Progress(len(left), "scans", say) as progress,
        closing(read_all(left, options, workers, limit_s, say)) as results,
    ):
        for reading in results:
            if config.on_error == "refuse":
                refuse(reading.result.faults, plan.way_out)
            save(paths[reading.task], reading.task, reading.result)
            readings.append(reading)
            progress.advance()
    return readings


def forget(config: DataConfig, plan: Plan, version: int, folder: Path) -> None:
    """Removes the parts of a plan and old parts. Another process may remove them at the same time."""
    done = {part_path(folder, version, task, _options(config)) for task in plan.tasks}
    with suppress(OSError):
        for path in folder.iterdir():
            with suppress(FileNotFoundError):
                if path in done or cache.old(path):
                    path.unlink()
        folder.rmdir()  # fails where parts of another extraction are left


def _options(config: DataConfig) -> Options:
    return Options(config.volume_shape, config.least_axes, config.crop, config.outside, config.hu)


def part_path(folder: Path, version: int, task: Task, options: Options) -> Path:
    """Returns the path of a scan's part. It depends on the files and on the cut, but not on group or category."""
    cuts = [[item.centre_mm, item.diameter_mm, item.spacing_mm, item.part, str(item.mask)] for item in task.items]
    files = [[str(stamp.path.absolute()), stamp.size, stamp.mtime_ns] for stamp in task.stamps]
    return folder / f"{cache.key([version, options, cuts, files])}.npz"


def save(path: Path, task: Task, result: Extracted) -> None:
    """Keeps a result, whole or not at all. A result with faults is not kept, so such a scan is read again.

    Raises:
      OSError: the file cannot be written.
    """
    if len(result.cubes) < len(task.items):
        return
    by_item = {cube.item: cube for cube in result.cubes}
    cubes = [by_item[item] for item in task.items]
    arrays: dict[str, np.ndarray] = {
        "values": np.stack([cube.values for cube in cubes]),
        "centre_mm": np.array([cube.centre_mm for cube in cubes]),
        "edge_mm": np.array([cube.edge_mm for cube in cubes]),
        "filled": np.array([cube.filled for cube in cubes]),
        "masked": np.array([cube.mask is not None for cube in cubes]),
        "masks": np.stack([np.zeros(cube.values.shape, np.uint8) if cube.mask is None else cube.mask for cube in cubes]),
    }
    path.parent.mkdir(exist_ok=True)
    with whole_file(path, durable=True) as part, part.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)


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
    return Extracted(cubes, (), 0.0, 0.0)
