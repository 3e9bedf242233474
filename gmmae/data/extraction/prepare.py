"""Loads the `Nodules` of a folder of scans or volumes. They are extracted once and kept in the cache."""

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Real

from gmmae.data.extraction import cubes as cube_files
from gmmae.data.extraction import luna16, medmnist, scan_cache
from gmmae.data.extraction.annotations import Fault, refuse
from gmmae.data.extraction.arrays import stream
from gmmae.data.extraction.progress import Say
from gmmae.data.extraction.summary import cautions, summarise
from gmmae.data.extraction.tasks import Cube, Plan, Reading, relative, sha256
from gmmae.data.groups import join
from gmmae.data.settings import COLUMNS, DataConfig
from gmmae.data.volumes import OWN, DataError, Nodules, central_section, unreadable_root
from gmmae.system import locks
from gmmae.system.compilation_cache import user_cache
from gmmae.system.files import whole_folder, writing

VERSION = 7
"""Version of the entries. It grows when the same files and options would give other cubes, or an entry another meaning.

7: the arrays of an entry are the columns of one table.
6: groups are joined by patient, scan and voxels. Volumes have one orientation. Files count by their content too.
5: columns are known in any case. Scaled voxels, masks that do not reach their nodule and files that are too long are faults.
4: NaN in NIfTI, masks of several labels or elsewhere, and headers that ITK repairs are faults. An entry names the files.
3: cubes are called values, and may have a unit of their own.
2: an entry holds every nodule that its files have. Before, a killed process or a disk's error could cost some, for good.
"""

SOURCES: dict[str, Callable[[DataConfig], Plan]] = {
    "luna16": luna16.plan,
    "cubes": cube_files.plan,
    "medmnist": medmnist.plan,
}
IDENTITY_FIELDS = ("source", *scan_cache.CUT_FIELDS, *COLUMNS)
"""Fields of the configuration on which the cubes depend, besides the files."""
ARRAYS, SUMMARY, PARTS = "nodules.npz", "summary.json", ".parts"


class Prepared(NamedTuple):
    """An entry of the cache: its folder, the summary of its extraction, and whether it was in the cache before."""

    folder: Path
    summary: dict[str, Any]
    from_cache: bool


def say_on_stderr(line: str) -> None:
    """Prints a line on standard error."""
    print(line, file=sys.stderr, flush=True)


def load(config: DataConfig, say: Say = say_on_stderr) -> Nodules:
    """Loads the nodules of a configuration from the cache, and extracts them first where it lacks them.

    It reports skipped faults, also when the cubes come from the cache.

    Raises:
      DataError: no nodule is usable, or there is a fault and `data.on_error` is "refuse".
      TransientError: a scan failed for a transient reason. The parts of the other scans are kept, without an entry.
    """
    prepared = prepare(config, say)
    faults = prepared.summary["faults"]
    if faults:
        repeated = prepared.summary["duplicates"]
        repeats = f"; duplicates: {repeated}" if repeated else ""
        count = f"{len(faults)} fault{'s' * (len(faults) > 1)}"
        say(
            f"{prepared.summary['lost']} of {prepared.summary['annotations']} annotated nodules are left out{repeats}; "
            f"{count}, the first: {Fault(**faults[0]).line()} (all: {prepared.folder / SUMMARY})"
        )
    for line in cautions(prepared.summary):
        say(line)
    return load_prepared(prepared)


def load_prepared(prepared: Prepared) -> Nodules:
    """Loads the nodules of a cache entry."""
    with np.load(prepared.folder / ARRAYS, allow_pickle=False) as arrays:
        masks = arrays["masks"] if arrays["masked"].any() else None
        return Nodules(arrays["values"], masks, load_table(prepared), prepared.summary["split_by"])


def load_table(prepared: Prepared) -> dict[str, np.ndarray]:
    """Loads the table of a cache entry's `Nodules`, without the voxels."""
    with np.load(prepared.folder / ARRAYS, allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files if name not in ("values", "masks", "masked")}


def stream_prepared(prepared: Prepared, most: int) -> Iterator[Real[np.ndarray, "part *volume"]]:
    """Yields the cubes of a cache entry in their order, at most `most` at a time."""
    cubes = stream(prepared.folder / ARRAYS, "values")
    while part := list(islice(cubes, most)):
        yield np.stack(part)


def prepare(config: DataConfig, say: Say = say_on_stderr, refresh: bool = False, plan: Plan | None = None) -> Prepared:
    """Returns the cache entry of these data, and makes it first where the cache lacks it.

    Args:
      config: the data section.
      say: takes lines for the user.
      refresh: makes the entry and its parts again.
      plan: the tasks, instead of all those of `data.root`.

    Raises:
      DataError: as `load`.
      InputError: the cache cannot be written.
      StorageError: its disk is full, or failed.
    """
    if config.source == "medmnist":  # a damaged array is a whole part of the division
        config = replace(config, on_error="refuse")
    if config.source not in SOURCES:
        raise DataError(f"data.source must be one of {', '.join(SOURCES)} to be prepared; got {config.source}")
    try:
        plan = plan or SOURCES[config.source](config)
    except OSError as error:
        raise unreadable_root(error) from error
    if config.on_error == "refuse":
        refuse(plan.faults, plan.way_out)
    cache = user_cache() if config.cache == "auto" else Path(config.cache)
    parts, entry = cache / PARTS, cache / _key(config, plan)

    def make(folder: Path) -> None:
        # SimpleITK is only needed here, and costs half a second to import.
        from gmmae.data.extraction import readings

        start = time.perf_counter()
        if refresh:
            scan_cache.forget(config, plan, VERSION, parts)
        results = readings.read(config, plan, VERSION, parts, say)
        _make(folder, config, plan, results, time.perf_counter() - start)

    from_cache = _obtain(entry, make, say, refresh)
    # A process that was killed after it finished the entry has left its parts.
    if parts.is_dir():
        scan_cache.forget(config, plan, VERSION, parts)
    summary = json.loads((entry / SUMMARY).read_text())
    if config.on_error == "refuse":
        refuse([Fault(**fault) for fault in summary["faults"]], plan.way_out)
    return Prepared(entry, summary, from_cache)


