import re
from html.parser import HTMLParser

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gmmae.plotting import document
from gmmae.plotting.tables import literal, table
from gmmae.system.errors import InputError

PNG = b"\x89PNG\r\n\x1a\n of a drawing"
# What a browser would fetch, were the drawing not in an `img`.
SVG = b'<svg xmlns="http://www.w3.org/2000/svg"><image href="https://example.com/x.png"/></svg>'
VOID = {"meta", "img"}


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
        self.references += [value for key, value in attrs if key in ("src", "href")]
        self.ids += [value for key, value in attrs if key == "id"]
        if tag not in VOID:
            self.open.append(tag)
            self.texts.setdefault(tag, []).append("")

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data):
        for tag in set(self.open):
            self.texts[tag][-1] += data


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("page")


@pytest.fixture
def figure(folder):
    png = folder / "figures (1) & more" / "losses.png"
    png.parent.mkdir(exist_ok=True)
    png.write_bytes(PNG)
    svg = png.with_suffix(".svg")
    svg.write_bytes(SVG)
    return png, svg, folder


def written(folder, title, *text):
    document.write(title, "\n\n".join(text), folder / "page.md", folder / "page.html")
    return (folder / "page.html").read_text()


def test_a_page_is_markdown_and_one_html_file_that_refers_to_nothing_outside_itself(figure):
    folder = figure[-1]
    parts = (
        "Run `gmmae report --out <dir>`, see **Table 1**.",
        "## Times & more",
        table(("scaling", "a|b"), [("<strong>", "1"), ('"q"', "2")], "Efficiencies", ["1. A note."]),
        document.folded("More <x>", document.figure("losses", "Losses of *all* strategies", *figure)),
    )
    text = written(folder, "A <title>", *parts)
    assert (folder / "page.md").read_text() == "\n\n".join(["# A \\<title\\>", *parts]) + "\n"
    place = "figures%20%281%29%20%26%20more"
    assert (
        f"<h2>More &lt;x&gt;</h2></summary>\n\n[![losses]({place}/losses.png)]({place}/losses.svg)\n\nLosses of *all*"
        in parts[3]
    )
    page = Page(text)
    assert page.texts["title"] == page.texts["h1"] == ["A <title>"]
    first, _, *others = page.texts["p"]
    assert [first, *others] == ["Run gmmae report --out <dir>, see Table 1.", "1. A note.", "", "Losses of all strategies"]
    assert page.texts["td"] == ["<strong>", "1", '"q"', "2"]
    assert page.texts["strong"] == ["Table 1", "Efficiencies"]
    assert [reference[:14] for reference in page.references] == ["#section-1", "#section-2", "data:image/svg"]
    assert page.ids == ["section-1", "section-2"]
    # The browser opens the folds around what a link leads to, so the target is within the element and not itself it.
    assert '</summary>\n<div id="section-2">' in text
    assert not re.search(r"url\(|@import|http", page.texts["style"][0])


def test_a_large_svg_is_replaced_by_its_png(figure):
    figure[1].write_bytes(SVG + b" " * document.SVG_LIMIT_BYTES)
    assert 'src="data:image/png;base64,' in written(figure[-1], "", document.figure("a", "b", *figure))


# Markdown has no null character, and shows white space, control characters among it, as one space.
@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])).filter(str.strip))
@example("<script>alert(1)</script>")
@example("a|b *c* `d` &amp; [e](http://f)")
@example("a|b \\| c\\")
@example("- x")
@example("12) 1. x")
@example("# x")
@example("=== x")
def test_literal_text_is_shown_as_it_is_everywhere(folder, text):
    words = " ".join(text.split())
    part = literal(text)
    cells = table((text,), [(text,)], text, [text])
    page = Page(written(folder, text, part, f"- {part}", f"so {part}", f"## {part}", document.folded(text, cells)))
    for tag in ("title", "h1", "h2", "summary", "th", "td"):
        assert {" ".join(shown.split()) for shown in page.texts[tag]} == {words}, tag
    assert page.texts["p"] == [words, f"so {words}", words, words]
    assert page.texts["li"] == [words, words, words]
    allowed = "html head meta title style body nav a div h1 h2 p ul li details summary table thead tbody tr th td strong"
    assert page.tags <= set(allowed.split())


@pytest.mark.parametrize("missing", [0, 1])
def test_a_missing_figure_is_named(figure, missing):
    figure[missing].unlink()
    with pytest.raises(InputError, match=rf"needs the files of its figures; '.*{figure[missing].name}' is missing"):
        document.figure("a", "b", *figure)
