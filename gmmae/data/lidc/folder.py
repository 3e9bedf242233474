"""Cuts the nodules of a folder of LIDC-IDRI into a folder for the source `cubes`."""

import math
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import SimpleITK as sitk

from gmmae.data.extraction.annotations import COLUMNS, COORDINATES, Table, read_table
from gmmae.data.extraction.dicom import LeftOut, Slice, find_series, read_region, reading, stacks
from gmmae.data.extraction.progress import Say, progress
from gmmae.data.lidc.consensus import Consensus, OutlinedNodule, category, consensus, draw, match
from gmmae.data.lidc.messages import SCORES, Message, read_message
from gmmae.data.settings import NODULES, DataConfig
from gmmae.data.volumes import DataError
from gmmae.data.writing import write_image
from gmmae.system.files import csv_text, whole_folder, write_text

LEFT_OUT = "left_out.csv"
SCORE_COLUMNS = {name: re.sub(r"([A-Z])", r"_\1", name).lower() for name in SCORES}
HEADER = ("file", "patient", "seriesuid", *COLUMNS, "category", "readers", *SCORE_COLUMNS.values(), "annotated")
"""`annotated`: whether centre and diameter are those of the CSV of annotations."""


def cut_folder(
    root: Path, out: Path, annotations: Path | None, min_readers: int, agreement: float, margin_mm: float, say: Say
) -> list[str]:
    """Writes the nodules of all CT series with readings; `out` is there whole or not at all, in place of an earlier result.

    Args:
      root: folder with DICOM and XML files at any depth.
      out: gets `images/`, `masks/`, `nodules.csv` and `left_out.csv`.
      annotations: CSV shaped like LUNA16's; None: centres and diameters are those of the masks.
      min_readers: fewest readers of a nodule.
      agreement: share of them who must have a voxel of the mask inside; 0 means any.
      margin_mm: around the box of the mask.
      say: takes lines on the progress; those on what was found and left out are returned.
    """
    found = Counter[str]()
    left_out: LeftOut = []
    table = Table([], [])
    if annotations is not None:
        if not annotations.is_file():
            raise DataError(f"--annotations must be a CSV with the columns seriesuid, {', '.join(COLUMNS)}; got {annotations}")
        table = read_table(annotations, DataConfig(), "seriesuid")
        left_out += [("rows of annotations with a fault", fault.place, fault.text) for fault in table.faults]
    both = _series(root, found, left_out, say)
    rows = list[dict[str, Any]]()
    with whole_folder(out, mark=LEFT_OUT) as place:
        (place / "images").mkdir()
        (place / "masks").mkdir()
        numbers = Counter[str]()
        for (patient, uid), (slices, message) in progress(sorted(both.items()), len(both), "series", say):
            where = patient or uid
            stem = re.sub(r"[^a-zA-Z0-9_.-]", "_", where)
            for group in _groups(where, slices, message, found, left_out):
                readers = f"{len(group)} of {message.readers} readers"
                found[f"nodules of {readers}"] += 1
                if len(group) < min_readers:
                    left_out.append(("nodules of too few readers", where, f"{readers}; --min-readers is {min_readers}"))
                    continue
                name = f"{stem}_{numbers[stem] + 1}.nii.gz"
                with _listing(left_out, "nodules that cannot be cut", where):
                    nodule = consensus(group, agreement)
                    _write(place, name, nodule, margin_mm)
                    numbers[stem] += 1
                    row = {"file": name, "patient": patient, "seriesuid": uid, "readers": len(group), "annotated": "no"}
                    row |= zip(COLUMNS, (*nodule.centre_mm, nodule.diameter_mm), strict=True)
                    row |= {SCORE_COLUMNS[score]: f"{value:g}" for score, value in nodule.scores.items()}
                    rows.append(row | {"category": category(nodule.scores.get("texture"))})
        _annotate(rows, table, left_out)
        if not rows:
            why = ": ".join(left_out[0]) if left_out else "there is no outline of a nodule of 3 mm or more"
            raise DataError(
                f"FOLDER must have a CT series and the readings (XML) of a nodule that can be cut; {root} has "
                f"{found['CT series']} CT series and {found['XML files']} XML files: {why}"
            )
        rows = [row | {column: f"{row[column]:.10g}" for column in COLUMNS} for row in rows]
        names = ["what", "where", "why"]
        listed = [dict(zip(names, item, strict=True)) for item in left_out]
        write_text(place / NODULES, csv_text(rows, HEADER))
        write_text(place / LEFT_OUT, csv_text(listed, names))
    found["nodules written"] = len(rows)
    found.update(f"left out: {what}" for what, _, _ in left_out)
    return [*(f"{count:6}  {what}" for what, count in found.items()), f"{out / LEFT_OUT} lists all that was left out"]


