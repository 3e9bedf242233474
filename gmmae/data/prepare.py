"""From a folder of scans or volumes to `Nodules`: extracted once, kept in the cache, loaded in a moment."""

import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from gmmae.compiled import user_cache
from gmmae.config import DataConfig
from gmmae.data import cache, cubes, luna16
from gmmae.data.annotations import Fault
from gmmae.data.progress import Progress
from gmmae.data.summary import summarise
from gmmae.data.tasks import Plan
from gmmae.data.volumes import DataError, Nodules

VERSION = 1
"""Raised whenever the same files and options would give other cubes."""

SOURCES: dict[str, Callable[[DataConfig], Plan]] = {"luna16": luna16.plan, "cubes": cubes.plan}
ARRAYS, SUMMARY = "nodules.npz", "summary.json"

Say = Callable[[str], None]


class Prepared(NamedTuple):
    """An entry of the cache: its folder, the summary of its extraction, and whether it was there already."""

    folder: Path
    summary: dict[str, Any]
    from_cache: bool


class Details(NamedTuple):
    """What is known of each nodule besides `Nodules`: where it was cut (x, y, z in mm), how wide, how much was filled.

    `places` says where the user finds it (the CSV and its line); diameters are NaN where not known.
    """

    places: tuple[str, ...]
    centre_mm: Float[np.ndarray, "samples 3"]
    edge_mm: Float[np.ndarray, " samples"]
    diameter_mm: Float[np.ndarray, " samples"]
    filled: Float[np.ndarray, " samples"]


def say_on_stderr(line: str) -> None:
    """The default way to tell the user something."""
    print(line, file=sys.stderr, flush=True)


def load(config: DataConfig, say: Say = say_on_stderr) -> Nodules:
    """The nodules that `config` describes: from the cache, or extracted into it first.

    Faults that were skipped are said, also when the cubes come from the cache.

    Raises:
      DataError: nothing can be used, or something cannot and `data.on_error` is "refuse".
    """
    prepared = prepare(config, say)
    faults = prepared.summary["faults"]
    if faults:
        say(
            f"{prepared.summary['lost']} of {prepared.summary['annotations']} annotated nodules are left out; {len(faults)} "
            f"faults, the first: {Fault(**faults[0]).line()} (all: {prepared.folder / SUMMARY})"
        )
    return load_prepared(prepared)[0]


def load_prepared(prepared: Prepared) -> tuple[Nodules, Details]:
    """The arrays of a cache entry."""
    with np.load(prepared.folder / ARRAYS, allow_pickle=False) as arrays:
        nodules = Nodules(
            arrays["hu"],
            tuple(arrays["names"].tolist()),
            tuple(arrays["groups"].tolist()),
            tuple(arrays["categories"].tolist()),
            arrays.get("masks"),
        )
        details = Details(
            tuple(arrays["places"].tolist()),
            arrays["centre_mm"],
            arrays["edge_mm"],
            arrays["diameter_mm"],
            arrays["filled"],
        )
    return nodules, details


def prepare(config: DataConfig, say: Say = say_on_stderr) -> Prepared:
    """The cache entry of these data, made when it is not there.

    Raises:
      DataError: as `load`.
    """
    if config.source not in SOURCES:
        raise DataError(f"data.source must be one of {', '.join(SOURCES)} to be prepared; got {config.source}")
    plan = SOURCES[config.source](config)
    if config.on_error == "refuse":
        _refuse(plan.faults)
    place = Path(config.cache) if config.cache else user_cache()
    folder, from_cache = cache.obtain(place, _key(config, plan), lambda folder: _make(folder, config, plan, say), say)
    summary = json.loads((folder / SUMMARY).read_text())
    if config.on_error == "refuse":
        _refuse([Fault(**fault) for fault in summary["faults"]])
    return Prepared(folder, summary, from_cache)


def _key(config: DataConfig, plan: Plan) -> str:
    """Everything that decides what the cubes are; where the folder lies, and who reads it how fast, does not."""
    options = [config.source, config.size, config.edge, config.fill, config.category_column, config.group_column]
    return cache.key([VERSION, options, plan.csv_sha256, plan.inputs, plan.faults])


def _refuse(faults: Sequence[Fault]) -> None:
    if len(faults) > 0:
        more = f", the first of {len(faults)} faults" if len(faults) > 1 else ""
        raise DataError(f"{faults[0].line()}{more}: mend it, or set data.on_error = skip to leave such nodules out")


def _make(folder: Path, config: DataConfig, plan: Plan, say: Say) -> None:
    """Extract every nodule of a plan into `folder`."""
    # SimpleITK is only needed here, and costs half a second to import.
    from gmmae.data.extract import Cube, Options
    from gmmae.data.processes import extract_all

    start = time.perf_counter()
    found: list[Cube] = []
    faults = list(plan.faults)
    read_s = busy_s = 0.0
    with Progress(len(plan.tasks), "scans", say) as progress:
        for result in extract_all(plan.tasks, Options(config.size, config.edge, config.fill), config.workers):
            found += result.cubes
            faults += result.faults
            read_s, busy_s = read_s + result.read_s, busy_s + result.total_s
            if config.on_error == "refuse":
                _refuse(result.faults)
            progress.advance()
    if not found:
        why = "".join(f": {fault.line()}" for fault in faults[:1])
        raise DataError(f"data must hold a nodule that can be read; {plan.annotations} are listed, {len(faults)} faults{why}")
    # Workers finish in any order; the result must not depend on it.
    found.sort(key=lambda cube: cube.item.name)
    faults.sort(key=lambda fault: (fault.place, fault.text))
    hu = np.stack([cube.hu for cube in found])
    filled = np.array([cube.filled for cube in found])
    diameter_mm = np.array([np.nan if cube.item.diameter_mm is None else cube.item.diameter_mm for cube in found])
    arrays: dict[str, np.ndarray] = {
        "hu": hu,
        "names": np.array([cube.item.name for cube in found]),
        "groups": np.array([cube.item.group for cube in found]),
        "categories": np.array([cube.item.category for cube in found]),
        "places": np.array([cube.item.place for cube in found]),
        "centre_mm": np.array([cube.centre_mm for cube in found]),
        "edge_mm": np.array([cube.edge_mm for cube in found]),
        "diameter_mm": diameter_mm,
        "filled": filled,
    }
    masks = [cube.mask for cube in found]
    if any(mask is not None for mask in masks):
        arrays["masks"] = np.stack([np.zeros(hu.shape[1:], np.uint8) if mask is None else mask for mask in masks])
    np.savez(folder / ARRAYS, allow_pickle=False, **arrays)
    summary = summarise(
        plan,
        faults,
        hu,
        filled,
        diameter_mm,
        arrays["categories"].tolist(),
        arrays["groups"].tolist(),
        sum(mask is not None for mask in masks),
    )
    elapsed = time.perf_counter() - start
    summary["seconds"] = {"total_s": elapsed, "read_share": read_s / busy_s if busy_s else 0.0}
    summary["determining"] = {
        "version": VERSION,
        **{name: getattr(config, name) for name in ("source", "size", "edge", "fill", "category_column", "group_column")},
        "root": str(Path(config.root).resolve()),
    }
    (folder / SUMMARY).write_text(json.dumps(summary, indent=1) + "\n")
