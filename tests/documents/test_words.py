"""Documents, docstrings, comments and help texts use the field's words, in sentences of a readable length."""

import pytest

from tests.documents.reading import PAGES, ROOT, cells, none_of
from tests.documents.words import Prose, check, complaints, page_prose, python_prose

MODULES = [
    path
    for folder in ("gmmae", "experiments", "benchmarks", "docs")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if "_build" not in path.parts
]
FILES = [*(path for path in PAGES if path.name != "CHANGELOG.md"), *MODULES, ROOT / "train.py", ROOT / "sweep.py"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_is_in_plain_english(path):
    none_of([f"{path.parent.relative_to(ROOT)}/{place}" for place in check(path)])


def test_notebooks_are_in_plain_english():
    found = [
        (cell, complaint) for cell in cells("markdown") for prose in page_prose(cell.text) for complaint in complaints(prose)
    ]
    none_of([f"{cell.place}: {complaint}" for cell, complaint in found])


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("Nodules are drawn by lot.", ["say: at random"]),
        ("Of the timed epochs.", ["begin with a verb"]),
        (f"{'word ' * 29}.", ["29 words"]),
        ("Returns the losses.", []),
        ("A `twin by lot` in code.", []),
        (f"{'word ' * 28}.", []),
    ],
)
def test_a_place_to_stumble_over_is_found(text, parts):
    for complaint, part in zip(complaints(Prose(1, text, is_docstring=True)), parts, strict=True):
        assert part in complaint


def test_prose_is_read_with_its_lines_and_without_tables_and_code():
    source = '"""Head.\n\n    python -m module --twin\n"""\n\nadd("--x", help="by lot")  # anew\nY = 1\n"""Doc."""\n'
    pieces = {(piece.line, " ".join(piece.text.split())) for piece in python_prose(source)}
    assert pieces == {(1, "Head."), (6, "by lot"), (6, "anew"), (8, "Doc.")}
    text = "# Head\n\nOne\ntwo.\n\n| a |\n\n    code\n\n```\ntwin\n```\nThree."
    assert list(page_prose(text)) == [Prose(3, "One\ntwo."), Prose(13, "Three.")]
