r"""A page as a Markdown string, written as GitHub's Markdown and as a self-contained HTML file.

Markdown's marks and HTML in it count, so everything that a user has named goes through `gmmae.plotting.tables.literal`, and not
between backticks.
"""

import base64
import os
import re
from html import escape, unescape
from pathlib import Path
from urllib.parse import quote, unquote

from markdown_it import MarkdownIt

from gmmae.plotting.tables import literal
from gmmae.system.errors import InputError
from gmmae.system.files import write_text

SVG_LIMIT_BYTES = 500_000
"""Largest SVG in the HTML file; beyond, as for plots of many points, its PNG replaces it."""


def figure(name: str, caption: str, png: Path, svg: Path, folder: Path) -> str:
    """The Markdown of a drawing: its PNG, which links to its SVG, and below it the caption, in Markdown."""
    for path in (png, svg):
        if not path.is_file():
            raise InputError(f"a report needs the files of its figures; {str(path)!r} is missing: draw the figures first")
    shown, linked = (quote(Path(os.path.relpath(path, folder)).as_posix()) for path in (png, svg))
    return f"[![{literal(name)}]({shown})]({linked})\n\n{caption}"


def folded(title: str, text: str) -> str:
    """A section that is folded under its title, shown literally, until the reader opens it."""
    return f"<details>\n<summary><h2>{escape(' '.join(title.split()))}</h2></summary>\n\n{text}\n\n</details>"


def write(title: str, text: str, markdown: Path, html: Path) -> None:
    """Writes a page as Markdown, and as an HTML file without scripts or external references.

    The HTML file holds its figures, and lists the headings of level 2 and the folds behind the first block. Figures lie
    relative to the folder of `markdown`.
    """
    text = f"# {literal(title)}\n\n{text}\n"
    write_text(markdown, text)

    def embedded(link: re.Match[str]) -> str:
        """In an `img` an SVG can neither run a script nor load anything."""
        svg, png = (markdown.parent / unquote(unescape(link[place])) for place in (1, 2))
        path, kind = (svg, "svg+xml") if svg.stat().st_size <= SVG_LIMIT_BYTES else (png, "png")
        return f'<img src="data:image/{kind};base64,{base64.b64encode(path.read_bytes()).decode("ascii")}"{link[3]}>'

    titles: list[str] = []

    def anchored(heading: re.Match[str]) -> str:
        """A target behind a heading, because a link opens the fold around its target."""
        titles.append(heading[2])
        return f'{heading[0]}\n<div id="section-{len(titles)}"></div>'

    body = MarkdownIt("commonmark", {"html": True}).enable("table").render(text)
    body = re.sub(r'<a href="([^"]*)"><img src="([^"]*)"([^>]*)></a>', embedded, body)
    box = '<div class="scroll" role="region" aria-label="table" tabindex="0">'
    body = body.replace("<table>", f"{box}\n<table>").replace("</table>", "</table>\n</div>")
    body = re.sub("(<summary>)?<h2>(.*?)</h2>(?(1)</summary>)", anchored, body)
    links = "".join(f'<li><a href="#section-{place}">{title}</a></li>\n' for place, title in enumerate(titles, start=1))
    contents = f'<nav aria-label="Contents">\n<ul>\n{links}</ul>\n</nav>\n' if titles else ""
    # The first block says the most.
    body = re.sub(r"</h1>\n(<(p|ul)>.*?</\2>\n)?", lambda start: start[0] + contents, body, count=1, flags=re.DOTALL)
    write_text(html, _PAGE.format(title=escape(title), style=_STYLE, body=body))


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
body { font: 1rem/1.55 system-ui, sans-serif; max-width: 68rem; margin: 2rem auto; padding: 0 1rem; overflow-wrap: anywhere; }
h1, h2 { line-height: 1.25; margin: 2em 0 0.5em; }
h1 { margin-top: 0; font-size: 1.6rem; }
h2 { font-size: 1.25rem; }
code { font-family: ui-monospace, monospace; font-size: 0.9em; }
nav ul { list-style: none; padding: 0; display: flex; flex-wrap: wrap; gap: 0 1.5em; }
details { border-top: 1px solid #8886; padding-bottom: 0.5em; }
details:last-of-type { border-bottom: 1px solid #8886; }
summary { padding: 0.6em 0; cursor: pointer; }
summary h2 { display: inline; font-size: 1.1rem; }
[id] { scroll-margin-top: 4rem; }
img { display: block; max-width: 100%; height: auto; margin: 2rem auto 0; background: white; break-inside: avoid; }
p:has(img) + p, p:has(+ .scroll) { font-size: 0.9em; }
p:has(+ .scroll) { margin: 2rem 0 0.5em; }
.scroll { /* with a shadow on the right as long as there is more */
  overflow-x: auto;
  background: linear-gradient(to left, Canvas 1rem, transparent) right / 2rem 102% no-repeat local,
    linear-gradient(to left, #888a, transparent) right / 0.8rem 100% no-repeat;
}
table { border-collapse: collapse; border-block: 1.5px solid; font-variant-numeric: tabular-nums; overflow-wrap: normal; }
th, td { padding: 0.3em 0.5em; text-align: left; vertical-align: top; border-bottom: 1px solid #8886; }
td:first-child { white-space: nowrap; }
td:last-child:not([style]) { min-width: 11rem; }
td[style] { white-space: nowrap; } /* numbers, which Markdown aligns to the right */
@media (max-width: 40rem) {
  body { margin: 1rem auto; }
  h1 { font-size: 1.3rem; }
  table { font-size: 0.85rem; line-height: 1.35; }
  th, td { padding: 0.25em 0.5em; }
  th:first-child, td:first-child { position: sticky; left: 0; background: Canvas; }
}
@media print { details::details-content { content-visibility: visible; } }
"""
