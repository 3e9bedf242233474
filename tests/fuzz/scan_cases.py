"""Damaged and odd scans in LUNA16's shape: their headers, their voxels and their annotations."""

import shutil
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import SimpleITK as sitk

from tests.fuzz.cases import (
    Both,
    Case,
    Change,
    Expect,
    left_out,
    on,
    reads,
    reads_or_leaves_out,
    reads_or_refused,
    refused,
    unchanged,
)
from tests.fuzz.csv_cases import Cell, Column, WithoutColumns, headed, rows_changed, text_changed, written
from tests.fuzz.folders import NODULES, SCAN_GRID, Grid, hu, write_image

UID = "1.2.840.2"
SCAN = f"subset1/{UID}.mhd"
RAW = f"subset1/{UID}.raw"
LINE = "annotations.csv line 4"


@dataclass(frozen=True)
class WithoutScan:
    """Removes the rows of the scan."""

    uid: str = UID

    def __call__(self, folder: Path) -> None:
        """Writes the CSV without these rows."""
        rows_changed(lambda rows: [row for row in rows if row[0] != self.uid])(folder)


GONE = WithoutScan()
LOST = left_out(GONE, UID)
PERHAPS = reads_or_leaves_out(GONE, UID)


def header(function: Callable[[str], str], name: str = SCAN) -> Change:
    """A change of the header's text."""

    def change(folder: Path) -> None:
        path = folder / name
        path.write_text(function(path.read_text(encoding="latin-1")), encoding="latin-1", newline="")

    return change


def line(key: str, value: str | None, name: str = SCAN) -> Change:
    """Another value of a key of the header; None removes the line."""

    def function(text: str) -> str:
        lines = [other for other in text.splitlines() if other.partition("=")[0].strip() != key]
        if value is not None:
            lines.insert(len(lines) - (key != "ElementDataFile"), f"{key} = {value}")
        return "\n".join(lines) + "\n"

    return header(function, name)


def _headers() -> Iterator[tuple[str, Change, Expect]]:
    yield "0 bytes", header(lambda _: ""), LOST
    yield "text", header(lambda _: "not a scan\n" * 9), LOST
    yield "CRLF", header(lambda text: text.replace("\n", "\r\n")), reads()
    yield "other keys", line("Modality", "MET_MOD_CT"), reads()
    yield "a comment in Latin-1", line("Comment", "Thorax, Lunge, später"), reads()
    yield "a byte-order mark", header(lambda text: "\xef\xbb\xbf" + text), PERHAPS
    for value in ("nowhere.raw", "../x.raw", "/etc/passwd", "", "LIST", "%03d.raw 1 16 1", "LOCAL", "subset1", "."):
        yield f"ElementDataFile {value or 'empty'}", line("ElementDataFile", value), LOST
    yield "no ElementDataFile", line("ElementDataFile", None), LOST
    for value in ("26 26", "26 26 -16", "26 26 0", "26 26 a", "99999 99999 99999", "26 26 17"):
        yield f"DimSize {value}", line("DimSize", value), LOST
    yield "DimSize 26 26 16 1", line("DimSize", "26 26 16 1"), PERHAPS
    yield "DimSize 26 26 8", line("DimSize", "26 26 8"), LOST
    for value in ("2", "4", "0", "x"):
        yield f"NDims {value}", line("NDims", value), LOST
    for value in ("0 0.9 1.5", "nan 0.9 1.5", "inf 0.9 1.5", "-0.8 0.9 1.5", "0.8", "0,8 0,9 1,5", "mm", "1e-30 0.9 1.5"):
        yield f"ElementSpacing {value}", line("ElementSpacing", value), LOST
    yield "no ElementSpacing", line("ElementSpacing", None), LOST
    for value in ("nan 0 0", "10,0 -20,0 30,0", "1e30 0 0"):
        yield f"Offset {value}", line("Offset", value), LOST
    yield "no Offset", line("Offset", None), LOST
    for value in ("0 0 0 0 0 0 0 0 0", "1 0 0 0 1 0 0.5 0 1", "nan 0 0 0 1 0 0 0 1", "2 0 0 0 2 0 0 0 2"):
        yield f"TransformMatrix {value}", line("TransformMatrix", value), LOST
    for value in ("MET_FLOAT", "MET_DOUBLE", "MET_OTHER", "MET_STRING", "MET_UCHAR_ARRAY"):
        yield f"ElementType {value}", line("ElementType", value), LOST
    yield "three values a voxel", line("ElementNumberOfChannels", "3"), LOST
    yield "compressed, it says", line("CompressedData", "True"), LOST


