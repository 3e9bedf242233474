"""CSVs as others write them."""

import re

import pytest

from gmmae.data.extraction.annotations import read_table
from gmmae.data.settings import DataConfig
from gmmae.data.volumes import DataError

HEADER = "file,coordX,coordY,coordZ,diameter_mm"


def table(tmp_path, *lines, header=HEADER, encoding="utf-8"):
    path = tmp_path / "nodules.csv"
    path.write_text("\n".join([header, *lines]) + "\n", encoding=encoding)
    return read_table(path, DataConfig(source="cubes"), "file", ())


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("a.nii,1,5,2,5,3,5,8", "at most the 5 cells of the header; got 8: .*comma"),
        ('a.nii,"1,5",2,3,8', "coordX must be a finite number; got 1,5: .*decimal point"),
        ("a.nii,1,2", "coordX, coordY, coordZ .* got 1, 2, -"),
        *[
            (f"{name},1,2,3,8", "file must be a name inside data.root")
            for name in ("a/../../x.npy", "C:\\x.npy", "..\\x.npy", "\\x.npy")
        ],
    ],
)
def test_a_row_that_would_be_misread_is_a_fault_with_its_line(tmp_path, line, text):
    result = table(tmp_path, "b.nii,1,2,3,8", line)
    assert [row.file for row in result.rows] == ["b.nii"]
    (fault,) = result.faults
    assert fault.place == "nodules.csv line 3"
    assert re.search(text, fault.text)


def test_marks_blank_lines_and_empty_cells_at_the_end_do_no_harm(tmp_path):
    result = table(tmp_path, "", " a b é.nii , 1 ,2,3,8,,", ",,,,", header=HEADER + ",", encoding="utf-8-sig")
    assert [(row.file, row.centre_mm, row.diameter_mm, row.number) for row in result.rows] == [("a b é.nii", (1, 2, 3), 8, 3)]
    assert not result.faults


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (HEADER.replace(",", ";"), "column file; .* file;coordX;.*: .*commas$"),
        (HEADER.replace(",", "\t"), "column file; .*: .*commas$"),
        (HEADER.replace("coordY", "coordX"), "different names; coordX"),
        ("name,coordX", "column file; .* name, coordX$"),
    ],
)
def test_a_header_that_cannot_be_used_is_said(tmp_path, header, message):
    with pytest.raises(DataError, match=message):
        table(tmp_path, "a.nii,1,2,3,8", header=header)


def test_a_folder_is_no_csv(tmp_path):
    (tmp_path / "nodules.csv").mkdir()
    with pytest.raises(DataError, match=r"nodules\.csv is no file \(.*nodules\.csv\)"):
        read_table(tmp_path / "nodules.csv", DataConfig(source="cubes"), "file", ())
