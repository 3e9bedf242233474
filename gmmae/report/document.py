"""A report as a list of blocks, written as Markdown, and that Markdown as one HTML file that needs nothing but itself.

The texts of paragraphs, list items and captions know two marks, `code` in backticks and **bold** in double asterisks, the
first not within the second. All else, in every text, is shown as it is written.
"""

import base64
import os
import re
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Literal, NamedTuple, assert_never
from urllib.parse import quote

from markdown_it import MarkdownIt

from gmmae.base.errors import InputError
from gmmae.report import tables
from gmmae.report.tables import Table

SVG_LIMIT_BYTES = 500_000
"""A larger SVG goes into the HTML as its PNG: curves stay sharp on paper, and a plot of many points does not bloat the file."""


class Heading(NamedTuple):
    text: str
    level: Literal[1, 2]  # 1 is the title of the page


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
      ValueError: a table's row of the wrong length.

    >>> print(markdown([Heading("Results", 1), Paragraph("**Strong** takes `T_n` < T_1.")], Path()), end="")
    # Results
    <BLANKLINE>
    **Strong** takes `T_n` \\< T\\_1.
    """
    return "\n\n".join(_markdown_block(block, folder).rstrip("\n") for block in blocks) + "\n"


def html(title: str, blocks: Sequence[Block]) -> str:
    """The blocks as one HTML file without scripts or references to anything outside itself.

    Headings of level 2 make the table of contents, which stands after a leading heading of level 1.

    Args:
      title: of the browser's window; the page shows the blocks only.
      blocks: in reading order.

    Raises:
      InputError, ValueError: as `markdown`.
    """
    body = [_html_block(block, f"section-{place}") for place, block in enumerate(blocks)]
    title_first = bool(blocks) and isinstance(blocks[0], Heading) and blocks[0].level == 1
    body.insert(int(title_first), _contents(blocks))
    return _PAGE.format(title=escape(title), style=_STYLE, body="".join(body))


def _markdown_block(block: Block, folder: Path) -> str:
    match block:
        case Heading(text, level):
            return f"{'#' * level} {tables.markdown_text(text)}"
        case Paragraph(text):
            return _marked(text)
        case Bullets(items):
            return "\n".join(f"- {_marked(item)}" for item in items)
        case Figure(name, caption, png, svg):
            png_link, svg_link = (_link(_existing(path), folder) for path in (png, svg))
            return f"[![{tables.markdown_text(name)}]({png_link})]({svg_link})\n\n{_marked(caption)}"
        case Table():
            return tables.markdown(block)
        case _:
            assert_never(block)


_RENDERER = MarkdownIt("commonmark").enable("table")


def _html_block(block: Block, anchor: str) -> str:
    """The block's Markdown rendered, with what Markdown cannot say: anchors, drawings within the file, and figures as such."""
    match block:
        case Heading(text, level):
            return f'<h{level} id="{anchor}">{escape(text)}</h{level}>\n'
        case Figure(name, caption, png, svg):
            image = f'<img src="{_data(_existing(png), _existing(svg))}" alt="{escape(name)}">'
            return f"<figure>\n{image}\n{_RENDERER.render(_marked(caption))}</figure>\n"
        case Table():
            return f'<figure class="table">\n{_RENDERER.render(tables.markdown(block))}</figure>\n'
        case _:
            return _RENDERER.render(_markdown_block(block, Path()))


def _contents(blocks: Sequence[Block]) -> str:
    entries = [
        f'<li><a href="#section-{place}">{escape(block.text)}</a></li>'
        for place, block in enumerate(blocks)
        if isinstance(block, Heading) and block.level > 1
    ]
    return "\n".join(['<nav aria-label="Contents">', "<ul>", *entries, "</ul>", "</nav>", ""]) if entries else ""


def _marked(text: str) -> str:
    """The text as a paragraph of Markdown in which nothing but the two marks is interpreted."""
    # Every other run is a mark. As in Markdown, asterisks between spaces mark nothing.
    runs = re.split(r"(`[^`]+`|\*\*(?=\S)|(?<=\S)\*\*)", " ".join(text.split()))
    return tables.markdown_start("".join(run if place % 2 else tables.markdown_text(run) for place, run in enumerate(runs)))


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


_PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
{body}</body>
</html>
"""

_STYLE = """
:root { color-scheme: light dark; }
body { font: 1rem/1.55 system-ui, sans-serif; max-width: 56rem; margin: 2rem auto; padding: 0 1rem; }
h1, h2 { line-height: 1.25; margin: 2em 0 0.5em; }
h1 { margin-top: 0; }
code { font-family: ui-monospace, monospace; font-size: 0.9em; overflow-wrap: anywhere; }
nav ul { list-style: none; padding: 0; }
figure { margin: 2rem 0; overflow-x: auto; break-inside: avoid; }
figure p { font-size: 0.9em; }
figure p:first-child { margin: 0 0 0.5em; }
img { display: block; max-width: 100%; height: auto; margin: 0 auto 0.5em; background: white; }
table { border-collapse: collapse; border-block: 1.5px solid; font-variant-numeric: tabular-nums; }
th, td { padding: 0.3em 0.8em; text-align: left; border-bottom: 1px solid #8886; }
td[style] { white-space: nowrap; } /* numbers, which Markdown aligns to the right */
"""