def _moved(source: str, target: str) -> Change:
    def change(folder: Path) -> None:
        (folder / target).parent.mkdir(exist_ok=True)
        (folder / source).rename(folder / target)

    return change


def _raw(function: Callable[[bytes], bytes], name: str = RAW) -> Change:
    return lambda folder: (folder / name).write_bytes(function((folder / name).read_bytes()))


def _written(array: np.ndarray, grid: Grid = SCAN_GRID, compressed: bool = False) -> Change:
    def change(folder: Path) -> None:
        (folder / RAW).unlink()
        write_image(folder / SCAN, array, grid, compressed)

    return change


def _voxels() -> Iterator[tuple[str, Change, Expect]]:
    field = NODULES[1].field(SCAN_GRID)
    yield "no .raw", lambda folder: (folder / RAW).unlink(), LOST
    yield "an empty .raw", _raw(lambda _: b""), LOST
    yield "a .raw cut", _raw(lambda data: data[:-100]), LOST
    yield "a .raw too long", _raw(lambda data: data + bytes(100)), PERHAPS
    compressed = _written(hu(field), compressed=True)
    yield "a .zraw", compressed, reads()
    zraw = f"subset1/{UID}.zraw"
    yield "a .zraw cut", Both(compressed, _raw(lambda data: data[: len(data) // 2], zraw)), LOST
    yield "a .zraw of text", Both(compressed, _raw(lambda _: b"404" * 99, zraw)), LOST
    yield (
        "a .zraw of too few voxels",
        Both(compressed, _raw(lambda data: zlib.compress(zlib.decompress(data)[:-99]), zraw)),
        LOST,
    )
    yield "a .zraw, and no size of it", Both(compressed, line("CompressedDataSize", None)), reads()
    yield "float32", _written(hu(field).astype(np.float32)), reads()
    yield (
        "the other byte order",
        Both(_raw(lambda data: np.frombuffer(data, "<i2").astype(">i2").tobytes()), line("BinaryDataByteOrderMSB", "True")),
        reads(),
    )
    yield "a head before the voxels", Both(_raw(lambda data: bytes(64) + data), line("HeaderSize", "64")), reads()
    yield "a head of unknown size", Both(_raw(lambda data: bytes(64) + data), line("HeaderSize", "-1")), reads()
    yield "NaN", _written(np.where(np.abs(field) < 1e9, np.nan, 0).astype(np.float32)), LOST
    yield "0 to 1", _written(((field + 1000) / 1400).clip(0, 1).astype(np.float32)), LOST
    yield "a billion", _written(np.full(field.shape, 10**9, np.int32)), LOST
    turned = SCAN_GRID.around(SCAN_GRID.middle, direction=(-1.0, 0.0, 0.0, 0.0, -1.0, 0.0, 0.0, 0.0, 1.0))
    yield "turned by 180 degrees", _written(hu(NODULES[1].field(turned)), turned), reads(near=True)
    yield (
        "colours",
        lambda folder: sitk.WriteImage(sitk.Compose([sitk.ReadImage(str(folder / SCAN))] * 3), str(folder / SCAN)),
        LOST,
    )


def _places() -> Iterator[tuple[str, Change, Expect]]:
    def twice(folder: Path) -> None:
        for ending in ("mhd", "raw"):
            shutil.copy(folder / f"subset1/{UID}.{ending}", folder / f"subset0/{UID}.{ending}")

    yield "twice", twice, left_out(unchanged, UID)
    yield "in the folder itself", Both(_moved(SCAN, f"{UID}.mhd"), _moved(RAW, f"{UID}.raw")), reads()
    yield "the ending .MHD", _moved(SCAN, f"subset1/{UID}.MHD"), PERHAPS
    yield "a folder deeper", Both(_moved(SCAN, f"subset1/{UID}/{UID}.mhd"), _moved(RAW, f"subset1/{UID}/{UID}.raw")), PERHAPS
    yield "missing", _moved(SCAN, "x.txt"), LOST
    yield "a folder", Both(_moved(SCAN, "x.txt"), lambda folder: (folder / SCAN).mkdir()), LOST
    yield "a link to itself", Both(_moved(SCAN, "x.txt"), lambda folder: (folder / SCAN).symlink_to(folder / SCAN)), LOST

    def appledouble(folder: Path) -> None:
        for path in sorted(folder.glob("subset*/*")):
            (path.parent / f"._{path.name}").write_bytes(b"\0\5\x16\7Mac OS X")

    yield "._ files of macOS", appledouble, reads()
    yield "a scan that no row names", lambda folder: shutil.copy(folder / SCAN, folder / "subset1/x.mhd"), reads()


def _rows() -> Iterator[tuple[str, Change, Expect]]:
    name = "annotations.csv"
    yield "byte-order mark", text_changed(lambda text: text.encode("utf-8-sig")), reads()
    yield "CRLF", written(end="\r\n"), reads()
    for kind, delimiter in {"semicolons": ";", "tabs": "\t"}.items():
        yield kind, written(delimiter), reads_or_refused(name)
    yield "UTF-16", text_changed(lambda text: text.encode("utf-16")), reads_or_refused(name)
    yield "decimal commas in quotes", written(comma=True), reads_or_refused(f"{name} line 2")
    yield "semicolons and decimal commas", written(";", comma=True), reads_or_refused(name)
    yield "SeriesInstanceUID for seriesuid", headed("seriesuid", "SeriesInstanceUID"), reads_or_refused(name, "seriesuid")
    yield "coordx for coordX", headed("coordX", "coordx"), reads_or_refused(name, "coordX")
    yield "no column diameter_mm", WithoutColumns(("diameter_mm",)), refused(name, "diameter_mm")
    yield "a row twice", rows_changed(lambda rows: [*rows, rows[3]]), reads_or_refused(f"{name} line 7")
    for text in ("nan", "0", "-3", "1e30", "six", ""):
        yield f"diameter {text or 'empty'}", Cell("diameter_mm", text), left_out(GONE, "line 4")
    for text in ("500", "nan", "1,5", ""):
        yield f"coordX {text or 'empty'}", Cell("coordX", text), left_out(GONE, "line 4")
    mirrored = Both(Cell("coordX", "-20"), Cell("coordY", "8.75"))
    yield "coordinates of the other convention", mirrored, left_out(GONE, "line 4")
    yield "a scan that is not there", Cell("seriesuid", "9.9.9"), left_out(GONE, "9.9.9")
    yield "a UID with .mhd", Cell("seriesuid", f"{UID}.mhd"), PERHAPS
    yield "a UID with a path", Cell("seriesuid", f"subset1/{UID}"), PERHAPS
    yield "an empty UID", Cell("seriesuid", ""), left_out(GONE, "line 4")
    yield "UIDs as numbers of a spreadsheet", Column("seriesuid", "1.28E+00"), refused(name)
    yield "an empty file", text_changed(lambda _: ""), refused(name)
    yield "missing", lambda folder: (folder / name).unlink(), refused(name)


def cases() -> Iterator[Case]:
    """All cases of scans that are read for their nodules."""
    parts: dict[str, Sequence[tuple[str, Change, Expect]]] = {
        "header": tuple(_headers()),
        "voxels": tuple(_voxels()),
        "place": tuple(_places()),
        "annotations": tuple(_rows()),
    }
    for part, several in parts.items():
        for number, (name, change, expect) in enumerate(several):
            more = {"sweep": expect} if number % 5 == 0 else {"evaluate": expect} if number % 5 in (1, 3) else {}
            yield Case(f"scan, {part}: {name}", "luna16", change, on("prepare", expect) | more)
