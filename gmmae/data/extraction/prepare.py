"""Loads the `Nodules` of a folder of scans or volumes. They are extracted once and kept in the cache.

The cache has an entry for each set of files and options, named by a hash of both:

- `KEY/nodules.npz` has the cubes. `KEY/summary.json` is written after it, with its hash; where that does not fit, the entry is
  made again. Files are replaced whole, so what a reader has begun to read stays as it was.
- `KEY.lock` lets one process at a time make an entry.
- `.parts/` has the cubes of each scan of an unfinished extraction, named by a hash of what they depend on. What is left of a
  killed process is removed after a month.
"""

import hashlib
import json
import re
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gmmae.data.extraction import folders, medmnist
from gmmae.data.extraction.annotations import Fault, raise_first
from gmmae.data.extraction.progress import Say
from gmmae.data.extraction.summary import cautions, summarise
from gmmae.data.extraction.tasks import Plan, Task, relative, sha256
from gmmae.data.groups import join
from gmmae.data.settings import COLUMNS, DataConfig
from gmmae.data.volumes import OWN, DataError, Nodules, unreadable_root
from gmmae.system import locks
from gmmae.system.compilation_cache import user_cache
from gmmae.system.files import stoppable, whole_file, write_text, writing

VERSION = 12
"""It grows when the same files and options would give other cubes, or an entry another meaning."""

SOURCES = {
    "luna16": folders.plan_luna16,
    "cubes": folders.plan_cubes,
    "medmnist": medmnist.plan,
}
IDENTITY_FIELDS = ("source", "volume_shape", "min_ndim", "crop", "outside", "hu", *COLUMNS)
"""Options on which the cubes depend."""
ARRAYS, SUMMARY, PARTS = "nodules.npz", "summary.json", ".parts"
STALE_AFTER_S = 30 * 24 * 3600.0


class Prepared(NamedTuple):
    """An entry, its summary, and whether it was in the cache before."""

    folder: Path
    summary: dict[str, Any]
    from_cache: bool


def say_on_stderr(line: str) -> None:
    """Prints a line on standard error."""
    print(line, file=sys.stderr, flush=True)


def load(config: DataConfig, say: Say = say_on_stderr) -> Nodules:
    """Loads the nodules from the cache, extracts missing ones, and reports skipped faults.

    Raises:
      DataError: no nodule is usable, or there is a fault and `data.on_error` is "refuse".
      TransientError: a scan failed for a transient reason. The parts of the other scans are kept.
    """
    prepared = prepare(config, say)
    summary = prepared.summary
    if faults := summary["faults"]:
        say(
            f"{summary['lost']} of {summary['annotations']} annotated nodules are left out; duplicates: "
            f"{summary['duplicates']}; faults: {len(faults)}, the first: "
            f"{Fault(**faults[0]).line()} (all: {prepared.folder / SUMMARY})"
        )
    for line in cautions(summary, config.window):
        say(line)
    return load_prepared(prepared)


def load_prepared(prepared: Prepared) -> Nodules:
    """Loads a cache entry."""
    with np.load(prepared.folder / ARRAYS, allow_pickle=False) as arrays:
        table = dict(arrays)
    values, masks, masked = (table.pop(name) for name in ("values", "mask", "masked"))
    return Nodules(values, masks if masked.any() else None, table, prepared.summary["split_by"])


def prepare(config: DataConfig, say: Say = say_on_stderr, refresh: bool = False, plan: Plan | None = None) -> Prepared:
    """The cache entry of these data, made where the cache lacks it; errors are those of `load`.

    `refresh` makes it and its parts again. A plan replaces the tasks of `data.root`.
    """
    if config.source == "medmnist":  # a damaged array is a whole part
        config = replace(config, on_error="refuse")
    if config.source not in SOURCES:
        raise DataError(f"data.source must be one of {', '.join(SOURCES)} to be prepared; got {config.source}")
    try:
        plan = plan or SOURCES[config.source](config)
    except OSError as error:
        raise unreadable_root(error) from error
    except DataError as error:
        other = folders.source_of(config.folder, config.csv, config.source)
        if other == config.source:
            raise
        raise DataError(f"{error}: is it for --data.source {other}?") from error
    if config.on_error == "refuse":
        raise_first(plan.faults, plan.remedy)
    cache = user_cache() if config.cache == "auto" else Path(config.cache)
    root = config.folder if config.folder.is_dir() else config.folder.parent
    options = {name: getattr(config, name) for name in IDENTITY_FIELDS}
    entry = cache / _key([VERSION, options, plan], root)
    summary = from_cache = None if refresh else _whole(entry)
    if summary is None:
        with stoppable(), writing("data.cache", cache, "folder"):
            (cache / PARTS).mkdir(parents=True, exist_ok=True)
            lock = cache / f"{entry.name}.lock"
            with locks.held(lock, lambda holder: say(f"waiting for {holder}, which prepares {entry}")):
                summary = from_cache = None if refresh else _whole(entry)
                summary = summary or _make(entry, config, plan, options, root, say, refresh)
    if config.on_error == "refuse":
        raise_first([Fault(**fault) for fault in summary["faults"]], plan.remedy)
    return Prepared(entry, summary, from_cache is not None)


