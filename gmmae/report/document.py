"""A report as a list of blocks, written as Markdown or as one HTML file that needs nothing but itself.

The texts of paragraphs and list items know two marks, `code` in backticks and **bold** in double asterisks, one not within
the other. All else, in every text, is shown as it is written.
"""

import base64
import os
import re
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple, assert_never
from urllib.parse import quote

from gmmae.base.errors import InputError
from gmmae.report import tables
from gmmae.report.tables import Table

SVG_LIMIT_BYTES = 500_000
"""A larger SVG goes into the HTML as its PNG: curves stay sharp on paper, and a plot of many points does not bloat the file."""


class Heading(NamedTuple):
    text: str
    level: int  # 1 to 6; 1 is the title of the page


class Paragraph(NamedTuple):
    text: str


class Bullets(NamedTuple):
    items: tuple[str, ...]


class Figure(NamedTuple):
    """A drawing in both formats."""

    name: str  # shown where the drawing cannot be
    caption: str
    png: Path
    svg: Path


Block = Heading | Paragraph | Bullets | Figure | Table


def markdown(blocks: Sequence[Block], folder: Path) -> str:
    """The blocks as GitHub's Markdown. A figure shows its PNG and leads to its SVG.

    Args:
      blocks: in reading order.
      folder: where the text will lie; links to figures are relative to it.

    Raises:
      InputError: a figure's file is missing.
      ValueError: a heading's level outside 1 to 6; a table's row of the wrong length.

    >>> print(markdown([Heading("Results", 1), Paragraph("**Strong** takes `T_n` < T_1.")], Path()), end="")
    # Results
    <BLANKLINE>
    **Strong** takes `T_n` \\< T\\_1.
    """
    return "\n\n".join(_markdown_block(block, folder).rstrip("\n") for block in blocks) + "\n"


def html(title: str, blocks: Sequence[Block]) -> str:
    """The blocks as one HTML file without scripts or references to anything outside itself.

    Headings under level 1 make the table of contents, which stands after a leading heading of level 1.

    Args:
      title: of the browser's window; the page shows the blocks only.
      blocks: in reading order.

    Raises:
      InputError, ValueError: as `markdown`.
    """
    body = [_html_block(block, f"section-{place}") for place, block in enumerate(blocks)]
    title_first = bool(blocks) and isinstance(blocks[0], Heading) and blocks[0].level == 1
    body.insert(int(title_first), _contents(blocks))
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title>",
            f"<style>{_STYLE}</style>",
            "</head>",
            "<body>",
            *(part.rstrip("\n") for part in body if part),
            "</body>",
            "</html>",
            "",
        ]
    )


def _markdown_block(block: Block, folder: Path) -> str:
    match block:
        case Heading(text, level):
            return f"{'#' * _checked(level)} {tables.markdown_text(text)}"
        case Paragraph(text):
            return _markdown_inline(text)
        case Bullets(items):
            return "\n".join(f"- {_markdown_inline(item)}" for item in items)
        case Figure(name, caption, png, svg):
            png_link, svg_link = (_link(_existing(path), folder) for path in (png, svg))
            image = f"[![{tables.markdown_text(name)}]({png_link})]({svg_link})"
            return f"{image}\n\n{tables.markdown_start(tables.markdown_text(caption))}"
        case Table():
            return tables.markdown(block)
        case _:
            assert_never(block)


def _html_block(block: Block, anchor: str) -> str:
    match block:
        case Heading(text, level):
            return f'<h{_checked(level)} id="{anchor}">{escape(text)}</h{level}>'
        case Paragraph(text):
            return f"<p>{_html_inline(text)}</p>"
        case Bullets(items):
            return "\n".join(["<ul>", *(f"<li>{_html_inline(item)}</li>" for item in items), "</ul>"])
        case Figure(name, caption, png, svg):
            image = f'<img src="{_data(_existing(png), _existing(svg))}" alt="{escape(name)}">'
            return f"<figure>\n{image}\n<figcaption>{escape(caption)}</figcaption>\n</figure>"
        case Table():
            return tables.html(block)
        case _:
            assert_never(block)


def _contents(blocks: Sequence[Block]) -> str:
    entries = [
        f'<li class="level-{block.level}"><a href="#section-{place}">{escape(block.text)}</a></li>'
        for place, block in enumerate(blocks)
        if isinstance(block, Heading) and block.level > 1
    ]
    return "\n".join(['<nav aria-label="Contents">', "<ul>", *entries, "</ul>", "</nav>"]) if entries else ""


_MARKS = re.compile(r"`([^`]+)`|\*\*(\S|\S.*?\S)\*\*", re.DOTALL)


def _inline(text: str, plain: Callable[[str], str], code: Callable[[str], str], bold: Callable[[str], str]) -> str:
    """The text with each run of it written by the function of its kind."""
    written, end = [], 0
    for mark in _MARKS.finditer(text):
        written.append(plain(text[end : mark.start()]))
        written.append(code(mark[1]) if mark[1] else bold(mark[2]))
        end = mark.end()
    return "".join([*written, plain(text[end:])])


def _html_inline(text: str) -> str:
    return _inline(
        text,
        plain=escape,
        code=lambda run: f"<code>{escape(run)}</code>",
        bold=lambda run: f"<strong>{escape(run)}</strong>",
    )


def _markdown_inline(text: str) -> str:
    return tables.markdown_start(
        _inline(
            " ".join(text.split()),
            plain=tables.markdown_text,
            code=lambda run: f"`{run}`",
            bold=lambda run: f"**{tables.markdown_text(run)}**",
        )
    )


def _link(path: Path, folder: Path) -> str:
    return quote(Path(os.path.relpath(path, folder)).as_posix())


def _data(png: Path, svg: Path) -> str:
    """The drawing as a data URI. In an `img` an SVG can neither run a script nor load anything."""
    path, kind = (svg, "svg+xml") if svg.stat().st_size <= SVG_LIMIT_BYTES else (png, "png")
    return f"data:image/{kind};base64,{base64.b64encode(path.read_bytes()).decode('ascii')}"


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise InputError(f"a report needs the files of its figures; {str(path)!r} is missing: draw the figures first")
    return path


def _checked(level: int) -> int:
    if not 1 <= level <= 6:
        raise ValueError(f"a heading's level must be 1 to 6; got {level!r}")
    return level


_STYLE = """
:root { color-scheme: light dark; }
body { font: 1rem/1.55 system-ui, sans-serif; max-width: 56rem; margin: 2rem auto; padding: 0 1rem; }
h1, h2, h3, h4, h5, h6 { line-height: 1.25; margin: 2em 0 0.5em; }
h1 { margin-top: 0; }
code { font-family: ui-monospace, monospace; font-size: 0.9em; overflow-wrap: anywhere; }
nav ul { list-style: none; padding: 0; }
nav .level-3 { padding-left: 1.5em; }
nav .level-4, nav .level-5, nav .level-6 { padding-left: 3em; }
figure { margin: 2rem 0; overflow-x: auto; break-inside: avoid; }
figcaption, .note { font-size: 0.9em; }
figure.table figcaption { font-weight: 600; margin-bottom: 0.5em; }
img { display: block; max-width: 100%; height: auto; margin: 0 auto 0.5em; background: white; }
table { border-collapse: collapse; border-block: 1.5px solid; font-variant-numeric: tabular-nums; }
th, td { padding: 0.3em 0.8em; text-align: left; border-bottom: 1px solid #8886; }
.number { text-align: right; white-space: nowrap; }
"""
