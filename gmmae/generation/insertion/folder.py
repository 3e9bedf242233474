"""The output folder of an insertion: scans in LUNA16's format, and their nodules in several formats.

Scans keep their relative paths and UIDs. The folder also contains:

- `annotations.csv`: old and new lines. The column `inserted` names a new line's nodule, and `patient` its own patient.
- `masks/UID.nii.gz`: a label for each inserted nodule, beginning with 1.
- `detection.json`: the list for MONAI's detection example. Boxes are `cccwhd` in world mm, LPS (`affine_lps_to_ras` is true).
- `insertions.csv`: the record of all insertions.
"""

import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import SimpleITK as sitk
from jaxtyping import Real, UInt16

from gmmae.data.extraction.luna16 import ANNOTATIONS, COLUMNS
from gmmae.data.writing import write_image
from gmmae.generation.insertion.hosts import Annotations, Host, annotated
from gmmae.system.files import csv_text, write_text

INSERTED = "inserted"
MASKS, DETECTION, RECORD, PICTURE = "masks", "detection.json", "insertions.csv", "insertions.png"
COMPRESSION_LEVEL = 2
"""Level of zlib, equal to that of ITK's writer."""


class InsertionRecord(NamedTuple):
    """A line of `insertions.csv`: one inserted nodule.

    Attributes:
      nodule, patient, category: name, group and category of the nodule. The group is its patient where one is named.
      seriesuid: the scan.
      label: the nodule's label in the scan's mask.
      coordX, coordY, coordZ: centroid of the nodule's voxels in world mm, by the names of LUNA16's columns.
      diameter_mm: annotated diameter.
      box_mm: box around the voxels along the world's axes: centre and width along x, y, z.
      voxels: number of the voxels.
      spacing_mm: the scan's spacing along x, y, z.
      seed: seed of the insertion.
      turn: symmetry of the cube.
      pleura_mm: distance from the nodule's surface to the pleura.
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


def write_scan(path: Path, header: Path, voxels: Real[np.ndarray, "z y x"]) -> None:
    """Writes `.mhd` and `.zraw`. The header keeps its old lines, except those about the storage of voxels."""
    path.parent.mkdir(parents=True, exist_ok=True)
    stored = zlib.compress(np.ascontiguousarray(voxels, voxels.dtype.newbyteorder("<")).tobytes(), COMPRESSION_LEVEL)
    path.with_suffix(".zraw").write_bytes(stored)
    storage = {
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
        if key not in storage:
            lines.append(line)
    lines += [f"{key} = {value}" for key, value in storage.items() if value is not None]
    lines.append(f"ElementDataFile = {path.with_suffix('.zraw').name}")
    path.write_text("\n".join(lines) + "\n", encoding="latin-1")


def write_mask(path: Path, host: Host, labels: UInt16[np.ndarray, "z y x"]) -> None:
    """Writes the labels with the scan's geometry."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image = sitk.GetImageFromArray(labels)
    image.SetOrigin(host.frame.GetOrigin())
    image.SetSpacing(host.frame.GetSpacing())
    image.SetDirection(host.frame.GetDirection())
    write_image(image, path)


def _cell(value: object) -> object:
    """Returns a value as a cell of a CSV: several numbers are one text."""
    return " ".join(f"{number:.4f}" for number in value) if isinstance(value, tuple) else value


def write_tables(folder: Path, table: Annotations, scans: dict[str, Path], records: Sequence[InsertionRecord]) -> None:
    """Writes the annotations, the boxes and the record of the scans, given by their headers' paths in the folder."""
    columns = (*table.columns, *(column for column in ("category", "patient", INSERTED) if column not in table.columns))
    lines: list[Mapping[str, object]] = []
    images: list[dict[str, object]] = []
    for uid, path in scans.items():
        lines += table.lines.get(uid, [])
        boxes = [[*centre.tolist(), *[diameter] * 3] for centre, diameter in annotated(table.rows[uid])]
        for record in records:
            if record.seriesuid == uid:
                position = {column: getattr(record, column) for column in COLUMNS}
                names = {"category": record.category, "patient": record.patient, INSERTED: record.nodule}
                lines.append({"seriesuid": uid, **position, **names})
                boxes.append(list(record.box_mm))
        images.append({"image": path.as_posix(), "box": boxes, "label": [0] * len(boxes)})
    write_text(folder / ANNOTATIONS, csv_text(lines, columns))
    cells = [{name: _cell(value) for name, value in record._asdict().items()} for record in records]
    write_text(folder / RECORD, csv_text(cells, InsertionRecord._fields))
    (folder / DETECTION).write_text(json.dumps({"training": images}, indent=1) + "\n")
