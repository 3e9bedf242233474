"""Cuts the nodules of a folder of LIDC-IDRI into a folder of cubes, as the source `cubes` reads it."""

import csv
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import SimpleITK as sitk

from gmmae.data.extraction.annotations import Item, read_table
from gmmae.data.extraction.dicom import Slice, Stack, find_series, read_region, reading, stacks
from gmmae.data.extraction.luna16 import COLUMNS
from gmmae.data.extraction.progress import Say, progress
from gmmae.data.lidc.consensus import Consensus, category, consensus, match
from gmmae.data.lidc.masks import Drawn, draw
from gmmae.data.lidc.messages import SCORES, Message, read_message, same_readings, xml_files
from gmmae.data.settings import NODULES, DataConfig
from gmmae.data.volumes import DataError, Point
from gmmae.data.writing import write_image
from gmmae.system.files import csv_text, whole_folder

IMAGES, MASKS, LEFT_OUT = "images", "masks", "left_out.csv"
SCORE_COLUMNS = {name: re.sub(r"([A-Z])", r"_\1", name).lower() for name in SCORES}
HEADER = (
    *("file", "patient", "seriesuid", *COLUMNS, "category", "readers"),
    *SCORE_COLUMNS.values(),
    "annotated",
)
"""Columns of `nodules.csv`. `annotated` says whether centre and diameter are those of the CSV of annotations."""


class Options(NamedTuple):
    """Choices of the cut.

    Attributes:
      min_readers: fewest readers who outlined a nodule.
      agreement: share of its readers who must have a voxel of the mask inside; 0 means any reader.
      margin_mm: around the box of the nodule's mask.
      annotations: CSV shaped like LUNA16's `annotations.csv`; None: centres and diameters are those of the masks.
    """

    min_readers: int
    agreement: float
    margin_mm: float
    annotations: Path | None


class Tally:
    """Counts what was found, and keeps what was left out and why."""

    def __init__(self) -> None:
        self.found: Counter[str] = Counter()
        self.agreement: Counter[tuple[int, int]] = Counter()  # nodules by (readers who outlined them, all readers)
        self.written = 0  # nodules
        self.left_out: list[tuple[str, str, str]] = []  # what, where, why

    def leave_out(self, what: str, where: str, why: str) -> None:
        """Notes something that is left out. `what` is its kind, in the plural."""
        self.left_out.append((what, where, " ".join(why.split())))

    def lines(self, path: Path) -> list[str]:
        """Returns a table of what was found and left out, with the first example of each kind and its reason."""
        kinds: dict[str, list[tuple[str, str]]] = defaultdict(list)
        for what, where, why in self.left_out:
            kinds[what].append((where, why))
        rows = [(count, what, "") for what, count in self.found.items()]
        rows += [(count, f"nodules of {some} of {all_} readers", "") for (some, all_), count in sorted(self.agreement.items())]
        rows.append((self.written, "nodules written", ""))
        lines = ["found", *_aligned(rows)]
        if kinds:
            rows = [(len(items), what, "; first: " + ": ".join(filter(None, items[0]))) for what, items in kinds.items()]
            lines += ["left out", *_aligned(rows), f"{path} lists all"]
        return lines


class Nodule(NamedTuple):
    """A nodule of a series, before it is written."""

    agreed: Consensus
    stack: Stack


def cut_folder(root: Path, out: Path, options: Options, say: Say) -> Tally:
    """Writes the nodules of all CT series in a folder that have readings.

    The folder `out` is there whole or not at all. An earlier result is replaced.

    Args:
      root: folder with DICOM files and XML files, in any folders below it.
      out: folder to write: `images/`, `masks/`, `nodules.csv` and `left_out.csv`.
      options: choices of the cut.
      say: takes lines for the user.

    Returns:
      What was found, and what was left out.

    Raises:
      DataError: there is no such folder, no series, no readings, or no nodule that can be used.
      InputError: `out` cannot be written.
    """
    tally = Tally()
    if not root.is_dir():
        raise DataError(f"FOLDER must be the folder of LIDC-IDRI's DICOM and XML files; got {root}, which is no folder")
    rows = _annotations(options.annotations, tally)
    messages = _messages(root, tally)
    series = _series(root, messages, tally, say)
    counts: Counter[str] = Counter()
    written: list[dict[str, object]] = []
    with whole_folder(out, mark=LEFT_OUT) as place:
        for folder in (IMAGES, MASKS):
            (place / folder).mkdir()
        for uid in progress(series, len(series), "series", say):
            nodules = _nodules(uid, series[uid], messages[uid], options, tally)
            matched = _matched(uid, nodules, rows.pop(uid, []), tally)
            patient = series[uid][0].patient
            stem = _stem(patient or uid)
            for nodule, row in zip(nodules, matched, strict=True):
                name = f"{stem}_{counts[stem] + 1}.nii.gz"
                try:
                    _write(place, name, nodule, options.margin_mm)
                except DataError as error:
                    tally.leave_out("nodules that cannot be cut", f"{patient or uid}", str(error))
                    continue
                counts[stem] += 1
                written.append(_cells(name, patient, uid, nodule.agreed, row))
        for uid, left in rows.items():
            for row in left:
                tally.leave_out("annotations without a usable series", f"line {row.number}", uid)
        _require_nodules(written, tally)
        tally.written = len(written)
        (place / NODULES).write_text(csv_text(written, HEADER), encoding="utf-8")
        with (place / LEFT_OUT).open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerows([("what", "where", "why"), *tally.left_out])
    return tally


