import base64
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gmmae.plotting import document, tables
from gmmae.plotting.document import Bullets, Figure, Folded, Heading, Paragraph
from gmmae.plotting.tables import Table
from gmmae.system.errors import InputError

PNG = b"\x89PNG\r\n\x1a\n of a drawing"
# What a browser would fetch, were the drawing not in an `img`.
SVG = b'<svg xmlns="http://www.w3.org/2000/svg"><image href="https://example.com/x.png"/></svg>'
TABLE = Table("table_1", "Efficiencies", ("scaling", "a|b"), (("<strong>", "1 & 2"), ('"q"', "x|y")), ("A note.",))


@pytest.fixture
def figure(tmp_path):
    folder = tmp_path / "figures (1)"
    folder.mkdir()
    (folder / "losses.png").write_bytes(PNG)
    (folder / "losses.svg").write_bytes(SVG)
    return Figure("losses", "1. Losses of <all> strategies", folder / "losses.png", folder / "losses.svg")


@pytest.fixture
def blocks(figure):
    return [
        Heading("Report & results", 1),
        Paragraph("Run `gmmae report --out <dir>`, see **Table 1 | 2** & \"x\" < 'y' at http://example.com."),
        Heading("Times", 2),
        Bullets(("**strong**: 3 of 5", "- no list in `a*b`", "2 * 3 ** 4")),
        TABLE,
        Heading("<Losses>", 2),
        figure,
    ]


WRITERS = [lambda blocks: document.html("", blocks), lambda blocks: document.markdown(blocks, Path())]
VOID = {"meta", "img", "br", "hr", "link", "base", "input", "source"}
REFERENCES = {"src", "href", "srcset", "data", "poster", "action", "background", "xlink:href"}


