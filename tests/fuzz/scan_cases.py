"""Damaged scans in LUNA16's shape, as sources and as hosts of nodules; and damaged folders of generated nodules."""

import zlib
from functools import partial
from pathlib import Path

import numpy as np
import SimpleITK as sitk

from tests.fuzz.cases import either, itself, left_out, reads, refused, table
from tests.fuzz.changes import (
    APPLE_DOUBLE,
    both,
    cell,
    content,
    copied,
    each,
    gone,
    image,
    instead,
    line,
    loop,
    moved,
    replaced,
    rows,
    stored,
    unchanged,
    volume,
    voxels,
    without_row,
)
from tests.fuzz.csv_cases import WRONG_CELLS, cells, centres, dialects
from tests.fuzz.volume_cases import TURNED, TYPES, WRONG_VOXELS, halved
from tests.volume_folders import ANNOTATIONS, CSV, NODULES, SCAN_GRID

UID = "1.2.840.2"
SCAN, RAW, ZRAW = (f"subset1/{UID}.{ending}" for ending in ("mhd", "raw", "zraw"))
HOST, HOST_RAW = "subset1/turned.mhd", "subset1/turned.raw"
GONE = rows(lambda rows: [row for row in rows if row[0] != UID])
LOST = left_out(GONE, UID)
PERHAPS = LOST._replace(reads=unchanged)
scans = partial(table, "luna16", "scan", "prepare, evaluate|sweep")
hosts = partial(table, "chest", "host", "insert into|generate into")

WRONG_VALUES = {
    "ElementDataFile": "nowhere.raw|../x.raw|/etc/passwd||LIST|%03d.raw 1 16 1|LOCAL|subset1|.",
    "DimSize": "26 26|26 26 -16|26 26 0|26 26 a|99999 99999 99999|26 26 17|26 26 8",
    "NDims": "2|4|0|x",
    "ElementSpacing": "0 0.9 1.5|nan 0.9 1.5|inf 0.9 1.5|-0.8 0.9 1.5|0.8|0,8 0,9 1,5|mm|1e-30 0.9 1.5|1_0 1 1|7e-4 7e-4 1e-3",
    "Offset": "nan 0 0|10,0 -20,0 30,0|1e30 0 0|left top 0",
    "Position": "-21 12 -150",
    "TransformMatrix": "0 0 0 0 0 0 0 0 0|1 0 0 0 1 0 0.5 0 1|nan 0 0 0 1 0 0 0 1|2 0 0 0 2 0 0 0 2|1 0 0 1",
    "ElementType": "MET_FLOAT|MET_DOUBLE|MET_OTHER|MET_STRING|MET_UCHAR_ARRAY",
    "ElementNumberOfChannels": "3",
    "ElementToIntensityFunctionOffset": "-1024",
    "ElementToIntensityFunctionSlope": "2",
    "CompressedData": "True",
    "BinaryData": "False",
    "DistanceUnits": "cm",
}
"""Values of the header's keys that no scan can have."""
ODD_LINES = {"Modality": "MET_MOD_CT", "Comment": "Thorax, Lunge, später", "Position": "10 -20 30"}


def broken(scan, raw):
    """Changes after which a scan holds no voxels."""
    return {
        "0 bytes": content(scan, ""),
        "text": content(scan, "not a scan\n" * 9),
        "no .raw": gone(raw),
        "a .raw cut": stored(raw, lambda data: data[:-9]),
        **{f"no {key}": line(scan, key, None) for key in ("ElementDataFile", "ElementSpacing")},
        **{
            f"{key} {value or 'empty'}": line(scan, key, value)
            for key, values in WRONG_VALUES.items()
            for value in values.split("|")
        },
        **each(voxels, scan, WRONG_VOXELS),
        "colours": volume(scan, lambda image: sitk.Compose([image] * 3)),
    }


