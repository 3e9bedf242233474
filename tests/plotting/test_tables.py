import math

import pytest

from gmmae.plotting import tables

COLUMNS = ("scaling", "GPUs", "efficiency (%)", "time")
ROWS = [("linear-warmup", "8", "NaN", "not reached"), ("a|b <c> time_s", "16", "58.08", "12.3"), ("x", "", "–", "≥ 40.0")]


def test_a_table_in_markdown_and_for_a_terminal():
    assert tables.table(COLUMNS, ROWS, "Efficiency & time", ["1. NaN: the target was missed.", "3 × 10² runs."]) == (
        "**Efficiency \\& time**\n"
        "\n"
        "| scaling | GPUs | efficiency (%) | time |\n"
        "| --- | ---: | ---: | ---: |\n"
        "| linear-warmup | 8 | NaN | not reached |\n"
        "| a\\|b \\<c\\> time\\_s | 16 | 58.08 | 12.3 |\n"
        "| x |  | – | ≥ 40.0 |\n"
        "\n"
        "1\\. NaN: the target was missed.\n"
        "\n"
        "3 × 10² runs."
    )
    assert tables.text_table(COLUMNS, ROWS).splitlines() == [
        "scaling         GPUs  efficiency (%)         time",
        "linear-warmup      8             NaN  not reached",
        "a|b <c> time_s    16           58.08         12.3",
        "x                                  –       ≥ 40.0",
    ]


@pytest.mark.parametrize("cells", [("1", "strong"), ("– none", "1"), ("0.5: no difference", "0.5")])
def test_columns_with_words_are_aligned_to_the_left(cells):
    assert "---:" not in tables.table("a", [(cell,) for cell in cells])


def test_numbers_as_they_are_read():
    assert tables.percent(9.454999) == "9.45"
    seconds = [0.0, 999.6, 1_234_567, 0.00012345, 0.000012345, math.nan]
    assert [*map(tables.seconds, seconds)] == ["0.00", "1000", "1.23e+06", "0.000123", "1.23e-05", "NaN"]
