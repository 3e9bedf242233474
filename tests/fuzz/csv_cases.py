"""Damaged and odd CSVs of volumes."""

from collections.abc import Iterator

from tests.fuzz.cases import (
    Case,
    Expect,
    Reading,
    Row,
    left_out,
    readers,
    reads,
    reads_or_leaves_out,
    reads_or_refused,
    refused,
    unchanged,
)
from tests.fuzz.changes import (
    both,
    cell,
    column,
    headed,
    row_added,
    row_changed,
    rows_changed,
    text_changed,
    without_columns,
    without_row,
    written,
)
from tests.fuzz.folders import CSV

LINE = f"{CSV} line 4"
"""The line of the nodule n2."""
GONE = without_row()
LOST = left_out(GONE, LINE)

WRONG_CELLS = {
    "diameter_mm": "0|-6|nan|NaN|inf|-inf|1e30|1e308|1e999|6 mm|~6|6,0|6.0.0|0x6|1_0|six|5-7",
    "coordX": "nan|inf|1e30|1e308|-500||12,5|n/a",
}
WRONG_FILES = "../n2.nii.gz|/etc/passwd||n2|n2.nii|N2.NII.GZ|images|.|n2.nii.gz/|C:\\n2.nii.gz|~|\\"
"""Cells of a row that cannot be read."""


def _dialects() -> Iterator[Row]:
    either = reads_or_refused(CSV)
    yield "byte-order mark", text_changed(lambda text: text.encode("utf-8-sig")), reads()
    for name, encoding in {"UTF-16": "utf-16", "UTF-16 without a mark": "utf-16-le", "UTF-32": "utf-32"}.items():
        yield name, text_changed(lambda text, encoding=encoding: text.encode(encoding)), either
    umlaut = text_changed(lambda text: text.replace("part-solid", "fläche").encode("latin-1"))
    yield "Latin-1", umlaut, reads_or_refused(CSV, like=text_changed(lambda text: text.replace("part-solid", "fläche")))
    for name, delimiter in {"semicolons": ";", "tabs": "\t", "bars": "|", "spaces": " "}.items():
        yield name, written(delimiter), either
    yield "semicolons and decimal commas", written(";", comma=True), either
    yield "tabs and decimal commas", written("\t", comma=True), either
    yield "decimal commas in quotes", written(comma=True), reads_or_refused(f"{CSV} line 2")
    bare = text_changed(lambda text: text.replace(".", ",").replace(",nii,gz", ".nii.gz"))
    yield "decimal commas without quotes", bare, refused(f"{CSV} line 2")
    yield "a line sep=;", both(written(";"), text_changed(lambda text: "sep=;\n" + text)), either
    yield "a comment line", text_changed(lambda text: "# made by hand\n" + text), either
    yield "all cells in quotes", written(quote_all=True), reads()
    yield "CRLF", written(end="\r\n"), reads()
    yield "CR", written(end="\r"), either
    yield "mixed line ends", text_changed(lambda text: text.replace("\n", "\r\n", 3)), reads()
    yield "no end of the last line", text_changed(str.rstrip), reads()
    yield "empty lines at the end", text_changed(lambda text: text + "\n\n,,,,,,\n"), reads()
    yield "empty lines in between", text_changed(lambda text: "\n\n" + text.replace("\n", "\n\n")), reads()
    yield "spaces around cells", text_changed(lambda text: text.replace(",", " , ")), reads()
    yield "a comma at the end of each line", text_changed(lambda text: text.replace("\n", ",\n")), reads()
    yield "commas at the end of the rows only", rows_changed(lambda rows: [rows[0], *([*row, ""] for row in rows[1:])]), reads()
    nul = text_changed(lambda text: text.replace("solid", "so\0lid", 1))
    yield "a NUL in a category", nul, reads_or_refused(CSV, like=nul)
    for name, change in {
        "an open quote": text_changed(lambda text: text.replace("solid", '"solid', 1)),
        "a cell of 200,000 characters": cell("category", "x" * 200_000),
        "random bytes": text_changed(lambda _: bytes(range(256)) * 8),
        "a spreadsheet": text_changed(lambda _: b"PK\x03\x04" + bytes(200)),
        "an empty file": text_changed(lambda _: ""),
        "the header alone": rows_changed(lambda rows: rows[:1]),
        "rows without a header": rows_changed(lambda rows: rows[1:]),
    }.items():
        yield name, change, refused(CSV)