@contextmanager
def _listing(left_out: LeftOut, what: str, where: str) -> Iterator[None]:
    try:
        yield
    except DataError as error:
        left_out.append((what, where, str(error)))


def _series(root: Path, found: Counter[str], left_out: LeftOut, say: Say) -> dict[tuple[str, str], tuple[list[Slice], Message]]:
    """By patient and UID, so the order of paths does not matter."""

    def refuse(error: OSError) -> None:
        raise error

    with reading(root):
        walk = os.walk(root, onerror=refuse, followlinks=True)
        files = sorted(path for top, _, names in walk for path in map(Path(top).joinpath, names) if path.is_file())
    messages = defaultdict[str, list[Message]](list)
    for path in files:
        if path.suffix.lower() == ".xml":
            found["XML files"] += 1
            with _listing(left_out, "XML files without readings of CT", str(path)), reading(path):
                message = read_message(path)
                if message not in messages[message.series]:
                    messages[message.series].append(message)
    both = dict[tuple[str, str], tuple[list[Slice], Message]]()
    for uid, slices in find_series(files, left_out, say).items():
        found["CT series"] += 1
        readings = messages.pop(uid, [])
        if len(readings) == 1:
            both[slices[0].patient, uid] = slices, readings[0]
        else:
            why = f"{uid} must have one XML file, or copies of it; it has {len(readings)} that differ"
            left_out.append(("series without readings", str(slices[0].path.parent), why))
    left_out += [("readings without a series", uid, "no CT slice in the folder is of it") for uid in messages]
    return both


def _groups(
    where: str, slices: list[Slice], message: Message, found: Counter[str], left_out: LeftOut
) -> list[list[OutlinedNodule]]:
    left_out += [("readers' nodules with a fault", where, fault) for fault in message.faults]
    drawn = list[OutlinedNodule]()
    with _listing(left_out, "series that make no volume", where):
        parts, notes = stacks(slices)
        left_out += [("slices", where, note) for note in notes]
        for item in message.nodules:
            small = all(len(outline.points) == 1 for outline in item.outlines)
            found["marks of nodules below 3 mm" if small else "outlines of nodules"] += 1
            with _listing(left_out, "readers' nodules with a fault", f"{where} {item.name} of reader {item.reader + 1}"):
                if not small:
                    drawn.append(draw(item, parts))
    return match(drawn)


def _annotate(rows: list[dict[str, Any]], table: Table, left_out: LeftOut) -> None:
    """The nearest pairs are matched first, within the larger radius."""
    left = dict(enumerate(table.rows))
    pairs = [
        (math.dist([row[column] for column in COORDINATES], line.centre_mm or ()), i, k)
        for i, row in enumerate(rows)
        for k, line in left.items()
        if line.file == row["seriesuid"]
    ]
    for distance, i, k in sorted(pairs):
        row, line = rows[i], table.rows[k]
        near = distance <= max(row["diameter_mm"], line.diameter_mm or 0) / 2
        if near and k in left and row["annotated"] == "no":
            del left[k]
            row.update(zip(COLUMNS, (*(line.centre_mm or ()), line.diameter_mm), strict=True), annotated="yes")
    left_out += [("annotations without a nodule", f"line {line.number}", line.file) for line in left.values()]


def _write(place: Path, name: str, nodule: Consensus, margin_mm: float) -> None:
    stack = nodule.stack
    margin = np.ceil(margin_mm / np.array(stack.spacing_mm[::-1])).astype(int)
    low = np.maximum(nodule.voxels.min(0) - margin, 0)
    high = np.minimum(nodule.voxels.max(0) + 1 + margin, (len(stack.slices), *stack.slices[0].size[::-1]))
    image = read_region(stack, low, high)
    inside = np.zeros(high - low, np.uint8)
    inside[tuple((nodule.voxels - low).T)] = 1
    mask = sitk.GetImageFromArray(inside)
    mask.CopyInformation(image)
    write_image(image, place / "images" / name)
    write_image(mask, place / "masks" / name)