def _scan(field, grid=SCAN_GRID, compressed=False):
    return both(gone(RAW), image(SCAN, field, grid, compressed))


def _later(size):
    return both(stored(RAW, lambda data: bytes(64) + data), line(SCAN, "HeaderSize", size))


OTHER_GRID = SCAN_GRID.around(SCAN_GRID.middle, direction=TURNED)
COMPRESSED = _scan(NODULES[1].field(SCAN_GRID), compressed=True)
DAMAGED_ZRAW = {
    "cut": halved,
    "of text": lambda _: b"404" * 99,
    "of too few voxels": lambda data: zlib.compress(zlib.decompress(data)[:-99]),
    "of too many voxels": lambda data: zlib.compress(zlib.decompress(data) + bytes(99)),
    "with other bytes": lambda data: data[:-9] + bytes(5) + data[-4:],
}
CASES = [
    *scans(
        LOST,
        broken(SCAN, RAW)
        | {
            f"a .zraw {what}": both(COMPRESSED, stored(ZRAW, function), line(SCAN, "CompressedDataSize", None))
            for what, function in DAMAGED_ZRAW.items()
        }
        | {
            "a .zraw shorter than said": both(COMPRESSED, stored(ZRAW, halved)),
            "no Offset": line(SCAN, "Offset", None),
            "missing": moved(SCAN, "x.txt"),
            "a folder": instead(SCAN, Path.mkdir),
            "a link to itself": instead(SCAN, loop),
        },
    ),
    *scans(
        reads(),
        {f"{key} {value}": line(SCAN, key, value) for key, value in ODD_LINES.items()}
        | {
            "CRLF": stored(SCAN, lambda data: data.replace(b"\n", b"\r\n")),
            "ElementSize for ElementSpacing": stored(SCAN, lambda data: data.replace(b"ElementSpacing", b"ElementSize")),
            "a .zraw": COMPRESSED,
            "a .zraw, and no size of it": both(COMPRESSED, line(SCAN, "CompressedDataSize", None)),
            "float32": voxels(SCAN, TYPES["the type float32"]),
            "the other byte order": both(
                stored(RAW, lambda data: np.frombuffer(data, "<i2").astype(">i2").tobytes()),
                line(SCAN, "BinaryDataByteOrderMSB", "True"),
            ),
            "a head before the voxels": _later("64"),
            "a head of unknown size": _later("-1"),
            "in the folder itself": both(moved(SCAN, f"{UID}.mhd"), moved(RAW, f"{UID}.raw")),
            "._ files of macOS": content(f"subset1/._{UID}.mhd", APPLE_DOUBLE),
            "a scan that no row names": copied(SCAN, "subset1/x.mhd"),
        },
    ),
    *scans(reads(near=True), {"turned by 180 degrees": _scan(NODULES[1].field(OTHER_GRID), OTHER_GRID)}),
    *scans(
        PERHAPS,
        {
            "a byte-order mark": stored(SCAN, lambda data: b"\xef\xbb\xbf" + data),
            "DimSize 26 26 16 1": line(SCAN, "DimSize", "26 26 16 1"),
            "a .raw too long": stored(RAW, lambda data: data + bytes(100)),
            "the ending .MHD": moved(SCAN, f"subset1/{UID}.MHD"),
            "a folder deeper": both(*(moved(name, f"subset1/{UID}/{Path(name).name}") for name in (SCAN, RAW))),
        },
    ),
    *scans(left_out(unchanged, UID), {"twice": both(*(copied(name, f"subset0/{Path(name).name}") for name in (SCAN, RAW)))}),
]

