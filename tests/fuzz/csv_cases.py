"""Damaged and odd CSVs."""

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.cases import (
    Both,
    Case,
    Change,
    Expect,
    Reading,
    left_out,
    readers,
    reads,
    reads_or_leaves_out,
    reads_or_refused,
    refused,
    unchanged,
)
from tests.fuzz.folders import CSV, read_rows, table_path, write_rows

Rows = list[list[str]]
LINE = f"{CSV} line 4"
"""The line of the nodule n2."""


@dataclass(frozen=True)
class Cell:
    """Sets a cell; the header is row 0."""

    column: str
    text: str
    row: int = 3

    def __call__(self, folder: Path) -> None:
        """Writes the CSV with the cell changed."""
        rows = read_rows(folder)
        rows[self.row][rows[0].index(self.column)] = self.text
        write_rows(table_path(folder), rows)


@dataclass(frozen=True)
class Column:
    """Sets all cells of a column to one text."""

    column: str
    text: str

    def __call__(self, folder: Path) -> None:
        """Writes the CSV with the column changed."""
        rows = read_rows(folder)
        at = rows[0].index(self.column)
        write_rows(table_path(folder), [[*row[:at], self.text if i else row[at], *row[at + 1 :]] for i, row in enumerate(rows)])


@dataclass(frozen=True)
class Without:
    """Removes a row of the CSV."""

    row: int = 3

    def __call__(self, folder: Path) -> None:
        """Writes the CSV without the row."""
        rows = read_rows(folder)
        write_rows(table_path(folder), rows[: self.row] + rows[self.row + 1 :])


@dataclass(frozen=True)
class WithoutColumns:
    """Removes columns of the CSV."""

    columns: tuple[str, ...]

    def __call__(self, folder: Path) -> None:
        """Writes the CSV without the columns."""
        rows = read_rows(folder)
        kept = [i for i, name in enumerate(rows[0]) if name not in self.columns]
        write_rows(table_path(folder), [[row[i] for i in kept] for row in rows])


def rows_changed(function: Callable[[Rows], Rows]) -> Change:
    """A change of the CSV's cells."""
    return lambda folder: write_rows(table_path(folder), function(read_rows(folder)))


def text_changed(function: Callable[[str], str | bytes]) -> Change:
    """A change of the CSV's text."""

    def change(folder: Path) -> None:
        path = table_path(folder)
        changed = function(path.read_text(encoding="utf-8"))
        path.write_bytes(changed if isinstance(changed, bytes) else changed.encode())

    return change


def written(delimiter: str = ",", quoting: int = csv.QUOTE_MINIMAL, end: str = "\n", comma: bool = False) -> Change:
    """The same cells written in another dialect; `comma` makes decimal points commas."""

    def text(_: str, rows: Rows) -> str:
        file = io.StringIO(newline="")
        numbers = [[cell.replace(".", ",") if comma and _number(cell) else cell for cell in row] for row in rows]
        csv.writer(file, delimiter=delimiter, quoting=quoting, lineterminator=end).writerows(numbers)  # pyright: ignore[reportArgumentType]
        return file.getvalue()

    return lambda folder: text_changed(lambda old: text(old, read_rows(folder)))(folder)


def _number(cell: str) -> bool:
    try:
        return bool(float(cell)) or True
    except ValueError:
        return False


def headed(old: str, new: str) -> Change:
    """Another name of a column."""
    return rows_changed(lambda rows: [[new if name == old else name for name in rows[0]], *rows[1:]])


def with_cell(cells: Sequence[str], row: int = 3) -> Change:
    """A row with more cells at its end."""
    return rows_changed(lambda rows: [[*old, *cells] if i == row else old for i, old in enumerate(rows)])


