"""What an extraction found, lost and filled, as a dictionary for `summary.json` and as lines for people."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int16

from gmmae.data.extraction.annotations import Fault
from gmmae.data.extraction.tasks import Plan

FAULT_LINES = 20
"""Faults printed; summary.json has them all."""

HU_EDGES = (-32768, *range(-1000, 1001, 100), 32768)
FILLED_EDGES = (0.0, 1e-9, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0)


def summarise(
    plan: Plan,
    faults: Sequence[Fault],
    hu: Int16[np.ndarray, "samples size size size"],
    filled: Float[np.ndarray, " samples"],
    diameter_mm: Float[np.ndarray, " samples"],
    categories: Sequence[str],
    groups: Sequence[str],
    masks: int,
    by_scan: int,
) -> dict[str, Any]:
    """Counts and statistics; `annotations = nodules + duplicates + lost` always holds.

    Args:
      plan: what was listed.
      faults: of the plan and of the extraction.
      hu: the cubes.
      filled: share of each cube that lies outside its scan.
      diameter_mm: NaN where not known.
      categories: empty strings where not known.
      groups: of each cube.
      masks: cubes that have one.
      by_scan: cubes whose group is only their scan, or volume: no patient is named.
    """
    kinds = Counter(fault.kind for fault in faults)
    known = diameter_mm[np.isfinite(diameter_mm)]
    percentiles = np.percentile(hu, [1, 25, 50, 75, 99]) if len(hu) else np.zeros(5)
    return {
        "annotations": plan.annotations,
        "nodules": len(hu),
        "duplicates": kinds["duplicate"],
        "lost": sum(fault.lost for fault in faults),
        "scans": len(plan.tasks),
        "groups": len(set(groups)),
        "grouped_by_scan": by_scan,
        "bad_rows": kinds["row"],
        "missing_scans": kinds["missing"],
        "unreadable_scans": kinds["unreadable"],
        "bad_nodules": kinds["nodule"],
        "masks": masks,
        "categories": dict(sorted(Counter(categories).items())),
        "diameter_mm": _spread(known),
        "border_padded": int((filled > 0).sum()),
        "filled_share": {**_spread(filled), **_histogram(filled, FILLED_EDGES)},
        "hu": {**dict(zip(("p1", "p25", "p50", "p75", "p99"), percentiles.tolist(), strict=True)), **_histogram(hu, HU_EDGES)},
        "faults": [fault._asdict() for fault in faults],
    }


def lines(summary: dict[str, Any]) -> list[str]:
    """The summary for people, one fact a line, faults last."""
    diameter, filled, hu = summary["diameter_mm"], summary["filled_share"], summary["hu"]
    kinds = ", ".join(f"{count} {name or 'without category'}" for name, count in summary["categories"].items())
    text = [
        f"{summary['nodules']} nodules in {summary['groups']} groups: {kinds}",
        *_grouping(summary),
        f"{summary['annotations']} annotations, {summary['duplicates']} of them duplicates and {summary['lost']} lost to "
        f"faults: {summary['bad_rows']} bad rows, {summary['missing_scans']} missing scans, "
        f"{summary['unreadable_scans']} unreadable scans, {summary['bad_nodules']} bad places in sound scans",
        f"{summary['border_padded']} nodules reach beyond their scan; filled share: mean {filled.get('mean', 0):.1%}, "
        f"largest {filled.get('max', 0):.1%}",
        f"HU: 1 % below {hu['p1']:.0f}, median {hu['p50']:.0f}, 1 % above {hu['p99']:.0f}; masks: {summary['masks']}",
    ]
    if diameter:
        text.append(
            f"diameters: {diameter['min']:.1f} to {diameter['max']:.1f} mm, median {diameter['median']:.1f}, "
            f"mean {diameter['mean']:.1f}"
        )
    if summary["repeated"]:
        text.append(f"readings that failed and were repeated: {len(summary['repeated'])}; the first: {summary['repeated'][0]}")
    faults = [Fault(**fault).line() for fault in summary["faults"]]
    if len(faults) > FAULT_LINES:
        faults[FAULT_LINES:] = [f"and {len(faults) - FAULT_LINES} more, in summary.json"]
    return text + faults


def _grouping(summary: dict[str, Any]) -> list[str]:
    """Where a patient may be on both sides of the split."""
    by_scan, nodules = summary["grouped_by_scan"], summary["nodules"]
    if not by_scan:
        return []
    whose = "each group is a scan or volume" if by_scan == nodules else f"the groups of {by_scan} nodules are scans or volumes"
    return [f"{whose}, because no patient is named there: a patient with several may be in both training and validation"]


def _spread(values: Float[np.ndarray, " n"]) -> dict[str, float]:
    if not len(values):
        return {}
    return {name: float(getattr(np, name)(values)) for name in ("min", "median", "mean", "max")}


def _histogram(values: np.ndarray, edges: Sequence[int | float]) -> dict[str, list[Any]]:
    """Counts of values in [edge, next edge); the last bin includes its upper edge."""
    return {"edges": list(edges), "counts": np.histogram(values, edges)[0].tolist()}