annotated = partial(table, "luna16", "annotations", "prepare, evaluate|sweep")
CASES += [
    *dialects(annotated, ANNOTATIONS),
    *centres(annotated, ANNOTATIONS),
    *annotated(
        either(ANNOTATIONS, "seriesuid"), {"SeriesInstanceUID for seriesuid": replaced("seriesuid", "SeriesInstanceUID")}
    ),
    *annotated(either(f"{ANNOTATIONS} line 7"), {"a row twice": rows(lambda rows: [*rows, rows[3]])}),
    *annotated(
        left_out(GONE, "line 4"),
        {
            **cells(WRONG_CELLS),
            "diameter_mm empty": cell("diameter_mm", ""),
            "coordinates of the other convention": both(cell("coordX", "-20"), cell("coordY", "8.75")),
            "an empty UID": cell("seriesuid", ""),
            "a UID that leads out": cell("seriesuid", "../a"),
        },
    ),
    *annotated(left_out(GONE, "9.9.9"), {"a scan that is not there": cell("seriesuid", "9.9.9")}),
    *annotated(
        PERHAPS, {"a UID with .mhd": cell("seriesuid", f"{UID}.mhd"), "a UID with a path": cell("seriesuid", f"subset1/{UID}")}
    ),
    *annotated(
        refused(ANNOTATIONS),
        {"UIDs as numbers of a spreadsheet": cell("seriesuid", "1.28E+00", None), "missing": gone(ANNOTATIONS)},
    ),
]

NEW = "generated-0-00002.nii.gz"
NEW_IMAGE, NEW_MASK = f"images/{NEW}", f"masks/{NEW}"
ALL, BOTH = "judge, insert|augment", "insert, augment"
"""A judgement takes seconds, because it draws a page: it is called where its own reading matters."""
generated = partial(table, "generated", "generated")
NEW_LOST = left_out(without_row(), NEW)
CASES += [
    *generated(ALL, refused(CSV), {"no CSV": gone(CSV), "a CSV without rows": rows(lambda rows: rows[:1])}),
    *generated(ALL, either(CSV, "category"), {"Category for category": replaced("category", "Category")}),
    *generated("judge", reads(cell("diameter_mm", "")), {"a diameter of NaN": cell("diameter_mm", "nan")}),
    *generated(BOTH, NEW_LOST, {"a diameter of NaN": cell("diameter_mm", "nan")}),
    *generated(BOTH, either("line 32"), {"a row twice": rows(lambda rows: [*rows, rows[3]])}),
    *generated(
        ALL,
        NEW_LOST,
        {"a volume missing": gone(NEW_IMAGE), "NaN in the middle": voxels(NEW_IMAGE, WRONG_VOXELS["NaN in the middle"])},
    ),
    *generated(BOTH, NEW_LOST, {"a volume cut": stored(NEW_IMAGE, halved), "a mask cut": stored(NEW_MASK, halved)}),
    *generated("insert", refused("generated-0-00002"), {"a mask missing": gone(NEW_MASK)}),
    *generated("insert", refused("masks"), {"no masks": gone("masks")}),
    *generated(BOTH, reads(), {"._ files of macOS": copied(CSV, f"images/._{NEW}")}),
]

HOST_LOST = left_out(gone("subset1"), "turned.mhd")
CASES += [
    *hosts(HOST_LOST, broken(HOST, HOST_RAW)),
    *hosts(HOST_LOST._replace(reads=itself), {"air alone": voxels(HOST, lambda v: v * 0 - 1000)}),
    *hosts(
        reads(),
        {"._ files of macOS": content("subset1/._turned.mhd", APPLE_DOUBLE), "other files": content("subset0/Thumbs.db", "x")},
    ),
    *dialects(hosts, ANNOTATIONS),
    *centres(hosts, ANNOTATIONS),
    *hosts(reads(gone(ANNOTATIONS)), {"annotations missing": gone(ANNOTATIONS)}),
    *hosts(  # the row stays in the table
        left_out(itself, "line 2"), {"coordX x": cell("coordX", "x", 1), "diameter_mm nan": cell("diameter_mm", "nan", 1)}
    ),
    *hosts(refused(ANNOTATIONS), {"a folder for the annotations": instead(ANNOTATIONS, Path.mkdir)}),
]