def _annotations(path: Path | None, tally: Tally) -> dict[str, list[Item]]:
    rows: dict[str, list[Item]] = defaultdict(list)
    if path is not None and not path.is_file():
        raise DataError(f"--annotations must be a CSV with the columns seriesuid, {', '.join(COLUMNS)}; {path} is no file")
    if path is not None:
        table = read_table(path, DataConfig(), "seriesuid", COLUMNS)
        tally.found["rows of annotations"] = len(table.rows) + len(table.faults)
        for fault in table.faults:
            tally.leave_out("rows of annotations with a fault", fault.place, fault.text)
        for row in table.rows:
            rows[row.file].append(row)
    return rows


def _messages(root: Path, tally: Tally) -> dict[str, Message]:
    messages: dict[str, Message] = {}
    unclear: set[str] = set()
    for path in xml_files(root):
        tally.found["XML files"] += 1
        where = path.relative_to(root).as_posix()
        try:
            with reading(path):
                message = read_message(path)
        except DataError as error:
            tally.leave_out("XML files with a fault", where, str(error))
            continue
        if isinstance(message, str):
            tally.leave_out("XML files without readings of CT", where, message)
        elif not same_readings(message, first := messages.setdefault(message.series, message)):
            unclear.add(message.series)
            tally.leave_out("XML files that contradict another", where, f"series {first.series} has other readings elsewhere")
        elif message is not first:
            tally.leave_out("XML files that repeat another", where, "")
    for uid in unclear:
        tally.leave_out("series with contradicting XML files", uid, "keep one of its XML files")
        del messages[uid]
    if not messages:
        raise DataError(
            f"FOLDER must have an XML file of readings (LidcReadMessage) of a CT series; {root} has "
            f"{tally.found['XML files']} XML files{_first_reason(tally)}"
        )
    tally.found["series with readings"] = len(messages)
    return messages


def _series(root: Path, messages: Mapping[str, Message], tally: Tally, say: Say) -> dict[str, list[Slice]]:
    """Returns the slices of each series that has readings."""
    contents = find_series(root, say)
    tally.found["CT series"] = len(contents.series)
    tally.found["CT slices"] = sum(map(len, contents.series.values()))
    for fault in contents.faults:
        tally.leave_out("DICOM files that cannot be read", fault.place, fault.text)
    for modality, count in sorted(contents.others.items()):
        tally.leave_out("kinds of DICOM files that are no CT", modality, f"{count} files")
    for uid in messages.keys() - contents.series.keys():
        tally.leave_out("readings without a series", uid, "no CT slice in the folder is of it")
    for uid in contents.series.keys() - messages.keys():
        where = contents.series[uid][0].path.parent.relative_to(root).as_posix()
        tally.leave_out("series without readings", where, uid)
    both = {uid: slices for uid, slices in contents.series.items() if uid in messages}
    if not both:
        raise DataError(
            f"FOLDER must have a CT series and its readings; {root} has {len(contents.series)} CT series and readings of "
            f"{len(messages)}, but no series has both{_first_reason(tally)}"
        )
    # The order of the output does not depend on where the files lie.
    return dict(sorted(both.items(), key=lambda item: (item[1][0].patient, item[0])))


