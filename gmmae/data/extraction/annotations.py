"""The CSV of the nodules: an `Item` for each usable row, and a fault for each other row."""

import csv
import math
import os
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from gmmae.data.extraction.headers import as_number, require_spacing
from gmmae.data.settings import ANNOTATIONS, NODULES, DataConfig
from gmmae.data.volumes import DataError, letters

FILES = ("file", "image", "image_path", "path")
"""Columns that name the volume, by precedence."""
DIAMETERS = ("diameter_mm", "size_mm", "diameter")
PATIENTS = ("patient", "PatientID", "subject", "subject_id", "participant_id", "MRN", "case_id")
"""Columns that name the patient; the first one that a row fills names its group."""
OTHERWISE_PATIENTS = ("case", "group")
"""Columns that name the patient of a row that fills none of `PATIENTS`; beside these they may be a diagnosis or a hospital."""
BLANKS = {"", "nan", "na", "n/a", "#n/a", "<na>", "null"}
"""What Excel, R and pandas write for an empty cell."""
SERIES = "seriesuid"
SCANS = ("scan", SERIES)
GROUP = "data.group_column"
COORDINATES = ("coordX", "coordY", "coordZ")
COLUMNS = (*COORDINATES, "diameter_mm")
"""Columns of a CSV of scans, beside `seriesuid`."""
SPACINGS = ("spacingX", "spacingY", "spacingZ")
MAX_NAME_BYTES = 255
MIN_CASE_ROWS = 10
"""From so many rows on, a column `case` of two values says case or control, and is no patient."""


def says_case_or_control(values: Sequence[str]) -> bool:
    """Whether a column `case` has no more than two values in many rows, so that it names no patients."""
    return len(values) >= MIN_CASE_ROWS and len({*map(patient_key, values)} - {""}) <= 2


class Fault(NamedTuple):
    """A part of the data that cannot be used.

    A duplicate is a dropped row, equal to another. Ambiguous scans have one name.
    """

    kind: Literal["row", "duplicate", "missing", "unreadable", "nodule", "ambiguous"]
    place: str  # the file and perhaps its row
    text: str
    lost: int  # nodules that it costs

    def line(self) -> str:
        """The fault in one line."""
        return " ".join(f"{self.place}: {self.text}".split())


def raise_first(faults: Sequence[Fault], remedy: str) -> None:
    """Raises DataError with the first fault, if any. `remedy` is the user's alternative to a fix."""
    if faults:
        more = f", the first of {len(faults)} faults" if len(faults) > 1 else ""
        raise DataError(f"{faults[0].line()}{more}: fix it, or {remedy}")


class Item(NamedTuple):
    """One nodule, as a CSV or an array lists it."""

    name: str = ""  # unique in the data set
    place: str = ""  # the CSV and line, or array and index
    group: str = ""  # no split divides it
    category: str = ""
    centre_mm: tuple[float, ...] | None = None  # world x, y, z, or fewer; None: the volume's middle
    diameter_mm: float | None = None
    spacing_mm: tuple[float, ...] | None = None  # of an array, along x, y, z, or fewer
    part: int | None = None  # of a file of several
    mask: Path | None = None
    patient: str = ""  # `patient_key` of the patient
    series: str = ""  # UID of the scan
    array: str = "volumes"
    split: str = ""  # where the data are divided already
    file: str = ""  # a seriesuid or a file
    number: int = 0  # the line in the CSV
    cells: tuple[str, ...] = ()


class Table(NamedTuple):
    """The usable rows of a CSV, and the faults of others."""

    rows: list[Item]
    faults: list[Fault]
    columns: tuple[str, ...] = ()  # by this program's names where it has one
    lines: Sequence[dict[str, str]] = ()  # of each row, by these columns, whether usable or not
    header: tuple[str, ...] = ()  # by the user's names
    used: Mapping[str, str] = {}  # the user's names by this program's
    dropped: Sequence[Item] = ()  # what other rows say of patients and scans


def find_csv(config: DataConfig) -> Path:
    """The CSV that is named, has the usual name, or is the only one in the folder."""
    root, usual = config.folder, ANNOTATIONS if config.source == "luna16" else NODULES
    if config.csv != "auto":
        return root / config.csv
    others = sorted(path.name for path in root.glob("[!.]*.csv") if path.name != "donors.csv")  # which `generate` writes
    if (root / usual).is_file() or not others:
        return root / usual
    if len(others) > 1:
        raise DataError(f"data.csv must say which CSV lists the nodules; {root} has no {usual}, but {', '.join(others)}")
    return root / others[0]


