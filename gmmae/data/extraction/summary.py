"""The counts and statistics of an extraction, as a dictionary for `summary.json` and as printed lines."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from gmmae.data.extraction.annotations import Fault
from gmmae.data.extraction.tasks import Cube, Plan
from gmmae.data.groups import Groups
from gmmae.data.splits import SPLITS

MAX_FAULT_LINES = 20
"""Largest number of printed faults; summary.json has all."""

HU_EDGES = (-32768, *range(-1000, 1001, 100), 32768)
HISTOGRAM_BINS = 20
"""Bins of the histogram of values that are not in HU, between the smallest and the largest."""
PERCENTILES = {"p1": 1, "p25": 25, "p50": 50, "p75": 75, "p99": 99}
FILLED_EDGES = (0.0, 1e-9, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0)


def summarise(plan: Plan, faults: Sequence[Fault], cubes: Sequence[Cube], hu: bool, groups: Groups) -> dict[str, Any]:
    """Returns counts and statistics. `annotations = nodules + duplicates + lost` always holds.

    Args:
      plan: the listed nodules.
      faults: of the plan and of the extraction.
      cubes: the extracted nodules.
      hu: whether the values are HU.
      groups: of the plan.
    """
    kinds = Counter(fault.kind for fault in faults)
    values, filled = np.stack([cube.values for cube in cubes]), np.array([cube.filled for cube in cubes])
    diameter_mm = np.array([cube.item.diameter_mm for cube in cubes if cube.item.diameter_mm is not None])
    masks = [cube.mask for cube in cubes if cube.mask is not None]
    percentiles = np.percentile(values, list(PERCENTILES.values())).tolist()
    edges = HU_EDGES if hu else np.linspace(values.min(), values.max(), HISTOGRAM_BINS + 1).tolist()
    unused = [column for column in plan.header if column not in plan.used.values()]
    unread = ["nothing reads split: the split follows from data.validation and data.seed"] if "split" in unused else []
    return {
        "annotations": plan.annotations,
        "nodules": len(cubes),
        "duplicates": kinds["duplicate"],
        "lost": sum(fault.lost for fault in faults),
        "scans": len(plan.tasks),
        "groups": len({groups.names[cube.item.name] for cube in cubes}),
        "split_by": groups.by,
        "grouping": [*groups.lines, *unread],
        "columns": {"used": dict(plan.used), "unused": unused},
        "bad_rows": kinds["row"],
        "missing_scans": kinds["missing"],
        "unreadable_scans": kinds["unreadable"],
        "bad_nodules": kinds["nodule"],
        "masks": len(masks),
        "empty_masks": sum(not mask.any() for mask in masks),
        "splits": dict(Counter(cube.item.split for cube in cubes if cube.item.split)),
        "categories": dict(sorted(Counter(cube.item.category for cube in cubes).items())),
        "diameter_mm": _spread(diameter_mm),
        "border_padded": int((filled > 0).sum()),
        "filled_share": {**_spread(filled), **_histogram(filled, FILLED_EDGES)},
        "unit": "HU" if hu else "",
        "offset": [cube.item.place for cube in cubes if hu and np.percentile(cube.values, 1) >= 0],
        "values": {**dict(zip(PERCENTILES, percentiles, strict=True)), **_histogram(values, edges)},
        "faults": [fault._asdict() for fault in faults],
    }


def lines(summary: dict[str, Any]) -> list[str]:
    """Returns the summary as printed lines, faults last."""
    diameter, filled, values = summary["diameter_mm"], summary["filled_share"], summary["values"]
    low, median, high = (f"{values[name]:.0f}" if summary["unit"] else f"{values[name]:.4g}" for name in ("p1", "p50", "p99"))
    kinds = ", ".join(f"{count} {name or 'without category'}" for name, count in summary["categories"].items())
    empty = f", {summary['empty_masks']} of them without a voxel in its cube" if summary["empty_masks"] else ""
    text = [
        f"{summary['nodules']} nodules in {summary['groups']} groups: {kinds}",
        *_division(summary),
        f"{summary['annotations']} annotations, {summary['duplicates']} of them duplicates and {summary['lost']} lost to "
        f"faults: {summary['bad_rows']} bad rows, {summary['missing_scans']} missing scans, "
        f"{summary['unreadable_scans']} unreadable scans, {summary['bad_nodules']} nodules that cannot be cut",
        f"{summary['border_padded']} nodules reach beyond their scan; filled share: mean {filled.get('mean', 0):.1%}, "
        f"largest {filled.get('max', 0):.1%}",
        *cautions(summary),
        f"{summary['unit'] or 'values'}: 1 % below {low}, median {median}, 1 % above {high}; masks: {summary['masks']}{empty}",
    ]
    if diameter:
        text.append(
            f"diameters: {diameter['min']:.1f} to {diameter['max']:.1f} mm, median {diameter['median']:.1f}, "
            f"mean {diameter['mean']:.1f}"
        )
    if columns := summary["columns"]["used"]:
        used = ", ".join(name if name == column else f"{name} (as {column})" for name, column in columns.items())
        unused = ", ".join(summary["columns"]["unused"])
        text.append(f"columns that are used: {used}; that are only kept: {unused or 'none'}")
    if summary["repeated"]:
        text.append(f"readings that failed and were repeated: {len(summary['repeated'])}; the first: {summary['repeated'][0]}")
    return text + fault_lines(summary, "summary.json")


def cautions(summary: dict[str, Any]) -> list[str]:
    """Returns the grouping's lines, and one on nodules with hardly a voxel below 0 HU, as of a scan with an offset of 1,024."""
    text = [] if summary["splits"] else list(summary["grouping"])
    if offset := summary["offset"]:
        text.append(
            f"values in HU should be below 0 in lung and fat; those of {len(offset)} nodules are not, such as {offset[0]}: if "
            "the scan is stored with an offset, subtract it first"
        )
    return text


def fault_lines(summary: dict[str, Any], place: str) -> list[str]:
    """Returns at most `MAX_FAULT_LINES` faults as printed lines; `place` is the file with all."""
    faults = [Fault(**fault).line() for fault in summary["faults"]]
    if len(faults) > MAX_FAULT_LINES:
        faults[MAX_FAULT_LINES:] = [f"and {len(faults) - MAX_FAULT_LINES} more, in {place}"]
    return faults


def _division(summary: dict[str, Any]) -> list[str]:
    """Returns a line on the file's own division, where it has one."""
    if not (splits := summary["splits"]):
        return []
    counts = ", ".join(f"{splits[name]} {name}" for name in SPLITS if name in splits)
    return [f"divided by the file itself, which names no patient: {counts}"]


def _spread(values: Float[np.ndarray, " n"]) -> dict[str, float]:
    if not len(values):
        return {}
    return {name: float(getattr(np, name)(values)) for name in ("min", "median", "mean", "max")}


def _histogram(values: np.ndarray, edges: Sequence[int | float]) -> dict[str, list[Any]]:
    """Counts of values in [edge, next edge); the last bin includes its upper edge."""
    return {"edges": list(edges), "counts": np.histogram(values, edges)[0].tolist()}