class Page(HTMLParser):
    """Holds every element to be closed by its own end tag; gathers references, identifiers and texts by element."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.references, self.ids, self.texts = [], set(), [], [], {}
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.references += [value for key, value in attrs if key in REFERENCES]
        self.ids += [value for key, value in attrs if key == "id"]
        if tag not in VOID:
            self.open.append(tag)
            self.texts.setdefault(tag, []).append("")

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data):
        for tag in set(self.open):
            self.texts[tag][-1] += data


def test_the_page_is_well_formed_and_refers_to_nothing_outside_itself(blocks):
    text = document.html("A <title>", blocks)
    page = Page(text)
    assert text.startswith('<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">')
    assert not page.tags & {"script", "link", "iframe", "object", "embed", "base", "svg"}
    assert len(page.references) == 3, "two headings in the contents and a figure"
    assert all(reference.startswith(("data:", "#")) for reference in page.references)
    assert {reference[1:] for reference in page.references if reference.startswith("#")} <= set(page.ids)
    assert len(set(page.ids)) == len(page.ids)
    assert not re.search(r"url\(|@import|http", page.texts["style"][0])


def test_the_page_shows_what_was_written(blocks):
    page = Page(document.html("A <title>", blocks))
    assert page.texts["title"] == ["A <title>"]
    assert page.texts["h1"] == ["Report & results"]
    assert page.texts["p"][0] == "Run gmmae report --out <dir>, see Table 1 | 2 & \"x\" < 'y' at http://example.com."
    assert page.texts["code"] == ["gmmae report --out <dir>", "a*b"]
    assert page.texts["strong"] == ["Table 1 | 2", "strong", "Efficiencies"]
    assert page.texts["li"] == ["Times", "<Losses>", "strong: 3 of 5", "- no list in a*b", "2 * 3 ** 4"]
    assert page.texts["td"] == ["<strong>", "1 & 2", '"q"', "x|y"]
    assert page.texts["p"][-3:] == ["Efficiencies", "A note.", "1. Losses of <all> strategies"]
    assert [text.split("\n")[1] for text in page.texts["figure"]] == ["Efficiencies", ""]


def test_the_contents_follow_the_title_and_its_first_paragraph(blocks):
    text = document.html("", blocks)
    assert text.index("</h1>") < text.index("<p>") < text.index("<nav") < text.index("<h2")
    assert '<li><a href="#section-5">&lt;Losses&gt;</a></li>' in text
    assert '<h2 id="section-5">&lt;Losses&gt;</h2>' in text
    listed = document.html("", [blocks[0], blocks[3], blocks[2]])
    assert listed.index("<li><strong>") < listed.index("<nav")
    untitled = document.html("", blocks[1:])
    assert untitled.index("<nav") < untitled.index("<p>")
    assert "<nav" not in document.html("", blocks[:2])


def test_a_fold_is_a_details_element_that_a_link_to_its_content_opens(blocks, figure):
    text = document.html("", [blocks[0], Folded("More <x>", (TABLE, figure)), blocks[2]])
    page = Page(text)
    assert page.texts["summary"] == ["More <x>"]
    # The browser opens the folds around what a link leads to, so the target is within the element and not itself it.
    assert re.search(r'<details>\n<summary><h2>More &lt;x&gt;</h2></summary>\n<div id="section-1">\n<figure', text)
    assert page.references[:2] == ["#section-1", "#section-2"]
    assert page.texts["details"][0].count("1 & 2") == 1
    assert "@media print { details::details-content" in page.texts["style"][0]


def test_a_fold_in_markdown_is_html_around_markdown(tmp_path):
    text = document.markdown([Folded("More <x>", (Paragraph("a_b"), TABLE)), Paragraph("c")], tmp_path)
    head = "<details>\n<summary><h2>More &lt;x&gt;</h2></summary>\n\na\\_b\n\n"
    assert text == head + tables.markdown(TABLE) + "\n</details>\n\nc\n"


def test_wide_tables_and_figures_scroll_in_boxes_of_their_own(blocks):
    text = document.html("", blocks)
    boxes = re.findall(r'<div class="scroll" role="region" aria-label="([^"]*)" tabindex="0">\n<(\w+)', text)
    assert boxes == [("Efficiencies", "table"), ("losses", "img")]
    assert text.count("<table>") == text.count("</table>\n</div>") == 1
    assert text.index("Efficiencies</strong>") < text.index('<div class="scroll"') < text.index("A note.")


def test_folds_are_unfolded_in_their_place(blocks):
    folded = [blocks[0], Folded("a", (blocks[1], Folded("b", (blocks[2],)))), blocks[3]]
    assert document.unfolded(folded) == blocks[:4]


def test_a_figure_is_embedded_as_svg_unless_that_is_large(figure):
    (source,) = Page(document.html("", [figure])).references
    assert source == f"data:image/svg+xml;base64,{base64.b64encode(SVG).decode()}"
    figure.svg.write_bytes(b" " * (document.SVG_LIMIT_BYTES + 1))
    (source,) = Page(document.html("", [figure])).references
    assert source == f"data:image/png;base64,{base64.b64encode(PNG).decode()}"


def test_markdown(blocks, tmp_path):
    assert document.markdown(blocks, tmp_path) == (
        "# Report \\& results\n"
        "\n"
        "Run `gmmae report --out <dir>`, see **Table 1 \\| 2** \\& \"x\" \\< 'y' at http://example.com.\n"
        "\n"
        "## Times\n"
        "\n"
        "- **strong**: 3 of 5\n"
        "- \\- no list in `a*b`\n"
        "- 2 \\* 3 \\*\\* 4\n"
        "\n" + tables.markdown(TABLE) + "\n"
        "## \\<Losses\\>\n"
        "\n"
        "[![losses](figures%20%281%29/losses.png)](figures%20%281%29/losses.svg)\n"
        "\n"
        "1\\. Losses of \\<all\\> strategies\n"
    )


def test_markdown_links_are_relative_to_its_folder(figure, tmp_path):
    beside = document.markdown([figure], figure.png.parent)
    assert beside.startswith("[![losses](losses.png)](losses.svg)\n")
    assert "](../figures%20%281%29/losses.png)" in document.markdown([figure], tmp_path / "text")


# Markdown has no null character, and shows white space, control characters among it, as one space.
SHOWN = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])).filter(str.strip)


@given(SHOWN)
@example("a|b \\| c\\")
def test_any_text_is_shown_in_html_as_it_is(text):
    words = " ".join(text.split())
    page = Page(document.html(words, [Heading(words, 2), Table("t", words, ("a",), ((text,),), (text,))]))
    assert [" ".join(shown.split()) for shown in page.texts["td"]] == [words]
    assert page.texts["title"] == page.texts["h2"] == [words]
    assert page.texts["p"] == [words] * 2


@given(SHOWN.filter(lambda text: not set(text) & set("*`")))
@example("- x")
@example("+ x")
@example("12) 1. x")
@example("1. x")
@example("# x")
@example("> x")
@example("=== x")
@example("--- x")
@example("| x")
def test_any_text_without_marks_is_a_paragraph_as_it_is(text):
    page = Page(document.html("", [Paragraph(text), Bullets((text,))]))
    assert page.texts["p"] == page.texts["li"] == [" ".join(text.split())]
    assert page.tags <= {"html", "head", "meta", "title", "style", "body", "p", "ul", "li"}


@pytest.mark.parametrize("missing", ["png", "svg"])
@pytest.mark.parametrize("write", WRITERS)
def test_a_missing_figure_is_named(figure, missing, write):
    path = getattr(figure, missing)
    path.unlink()
    message = rf"needs the files of its figures; '.*losses\.{missing}' is missing: draw the figures first"
    with pytest.raises(InputError, match=message):
        write([figure])