def read_table(path: Path, config: DataConfig, file_column: str) -> Table:
    """The nodules of a CSV, still without names, whose `file_column` names the scan."""
    if not path.is_file():
        visible = sorted(other.name for other in path.parent.glob("[!.]*"))[:8]
        what = "is no file" if path.exists() else "is not there"
        raise DataError(
            f"data.csv must name the CSV of the nodules; {path} {what} (the folder holds {', '.join(visible) or 'nothing'})"
        )
    records: list[tuple[int, list[str]]] = []
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, strict=True)
            for values in reader:
                if "\0" in "".join(values):
                    raise csv.Error(f"line {reader.line_num} holds a NUL")
                cells = [value.strip() for value in values]
                while cells and not cells[-1]:
                    cells.pop()
                if cells:
                    records.append((reader.line_num, cells))
    except (csv.Error, UnicodeDecodeError) as error:
        raise DataError(f"{path}: must be a CSV in UTF-8; {error}: save it again in that form") from error
    (_, header), *records = records or [(0, [])]
    table = table_of(path, header, records, config, file_column)
    if not records:
        raise DataError(f"{path}: must list a nodule; it has a header alone")
    return table


def table_of(
    path: Path,
    header: Sequence[str],
    records: Sequence[tuple[int, Sequence[str]]],
    config: DataConfig,
    file_column: str,
    form: str = "line {}",
) -> Table:
    """The nodules of a CSV's records: line numbers, which `form` shows in messages, and cells."""
    required = (file_column, *(COLUMNS if file_column == "seriesuid" else ()))
    used = _recognised(path, header, config, required)
    lines = [dict(zip(header, (*values, *[""] * len(header)), strict=False)) for _, values in records]

    def column(name: str) -> list[str]:
        return [cells[used[name]] for cells in lines] if name in used else []

    if not all(map(is_blank, column(COORDINATES[0]))):  # a row without it would be cut from the middle of its scan
        required = tuple(dict.fromkeys((*required, COORDINATES[0])))
    for name in OTHERWISE_PATIENTS if GROUP in used else _without_patients(column):
        used.pop(name, None)
    ours = {column: name for name, column in used.items()}
    rows, faults, dropped = dict[object, Item](), list[Fault](), list[Item]()
    for (number, values), cells in zip(records, lines, strict=True):
        place = f"{path.name} {form.format(number)}"
        try:
            if len(values) > len(header):
                raise DataError(
                    f"a row must have at most the {len(header)} cells of the header; got {len(values)}: is a comma in a number "
                    "or name?"
                )
            named = tuple(cells[column] for column in header if column)
            known = {name: cells[column] for name, column in used.items()}
            known |= {name: "" for name, cell in known.items() if is_blank(cell) and name not in SPACINGS}
            dropped.append(_related(known, config, file_column)._replace(place=place, number=number, cells=named))
            if empty := [used[name] for name in required if not known[name]]:
                raise DataError(f"{', '.join(empty)} must not be empty")
            row = _item(known, dropped[-1], config, file_column)
        except DataError as error:
            faults.append(Fault("row", place, str(error), 1))
            continue
        first = rows.setdefault((row.file, row.centre_mm), row)
        if first is row:
            dropped.pop()
            continue
        if first._replace(place=place, number=number, cells=named) == row:
            pairs = zip(filter(None, header), first.cells, named, strict=True)
            others = ", ".join(column for column, one, other in pairs if one != other and column not in ours)
            what = f" (but for {others})" * bool(others)
            faults.append(Fault("duplicate", place, f"repeats line {first.number}{what}, which is kept", 0))
        else:
            text = f"names the place of line {first.number} again, but says something else of it: keep one of the two"
            faults.append(Fault("row", place, text, 1))
    columns = tuple(ours.get(column, column) for column in header)
    lines = [{ours.get(column, column): cell for column, cell in cells.items()} for cells in lines]
    return Table([*rows.values()], faults, columns, lines, tuple(filter(None, header)), used, dropped)


def _without_patients(column: Callable[[str], list[str]]) -> Sequence[str]:
    """Those of `OTHERWISE_PATIENTS` that name none: all where the other columns do so in each row."""
    names = [*zip(*filter(None, map(column, PATIENTS)), strict=True)]
    if names and all(any(map(patient_key, of_row)) for of_row in names):
        return OTHERWISE_PATIENTS
    return ["case"] * says_case_or_control(column("case"))


