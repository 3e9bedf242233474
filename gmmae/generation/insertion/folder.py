"""The folders of an insertion: scans in LUNA16's format with annotations, before and after.

docs/insertion.md has the files of the output.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from gmmae.data.extraction.annotations import COLUMNS, Table, raise_first, read_table
from gmmae.data.extraction.folders import find_scans
from gmmae.data.settings import ANNOTATIONS, DataConfig
from gmmae.data.volumes import DataError
from gmmae.generation.insertion.geometry import Vector
from gmmae.system.files import csv_text, write_text


def read_scans(root: Path) -> tuple[dict[str, Path], Table, list[str]]:
    """The headers of a folder's scans by series UID, its annotations if any, and a message for each fault."""
    if not root.is_dir():
        raise DataError(f"SCANS must be a folder of .mhd scans; got {root}, which is no folder")
    scans, repeated = find_scans(root)
    if not scans:
        raise DataError(f"SCANS must hold .mhd scans, in subset*/ or directly; got {root}, which has none")
    path, table = root / ANNOTATIONS, Table([], [], ("seriesuid", *COLUMNS))
    if os.path.lexists(path):
        table = read_table(path, DataConfig(source="luna16"), "seriesuid")
        if not table.rows:
            raise_first(table.faults, "leave the file out")
    return (
        dict(sorted(scans.items())),
        table,
        [fault.line() for fault in (*repeated, *table.faults) if fault.kind != "duplicate"],
    )


class InsertionRecord(NamedTuple):
    """A line of `insertions.csv`: one inserted nodule.

    Attributes:
      nodule, patient, category: name, group (the patient where one is named) and category of the nodule.
      seriesuid: the scan.
      label: in the scan's mask.
      coordX, coordY, coordZ: centroid of the nodule's voxels in world mm.
      diameter_mm: annotated diameter.
      box_mm: box around the voxels along the world's axes: centre and width along x, y, z.
      voxels: their number.
      spacing_mm: of the scan, along x, y, z.
      seed: of the insertion.
      turn: symmetry of the cube.
      pleura_mm: from the nodule's surface to the pleura.
      displaced_hu: median of the displaced tissue.
      shift_hu: change of the nodule's mean by blending.
      noise_hu: standard deviation of the added noise.
      scan_noise_hu: standard deviation of the scan's own noise.
    """

    nodule: str
    patient: str
    category: str
    seriesuid: str
    label: int
    coordX: float  # noqa: N815
    coordY: float  # noqa: N815
    coordZ: float  # noqa: N815
    diameter_mm: float
    box_mm: tuple[float, ...]
    voxels: int
    spacing_mm: tuple[float, ...]
    seed: int
    turn: str
    pleura_mm: float
    displaced_hu: float
    shift_hu: float
    noise_hu: float
    scan_noise_hu: float


class Written(NamedTuple):
    """A scan of the output folder: its header's path there, its old nodules' centres and radii (mm), and its new nodules."""

    path: Path
    old: list[tuple[Vector, float]]
    records: list[InsertionRecord]


def write_tables(folder: Path, table: Table, scans: Mapping[str, Written]) -> None:
    """Writes the annotations, the boxes and the record of the scans. All old lines on these are kept."""
    columns = dict.fromkeys((*table.columns, "category", "patient", "inserted"))
    lines: list[Mapping[str, object]] = []
    images: list[dict[str, object]] = []
    cells: list[Mapping[str, object]] = []
    for uid, (path, old, records) in scans.items():
        lines += [line for line in table.lines if line["seriesuid"] == uid]
        boxes = [[*centre.tolist(), *[2 * radius] * 3] for centre, radius in old]
        for record in records:
            known = record._asdict()
            texts = {name: " ".join(f"{mm:.4f}" for mm in known[name]) for name in ("box_mm", "spacing_mm")}
            cells.append(known | texts)
            lines.append(
                {name: known[name] for name in ("seriesuid", *COLUMNS, "category", "patient")} | {"inserted": record.nodule}
            )
            boxes.append(list(record.box_mm))
        images.append({"image": path.as_posix(), "box": boxes, "label": [0] * len(boxes)})
    write_text(folder / ANNOTATIONS, csv_text(lines, columns))
    write_text(folder / "insertions.csv", csv_text(cells, InsertionRecord._fields))
    (folder / "detection.json").write_text(json.dumps({"training": images}, indent=1) + "\n")