def _obtain(entry: Path, make: Callable[[Path], None], say: Say, refresh: bool) -> bool:
    """Makes an entry, whole or not at all, where it is not there or is made again. Returns whether it was there.

    One process at a time works on an entry, and the others wait. So every process of a distributed run may ask for it.
    """
    if not refresh and _is_whole(entry):
        return True
    with writing("data.cache", entry.parent, "folder"):
        entry.parent.mkdir(parents=True, exist_ok=True)
        lock = entry.with_name(f"{entry.name}.lock")
        with locks.held(lock, lambda holder: say(f"waiting for {holder}, which prepares {entry}")):
            if not refresh and _is_whole(entry):
                return True
            for left in entry.parent.glob(".*.partial"):
                with suppress(OSError):
                    if scan_cache.is_stale(left):
                        shutil.rmtree(left)
            shutil.rmtree(entry, ignore_errors=True)
            with whole_folder(entry, "data.cache") as folder:
                make(folder)
    return False


def _is_whole(entry: Path) -> bool:
    """Returns whether an entry has its summary, and its arrays with their original bytes."""
    try:
        return json.loads((entry / SUMMARY).read_text())["arrays_sha256"] == sha256(entry / ARRAYS)
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return False


def _key(config: DataConfig, plan: Plan) -> str:
    """Returns a hash of everything on which the cubes depend. The folder's path and the workers are not part of it."""
    options = [getattr(config, name) for name in IDENTITY_FIELDS]
    return scan_cache.key([VERSION, options, plan.csv_sha256, plan.inputs, plan.faults])


def _alike(cubes: Sequence[Cube]) -> list[Cube]:
    """Returns the central sections of all cubes with the fewest axes of any. Beside images, only a volume's slice is usable."""
    axes = min((cube.values.ndim for cube in cubes), default=3)

    def section(array: np.ndarray) -> np.ndarray:
        return central_section(array[None], axes)[0]

    return [
        cube._replace(values=section(cube.values), mask=None if cube.mask is None else section(cube.mask)) for cube in cubes
    ]


def _make(folder: Path, config: DataConfig, plan: Plan, readings: Sequence[Reading], elapsed_s: float) -> None:
    """Writes the results of all scans of a plan into `folder`."""
    cubes = _alike([cube for reading in readings for cube in reading.result.cubes])
    faults = [*plan.faults, *(fault for reading in readings for fault in reading.result.faults)]
    if not cubes:
        why = "".join(f": {fault.line()}" for fault in faults[:1])
        raise DataError(
            f"data must hold a nodule that can be read; {config.root} lists {plan.annotations}, with {len(faults)} faults{why}"
        )
    root = config.folder
    data_folder = root if root.is_dir() else root.parent
    files = {cube.item.name: relative(data_folder, reading.task.file) for reading in readings for cube in reading.result.cubes}
    # Workers finish in any order; the result must not depend on it.
    cubes.sort(key=lambda cube: cube.item.name)
    faults.sort(key=lambda fault: (fault.place, fault.text))
    groups = join(plan, {cube.item.name: cube.values for cube in cubes})
    arrays = {
        **scan_cache.cube_arrays(cubes),
        "name": np.array([cube.item.name for cube in cubes]),
        "group": np.array([groups.names[cube.item.name] for cube in cubes]),
        "category": np.array([cube.item.category for cube in cubes]),
        "split": np.array([cube.item.split for cube in cubes]),
        "place": np.array([cube.item.place for cube in cubes]),
        "path": np.array([files[cube.item.name] for cube in cubes]),
        "diameter_mm": np.array([np.nan if cube.item.diameter_mm is None else cube.item.diameter_mm for cube in cubes]),
    }
    for place, column in enumerate(plan.header):
        arrays[f"{OWN}{column}"] = np.array([cube.item.cells[place] for cube in cubes])
    np.savez(folder / ARRAYS, allow_pickle=False, **arrays)
    summary = summarise(plan, faults, cubes, config.hu, groups)
    summary["repeated"] = sorted(f"{reading.task.label}: {text}" for reading in readings for text in reading.failures)
    read_s, busy_s = (sum(getattr(reading.result, name) for reading in readings) for name in ("read_s", "total_s"))
    summary["seconds"] = {"total_s": elapsed_s, "read_share": read_s / busy_s if busy_s else 0.0}
    summary["arrays_sha256"] = sha256(folder / ARRAYS)
    summary["determining"] = {
        "version": VERSION,
        **{name: getattr(config, name) for name in IDENTITY_FIELDS},
        "root": os.path.realpath(config.folder),
    }
    (folder / SUMMARY).write_text(json.dumps(summary, indent=1) + "\n")
