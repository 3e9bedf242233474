"""Damaged scans in LUNA16's shape, as sources and as hosts of nodules; and damaged folders of generated nodules."""

import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import SimpleITK as sitk

from tests.fuzz import nifti
from tests.fuzz.cases import (
    Case,
    Change,
    Expect,
    Reading,
    Row,
    left_out,
    on,
    reads,
    reads_or_leaves_out,
    reads_or_refused,
    refused,
    unchanged,
)
from tests.fuzz.changes import (
    apple_double,
    both,
    cell,
    column,
    content,
    gone,
    headed,
    header,
    image,
    instead,
    line,
    moved,
    row_added,
    rows_changed,
    stored,
    text_changed,
    voxels,
    with_image,
    without_columns,
    without_row,
    written,
)
from tests.fuzz.folders import CHEST_GRID, CSV, NODULES, SCAN_GRID, Grid, hu

UID = "1.2.840.2"
SCAN, RAW, ZRAW = (f"subset1/{UID}.{ending}" for ending in ("mhd", "raw", "zraw"))
ANNOTATIONS = "annotations.csv"
GONE = rows_changed(lambda rows: [row for row in rows if row[0] != UID])
LOST = left_out(GONE, UID)
PERHAPS = reads_or_leaves_out(GONE, UID)

WRONG_VALUES = {
    "ElementDataFile": "nowhere.raw|../x.raw|/etc/passwd||LIST|%03d.raw 1 16 1|LOCAL|subset1|.",
    "DimSize": "26 26|26 26 -16|26 26 0|26 26 a|99999 99999 99999|26 26 17|26 26 8",
    "NDims": "2|4|0|x",
    "ElementSpacing": "0 0.9 1.5|nan 0.9 1.5|inf 0.9 1.5|-0.8 0.9 1.5|0.8|0,8 0,9 1,5|mm|1e-30 0.9 1.5",
    "Offset": "nan 0 0|10,0 -20,0 30,0|1e30 0 0",
    "TransformMatrix": "0 0 0 0 0 0 0 0 0|1 0 0 0 1 0 0.5 0 1|nan 0 0 0 1 0 0 0 1|2 0 0 0 2 0 0 0 2",
    "ElementType": "MET_FLOAT|MET_DOUBLE|MET_OTHER|MET_STRING|MET_UCHAR_ARRAY",
}
"""Values of the header's keys that no scan can have."""


def _headers() -> Iterator[Row]:
    yield "0 bytes", content(SCAN, ""), LOST
    yield "text", content(SCAN, "not a scan\n" * 9), LOST
    yield "CRLF", header(SCAN, lambda text: text.replace("\n", "\r\n")), reads()
    yield "other keys", line(SCAN, "Modality", "MET_MOD_CT"), reads()
    yield "a comment in Latin-1", line(SCAN, "Comment", "Thorax, Lunge, später"), reads()
    yield "a byte-order mark", header(SCAN, lambda text: "\xef\xbb\xbf" + text), PERHAPS
    for key, values in WRONG_VALUES.items():
        for value in values.split("|"):
            yield f"{key} {value or 'empty'}", line(SCAN, key, value), LOST
    for key in ("ElementDataFile", "ElementSpacing", "Offset"):
        yield f"no {key}", line(SCAN, key, None), LOST
    yield "DimSize 26 26 16 1", line(SCAN, "DimSize", "26 26 16 1"), PERHAPS
    yield "three values a voxel", line(SCAN, "ElementNumberOfChannels", "3"), LOST
    yield "compressed, it says", line(SCAN, "CompressedData", "True"), LOST


def _scan(array: np.ndarray, grid: Grid = SCAN_GRID, compressed: bool = False) -> Change:
    return both(gone(RAW), image(SCAN, array, grid, compressed))