def _whole(entry: Path) -> dict[str, Any] | None:
    with suppress(OSError, ValueError, LookupError, TypeError, RecursionError):
        summary = json.loads((entry / SUMMARY).read_text())
        if summary["arrays_sha256"] == sha256(entry / ARRAYS):
            return summary
    return None


def _key(inputs: object, root: Path) -> str:
    text = json.dumps(inputs, sort_keys=True, default=lambda path: relative(root, path))
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def _make(
    entry: Path, config: DataConfig, plan: Plan, options: dict[str, Any], root: Path, say: Say, refresh: bool
) -> dict[str, Any]:
    """The caller holds the entry's lock."""
    # It imports SimpleITK and pebble, for half a second.
    from gmmae.data.extraction import readings as extraction

    start, parts = time.perf_counter(), entry.parent / PARTS
    kept: dict[Task, Path] = {}
    for task in plan.tasks:
        items = [item._replace(name="", place="", number=0) for item in task.items]
        kept[task] = parts / f"{_key([VERSION, options, items, task.stamps], root)}.npz"
    # Without a summary there is no entry, so an interrupted call goes on without the option.
    for path in (entry / SUMMARY, *kept.values()) if refresh else ():
        path.unlink(missing_ok=True)
    readings = extraction.read(config, plan, kept, say)
    # Workers finish in any order.
    cubes = sorted((cube for reading in readings for cube in reading.cubes), key=lambda cube: cube.item.name)
    faults = sorted(
        [*plan.faults, *(fault for reading in readings for fault in reading.faults)],
        key=lambda fault: ([(text, int(part or 0)) for text, part in re.findall(r"(\D+|^)(\d*)", fault.place)], fault.text),
    )
    if not cubes:
        why = "".join(f": {fault.line()}" for fault in faults[:1])
        raise DataError(
            f"data must hold a nodule that can be read; {config.root} lists {plan.annotations}, with {len(faults)} faults{why}"
        )
    items, table = [cube.item for cube in cubes], extraction.cube_arrays(cubes)
    table |= {name: np.array([getattr(item, name) for item in items]) for name in ("name", "category", "split", "place")}
    cells = zip(*(item.cells for item in items), strict=True)
    table |= {f"{OWN}{column}": np.array(texts) for column, texts in zip(plan.header, cells, strict=True)}
    table["diameter_mm"] = np.array([item.diameter_mm for item in items], float)
    files = {item.name: relative(root, task.file) for task in plan.tasks for item in task.items}
    table["path"] = np.array([files[item.name] for item in items])
    try:
        groups = join(plan, {cube.item.name: (cube.values, cube.origin) for cube in cubes})
    except OSError as error:
        raise unreadable_root(error) from error
    table["group"] = np.array([groups.names[item.name] for item in items])
    entry.mkdir(exist_ok=True)
    for sheet in entry.glob("*.png"):
        sheet.unlink()
    with whole_file(entry / ARRAYS) as part, part.open("wb") as file:
        np.savez(file, allow_pickle=False, **table)
    summary = summarise(plan, faults, table, config, groups) | {
        "seconds": {"total_s": time.perf_counter() - start},
        "arrays_sha256": sha256(entry / ARRAYS),
    }
    text = json.dumps(summary, indent=1)
    write_text(entry / SUMMARY, f"{text}\n")
    done = {*kept.values()}
    for path in (*parts.iterdir(), *entry.parent.glob("*/.*.part")):
        with suppress(OSError):  # another process may be quicker
            if path in done or time.time() - path.stat().st_mtime > STALE_AFTER_S:
                path.unlink()
    return json.loads(text)
