"""Damaged and odd CSVs of volumes."""

import re
from functools import partial

from tests.fuzz.cases import either, itself, left_out, reads, refused, table
from tests.fuzz.changes import both, cell, decimal_commas, replaced, row, rows, text, unchanged, without_columns, without_row
from tests.volume_folders import CSV

LINE = f"{CSV} line 4"
"""The line of the nodule n2."""
GONE = without_row()

WRONG_CELLS = {
    "diameter_mm": "0|-6|nan|NaN|inf|-inf|1e30|1e308|1e999|6 mm|~6|6,0|6.0.0|0x6|1_0|six|5-7",
    "coordX": "nan|inf|1e30|1e308|-500||12,5|n/a",
    "spacingX": "0|-1|six|1e6",
}
"""Cells of a row that cannot be read."""


def cells(wrong):
    """Changes of the row of n2, from a table of its cells."""
    return {f"{key} {value or 'empty'}": cell(key, value) for key, values in wrong.items() for value in values.split("|")}


def dialects(table, csv):
    """Ways to write any CSV: cases by a function of their expectation and changes."""
    return [
        *table(
            reads(),
            {
                "byte-order mark": text(lambda old: old.encode("utf-8-sig")),
                "all cells in quotes": text(lambda old: re.sub(r"[^,\n]+", r'"\g<0>"', old)),
                "CRLF": replaced("\n", "\r\n"),
                "mixed line ends": replaced("\n", "\r\n", 3),
                "no end of the last line": text(str.rstrip),
                "empty lines at the end": text(lambda old: old + "\n\n,,,,,,\n"),
                "empty lines in between": text(lambda old: "\n\n" + old.replace("\n", "\n\n")),
                "spaces around cells": replaced(",", " , "),
                "a comma at the end of each line": replaced("\n", ",\n"),
                "commas at the end of the rows only": text(lambda old: old.replace("\n", ",\n").replace(",\n", "\n", 1)),
                "other columns": cell("mine", "x", None),
                "a column without a name": text(lambda old: "," + old.rstrip().replace("\n", "\n0,")),
                "columns in another order": rows(lambda old: [line[::-1] for line in old]),
                "names in capitals": row(lambda names: [name.upper() for name in names], 0),
                "names in small letters": replaced("coordX,coordY,coordZ", "coordx,coordy,coordz"),
                "names with a space": replaced("coord", "coord "),
            },
        ),
        *table(
            either(csv),
            {
                **{code: text(lambda old, code=code: old.encode(code)) for code in ("utf-16", "utf-16-le", "utf-32")},
                **{repr(delimiter): replaced(",", delimiter) for delimiter in ";\t| "},
                "semicolons and decimal commas": decimal_commas(";"),
                "tabs and decimal commas": decimal_commas("\t"),
                "a line sep=;": text(lambda old: "sep=;\n" + old.replace(",", ";")),
                "a comment line": text(lambda old: "# made by hand\n" + old),
                "CR": replaced("\n", "\r"),
                "line 2: decimal commas in quotes": decimal_commas(",", '"'),
            },
        ),
        *table(
            refused(csv),
            {
                "line 2: decimal commas without quotes": decimal_commas(","),
                "random bytes": text(lambda _: bytes(range(256)) * 8),
                "a spreadsheet": text(lambda _: b"PK\x03\x04" + bytes(200)),
                "an empty file": text(lambda _: ""),
                "the header alone": rows(lambda old: old[:1]),
                "rows without a header": rows(lambda old: old[1:]),
            },
        ),
        *table(refused("diameter_mm"), {"no column diameter_mm": without_columns("diameter_mm")}),
    ]


def centres(table, csv):
    """Faults of the columns with the nodules' centres."""
    changes = {f"{column}: missing": without_columns(column) for column in ("coordX", "coordZ")}
    return table(refused(csv), {"coordX: twice": replaced("coordY", "coordX"), **changes})


INSIDE = cell("category", "so\nlid", 1)
NO_CENTRES = without_columns("coordX", "coordY", "coordZ")
WRONG_FILES = r"../n2.nii.gz|/etc/passwd|n2|n2.nii|N2.NII.GZ|images|n2.nii.gz/|~|a/../../n2.nii.gz"
UNNAMED_FILES = r"|\|C:\n2.nii.gz|..\n2.nii.gz|\n2.nii.gz"