def _nodules(uid: str, slices: Sequence[Slice], message: Message, options: Options, tally: Tally) -> list[Nodule]:
    """Returns the nodules of a series on which enough readers agree."""
    tally.found["marks of other findings"] += message.non_nodules
    tally.found["nodules below 3 mm, marked by a point"] += sum(item.small for item in message.nodules)
    tally.found["outlined nodules, of single readers"] += sum(not item.small for item in message.nodules)
    where = slices[0].patient or uid
    for fault in message.faults:
        tally.leave_out("readers' nodules with a fault", where, fault)
    try:
        parts, notes = stacks(slices)
    except DataError as error:
        tally.leave_out("series that make no volume", where, str(error))
        return []
    for note in notes:
        tally.leave_out("slices", where, note)
    drawn: list[Drawn] = []
    for item in message.nodules:
        if item.small:
            continue
        try:
            drawn.append(draw(item, parts))
        except DataError as error:
            tally.leave_out("readers' nodules with a fault", where, f"nodule {item.name} of reader {item.reader + 1}: {error}")
    nodules: list[Nodule] = []
    for group in match(drawn, parts):
        tally.agreement[len(group), message.readers] += 1
        if len(group) < options.min_readers:
            why = f"--min-readers is {options.min_readers}"
            tally.leave_out("nodules of too few readers", where, f"{len(group)} of {message.readers} readers; {why}")
            continue
        try:
            agreed = consensus(group, parts, options.agreement)
        except DataError as error:
            tally.leave_out("nodules without a consensus", where, str(error))
            continue
        nodules.append(Nodule(agreed, parts[agreed.stack]))
    return nodules


def _matched(uid: str, nodules: Sequence[Nodule], rows: Sequence[Item], tally: Tally) -> list[Item | None]:
    """Returns the annotation of each nodule. The nearest pairs are matched first, within the larger of both radii."""
    matched: list[Item | None] = [None] * len(nodules)
    left = list(rows)
    pairs = sorted(
        (float(np.linalg.norm(np.subtract(nodule.agreed.centre_mm, _point(row)))), i, row.number, row)
        for i, nodule in enumerate(nodules)
        for row in rows
    )
    for distance, i, _, row in pairs:
        reach = max(nodules[i].agreed.diameter_mm, row.diameter_mm or 0) / 2
        if distance <= reach and matched[i] is None and row in left:
            matched[i] = row
            left.remove(row)
    for row in left:
        tally.leave_out("annotations without a nodule", f"line {row.number}", uid)
    if rows:
        tally.found["annotations matched to a nodule"] += len(rows) - len(left)
    return matched


def _write(place: Path, name: str, nodule: Nodule, margin_mm: float) -> None:
    """Writes image and mask. The margin ends where the stack ends."""
    agreed, stack = nodule
    margin = np.ceil(margin_mm / np.array(stack.volume.frame.GetSpacing())[::-1]).astype(int)
    low = np.maximum(agreed.start - margin, 0)
    high = np.minimum(agreed.start + agreed.mask.shape + margin, stack.volume.size[::-1])
    image = read_region(stack, _index(low), _index(high - low))
    voxels = np.pad(agreed.mask, np.stack([agreed.start - low, high - agreed.start - agreed.mask.shape], 1))
    mask = sitk.GetImageFromArray(voxels.astype(np.uint8))
    mask.CopyInformation(image)
    write_image(image, place / IMAGES / name)
    write_image(mask, place / MASKS / name)


def _index(zyx: np.ndarray) -> tuple[int, int, int]:
    z, y, x = map(int, zyx)
    return x, y, z


def _cells(name: str, patient: str, uid: str, agreed: Consensus, row: Item | None) -> dict[str, object]:
    centre = agreed.centre_mm if row is None else _point(row)
    diameter = agreed.diameter_mm if row is None else row.diameter_mm
    scores = {column: f"{agreed.scores[score]:g}" for score, column in SCORE_COLUMNS.items() if score in agreed.scores}
    return {
        "file": name,
        "patient": patient,
        "seriesuid": uid,
        **dict(zip(COLUMNS, (f"{value:.10g}" for value in (*centre, diameter)), strict=True)),
        "category": category(agreed.scores.get("texture")),
        "readers": agreed.readers,
        **scores,
        "annotated": "no" if row is None else "yes",
    }


def _point(row: Item) -> Point:
    assert row.centre_mm is not None, "the columns are required"
    x, y, z = row.centre_mm
    return x, y, z


def _stem(patient: str) -> str:
    return re.sub(r"[^\w.-]", "_", patient, flags=re.ASCII)[:100]


def _require_nodules(written: Sequence[object], tally: Tally) -> None:
    if not written:
        why = _first_reason(tally) or ": the readings hold no outline of a nodule of 3 mm or more"
        raise DataError(f"FOLDER must have a nodule that can be cut; none can{why}")


def _first_reason(tally: Tally) -> str:
    return next((f": {what}, the first {': '.join(filter(None, rest))}" for what, *rest in tally.left_out), "")


def _aligned(rows: Sequence[tuple[int, str, str]]) -> Iterator[str]:
    width = max((len(str(count)) for count, _, _ in rows), default=0)
    return (f"  {count:>{width}}  {what}{rest}" for count, what, rest in rows)
