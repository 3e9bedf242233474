"""The counts and statistics of an extraction, for `summary.json` and as printed lines."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from gmmae.data.extraction.annotations import COORDINATES, GROUP, OTHERWISE_PATIENTS, PATIENTS, Fault
from gmmae.data.extraction.arrays import ARRAY_SUFFIXES
from gmmae.data.extraction.tasks import Plan
from gmmae.data.groups import Groups
from gmmae.data.settings import DataConfig
from gmmae.data.splits import SPLITS
from gmmae.data.volumes import letters

FEW_PATIENTS = 10
"""Nodules for each patient, from which on his column may be one of hospitals or diagnoses."""

PLACE = re.compile(
    "(c|p|px|coord|cent(er|re|roid)|pos|position|point|location|world|lps|ras|vox|voxel|pixel|nodule|index|idx|bbox)?[xyz]"
    "(c|0|coord|cent(er|re|roid)|mm|vox|voxels?|ras|lps|world|index)?|[ijk]|row|col(umn)?|slice(no|number)?|(coord|loc)[012]"
)
"""A column, by its `letters`, that seems to say where a nodule is."""

MOSTLY = 0.5
"""Share of all cubes outside of their scans above which a place or an axis must be wrong."""

SMALL_MM = 2.5
"""Nodules are 3 mm and larger, so such a median seems to be in cm."""

MAX_FAULT_LINES = 20
"""summary.json has all faults."""


def summarise(
    plan: Plan, faults: Sequence[Fault], table: Mapping[str, np.ndarray], config: DataConfig, groups: Groups
) -> dict[str, Any]:
    """Counts and statistics. `annotations = nodules + duplicates + lost` always holds."""
    kinds = Counter(fault.kind for fault in faults)
    values, masked, filled, diameter_mm = (table[name] for name in ("values", "masked", "filled", "diameter_mm"))
    low = np.percentile(values.reshape(len(values), -1), 1, axis=1)
    unused = [column for column in plan.header if column not in plan.used.values()]
    notes = ["nothing reads split: the split follows from data.validation and data.seed"] if "split" in unused else []
    places = [column for column in unused if PLACE.fullmatch(letters(column))]
    if len(places) > 1 and COORDINATES[0] not in plan.used and config.crop != "whole":
        notes.append(
            f"nothing reads {', '.join(places)}: cubes are cut from the middle of each volume, unless columns "
            f"{', '.join(COORDINATES)} say where"
        )
    notes += [f"nothing reads {', '.join(plan.unread)}: a column has one value for each volume"] if plan.unread else []
    arrays = [task for task in plan.tasks if task.file.suffix in ARRAY_SUFFIXES and config.crop != "whole"]
    unknown = [item.name for task in arrays for item in task.items if item.spacing_mm is None]
    # An array that is the cube already needs no spacing.
    bare, whole = np.isin(table["name"], unknown), table["edge_mm"] == max(values.shape[1:])
    cut, taken = (table["place"][bare & part].tolist() for part in (~whole, whole))
    notes += [f"{len(cut)} arrays without a spacing are cut as if a voxel were 1 mm, such as {cut[0]}: give it"] if cut else []
    if taken and (cut or config.crop != DataConfig.crop):
        notes.append(f"{len(taken)} arrays of data.shape voxels without a spacing are not cut, such as {taken[0]}")
    division, group = table["split"], table["group"]
    patients, count = [name for name in (*PATIENTS, *OTHERWISE_PATIENTS) if name in plan.used], len(set(group))
    if patients and GROUP not in plan.used and groups.by == "patient" and len(values) >= FEW_PATIENTS * count:
        by = " and ".join(patients)
        notes.append(f"{len(values)} nodules are of {count} patients by {by}: rename a column that says something else")
    leaks = table["name"][np.isin(division, ("validation", "test")) & np.isin(group, group[division == "train"])]
    if len(leaks):
        notes.append(
            f"the file's own division has {len(leaks)} nodules for validation or test that share voxels with training nodules, "
            f"such as {leaks[0]}"
        )
    return {
        "annotations": plan.annotations,
        "nodules": len(values),
        "duplicates": kinds["duplicate"],
        "lost": sum(fault.lost for fault in faults),
        "scans": len(plan.tasks),
        "groups": count,
        "split_by": groups.by,
        "grouping": notes if division.any() else [*groups.lines, *notes],
        "columns": {"used": dict(plan.used), "unused": unused},
        "bad_rows": kinds["row"],
        "missing_scans": kinds["missing"],
        "unreadable_scans": kinds["unreadable"],
        "bad_nodules": kinds["nodule"],
        "masks": int(masked.sum()),
        "empty_masks": sum(not mask.any() for mask in table["mask"][masked]),
        "splits": dict(Counter(filter(None, division.tolist()))),
        "categories": dict(sorted(Counter(table["category"].tolist()).items())),
        "diameter_mm": _spread(diameter_mm[np.isfinite(diameter_mm)]),
        "border_padded": int((filled > 0).sum()),
        "filled_share": _spread(filled),
        "unit": "HU" if config.hu else "",
        "offset": table["place"][low >= 0].tolist() if config.hu else [],
        "values": {f"p{n}": float(np.percentile(values, n)) for n in (1, 25, 50, 75, 99)},
        "faults": [fault._asdict() for fault in faults],
    }


def lines(summary: dict[str, Any], window: tuple[float, float]) -> list[str]:
    """The summary as printed lines, faults last."""
    diameter, filled, values = summary["diameter_mm"], summary["filled_share"], summary["values"]
    low, median, high = (format(values[name], ".0f" if summary["unit"] else ".4g") for name in ("p1", "p50", "p99"))
    kinds = ", ".join(f"{count} {name or 'without category'}" for name, count in summary["categories"].items())
    empty = f", {summary['empty_masks']} of them without a voxel in its cube" if summary["empty_masks"] else ""
    text = [f"{summary['nodules']} nodules in {summary['groups']} groups: {kinds}"]
    if splits := summary["splits"]:
        counts = ", ".join(f"{splits[name]} {name}" for name in SPLITS if name in splits)
        text.append(f"divided by the file itself, which names no patient: {counts}")
    text += [
        f"{summary['annotations']} annotations, {summary['duplicates']} of them duplicates and {summary['lost']} lost to "
        f"faults: {summary['bad_rows']} bad rows, {summary['missing_scans']} missing scans, "
        f"{summary['unreadable_scans']} unreadable scans, {summary['bad_nodules']} nodules that cannot be cut",
        f"{summary['border_padded']} nodules reach beyond their scan; filled share: mean {filled['mean']:.1%}, "
        f"largest {filled['max']:.1%}",
        *cautions(summary, window),
        f"{summary['unit'] or 'values'}: 1 % below {low}, median {median}, 1 % above {high}; masks: {summary['masks']}{empty}",
    ]
    if diameter:
        text.append("diameters: {min:.1f} to {max:.1f} mm, median {median:.1f}, mean {mean:.1f}".format(**diameter))
    if columns := summary["columns"]["used"]:
        used = ", ".join(name if name == column else f"{name} (as {column})" for name, column in columns.items())
        unused = ", ".join(summary["columns"]["unused"])
        text.append(f"columns that are used: {used}; that are only kept: {unused or 'none'}")
    return text + fault_lines(summary, "summary.json")


def cautions(summary: dict[str, Any], window: tuple[float, float]) -> list[str]:
    """Lines on grouping, columns and spacings, and on values and diameters that seem to be in another unit.

    Nodules are hardly below 0 HU where the scan has an offset of 1,024.
    """
    text = list(summary["grouping"])
    if offset := summary["offset"]:
        text.append(
            f"values in HU should be below 0 in lung and fat; those of {len(offset)} nodules are not, such as {offset[0]}: if "
            "the scan is stored with an offset, subtract it first"
        )
    median, (low, high) = summary["values"]["p50"], window
    if median > high:
        text.append(f"half of all values are {median:g} or more, and data.window ends at {high:g}: are they in its unit?")
    elif median < low and not summary["unit"]:  # in HU, a narrow window begins above the lung
        text.append(f"half of all values are {median:g} or less, and data.window begins at {low:g}: are they in its unit?")
    if (filled := summary["filled_share"].get("mean", 0.0)) > MOSTLY:
        text.append(f"{filled:.0%} of the cubes lie outside of their scans: are axes, places and diameters right?")
    if summary["diameter_mm"].get("median", np.inf) < SMALL_MM:
        text.append(f"half of the diameters are {summary['diameter_mm']['median']:.2g} mm or less: are they in mm?")
    return text


def fault_lines(summary: dict[str, Any], place: str) -> list[str]:
    """At most `MAX_FAULT_LINES` faults as printed lines; `place` has all."""
    faults = [Fault(**fault).line() for fault in summary["faults"]]
    if len(faults) > MAX_FAULT_LINES:
        faults[MAX_FAULT_LINES:] = [f"and {len(faults) - MAX_FAULT_LINES} more, in {place}"]
    return faults


def _spread(values: Float[np.ndarray, " n"]) -> dict[str, float]:
    return {name: float(getattr(np, name)(values)) for name in ("min", "median", "mean", "max")} if len(values) else {}
