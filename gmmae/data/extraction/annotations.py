"""The CSV of the nodules: its usable rows, and a fault for each other row."""

import csv
import math
import os
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from gmmae.data.extraction.headers import as_number, require_diameter, require_spacing
from gmmae.data.settings import DataConfig
from gmmae.data.volumes import DataError

PATIENT_COLUMNS = ("patient", "PatientID", "subject", "case", "group")
"""Columns that name the patient; the first one that a row fills does."""
SCAN_COLUMNS = ("scan", "seriesuid")
"""Columns that name only the scan."""
COORDINATES = ("coordX", "coordY", "coordZ")
SPACINGS = ("spacingX", "spacingY", "spacingZ")
MAX_NAME_BYTES = 255
"""Largest length of a file name in bytes."""


class Fault(NamedTuple):
    """A part of the data that cannot be used.

    Attributes:
      kind: "row" (of the CSV), "duplicate" (a dropped row, equal to another), "missing" (no such scan). Also "unreadable"
        (the scan), "nodule" (one nodule of a sound scan) or "ambiguous" (two scans of one name).
      place: the file, and the row if it is a CSV.
      text: the reason.
      lost: nodules that are missing because of it.
    """

    kind: Literal["row", "duplicate", "missing", "unreadable", "nodule", "ambiguous"]
    place: str
    text: str
    lost: int

    def line(self) -> str:
        """Returns the fault in one line."""
        return " ".join(f"{self.place}: {self.text}".split())


SKIP = "set data.on_error = skip to leave such nodules out"


def refuse(faults: Sequence[Fault], way_out: str = SKIP) -> None:
    """Raises DataError with the first fault, if there is one. `way_out` is the user's alternative to a fix."""
    if len(faults) > 0:
        more = f", the first of {len(faults)} faults" if len(faults) > 1 else ""
        raise DataError(f"{faults[0].line()}{more}: fix it, or {way_out}")


class Row(NamedTuple):
    """One nodule of a CSV.

    Attributes:
      number: the line in the file; the header is line 1.
      file: the scan: a seriesuid, or the name of a file.
      centre_mm: world x, y, z, or as many of them as are given; None for the middle of the volume.
      diameter_mm: or None where not given.
      spacing_mm: of an array without geometry, along x, y, z, or as many of them as are given; None where none is.
      group: name of the nodule's group, which no split divides; empty where not given.
      patient: `patient_key` of the patient.
      series: UID of the scan; empty where not given.
      category: empty where not given.
      mask: name of a mask file; empty where not given.
    """

    number: int
    file: str
    centre_mm: tuple[float, ...] | None
    diameter_mm: float | None
    spacing_mm: tuple[float, ...] | None
    group: str
    patient: str
    series: str
    category: str
    mask: str


class Table(NamedTuple):
    """The usable rows of a CSV, and a fault for each of the others.

    Attributes:
      columns: the names of all columns, as this program spells them where it knows them.
      lines: the cells of each row by column, whether it can be used or not.
    """

    rows: list[Row]
    faults: list[Fault]
    columns: tuple[str, ...] = ()
    lines: tuple[dict[str, str], ...] = ()


def read_table(path: Path, config: DataConfig, file_column: str, required: tuple[str, ...]) -> Table:
    """Returns the nodules of a CSV.

    Args:
      path: the CSV.
      config: names the columns of category and group.
      file_column: the column that names the scan.
      required: other columns that must be there.

    Raises:
      DataError: the file is missing, no CSV, or lacks a column.
    """
    if not path.is_file():
        names = sorted(p.name for p in path.parent.glob("*")) if path.parent.is_dir() else []
        visible = [name for name in names if not name.startswith(".")][:8]
        what = "is no file" if path.exists() else "is not there"
        raise DataError(
            f"data.csv must name the CSV of the nodules; {path} {what} (the folder holds {', '.join(visible) or 'nothing'})"
        )
    try:
        lines = list(_records(path))
    except (csv.Error, UnicodeDecodeError) as error:
        raise DataError(f"{path}: must be a CSV in UTF-8; {error}: save it again in that form") from error
    columns = _columns(path, lines[0][1] if lines else [], config, (file_column, *required))
    table = Table([], [], tuple(columns), tuple(_cells(columns, values) for _, values in lines[1:]))
    first: dict[tuple[str, tuple[float, ...] | None], Row] = {}
    for (number, values), cells in zip(lines[1:], table.lines, strict=True):
        place = f"{path.name} line {number}"
        try:
            _check_cells(len(columns), cells, values, (file_column, *required))
            row = _row(number, cells, config, file_column)
        except DataError as error:
            table.faults.append(Fault("row", place, str(error), 1))
            continue
        earlier = first.setdefault((row.file, row.centre_mm), row)
        if earlier is row:
            table.rows.append(row)
        elif earlier._replace(number=number) == row:
            table.faults.append(Fault("duplicate", place, f"repeats line {earlier.number}, which is kept", 0))
        else:
            text = f"names the place of line {earlier.number} again, but says something else of it: keep one of the two"
            table.faults.append(Fault("row", place, text, 1))
    return table


def rows_by_volume(table: Table, csv: Path) -> dict[str, list[Row]]:
    """Returns the rows of each volume by its name.

    Raises:
      DataError: the CSV has only a header.
    """
    if not table.rows and not table.faults:
        raise DataError(f"{csv}: must list a nodule; it has a header alone")
    by_name: dict[str, list[Row]] = defaultdict(list)
    for row in table.rows:
        by_name[row.file].append(row)
    return dict(sorted(by_name.items()))