def _dialects() -> Iterator[tuple[str, Change, Expect]]:
    yield "byte-order mark", text_changed(lambda text: text.encode("utf-8-sig")), reads()
    for name, encoding in {"UTF-16": "utf-16", "UTF-16 without a mark": "utf-16-le", "UTF-32": "utf-32"}.items():
        yield name, text_changed(lambda text, encoding=encoding: text.encode(encoding)), reads_or_refused(CSV)
    umlaut = text_changed(lambda text: text.replace("part-solid", "fläche").encode("latin-1"))
    yield "Latin-1", umlaut, reads_or_refused(CSV, like=text_changed(lambda text: text.replace("part-solid", "fläche")))
    separators = {"semicolons": ";", "tabs": "\t", "bars": "|", "spaces": " "}
    for name, delimiter in separators.items():
        yield name, written(delimiter), reads_or_refused(CSV)
    yield "semicolons and decimal commas", written(";", comma=True), reads_or_refused(CSV)
    yield "tabs and decimal commas", written("\t", comma=True), reads_or_refused(CSV)
    yield "decimal commas in quotes", written(comma=True), reads_or_refused(f"{CSV} line 2")
    bare = text_changed(
        lambda text: "\n".join(line.replace(".", ",").replace(",nii,gz", ".nii.gz") for line in text.split("\n"))
    )
    yield "decimal commas without quotes", bare, refused(f"{CSV} line 2")
    yield "a line sep=;", Both(written(";"), text_changed(lambda text: "sep=;\n" + text)), reads_or_refused(CSV)
    yield "a comment line", text_changed(lambda text: "# made by hand\n" + text), reads_or_refused(CSV)
    yield "all cells in quotes", written(quoting=csv.QUOTE_ALL), reads()
    yield "CRLF", written(end="\r\n"), reads()
    yield "CR", written(end="\r"), reads_or_refused(CSV)
    yield "mixed line ends", text_changed(lambda text: text.replace("\n", "\r\n", 3)), reads()
    yield "no end of the last line", text_changed(str.rstrip), reads()
    yield "empty lines at the end", text_changed(lambda text: text + "\n\n,,,,,,\n"), reads()
    yield "empty lines in between", text_changed(lambda text: "\n\n" + text.replace("\n", "\n\n")), reads()
    yield "spaces around cells", text_changed(lambda text: text.replace(",", " , ")), reads()
    yield "a comma at the end of each line", text_changed(lambda text: text.replace("\n", ",\n")), reads()
    yield "commas at the end of the rows only", rows_changed(lambda rows: [rows[0], *([*row, ""] for row in rows[1:])]), reads()
    yield "an open quote", text_changed(lambda text: text.replace("solid", '"solid', 1)), refused(CSV)
    nul = text_changed(lambda text: text.replace("solid", "so\0lid", 1))
    yield "a NUL in a category", nul, reads_or_refused(CSV, like=nul)
    yield "a cell of 200,000 characters", Cell("category", "x" * 200_000), refused(CSV)
    yield "random bytes", text_changed(lambda _: bytes(range(256)) * 8), refused(CSV)
    yield "a spreadsheet", text_changed(lambda _: b"PK\x03\x04" + bytes(200)), refused(CSV)
    yield "an empty file", text_changed(lambda _: ""), refused(CSV)
    yield "the header alone", rows_changed(lambda rows: rows[:1]), refused(CSV)
    yield "rows without a header", rows_changed(lambda rows: rows[1:]), refused(CSV)


def _columns() -> Iterator[tuple[str, Change, Expect]]:
    yield (
        "other columns",
        rows_changed(lambda rows: [[*row, "x"] if i else [*row, "mine"] for i, row in enumerate(rows)]),
        reads(),
    )
    numbered = rows_changed(lambda rows: [["", *rows[0]], *([str(i), *row] for i, row in enumerate(rows[1:]))])
    yield "a column without a name", numbered, reads()
    yield "columns in another order", rows_changed(lambda rows: [row[::-1] for row in rows]), reads()
    yield (
        "all names in capitals",
        rows_changed(lambda rows: [[name.upper() for name in rows[0]], *rows[1:]]),
        reads_or_refused(CSV),
    )
    for old in ("coordX", "patient", "category", "diameter_mm", "file"):
        for new in (old.lower() if old == "coordX" else old.capitalize(),):
            yield f"{new} for {old}", headed(old, new), reads_or_refused(CSV, old)
    small = rows_changed(lambda rows: [[name.lower() for name in rows[0]], *rows[1:]])
    yield "all names in small letters", small, reads_or_refused(CSV, "coord")
    spaced = rows_changed(lambda rows: [[name.replace("coord", "coord ") for name in rows[0]], *rows[1:]])
    yield "coord X for coordX", spaced, reads_or_refused(CSV, "coord")
    both = rows_changed(lambda rows: [[*rows[0], "Patient"], *([*row, "x"] for row in rows[1:])])
    yield "patient and Patient", both, refused(CSV, "patient")
    yield "no column file", WithoutColumns(("file",)), refused(CSV, "file")
    yield "no column diameter_mm", WithoutColumns(("diameter_mm",)), refused("diameter_mm")
    yield "no column coordZ", WithoutColumns(("coordZ",)), refused("coordZ", f"{CSV}")
    yield "no column coordX", WithoutColumns(("coordX",)), refused("coordX", f"{CSV}")
    twice = rows_changed(lambda rows: [[*rows[0], "diameter_mm"], *([*row, "9"] for row in rows[1:])])
    yield "diameter_mm twice, not the same", twice, refused(CSV, "diameter_mm")
    same = rows_changed(lambda rows: [[*row, row[5]] for row in rows])
    yield "diameter_mm twice, the same", same, reads_or_refused(CSV, "diameter_mm")