cubes = partial(table, "cubes", "CSV", "prepare, evaluate|describe|sweep|segment|train")
with_diameters = partial(table, "cubes", "CSV", "prepare, evaluate|describe|sweep|train")
"""The segmentation does without diameters."""
CASES = [
    *dialects(cubes, CSV),
    *centres(cubes, CSV),
    *cubes(reads(), {"diameter +5.1e0": cell("diameter_mm", "+5.1e0")}),
    *cubes(reads(cell("coordX", "9.610")), {"a centre on the volume's face": cell("coordX", "9.61")}),
    *cubes(
        reads(NO_CENTRES),
        {f"coordinates {word}": both(*(cell(f"coord{axis}", word, None) for axis in "XYZ")) for word in ("", "NA")},
    ),
    *cubes(
        either(CSV, like=replaced("part-solid", "fläche")),
        {"Latin-1": text(lambda old: old.replace("part-solid", "fläche").encode("latin-1"))},
    ),
    *cubes(
        either(like=itself),
        {
            f"{CSV}: a NUL in a category": replaced("solid", "so\0lid", 1),
            "one row": rows(lambda old: old[:2]),
            "patient of all": cell("patient", "p", None),
        },
    ),
    *cubes(
        refused(CSV),
        {
            "an open quote": replaced("solid", '"solid', 1),
            "a cell of 200,000 characters": cell("category", "x" * 200_000),
            "patient: and Patient": cell("Patient", "x", None),
            "file: missing": without_columns("file"),
            "line 2: all centres outside": cell("coordZ", "500", None),
        },
    ),
    *with_diameters(
        refused(CSV),
        {
            "line 2: all diameters 0": cell("diameter_mm", "0", None),
            "diameter_mm: twice": replaced("category", "diameter_mm"),
        },
    ),
    *with_diameters(either(CSV), {"diameter_mm: twice, the same": rows(lambda old: [[*line, line[5]] for line in old])}),
    *cubes(
        either(CSV),
        {
            "line 8: a row twice": rows(lambda old: [*old, old[3]]),
            "line 8: all rows twice": rows(lambda old: [*old, *old[1:]]),
        },
    ),
    *cubes(
        left_out(unchanged, CSV),
        {
            "line : the file twice, header too": rows(lambda old: [*old, *old]),
            "line 8: a row twice with another diameter": rows(lambda old: [*old, [*old[3][:5], "9", old[3][6]]]),
        },
    ),
    *cubes(
        left_out(GONE, LINE),
        {
            "a row cut in its middle": row(lambda old: old[:4]),
            "a row with a cell more": row(lambda old: [*old, "x"]),
            "a row with one decimal comma": row(lambda old: [*old[:2], *old[2].split("."), *old[3:]]),
            "coordinates in voxels": both(cell("coordX", "7"), cell("coordY", "8"), cell("coordZ", "5")),
            **cells({"file": UNNAMED_FILES}),
        },
    ),
    *with_diameters(left_out(GONE, LINE), cells(WRONG_CELLS)),
    *cubes(
        left_out(GONE, LINE)._replace(reads=cell("category", "")), {"a row without its last cell": row(lambda old: old[:6])}
    ),
    *with_diameters(
        left_out(GONE),
        {
            "n2.nii.gz: an empty diameter": cell("diameter_mm", ""),
            "n2.nii.gz: with a backslash": cell("file", "images\\n2.nii.gz"),
            f"{CSV}: a point": cell("file", "."),
            f"{CSV} line 6: after empty lines": both(cell("diameter_mm", "-1"), replaced("\n", "\n\n", 2)),
        },
    ),
    *with_diameters(
        left_out(both(INSIDE, GONE), f"{CSV} line 5"),
        {"a bad row after a line end in a cell": both(INSIDE, cell("diameter_mm", "-1"))},
    ),
    *cubes(left_out(GONE), {f"{name}: as a file": cell("file", name) for name in WRONG_FILES.split("|")}),
    *cubes(either("n0.nii.gz"), {"file ./n0.nii.gz": cell("file", "./n0.nii.gz", 1)}, renamed=True),
    *cubes(reads(itself), {"a volume under two names": rows(lambda old: [*old, [f"images/{old[3][0]}", *old[3][1:]]])}),
]