def _columns(path: Path, header: Sequence[str], config: DataConfig, required: tuple[str, ...]) -> list[str]:
    """Returns the names of columns. A name that differs from a known one only by case or signs gets the known spelling.

    Raises:
      DataError: a column is missing, or is there twice.
    """
    group = () if config.group_column == "auto" else (config.group_column,)
    known = (
        *group,
        *filter(None, (config.category_column,)),
        *required[:1],
        *COORDINATES,
        "diameter_mm",
        *SPACINGS,
        *PATIENT_COLUMNS,
        *SCAN_COLUMNS,
        "mask",
    )
    by_letters = {_letters(name): name for name in reversed(known)}
    columns = [name if name in known else by_letters.get(_letters(name), name) for name in header]
    if repeated := [column for column, count in Counter(filter(None, columns)).items() if count > 1]:
        raise DataError(f"{path}: columns must have different names; {', '.join(repeated)} is there twice")
    category = () if config.category_column == DataConfig.category_column else (config.category_column,)
    needed = (*required, *group, *category)
    if missing := [name for name in needed if name not in columns]:
        hint = ": separate cells by commas" if len(columns) == 1 and {";", "\t"} & set(columns[0]) else ""
        raise DataError(f"{path}: must have the column {', '.join(missing)}; it has {', '.join(columns) or 'none'}{hint}")
    return columns


def patient_key(text: str) -> str:
    """Returns what all spellings of a patient share; empty where none is named.

    >>> patient_key(" P3 "), patient_key("12.0"), patient_key("nan")
    ('p3', '12', '')
    """
    word = " ".join(unicodedata.normalize("NFKC", text).casefold().split())
    return "" if word == "nan" else re.sub(r"^(\d+)\.0+$", r"\1", word)


def _letters(name: str) -> str:
    return re.sub(r"[\W_]", "", name).casefold()


def _records(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Returns the header, then each row that is not blank, as cells without the empty ones at the end; with line numbers."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file, strict=True)
        for values in reader:
            cells = [value.strip() for value in values]
            while cells and not cells[-1]:
                cells.pop()
            if cells:
                yield reader.line_num, cells


def _cells(columns: Sequence[str], values: Sequence[str]) -> dict[str, str]:
    """Returns the values of a row by column; missing ones are empty."""
    return dict(zip(columns, (*values, *[""] * len(columns)), strict=False))


def _check_cells(columns: int, cells: Mapping[str, str], values: Sequence[str], required: Sequence[str]) -> None:
    if len(values) > columns:
        raise DataError(
            f"a row must have at most the {columns} cells of the header; got {len(values)}: is a comma in a number or name?"
        )
    if empty := [column for column in required if not cells[column]]:
        raise DataError(f"{', '.join(empty)} must not be empty")


def _row(number: int, cells: dict[str, str], config: DataConfig, file_column: str) -> Row:
    file = cells[file_column]
    _require_inside(file_column, file)
    diameter = _number(cells, "diameter_mm")
    require_diameter(diameter)
    spacing = _point(cells, SPACINGS, config.least_axes)
    require_spacing(spacing or (), ", ".join(SPACINGS))
    chosen = () if config.group_column == "auto" else (config.group_column,)

    def first(*columns: str) -> str:
        return next((cells[c] for c in columns if patient_key(cells.get(c, ""))), "")

    mask = cells.get("mask", "")
    if mask:
        _require_inside("mask", mask)
    return Row(
        number,
        file,
        _point(cells, COORDINATES, config.least_axes),
        diameter,
        spacing,
        first(*(chosen or (*PATIENT_COLUMNS, *SCAN_COLUMNS))),
        patient_key(first(*PATIENT_COLUMNS, *(c for c in chosen if c not in SCAN_COLUMNS))),
        cells.get("seriesuid", ""),
        cells.get(config.category_column, ""),
        mask,
    )


def _point(cells: dict[str, str], columns: tuple[str, str, str], least: int) -> tuple[float, ...] | None:
    """Returns the first `least` or more numbers along x, y, z; None where the CSV gives none."""
    numbers = [_number(cells, column) for column in columns]
    present = [number for number in numbers if number is not None]
    if not present:
        return None
    if len(present) < least or numbers[: len(present)] != present:
        needed = columns[:least]
        raise DataError(f"{', '.join(needed)} must all be given; got {', '.join(cells.get(c, '') or '-' for c in columns)}")
    return tuple(present)


def _number(cells: dict[str, str], column: str) -> float | None:
    text = cells.get(column, "")
    if not text:
        return None
    value = as_number(text)
    if not math.isfinite(value):
        hint = ": write it with a decimal point" if "," in text else ""
        raise DataError(f"{column} must be a finite number; got {text}{hint}")
    return value


def _require_inside(column: str, name: str) -> None:
    """Refuses a name from a CSV that leads out of the data's folder."""
    parts = name.replace("\\", "/").split("/")
    if not name or ".." in parts or name.startswith(("/", "\\")) or ":" in name or "\0" in name:
        raise DataError(f"{column} must be a name inside data.root; got {name!r}")
    if any(len(os.fsencode(part)) > MAX_NAME_BYTES for part in parts):
        raise DataError(f"{column} must be a name of at most {MAX_NAME_BYTES} bytes; got {name}")