def _rows() -> Iterator[tuple[str, Change, Expect]]:
    gone = Without()
    yield (
        "a row cut in its middle",
        rows_changed(lambda rows: [row[:4] if i == 3 else row for i, row in enumerate(rows)]),
        left_out(gone, LINE),
    )
    short = rows_changed(lambda rows: [row[:6] if i == 3 else row for i, row in enumerate(rows)])
    yield "a row without its last cell", short, reads_or_leaves_out(gone, LINE, like=Cell("category", ""))
    yield "a row with a cell more", with_cell(["x"]), left_out(gone, LINE)
    comma = rows_changed(
        lambda rows: [[*row[:2], *row[2].split("."), *row[3:]] if i == 3 else row for i, row in enumerate(rows)]
    )
    yield "a row with one decimal comma", comma, left_out(gone, LINE)
    yield "a row twice", rows_changed(lambda rows: [*rows, rows[3]]), reads_or_refused(f"{CSV} line 8")
    yield "all rows twice", rows_changed(lambda rows: [*rows, *rows[1:]]), reads_or_refused(f"{CSV} line 8")
    yield "the file twice, header too", rows_changed(lambda rows: [*rows, *rows]), left_out(unchanged, f"{CSV} line ")
    other = rows_changed(lambda rows: [*rows, [*rows[3][:5], "9", rows[3][6]]])
    yield "a row twice with another diameter", other, left_out(unchanged, f"{CSV} line 8")
    path = rows_changed(lambda rows: [*rows, [f"images/{rows[3][0]}", *rows[3][1:]]])
    yield "a volume under two names", path, left_out(unchanged, f"{CSV} line 8")
    yield "one row", rows_changed(lambda rows: rows[:2]), Expect((Reading(rows_changed(lambda rows: rows[:2])),), True)
    broken = Both(Cell("diameter_mm", "-1"), text_changed(lambda text: text.replace("\n", "\n\n", 2)))
    yield "a bad row after empty lines", broken, left_out(gone, f"{CSV} line 6")
    inside = Both(Cell("category", "so\nlid", 1), Cell("diameter_mm", "-1"))
    yield "a bad row after a line end in a cell", inside, left_out(Both(Cell("category", "so\nlid", 1), gone), f"{CSV} line 5")


def _numbers() -> Iterator[tuple[str, Change, Expect]]:
    gone = Without()
    for text in (
        "0",
        "-6",
        "nan",
        "NaN",
        "inf",
        "-inf",
        "1e30",
        "1e308",
        "1e999",
        "6 mm",
        "~6",
        "6,0",
        "6.0.0",
        "0x6",
        "1_0",
        "six",
        "5-7",
    ):
        yield f"diameter {text}", Cell("diameter_mm", text), left_out(gone, LINE)
    yield "an empty diameter", Cell("diameter_mm", ""), left_out(gone, "n2.nii.gz")
    yield "diameter +5.1e0", Cell("diameter_mm", "+5.1e0"), reads()
    for text in ("nan", "inf", "1e30", "1e308", "-500", "", "12,5", "n/a"):
        yield f"coordX {text or 'empty'}", Cell("coordX", text), left_out(gone, LINE)
    yield (
        "coordinates in voxels",
        Both(Cell("coordX", "7"), Both(Cell("coordY", "8"), Cell("coordZ", "5"))),
        left_out(gone, LINE),
    )
    nothing = Both(Column("coordX", ""), Both(Column("coordY", ""), Column("coordZ", "")))
    yield "empty coordinates", nothing, reads(WithoutColumns(("coordX", "coordY", "coordZ")))
    yield "a centre on the volume's face", Cell("coordX", "9.61"), reads(Cell("coordX", "9.610"))
    yield "all centres outside", Column("coordZ", "500"), refused(f"{CSV} line 2")
    yield "all diameters 0", Column("diameter_mm", "0"), refused(f"{CSV} line 2")


def _files() -> Iterator[tuple[str, Change, Expect]]:
    gone = Without()
    for text in (
        "../n2.nii.gz",
        "/etc/passwd",
        "",
        "n2",
        "n2.nii",
        "N2.NII.GZ",
        "images",
        ".",
        "n2.nii.gz/",
        "C:\\n2.nii.gz",
        "~",
        "\\",
    ):
        place = "n2.nii.gz" if text[:2] == "C:" else text if text not in ("", ".", "\\") else CSV
        yield f"file {text or 'empty'}", Cell("file", text), left_out(gone, place)
    yield "file ./n0.nii.gz", Cell("file", "./n0.nii.gz", 1), reads_or_refused("n0.nii.gz")
    yield "file with backslashes", Cell("file", "images\\n2.nii.gz"), left_out(gone, "n2.nii.gz")
    yield "patient of all", Column("patient", "p"), Expect((Reading(Column("patient", "p")),), True)


def cases() -> Iterator[Case]:
    """All cases of CSVs."""
    for number, (name, change, expect) in enumerate((*_dialects(), *_columns(), *_rows(), *_numbers(), *_files())):
        renamed = name in ("file ./n0.nii.gz", "a volume under two names")
        unused = "diameter" in name and "twice" not in name  # the segmentation does without diameters
        segment = reads_or_refused(CSV) if unused else None
        yield Case(f"CSV: {name}", "cubes", change, readers(number, expect, segment), renamed=renamed)
