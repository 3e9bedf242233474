"""Changes of folders: of files, of the CSV, of volumes, and of the headers of scans. Each is a function of the folder."""

import gzip
import re
import shutil
import struct
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import SimpleITK as sitk

from tests.volume_folders import GRID, read_rows, table_path, write_image, write_rows

Change = Callable[[Path], object]
APPLE_DOUBLE = b"\0\5\x16\7Mac OS X"
"""The beginning of the files that macOS puts beside others."""


def unchanged(folder):
    """Leaves a folder as it is."""


def both(*changes):
    """Makes several changes, one after the other."""
    return lambda folder: [change(folder) for change in changes]


def each(change, name, values):
    """Returns a change of a file for each of some values, by their names."""
    return {what: change(name, value) for what, value in values.items()}


def content(name, data):
    """Writes bytes or text to a file, and makes the folders that it lies in."""

    def change(folder):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data.encode() if isinstance(data, str) else data)

    return change


def stored(name, function):
    """Changes the bytes of a file."""
    return lambda folder: content(name, function((folder / name).read_bytes()))(folder)


@cache
def gone(name="."):
    """Removes a file or a folder."""

    def change(folder):
        path = folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    return change


def instead(name, make):
    """Puts something else in the place of a file or a folder."""
    return both(gone(name), lambda folder: make(folder / name))


def moved(source, target):
    """Moves a file to another name."""

    def change(folder):
        (folder / target).parent.mkdir(exist_ok=True)
        (folder / source).rename(folder / target)

    return change


def copied(source, target):
    """Copies a file."""
    return lambda folder: shutil.copy(folder / source, folder / target)


def linked(name, target):
    """Moves a file or folder, and puts a link to the new place."""
    return lambda folder: (folder / name).symlink_to((folder / name).rename(folder / target))


def loop(path):
    """Makes a link to itself."""
    path.symlink_to(path)


def text(function):
    """Changes the text of the CSV."""
    return lambda folder: stored(table_path(folder).name, lambda data: function(data.decode()))(folder)


def replaced(old, new, count=-1):
    """Replaces a text in the CSV, everywhere or as often as counted. The header comes first."""
    return text(lambda whole: whole.replace(old, new, count))


def decimal_commas(delimiter, quote=""):
    """Writes the CSV's numbers with decimal commas, and other delimiters between its cells."""
    numbers = re.compile(r"(?<=,)(-?\d+)\.(\d+)")
    return text(lambda whole: numbers.sub(rf"{quote}\1#\2{quote}", whole).replace(",", delimiter).replace("#", ","))


def rows(function):
    """Changes the cells of the CSV; the header is row 0."""

    def change(folder):
        header, *others = function(read_rows(table_path(folder)))
        write_rows(table_path(folder), others, header)

    return change


def row(function, number=3):
    """Changes a row of the CSV, by default that of the nodule n2."""
    return rows(lambda cells: [*cells[:number], function(cells[number]), *cells[number + 1 :]])


def cell(column, value, number: int | None = 3):
    """Sets a cell of the CSV, or with None those of all rows. A column that it lacks is added."""

    def function(cells):
        if column not in cells[0]:
            cells = [[*line, "" if i else column] for i, line in enumerate(cells)]
        place = cells[0].index(column)
        for i in range(1, len(cells)) if number is None else [number]:
            cells[i][place] = value
        return cells

    return rows(function)


@cache
def without_row(number=3):
    """Removes a row of the CSV; one object for each row, so that its right result is computed once."""
    return rows(lambda cells: cells[:number] + cells[number + 1 :])


def without_columns(*names):
    """Removes columns of the CSV."""
    return rows(
        lambda cells: [[text for name, text in zip(cells[0], line, strict=True) if name not in names] for line in cells]
    )


def image(name, array, grid=GRID, compressed=False):
    """Writes an array as a volume."""
    return lambda folder: write_image(folder / name, array, grid, compressed)


def volume(name, function):
    """Writes a volume again after a function of SimpleITK."""
    return lambda folder: sitk.WriteImage(function(sitk.ReadImage(str(folder / name))), str(folder / name))


def voxels(name, function):
    """Changes the voxels of a volume, which keeps its geometry."""

    def changed(old):
        new = sitk.GetImageFromArray(function(sitk.GetArrayFromImage(old)))
        new.CopyInformation(old)
        return new

    return volume(name, changed)


def line(name, key, value):
    """Sets the value of a key of a MetaImage header; None removes the line."""

    def function(data):
        lines = [other for other in data.decode("latin-1").splitlines() if other.partition("=")[0].strip() != key]
        if value is not None:
            lines.insert(len(lines) - (key != "ElementDataFile"), f"{key} = {value}")
        return "".join(f"{line}\n" for line in lines).encode("latin-1")

    return stored(name, function)


def nifti(name, function):
    """Changes the bytes of a NIfTI file before its compression: a header of 352 bytes, and the voxels."""

    def changed(data):
        plain = bytearray(gzip.decompress(data))
        function(plain)
        return gzip.compress(plain)

    return stored(name, changed)


def fields(name, text):
    """Sets fields of a NIfTI header. `80 f 1.6; 254 h 0` are the first bytes, layouts as `struct` has them, and values."""

    def function(plain):
        for part in text.split(";"):
            at, form, *words = part.split()
            struct.pack_into(f"<{form}", plain, int(at), *map(float if form[-1] == "f" else int, words))

    return nifti(name, function)


def other_byte_order(plain, voxel="i2"):
    """Turns the bytes of all numbers of a NIfTI file."""
    header = ((0, 1, "i4"), (40, 8, "i2"), (70, 2, "i2"), (76, 8, "f4"), (108, 3, "f4"), (252, 2, "i2"), (256, 18, "f4"))
    for at, count, kind in (*header, (352, -1, voxel)):
        np.frombuffer(plain, kind, count, at).byteswap(inplace=True)


def extended(plain):
    """Puts an extension between header and voxels of a NIfTI file."""
    struct.pack_into("<f", plain, 108, 384)
    plain[348:352] = struct.pack("<4B2i", 1, 0, 0, 0, 32, 6) + b"a comment".ljust(24)


def version_2(plain):
    """Makes the beginning of a NIfTI-2 file, by which it is known."""
    struct.pack_into("<i4s", plain, 0, 540, b"n+2")
