"""Changes of folders: of files, of the CSV, of volumes, and of the headers of scans."""

import csv
import io
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import SimpleITK as sitk

from tests.fuzz.cases import Change
from tests.fuzz.folders import GRID, Grid, read_rows, table_path, write_image, write_rows

Rows = list[list[str]]
APPLE_DOUBLE = b"\0\5\x16\7Mac OS X"
"""The beginning of the files that macOS puts beside others."""


def both(*changes: Change) -> Change:
    """Makes several changes, one after the other."""

    def change(folder: Path) -> None:
        for each in changes:
            each(folder)

    return change


def content(name: str, data: bytes | str) -> Change:
    """Writes a file, and the folders that it lies in."""

    def change(folder: Path) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data.encode() if isinstance(data, str) else data)

    return change


def stored(name: str, function: Callable[[bytes], bytes]) -> Change:
    """Changes the bytes of a file."""
    return lambda folder: (folder / name).write_bytes(function((folder / name).read_bytes()))


def gone(name: str = ".") -> Change:
    """Removes a file or a folder."""

    def change(folder: Path) -> None:
        path = folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    return change


def instead(name: str, make: Callable[[Path], object]) -> Change:
    """Puts something else in the place of a file or a folder."""
    return both(gone(name), lambda folder: make(folder / name))


def moved(source: str, target: str) -> Change:
    """Moves a file to another name."""

    def change(folder: Path) -> None:
        (folder / target).parent.mkdir(exist_ok=True)
        (folder / source).rename(folder / target)

    return change


def linked(name: str, target: str) -> Change:
    """Moves a file or folder, and puts a link to the new place."""
    return lambda folder: (folder / name).symlink_to((folder / name).rename(folder / target))


def apple_double(folder: Path) -> None:
    """Puts a file of macOS beside each file of a scan."""
    for path in sorted(folder.glob("subset*/*")):
        (path.parent / f"._{path.name}").write_bytes(APPLE_DOUBLE)


def rows_changed(function: Callable[[Rows], Rows]) -> Change:
    """Changes the cells of the CSV; the header is row 0."""
    return lambda folder: write_rows(table_path(folder), function(read_rows(folder)))


def row_changed(function: Callable[[list[str]], list[str]], row: int = 3) -> Change:
    """Changes a row of the CSV."""
    return rows_changed(lambda rows: [*rows[:row], function(rows[row]), *rows[row + 1 :]])


def row_added(function: Callable[[list[str]], list[str]]) -> Change:
    """Appends a row to the CSV, which is made of the row of the nodule n2."""
    return rows_changed(lambda rows: [*rows, function(rows[3])])


def cell(column: str, text: str, row: int = 3) -> Change:
    """Sets a cell of the CSV."""
    return rows_changed(
        lambda rows: [
            [text if (i, name) == (row, column) else old for name, old in zip(rows[0], cells, strict=True)]
            for i, cells in enumerate(rows)
        ]
    )


def column(name: str, text: str) -> Change:
    """Sets all cells of a column to one text."""
    return rows_changed(
        lambda rows: [
            rows[0],
            *([text if head == name else old for head, old in zip(rows[0], row, strict=True)] for row in rows[1:]),
        ]
    )


@cache
def without_row(row: int = 3) -> Change:
    """Removes a row of the CSV; one object for each row, so that its right result is computed once."""
    return rows_changed(lambda rows: rows[:row] + rows[row + 1 :])


def without_columns(*names: str) -> Change:
    """Removes columns of the CSV."""
    return rows_changed(
        lambda rows: [[cell for name, cell in zip(rows[0], row, strict=True) if name not in names] for row in rows]
    )


def headed(old: str, new: str) -> Change:
    """Gives a column another name."""
    return row_changed(lambda names: [new if name == old else name for name in names], 0)


def text_changed(function: Callable[[str], str | bytes]) -> Change:
    """Changes the text of the CSV."""

    def change(folder: Path) -> None:
        path = table_path(folder)
        changed = function(path.read_text(encoding="utf-8"))
        path.write_bytes(changed if isinstance(changed, bytes) else changed.encode())

    return change


def written(delimiter: str = ",", quote_all: bool = False, end: str = "\n", comma: bool = False) -> Change:
    """Writes the CSV in another dialect; `comma` makes decimal points commas."""

    def change(folder: Path) -> None:
        rows, file = read_rows(folder), io.StringIO(newline="")
        if comma:
            rows = [[cell.replace(".", ",") if _is_number(cell) else cell for cell in row] for row in rows]
        quoting = csv.QUOTE_ALL if quote_all else csv.QUOTE_MINIMAL
        csv.writer(file, delimiter=delimiter, quoting=quoting, lineterminator=end).writerows(rows)
        table_path(folder).write_bytes(file.getvalue().encode())

    return change


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def image(name: str, array: np.ndarray, grid: Grid = GRID, compressed: bool = False) -> Change:
    """Writes an array as a volume."""
    return lambda folder: write_image(folder / name, array, grid, compressed)


def voxels(name: str, function: Callable[[np.ndarray], np.ndarray]) -> Change:
    """Changes the voxels of a volume, which gets the geometry of `GRID`."""

    def change(folder: Path) -> None:
        write_image(folder / name, function(sitk.GetArrayFromImage(sitk.ReadImage(str(folder / name)))))

    return change


def with_image(name: str, function: Callable[[sitk.Image], sitk.Image]) -> Change:
    """Writes a volume again after a function of SimpleITK."""
    return lambda folder: sitk.WriteImage(function(sitk.ReadImage(str(folder / name))), str(folder / name))


def header(name: str, function: Callable[[str], str]) -> Change:
    """Changes the text of a MetaImage header."""
    return stored(name, lambda data: function(data.decode("latin-1")).encode("latin-1"))


def line(name: str, key: str, value: str | None) -> Change:
    """Sets the value of a key of a MetaImage header; None removes the line."""

    def function(text: str) -> str:
        lines = [other for other in text.splitlines() if other.partition("=")[0].strip() != key]
        if value is not None:
            lines.insert(len(lines) - (key != "ElementDataFile"), f"{key} = {value}")
        return "\n".join(lines) + "\n"

    return header(name, function)
