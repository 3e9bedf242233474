"""Damaged folders of generated nodules, and damaged scans into which nodules are put."""

import csv
from collections.abc import Iterator
from pathlib import Path
from shutil import copy, rmtree

import numpy as np

from tests.fuzz import nifti
from tests.fuzz.cases import Both, Case, Change, Expect, Reading, left_out, on, reads, reads_or_refused, refused, unchanged
from tests.fuzz.csv_cases import Cell, Without, WithoutColumns, headed, rows_changed, text_changed, written
from tests.fuzz.folders import CHEST_GRID, CSV, write_image
from tests.fuzz.scan_cases import line
from tests.fuzz.volume_cases import content, instead, stored, voxels

NAME = "generated-0-00002.nii.gz"
IMAGE, MASK = f"images/{NAME}", f"masks/{NAME}"
ALL, BOTH = "judge, insert, augment", "insert, augment"
"""A judgement takes seconds, because it draws a page: it is called where its own reading matters."""
GONE = Without()
LOST = left_out(GONE, NAME)


def _generated() -> Iterator[tuple[str, Change, str, Expect]]:
    yield "no CSV, as an interrupted call leaves it", lambda folder: (folder / CSV).unlink(), ALL, refused(CSV)
    yield "a CSV without rows", rows_changed(lambda rows: rows[:1]), ALL, refused(CSV)
    yield "byte-order mark", text_changed(lambda text: text.encode("utf-8-sig")), BOTH, reads()
    yield "semicolons", written(";"), BOTH, reads_or_refused(CSV)
    yield "semicolons and decimal commas", written(";", comma=True), ALL, reads_or_refused(CSV)
    yield "all cells in quotes, CRLF", written(quoting=csv.QUOTE_ALL, end="\r\n"), "insert", reads()
    yield "no column diameter_mm", WithoutColumns(("diameter_mm",)), "insert, augment", refused("diameter_mm")
    yield "Category for category", headed("category", "Category"), ALL, reads_or_refused(CSV, "category")
    yield "a diameter of NaN", Cell("diameter_mm", "nan"), ALL, left_out(GONE, "line 4")
    yield "a row twice", rows_changed(lambda rows: [*rows, rows[3]]), BOTH, reads_or_refused("line 32")
    yield "a volume missing", instead(lambda _: None, IMAGE), ALL, LOST
    yield "a volume of 0 bytes", content(b"", IMAGE), BOTH, LOST
    yield "a volume cut", stored(lambda data: data[: len(data) // 2], IMAGE), BOTH, LOST
    nan = voxels(lambda v: np.where(v > -400, np.nan, v).astype(np.float32), name=IMAGE)
    yield "a volume with NaN", Both(nan, _with_geometry_of_mask), ALL, LOST
    shares = voxels(lambda v: ((v + 1000) / 1400).clip(0, 1).astype(np.float32), name=IMAGE)
    yield "a volume of 0 to 1", Both(shares, _with_geometry_of_mask), ALL, LOST
    yield "a mask cut", stored(lambda data: data[: len(data) // 2], MASK), BOTH, LOST
    without = instead(lambda _: None, MASK)
    yield "a mask missing", without, "insert", refused("generated-0-00002")
    yield "no masks", lambda folder: rmtree(folder / "masks"), "insert", refused("masks")
    yield "._ files of macOS", lambda folder: copy(folder / CSV, folder / "images" / f"._{NAME}"), BOTH, reads()


def _with_geometry_of_mask(folder: Path) -> None:
    """SimpleITK would write the header, and 0 for NaN."""
    header, rest = nifti.contents(folder / IMAGE)
    mask, _ = nifti.contents(folder / MASK)
    for name in nifti.GEOMETRY:
        header[name] = mask[name]
    nifti.write(folder / IMAGE, header, rest)


SCAN, RAW = "subset1/b.mhd", "subset1/b.raw"
HOSTS = "insert into, generate into"


class _Only:
    """Leaves one scan in the folder."""

    def __call__(self, folder: Path) -> None:
        """Removes the second scan."""
        rmtree(folder / "subset1")


def _hosts() -> Iterator[tuple[str, Change, str, Expect]]:
    lost = left_out(_Only(), "b.mhd")
    yield "the .raw missing", lambda folder: (folder / RAW).unlink(), HOSTS, lost
    yield "the .raw cut", lambda folder: (folder / RAW).write_bytes((folder / RAW).read_bytes()[:-9]), HOSTS, lost
    yield "a header of 0 bytes", lambda folder: (folder / SCAN).write_bytes(b""), HOSTS, lost
    yield "4 axes", line("NDims", "4", SCAN), HOSTS, lost
    yield "a spacing of 0", line("ElementSpacing", "0 1 2", SCAN), HOSTS, lost
    yield "no spacing", line("ElementSpacing", None, SCAN), HOSTS, lost
    yield "a sheared matrix", line("TransformMatrix", "1 0 0 0 1 0 0.5 0 1", SCAN), HOSTS, lost
    for name, array in {
        "NaN": np.full(CHEST_GRID.shape, np.nan, np.float32),
        "some NaN": np.where(np.indices(CHEST_GRID.shape)[0] > 20, np.nan, -850).astype(np.float32),
        "0 to 1": np.random.default_rng(0).uniform(0, 1, CHEST_GRID.shape).astype(np.float32),
        "a billion": np.full(CHEST_GRID.shape, 10**9, np.int32),
    }.items():
        yield f"voxels: {name}", _written(array), HOSTS, lost
    air = _written(np.full(CHEST_GRID.shape, -1000, np.int16))
    yield "voxels: air alone", air, HOSTS, Expect((Reading(air), *lost.readings), True, ("b.mhd",))

    def appledouble(folder: Path) -> None:
        for path in sorted(folder.glob("subset*/*")):
            (path.parent / f"._{path.name}").write_bytes(b"\0\5\x16\7Mac OS X")

    yield "._ files of macOS", appledouble, HOSTS, reads()
    yield "other files", lambda folder: (folder / "subset0" / "Thumbs.db").write_bytes(b"x"), HOSTS, reads()
    csv_name = "annotations.csv"
    yield "annotations missing", lambda folder: (folder / csv_name).unlink(), "insert into", reads(_unlisted)
    yield "annotations: byte-order mark", text_changed(lambda text: text.encode("utf-8-sig")), HOSTS, reads()
    yield "annotations: CRLF", written(end="\r\n"), "insert into", reads()
    yield "annotations: semicolons", written(";"), HOSTS, reads_or_refused(csv_name)
    yield "annotations: no column coordX", WithoutColumns(("coordX",)), HOSTS, refused(csv_name, "coordX")
    yield "annotations: coordx", headed("coordX", "coordx"), HOSTS, reads_or_refused(csv_name, "coordX")
    yield "annotations: UTF-16", text_changed(lambda text: text.encode("utf-16")), HOSTS, reads_or_refused(csv_name)
    yield "annotations: 0 bytes", text_changed(lambda _: ""), HOSTS, refused(csv_name)
    for column, text in {"coordX": "x", "diameter_mm": "nan"}.items():
        bad = Cell(column, text, 1)  # the row stays in the written table, and must be named
        yield f"annotations: {column} {text}", bad, HOSTS, Expect((Reading(bad, ("line 2",)),), True, ("line 2",))
    turned = rows_changed(lambda rows: [row[::-1] for row in rows])
    yield "annotations: columns in another order", turned, HOSTS, reads()
    yield "annotations: a folder", _annotations_as_folder, HOSTS, refused(csv_name)


def _unlisted(folder: Path) -> None:
    (folder / "annotations.csv").unlink()


def _annotations_as_folder(folder: Path) -> None:
    (folder / "annotations.csv").unlink()
    (folder / "annotations.csv").mkdir()


def _written(array: np.ndarray) -> Change:
    return lambda folder: write_image(folder / SCAN, array, CHEST_GRID)


def cases() -> Iterator[Case]:
    """All cases of generated nodules, and of scans that receive nodules."""
    for name, change, commands, expect in _generated():
        yield Case(f"generated: {name}", "generated", change, on(commands, expect))
    for number, (name, change, commands, expect) in enumerate(_hosts()):
        several = commands.split(", ")
        yield Case(f"host: {name}", "chest", change, on(several[number % len(several)], expect))
    yield from _real()


def _real() -> Iterator[Case]:
    def cut(folder: Path) -> None:
        (folder / "all.npz").write_bytes((folder / "all.npz").read_bytes()[:900])

    for name, change, expect in (("an .npz cut", cut, refused("all.npz")), ("as it is", unchanged, reads())):
        yield Case(f"real: {name}", "real", change, on("judge real", expect), root=lambda folder: str(folder / "all.npz"))