def _recognised(path: Path, header: Sequence[str], config: DataConfig, required: tuple[str, ...]) -> dict[str, str]:
    """The header's columns by this program's names, whatever their case and signs."""
    file_column = required[0]
    spellings = {name: (name, f"{name}_mm") for name in COORDINATES}
    spellings |= {name: (name,) for name in (*SPACINGS, *PATIENTS, *OTHERWISE_PATIENTS, *SCANS, "mask", "category")}
    spellings |= {"diameter_mm": DIAMETERS, file_column: FILES if file_column == "file" else (file_column,)}
    options = {file_column: config.file_column, "diameter_mm": config.diameter_column, GROUP: config.group_column}
    options["category"] = "auto" if config.category_column == DataConfig.category_column else config.category_column
    named = {name: (column,) for name, column in options.items() if column != "auto"}
    by_letters = {letters(column): column for column in reversed(header)}
    used = {
        name: by_letters[key]
        for name, known in (spellings | named).items()
        for spelling in reversed(known)
        if (key := letters(spelling)) in by_letters
    }
    same = [letters(name) if letters(name) in map(letters, used.values()) else name for name in header]
    if twice := [name for name, key in zip(header, same, strict=True) if name and same.count(key) > 1]:
        raise DataError(f"{path}: columns must have different names; {' and '.join(twice)} are one: rename one of them")
    if missing := [name for name in (*required, *named) if name not in used]:
        names = dict.fromkeys(named.get(name, (name,))[0] for name in missing)
        hint = ": separate cells by commas" if len(header) == 1 and {";", "\t"} & set(header[0]) else ""
        ways = {file_column: "--data.file-column", "diameter_mm": "--data.diameter-column", GROUP: "--data.group-column"}
        given = "; ".join(f"name it with {way}, or give auto there" for name, way in ways.items() if name in missing)
        there = f"it has {', '.join(header) or 'none'}{hint or f'; {given}' * bool(given)}"
        raise DataError(f"{path}: must have the column {', '.join(names)}; {there}")
    if letters(used.get("diameter_mm", "")).endswith("cm"):
        raise DataError(f"{path}: diameters must be in mm; got the column {used['diameter_mm']}: convert it, and rename it")
    return used


def _related(cells: dict[str, str], config: DataConfig, file_column: str) -> Item:
    """Patient, scan and category, also where the rest of a row cannot be used."""

    def first(*columns: str) -> str:
        return next((cells[column] for column in columns if patient_key(cells.get(column, ""))), "")

    return Item(
        group=first(GROUP) if GROUP in cells else first(*PATIENTS, *OTHERWISE_PATIENTS, *SCANS),
        category=cells.get("category", ""),
        patient=patient_key(
            first(*PATIENTS, *OTHERWISE_PATIENTS) or first(GROUP) * (letters(config.group_column) not in SCANS)
        ),
        series=cells.get(SERIES, ""),
        file=cells[file_column],
    )


def _item(cells: dict[str, str], related: Item, config: DataConfig, file_column: str) -> Item:
    for column in (file_column, "mask"):
        name = cells.get(column, "")
        parts = name.replace("\\", "/").split("/")
        if ".." in parts or name.startswith(("/", "\\")) or ":" in name:
            raise DataError(f"{column} must be a name inside data.root; got {name!r}")
        if any(len(os.fsencode(part)) > MAX_NAME_BYTES for part in parts):
            raise DataError(f"{column} must be a name of at most {MAX_NAME_BYTES} bytes; got {name}")
    (diameter,), spacing = _numbers(cells, ("diameter_mm",), 1) or (None,), _numbers(cells, SPACINGS, config.min_ndim)
    if diameter is not None and diameter <= 0:
        raise DataError(f"diameter_mm must be positive; got {diameter:g}")
    require_spacing(spacing or (), ", ".join(SPACINGS))

    return related._replace(
        centre_mm=_numbers(cells, COORDINATES, config.min_ndim),
        diameter_mm=diameter,
        spacing_mm=spacing,
        mask=Path(cells["mask"]) if cells.get("mask") else None,
    )


def _numbers(cells: dict[str, str], columns: tuple[str, ...], least: int) -> tuple[float, ...] | None:
    texts = [cells.get(column, "") for column in columns]
    for column, text in zip(columns, texts, strict=True):
        if text and not math.isfinite(as_number(text)):
            hint = ": write it with a decimal point" if "," in text else ""
            raise DataError(f"{column} must be a finite number; got {text}{hint}")
    given = sum(map(bool, texts))
    if given and (given < least or "" in texts[:given]):
        got = ", ".join(text or "-" for text in texts)
        raise DataError(f"{', '.join(columns[:least])} must all be given; got {got}")
    return tuple(map(as_number, texts[:given])) or None


def is_blank(text: str) -> bool:
    """Whether a cell is empty; the label `none` may be a class.

    >>> is_blank("n/a"), is_blank("none")
    (True, False)
    """
    return _plain(text) in BLANKS


def _plain(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def patient_key(text: str) -> str:
    """What all spellings of a patient share; empty where none is named.

    >>> patient_key(" P3 "), patient_key("012.0"), patient_key("None")
    ('p3', '12', '')
    """
    word = _plain(text)
    return "" if word in {*BLANKS, "none"} else re.sub(r"^0*(\d+)(\.0+)?$", r"\1", word)
