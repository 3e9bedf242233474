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
    title, _, *table = page.read_text(encoding="utf-8").partition("\n\n## ")[0].splitlines()
    assert title.startswith("# ")
    assert table[:2] == HEAD
    body = table[2 : table.index("")]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in body]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_a_page_begins_with_machine_versions_date_and_commit(page):
    found = rows(page)
    assert found
    for machine, versions, day, commit, _ in found:
        assert machine
        assert versions
        date.fromisoformat(re.sub(r" to \d\d$", "", day))
        assert re.search(r"[0-9a-f]{7}", commit) or commit == "see each row"


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_the_index_lists_a_page(page):
    index = (FOLDER / "index.md").read_text(encoding="utf-8")
    title = page.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")
    assert f"| [{title}]({page.name}) |" in index
    assert f"\n{page.stem}\n" in index


def test_the_named_commits_exist():
    if (
        subprocess.run(["git", "rev-parse", "--is-shallow-repository"], cwd=ROOT, capture_output=True, text=True).stdout
        != "false\n"
    ):
        pytest.skip("this copy of the project has no history")
    cells = " ".join(commit for page in PAGES for *_, commit, _ in rows(page))
    found = re.findall(r"\b[0-9a-f]{7}\b", cells)
    assert len(found) > 10
    known = subprocess.run(
        ["git", "cat-file", "--batch-check"], cwd=ROOT, input="\n".join(found), capture_output=True, text=True
    )
    index = (FOLDER / "index.md").read_text(encoding="utf-8")
    [joined] = re.findall(r"are not in the history:(.*?)\. They were steps", index, flags=re.DOTALL)
    missing = set(re.findall(r"^(\w+) missing$", known.stdout, flags=re.MULTILINE))
    assert missing <= set(re.findall(r"\b[0-9a-f]{7}\b", joined))
