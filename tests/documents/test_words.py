"""Documents, docstrings, comments and help texts use the field's words, in sentences of a readable length."""

import pytest

from tests.documents.reading import PAGES, ROOT
from tests.documents.words import Prose, check, complaints, page_prose, python_prose

MODULES = [path for folder in ("gmmae", "experiments", "benchmarks") for path in sorted((ROOT / folder).rglob("*.py"))]
FILES = [*(path for path in PAGES if path.name != "CHANGELOG.md"), *MODULES, ROOT / "train.py", ROOT / "sweep.py"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_is_in_plain_english(path):
    if places := check(path):
        pytest.fail("\n".join(f"{path.parent.relative_to(ROOT)}/{place}" for place in places), pytrace=False)


@pytest.mark.parametrize(
    ("prose", "part"),
    [
        (Prose(1, "Nodules are drawn by lot."), "say: at random"),
        (Prose(1, "Of the timed epochs.", is_docstring=True), "begin with a verb"),
        (Prose(1, " ".join(["word"] * 29) + "."), "29 words"),
    ],
)
def test_a_place_to_stumble_over_is_found(prose, part):
    [complaint] = complaints(prose)
    assert part in complaint


@pytest.mark.parametrize("text", ["Returns the losses.", "A `twin by lot` in code.", f"{'word ' * 28}."])
def test_plain_sentences_pass(text):
    assert not list(complaints(Prose(1, text, is_docstring=True)))


def test_docstrings_helps_and_comments_are_read_with_their_lines():
    source = '"""Head.\n\n    python -m module --twin\n"""\n\nadd("--x", help="by lot")  # anew\nY = 1\n"""Doc."""\n'
    pieces = {(piece.line, " ".join(piece.text.split())) for piece in python_prose(source)}
    assert pieces == {(1, "Head."), (6, "by lot"), (6, "anew"), (8, "Doc.")}


def test_paragraphs_are_read_without_tables_and_code():
    text = "# Head\n\nOne\ntwo.\n\n| a |\n\n    code\n\n```\ntwin\n```\nThree."
    assert list(page_prose(text)) == [Prose(3, "One\ntwo."), Prose(13, "Three.")]
