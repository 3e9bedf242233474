import csv
import io
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gmmae.plotting import tables
from gmmae.plotting.tables import Table

TABLE = Table(
    "table_1",
    "Efficiency & time, η = 0.001",
    ("scaling", "GPUs", "efficiency (%)", "time"),
    (
        ("linear-warmup", "8", "NaN", "not reached"),
        ("a|b <c> time_s", "16", "58.08", "12.3"),
        ('"x", y', "32", "–", "≥ 40.0"),
    ),
    ("1. NaN: the target was missed.", "3 × 10² runs."),
)
WRITERS = [tables.markdown, tables.csv_text]


def test_markdown():
    assert tables.markdown(TABLE) == (
        "**Efficiency \\& time, η = 0.001**\n"
        "\n"
        "| scaling | GPUs | efficiency (%) | time |\n"
        "| --- | ---: | ---: | ---: |\n"
        "| linear-warmup | 8 | NaN | not reached |\n"
        "| a\\|b \\<c\\> time\\_s | 16 | 58.08 | 12.3 |\n"
        '| "x", y | 32 | – | ≥ 40.0 |\n'
        "\n"
        "1\\. NaN: the target was missed.\n"
        "\n"
        "3 × 10² runs.\n"
    )


def test_csv_has_the_cells_and_no_more():
    assert tables.csv_text(TABLE).splitlines()[3] == '"""x"", y",32,–,≥ 40.0'
    assert list(csv.reader(io.StringIO(tables.csv_text(TABLE)))) == [list(TABLE.columns), *map(list, TABLE.rows)]


# The csv module before Python 3.13 does not quote a lone carriage return.
TEXT = st.text(st.characters(exclude_characters="\r", exclude_categories=["Cs"]))
CELLS = st.lists(st.tuples(TEXT, TEXT), max_size=4).map(tuple)


@given(CELLS)
def test_csv_makes_the_round_trip_with_any_text(rows):
    text = tables.csv_text(Table("t", "", ("a", "b"), rows))
    assert list(csv.reader(io.StringIO(text, newline=""))) == [["a", "b"], *map(list, rows)]


@pytest.mark.parametrize(
    ("write", "row"), [*((write, ("strong",)) for write in WRITERS), (tables.markdown, ("strong", "8", "9"))]
)
def test_a_row_of_the_wrong_length_is_named(write, row):
    with pytest.raises(ValueError, match=rf"each row of table_2 must have 2 cells; got {len(row)}: \('strong'"):
        write(Table("table_2", "", ("scaling", "GPUs"), (("weak", "4"), row)))


@pytest.mark.parametrize(
    ("cells", "numeric"),
    [
        (("1", "2.5", "NaN"), True),
        (("-1", "−2", "±3", "∞", "-∞"), True),
        (("98.20 to ∞", "–", ""), True),
        (("not reached", "12.3"), True),
        (("1", "strong"), False),
        (("-", "1"), False),
        (("– none", "1"), False),
        (("not run",), False),
    ],
)
def test_columns_of_numbers_are_aligned_to_the_right(cells, numeric):
    table = Table("t", "", ("a",), tuple((cell,) for cell in cells))
    assert ("---:" in tables.markdown(table)) == numeric


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (tables.percent(100.0), "100.00"),
        (tables.percent(9.454999), "9.45"),
        (tables.seconds(0.0), "0.00"),
        (tables.seconds(999.4), "999"),
        (tables.seconds(999.6), "1000"),
        (tables.seconds(99.96), "100"),
        (tables.seconds(123_456), "123000"),
        (tables.seconds(1_234_567), "1.23e+06"),
        (tables.seconds(0.00012345), "0.000123"),
        (tables.seconds(0.000012345), "1.23e-05"),
        (tables.seconds(math.nan), "NaN"),
        (tables.loss(0.00099996), "0.001000"),
        (tables.loss(12.345678), "12.35"),
        (tables.loss(-3.21), "-3.210"),
        (tables.loss(3.2e30), "3.200e+30"),
        (tables.loss(-math.inf), "-∞"),
        (tables.interval_text((math.inf, math.inf), tables.seconds), "not reached to not reached"),
    ],
)
def test_numbers_as_they_are_read(written, expected):
    assert written == expected
