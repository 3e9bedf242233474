"""Each page of a measurement names its machine, versions, date and commit, and the index lists it."""

import re
import subprocess
from datetime import date

import pytest

from tests.documents.reading import ROOT

FOLDER = ROOT / "docs" / "measurements"
PAGES = sorted(path for path in FOLDER.glob("*.md") if path.name != "index.md")
HEAD = ["| machine | versions | date | commit | changed since |", "|---|---|---|---|---|"]


def rows(page):
    """The rows of the table that begins a page."""
    title, _, *table = page.read_text().partition("\n\n## ")[0].splitlines()
    assert title.startswith("# ")
    assert table[:2] == HEAD
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in table[2 : table.index("")]]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_a_page_begins_with_machine_versions_date_and_commit(page):
    found = rows(page)
    assert found
    for machine, versions, day, commit, _ in found:
        assert all((machine, versions))
        date.fromisoformat(re.sub(r" to \d\d$", "", day))
        assert re.search(r"[0-9a-f]{7}|^see each row$", commit)


def test_the_named_commits_exist():
    def git(*words, **options):
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, **options).stdout

    if git("rev-parse", "--is-shallow-repository") != "false\n":
        pytest.skip("this copy of the project has no history")
    found = re.findall(r"\b[0-9a-f]{7}\b", " ".join(commit for page in PAGES for *_, commit, _ in rows(page)))
    assert len(found) > 10
    known = git("cat-file", "--batch-check", input="\n".join(found))
    index = (FOLDER / "index.md").read_text()
    [joined] = re.findall(r"are not in the history:(.*?)\. They were steps", index, flags=re.DOTALL)
    assert set(re.findall(r"^(\w+) missing$", known, flags=re.MULTILINE)) <= set(re.findall(r"\b[0-9a-f]{7}\b", joined))
