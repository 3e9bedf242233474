"""Tables of text cells as Markdown and for a terminal, and formats of their numbers."""

import math
import re
from collections.abc import Sequence

Row = Sequence[str]


def literal(text: str) -> str:
    r"""Escapes text for Markdown, so that it is shown as it is within a line, at its beginning, and in a cell.

    Code between backticks would show the backslashes.

    >>> print(literal("a|b <c> time_s"), literal("1. Infinite times"), literal("-0.5"))
    a\|b \<c\> time\_s 1\. Infinite times -0.5
    """
    text = re.sub(r"([\\`*_\[\]<>&|~#$])", r"\\\1", " ".join(text.split()))
    return re.sub(r"^(\d*)([-+=.)])(?=[-+=\s]|$)", r"\1\\\2", text)


def table(columns: Row, rows: Sequence[Row], title: str = "", notes: Sequence[str] = ()) -> str:
    """A table as GitHub's Markdown: the title in bold, the table, and the notes as paragraphs, all shown literally.

    >>> print(table(("scaling", "GPUs"), [("strong", "8")], "Two"))
    **Two**
    <BLANKLINE>
    | scaling | GPUs |
    | --- | ---: |
    | strong | 8 |
    """
    rule = ["---:" if numeric else "---" for numeric in _numeric(columns, rows)]
    lines = [[literal(cell) for cell in columns], rule, *([literal(cell) for cell in row] for row in rows)]
    head = [f"**{literal(title)}**"] if title else []
    return "\n\n".join([*head, "\n".join(f"| {' | '.join(line)} |" for line in lines), *map(literal, notes)])


def text_table(columns: Row, rows: Sequence[Row]) -> str:
    """A table for a terminal, of any width. Columns of numbers are aligned to the right.

    >>> print(text_table(("scaling", "GPUs"), [("strong", "8")]))
    scaling  GPUs
    strong      8
    """
    sides = [">" if numeric else "<" for numeric in _numeric(columns, rows)]
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]

    def line(row: Row) -> str:
        return "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths, strict=True)).rstrip()

    return "\n".join(map(line, (columns, *rows)))


_NUMBER = re.compile(r"[-−+±<>≤≥≈~]*\s*(\d|NaN|∞|not reached)[^:;]*$|–?$")


def _numeric(columns: Row, rows: Sequence[Row]) -> list[bool]:
    return [all(map(_NUMBER.match, cells)) for _, *cells in zip(columns, *rows, strict=True)]


def percent(value: int | float) -> str:
    """Formats a percentage with two decimals, without the sign.

    >>> percent(105.171), percent(math.nan), percent(math.inf)
    ('105.17', 'NaN', '∞')
    """
    return f"{value:.2f}" if math.isfinite(value) else _no_number(value)


def seconds(value: int | float) -> str:
    """Formats a time to target with three significant digits, without the unit. Infinity means a missed target.

    >>> seconds(12345.6), seconds(9.996), seconds(0.01234), seconds(math.inf)
    ('12300', '10.0', '0.0123', 'not reached')
    """
    if value == math.inf:
        return "not reached"
    if not math.isfinite(value):
        return _no_number(value)
    scientific = f"{value:.2e}"
    exponent = int(scientific.partition("e")[2])
    if not -4 <= exponent < 6:
        return scientific
    return f"{float(scientific):.{max(0, 2 - exponent)}f}"


ratio = percent
"""Formats a ratio of times, likewise with two decimals."""


def _no_number(value: int | float) -> str:
    return "NaN" if math.isnan(value) else "∞" if value > 0 else "-∞"
