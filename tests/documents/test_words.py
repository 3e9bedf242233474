"""Documents, docstrings, comments and help texts use the field's words, in sentences of a readable length."""

import pytest

from tests.documents.reading import PAGES, ROOT, cells, none_of
from tests.documents.words import check, complaints, page_prose

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