def _voxels() -> Iterator[Row]:
    field = NODULES[1].field(SCAN_GRID)
    yield "no .raw", gone(RAW), LOST
    yield "an empty .raw", content(RAW, ""), LOST
    yield "a .raw cut", stored(RAW, lambda data: data[:-100]), LOST
    yield "a .raw too long", stored(RAW, lambda data: data + bytes(100)), PERHAPS
    compressed = _scan(hu(field), compressed=True)
    yield "a .zraw", compressed, reads()
    yield "a .zraw, and no size of it", both(compressed, line(SCAN, "CompressedDataSize", None)), reads()
    for name, function in {
        "a .zraw cut": lambda data: data[: len(data) // 2],
        "a .zraw of text": lambda _: b"404" * 99,
        "a .zraw of too few voxels": lambda data: zlib.compress(zlib.decompress(data)[:-99]),
    }.items():
        yield name, both(compressed, stored(ZRAW, function)), LOST
    yield "float32", _scan(hu(field).astype(np.float32)), reads()
    swapped = stored(RAW, lambda data: np.frombuffer(data, "<i2").astype(">i2").tobytes())
    yield "the other byte order", both(swapped, line(SCAN, "BinaryDataByteOrderMSB", "True")), reads()
    later = stored(RAW, lambda data: bytes(64) + data)
    yield "a head before the voxels", both(later, line(SCAN, "HeaderSize", "64")), reads()
    yield "a head of unknown size", both(later, line(SCAN, "HeaderSize", "-1")), reads()
    yield "NaN", _scan(np.where(np.abs(field) < 1e9, np.nan, 0).astype(np.float32)), LOST
    yield "0 to 1", _scan(((field + 1000) / 1400).clip(0, 1).astype(np.float32)), LOST
    yield "a billion", _scan(np.full(field.shape, 10**9, np.int32)), LOST
    turned = SCAN_GRID.around(SCAN_GRID.middle, direction=(-1.0, 0.0, 0.0, 0.0, -1.0, 0.0, 0.0, 0.0, 1.0))
    yield "turned by 180 degrees", _scan(hu(NODULES[1].field(turned)), turned), reads(near=True)
    yield "colours", with_image(SCAN, lambda image: sitk.Compose([image] * 3)), LOST


def _copied(source: str, target: str) -> Change:
    return lambda folder: shutil.copy(folder / source, folder / target)


def _places() -> Iterator[Row]:
    twice = both(*(_copied(name, f"subset0/{Path(name).name}") for name in (SCAN, RAW)))
    yield "twice", twice, left_out(unchanged, UID)
    yield "in the folder itself", both(moved(SCAN, f"{UID}.mhd"), moved(RAW, f"{UID}.raw")), reads()
    yield "the ending .MHD", moved(SCAN, f"subset1/{UID}.MHD"), PERHAPS
    yield "a folder deeper", both(*(moved(name, f"subset1/{UID}/{Path(name).name}") for name in (SCAN, RAW))), PERHAPS
    yield "missing", moved(SCAN, "x.txt"), LOST
    yield "a folder", instead(SCAN, Path.mkdir), LOST
    yield "a link to itself", instead(SCAN, lambda path: path.symlink_to(path)), LOST
    yield "._ files of macOS", apple_double, reads()
    yield "a scan that no row names", _copied(SCAN, "subset1/x.mhd"), reads()


def _rows() -> Iterator[Row]:
    either, lost = reads_or_refused(ANNOTATIONS), left_out(GONE, "line 4")
    yield "byte-order mark", text_changed(lambda text: text.encode("utf-8-sig")), reads()
    yield "CRLF", written(end="\r\n"), reads()
    yield "semicolons", written(";"), either
    yield "tabs", written("\t"), either
    yield "UTF-16", text_changed(lambda text: text.encode("utf-16")), either
    yield "decimal commas in quotes", written(comma=True), reads_or_refused(f"{ANNOTATIONS} line 2")
    yield "semicolons and decimal commas", written(";", comma=True), either
    for old, new in {"seriesuid": "SeriesInstanceUID", "coordX": "coordx"}.items():
        yield f"{new} for {old}", headed(old, new), reads_or_refused(ANNOTATIONS, old)
    yield "no column diameter_mm", without_columns("diameter_mm"), refused(ANNOTATIONS, "diameter_mm")
    yield "a row twice", row_added(list), reads_or_refused(f"{ANNOTATIONS} line 7")
    for name, values in {"diameter_mm": "nan|0|-3|1e30|six|", "coordX": "500|nan|1,5|"}.items():
        for text in values.split("|"):
            yield f"{name} {text or 'empty'}", cell(name, text), lost
    yield "coordinates of the other convention", both(cell("coordX", "-20"), cell("coordY", "8.75")), lost
    yield "a scan that is not there", cell("seriesuid", "9.9.9"), left_out(GONE, "9.9.9")
    yield "a UID with .mhd", cell("seriesuid", f"{UID}.mhd"), PERHAPS
    yield "a UID with a path", cell("seriesuid", f"subset1/{UID}"), PERHAPS
    yield "an empty UID", cell("seriesuid", ""), lost
    yield "UIDs as numbers of a spreadsheet", column("seriesuid", "1.28E+00"), refused(ANNOTATIONS)
    yield "an empty file", content(ANNOTATIONS, ""), refused(ANNOTATIONS)
    yield "missing", gone(ANNOTATIONS), refused(ANNOTATIONS)


NEW = "generated-0-00002.nii.gz"
NEW_IMAGE, NEW_MASK = f"images/{NEW}", f"masks/{NEW}"
ALL, BOTH = "judge, insert, augment", "insert, augment"
"""A judgement takes seconds, because it draws a page: it is called where its own reading matters."""


def _generated() -> Iterator[tuple[str, Change, str, Expect]]:
    lost = left_out(without_row(), NEW)
    yield "no CSV, as an interrupted call leaves it", gone(CSV), ALL, refused(CSV)
    yield "a CSV without rows", rows_changed(lambda rows: rows[:1]), ALL, refused(CSV)
    yield "byte-order mark", text_changed(lambda text: text.encode("utf-8-sig")), BOTH, reads()
    yield "semicolons", written(";"), BOTH, reads_or_refused(CSV)
    yield "semicolons and decimal commas", written(";", comma=True), ALL, reads_or_refused(CSV)
    yield "all cells in quotes, CRLF", written(quote_all=True, end="\r\n"), "insert", reads()
    yield "no column diameter_mm", without_columns("diameter_mm"), BOTH, refused("diameter_mm")
    yield "Category for category", headed("category", "Category"), ALL, reads_or_refused(CSV, "category")
    yield "a diameter of NaN", cell("diameter_mm", "nan"), ALL, left_out(without_row(), "line 4")
    yield "a row twice", row_added(list), BOTH, reads_or_refused("line 32")
    yield "a volume missing", gone(NEW_IMAGE), ALL, lost
    yield "a volume of 0 bytes", content(NEW_IMAGE, ""), BOTH, lost
    for name, path in {"a volume cut": NEW_IMAGE, "a mask cut": NEW_MASK}.items():
        yield name, stored(path, lambda data: data[: len(data) // 2]), BOTH, lost
    for name, function in {
        "a volume with NaN": lambda v: np.where(v > -400, np.nan, v).astype(np.float32),
        "a volume of 0 to 1": lambda v: ((v + 1000) / 1400).clip(0, 1).astype(np.float32),
    }.items():
        yield name, both(voxels(NEW_IMAGE, function), _with_geometry_of_mask), ALL, lost
    yield "a mask missing", gone(NEW_MASK), "insert", refused("generated-0-00002")
    yield "no masks", gone("masks"), "insert", refused("masks")
    yield "._ files of macOS", _copied(CSV, f"images/._{NEW}"), BOTH, reads()


def _with_geometry_of_mask(folder: Path) -> None:
    """Copies the mask's geometry. SimpleITK would write the header, and 0 for NaN."""
    mask, _ = nifti.contents(folder / NEW_MASK)
    nifti.changed(NEW_IMAGE, lambda header: nifti.set_fields(header, {name: mask[name] for name in nifti.GEOMETRY}))(folder)


HOST, HOST_RAW = "subset1/b.mhd", "subset1/b.raw"
HOSTS = "insert into, generate into"


def _hosts() -> Iterator[tuple[str, Change, str, Expect]]:
    lost = left_out(gone("subset1"), "b.mhd")
    air = image(HOST, np.full(CHEST_GRID.shape, -1000, np.int16), CHEST_GRID)
    for name, change in {
        "the .raw missing": gone(HOST_RAW),
        "the .raw cut": stored(HOST_RAW, lambda data: data[:-9]),
        "a header of 0 bytes": content(HOST, ""),
        "4 axes": line(HOST, "NDims", "4"),
        "a spacing of 0": line(HOST, "ElementSpacing", "0 1 2"),
        "no spacing": line(HOST, "ElementSpacing", None),
        "a sheared matrix": line(HOST, "TransformMatrix", "1 0 0 0 1 0 0.5 0 1"),
    }.items():
        yield name, change, HOSTS, lost
    for name, array in {
        "NaN": np.full(CHEST_GRID.shape, np.nan, np.float32),
        "some NaN": np.where(np.indices(CHEST_GRID.shape)[0] > 20, np.nan, -850).astype(np.float32),
        "0 to 1": np.random.default_rng(0).uniform(0, 1, CHEST_GRID.shape).astype(np.float32),
        "a billion": np.full(CHEST_GRID.shape, 10**9, np.int32),
    }.items():
        yield f"voxels: {name}", image(HOST, array, CHEST_GRID), HOSTS, lost
    yield "voxels: air alone", air, HOSTS, Expect((Reading(air), *lost.readings), True, ("b.mhd",))
    yield "._ files of macOS", apple_double, HOSTS, reads()
    yield "other files", content("subset0/Thumbs.db", "x"), HOSTS, reads()
    either, wrong = reads_or_refused(ANNOTATIONS), refused(ANNOTATIONS)
    yield "annotations missing", gone(ANNOTATIONS), "insert into", reads(gone(ANNOTATIONS))
    yield "annotations: byte-order mark", text_changed(lambda text: text.encode("utf-8-sig")), HOSTS, reads()
    yield "annotations: CRLF", written(end="\r\n"), "insert into", reads()
    yield "annotations: semicolons", written(";"), HOSTS, either
    yield "annotations: no column coordX", without_columns("coordX"), HOSTS, refused(ANNOTATIONS, "coordX")
    yield "annotations: coordx", headed("coordX", "coordx"), HOSTS, reads_or_refused(ANNOTATIONS, "coordX")
    yield "annotations: UTF-16", text_changed(lambda text: text.encode("utf-16")), HOSTS, either
    yield "annotations: 0 bytes", content(ANNOTATIONS, ""), HOSTS, wrong
    for name, text in {"coordX": "x", "diameter_mm": "nan"}.items():
        bad = cell(name, text, 1)  # the row stays in the written table, and must be named
        yield f"annotations: {name} {text}", bad, HOSTS, Expect((Reading(bad, ("line 2",)),), True, ("line 2",))
    turned = rows_changed(lambda rows: [row[::-1] for row in rows])
    yield "annotations: columns in another order", turned, HOSTS, reads()
    yield "annotations: a folder", instead(ANNOTATIONS, Path.mkdir), HOSTS, wrong


def cases() -> Iterator[Case]:
    """All cases of scans and of generated nodules."""
    parts = {"header": _headers(), "voxels": _voxels(), "place": _places(), "annotations": _rows()}
    for part, rows in parts.items():
        for number, (name, change, expect) in enumerate(rows):
            more = {"sweep": expect} if number % 5 == 0 else {"evaluate": expect} if number % 5 in (1, 3) else {}
            yield Case(f"scan, {part}: {name}", "luna16", change, on("prepare", expect) | more)
    for name, change, commands, expect in _generated():
        yield Case(f"generated: {name}", "generated", change, on(commands, expect))
    for number, (name, change, commands, expect) in enumerate(_hosts()):
        several = commands.split(", ")
        yield Case(f"host: {name}", "chest", change, on(several[number % len(several)], expect))
