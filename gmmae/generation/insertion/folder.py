"""The folder that comes of an insertion: scans in LUNA16's shape, and what is known of their nodules in several formats.

Beside the scans (each where it was, under its own UID): `annotations.csv` with the old lines and the new ones, whose column
`inserted` names the nodule; `masks/UID.nii.gz`, 1 in the first nodule that was inserted, and so on; `detection.json`, the list
that MONAI's detection example reads (boxes `cccwhd` in world mm, LPS: there, `affine_lps_to_ras` is true); and
`insertions.csv`, the record.
"""

import csv
import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import SimpleITK as sitk
from jaxtyping import Real, UInt16

from gmmae.data.extraction.luna16 import ANNOTATIONS, COLUMNS
from gmmae.data.writing import write_image
from gmmae.generation.insertion.hosts import Host, Table, annotated

INSERTED = "inserted"
MASKS, DETECTION, RECORD, PICTURE = "masks", "detection.json", "insertions.csv", "insertions.png"
LEVEL = 2
"""zlib's, as ITK's own writer has it."""


class Row(NamedTuple):
    """One inserted nodule: a line of `insertions.csv`."""

    nodule: str
    category: str
    seriesuid: str
    label: int
    coordX: float
    coordY: float
    coordZ: float
    diameter_mm: float
    box_mm: tuple[float, ...]
    voxels: int
    spacing_mm: tuple[float, ...]
    blending: str
    seed: int
    turn: str
    pleura_mm: float
    displaced_hu: float
    shift_hu: float
    noise_hu: float
    scan_noise_hu: float


def write_scan(path: Path, header: Path, voxels: Real[np.ndarray, "z y x"]) -> None:
    """Write `.mhd` and `.zraw`; the header is the old one, line by line, but for what says how voxels are stored."""
    path.parent.mkdir(parents=True, exist_ok=True)
    stored = zlib.compress(np.ascontiguousarray(voxels, voxels.dtype.newbyteorder("<")).tobytes(), LEVEL)
    path.with_suffix(".zraw").write_bytes(stored)
    changed = {
        "CompressedData": "True",
        "CompressedDataSize": str(len(stored)),
        "BinaryDataByteOrderMSB": "False",
        "ElementByteOrderMSB": None,
        "HeaderSize": None,
    }
    lines: list[str] = []
    for line in header.read_text(encoding="latin-1").splitlines():
        key = line.partition("=")[0].strip()
        if key == "ElementDataFile":
            break  # it is the last one
        if key not in changed:
            lines.append(line)
    lines += [f"{key} = {value}" for key, value in changed.items() if value is not None]
    lines.append(f"ElementDataFile = {path.with_suffix('.zraw').name}")
    path.write_text("\n".join(lines) + "\n", encoding="latin-1")


def write_mask(path: Path, host: Host, labels: UInt16[np.ndarray, "z y x"]) -> None:
    """Write the labels with the scan's geometry."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image = sitk.GetImageFromArray(labels)
    image.SetOrigin(host.frame.GetOrigin())
    image.SetSpacing(host.frame.GetSpacing())
    image.SetDirection(host.frame.GetDirection())
    write_image(image, path)


def write_tables(folder: Path, table: Table, scans: dict[str, Path], rows: Sequence[Row]) -> None:
    """Write what is known of the nodules of `scans` (their headers' paths in the folder), the old ones and the new."""
    known = [column for column in ("category", INSERTED) if column not in table.columns]
    columns = (*table.columns, *known)
    lines: list[dict[str, Any]] = []
    images: list[dict[str, Any]] = []
    for uid, path in scans.items():
        lines += table.lines.get(uid, [])
        boxes = [[*centre.tolist(), *[diameter] * 3] for centre, diameter in annotated(table.rows.get(uid, []))]
        for row in rows:
            if row.seriesuid == uid:
                place = {column: getattr(row, column) for column in COLUMNS}
                lines.append({"seriesuid": uid, **place, "category": row.category, INSERTED: row.nodule, **table.patient(uid)})
                boxes.append(list(row.box_mm))
        images.append({"image": path.as_posix(), "box": boxes, "label": [0] * len(boxes)})
    with (folder / ANNOTATIONS).open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, restval="", extrasaction="ignore")
        writer.writeheader()
        writer.writerows(lines)
    with (folder / RECORD).open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(Row._fields)
        writer.writerows(
            [" ".join(f"{v:.4f}" for v in cell) if isinstance(cell, tuple) else cell for cell in row] for row in rows
        )
    (folder / DETECTION).write_text(json.dumps({"training": images}, indent=1) + "\n")