def _columns() -> Iterator[Row]:
    yield "other columns", rows_changed(lambda rows: [[*row, "x" if i else "mine"] for i, row in enumerate(rows)]), reads()
    numbered = rows_changed(lambda rows: [[str(i or ""), *row] for i, row in enumerate(rows)])
    yield "a column without a name", numbered, reads()
    yield "columns in another order", rows_changed(lambda rows: [row[::-1] for row in rows]), reads()
    yield "all names in capitals", row_changed(lambda names: [name.upper() for name in names], 0), reads_or_refused(CSV)
    for old in ("coordX", "patient", "category", "diameter_mm", "file"):
        new = old.lower() if old == "coordX" else old.capitalize()
        yield f"{new} for {old}", headed(old, new), reads_or_refused(CSV, old)
    small = row_changed(lambda names: [name.lower() for name in names], 0)
    yield "all names in small letters", small, reads_or_refused(CSV, "coord")
    spaced = row_changed(lambda names: [name.replace("coord", "coord ") for name in names], 0)
    yield "coord X for coordX", spaced, reads_or_refused(CSV, "coord")
    two = rows_changed(lambda rows: [[*row, "x" if i else "Patient"] for i, row in enumerate(rows)])
    yield "patient and Patient", two, refused(CSV, "patient")
    for name in ("file", "diameter_mm", "coordZ", "coordX"):
        yield f"no column {name}", without_columns(name), refused(name, *([] if name == "diameter_mm" else [CSV]))
    twice = rows_changed(lambda rows: [[*row, "9" if i else "diameter_mm"] for i, row in enumerate(rows)])
    yield "diameter_mm twice, not the same", twice, refused(CSV, "diameter_mm")
    same = rows_changed(lambda rows: [[*row, row[5]] for row in rows])
    yield "diameter_mm twice, the same", same, reads_or_refused(CSV, "diameter_mm")


def _rows() -> Iterator[Row]:
    last = f"{CSV} line 8"
    yield "a row cut in its middle", row_changed(lambda row: row[:4]), LOST
    without = reads_or_leaves_out(GONE, LINE, like=cell("category", ""))
    yield "a row without its last cell", row_changed(lambda row: row[:6]), without
    yield "a row with a cell more", row_changed(lambda row: [*row, "x"]), LOST
    yield "a row with one decimal comma", row_changed(lambda row: [*row[:2], *row[2].split("."), *row[3:]]), LOST
    yield "a row twice", row_added(list), reads_or_refused(last)
    yield "all rows twice", rows_changed(lambda rows: [*rows, *rows[1:]]), reads_or_refused(last)
    yield "the file twice, header too", rows_changed(lambda rows: [*rows, *rows]), left_out(unchanged, f"{CSV} line ")
    yield "a row twice with another diameter", row_added(lambda row: [*row[:5], "9", row[6]]), left_out(unchanged, last)
    two_names = row_added(lambda row: [f"images/{row[0]}", *row[1:]])
    yield "a volume under two names", two_names, reads(two_names)
    one = rows_changed(lambda rows: rows[:2])
    yield "one row", one, Expect((Reading(one),), True)
    broken = both(cell("diameter_mm", "-1"), text_changed(lambda text: text.replace("\n", "\n\n", 2)))
    yield "a bad row after empty lines", broken, left_out(GONE, f"{CSV} line 6")
    inside = cell("category", "so\nlid", 1)
    lost = left_out(both(inside, GONE), f"{CSV} line 5")
    yield "a bad row after a line end in a cell", both(inside, cell("diameter_mm", "-1")), lost


def _numbers() -> Iterator[Row]:
    for name, texts in WRONG_CELLS.items():
        for text in texts.split("|"):
            yield f"{name} {text or 'empty'}", cell(name, text), LOST
    yield "an empty diameter", cell("diameter_mm", ""), left_out(GONE, "n2.nii.gz")
    yield "diameter +5.1e0", cell("diameter_mm", "+5.1e0"), reads()
    yield "coordinates in voxels", both(cell("coordX", "7"), cell("coordY", "8"), cell("coordZ", "5")), LOST
    nothing = both(column("coordX", ""), column("coordY", ""), column("coordZ", ""))
    yield "empty coordinates", nothing, reads(without_columns("coordX", "coordY", "coordZ"))
    yield "a centre on the volume's face", cell("coordX", "9.61"), reads(cell("coordX", "9.610"))
    yield "all centres outside", column("coordZ", "500"), refused(f"{CSV} line 2")
    yield "all diameters 0", column("diameter_mm", "0"), refused(f"{CSV} line 2")


def _files() -> Iterator[Row]:
    for text in WRONG_FILES.split("|"):
        place = "n2.nii.gz" if text[:2] == "C:" else text if text not in ("", ".", "\\") else CSV
        yield f"file {text or 'empty'}", cell("file", text), left_out(GONE, place)
    yield "file ./n0.nii.gz", cell("file", "./n0.nii.gz", 1), reads_or_refused("n0.nii.gz")
    yield "file with backslashes", cell("file", "images\\n2.nii.gz"), left_out(GONE, "n2.nii.gz")
    yield "patient of all", column("patient", "p"), Expect((Reading(column("patient", "p")),), True)


def cases() -> Iterator[Case]:
    """All cases of CSVs."""
    for number, (name, change, expect) in enumerate((*_dialects(), *_columns(), *_rows(), *_numbers(), *_files())):
        renamed = name in ("file ./n0.nii.gz", "a volume under two names")
        unused = "diameter" in name and "twice" not in name  # the segmentation does without diameters
        segment = reads_or_refused(CSV) if unused else None
        yield Case(f"CSV: {name}", "cubes", change, readers(number, expect, segment), renamed=renamed)
