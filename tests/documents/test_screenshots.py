"""The screenshots of the documents: their sizes, their workload, and what the program says where something is missing."""

import os

import pytest

from docs import screenshots
from tests.documents.reading import ROOT

NAMES = ("report.png", "plan.png", "tensorboard.png")


@pytest.mark.parametrize("name", NAMES)
def test_a_screenshot_is_small_and_shown(name):
    assert (screenshots.FOLDER / name).stat().st_size < 300_000
    pages = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("*.md"))
    assert f"](screenshots/{name})" in pages


def test_the_workload_is_the_first_file_of_its_guide():
    assert screenshots.workload().startswith('"""Small images of ten classes')
    assert "def build(config)" in screenshots.workload()


def test_a_missing_browser_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit, match=r"^docs\.screenshots needs chromium or .* on the path; got none\. Install Debian's"):
        screenshots.program(screenshots.BROWSERS, "Debian's package chromium")


@pytest.mark.parametrize(
    ("script", "said"), [("exit 3", "ended with 3: $"), ("echo no display >&2", "ended with 0: no display$")]
)
def test_a_browser_that_writes_nothing_is_named_with_its_reason(tmp_path, script, said):
    browser = tmp_path / "browser"
    browser.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    os.chmod(browser, 0o755)
    with pytest.raises(SystemExit, match=said):
        screenshots.photograph(str(browser), "about:blank", tmp_path / "page.png", 100, 100)
