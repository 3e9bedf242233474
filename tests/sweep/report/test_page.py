"""The files of a report; what stands in them is in `test_golden`."""

from dataclasses import replace

import pytest

from gmmae.sweep.report import page
from gmmae.system.errors import InputError
from tests import sweeps
from tests.sweep.report.conftest import add_times
from tests.sweeps import FLAT, GRID

ONE_SEED = replace(GRID, seeds=(0,))


def test_a_sweep_becomes_a_page_two_files_and_a_board(tmp_path):
    add_times(tmp_path)
    sweeps.small(tmp_path)
    place = tmp_path / "report"
    assert page.write(GRID, tmp_path, [FLAT]) == [place / "report.html", place / "report.md", tmp_path / "tb"]
    figures = {f"figures/{name}.{ending}" for name in ("time_to_target", "losses") for ending in ("png", "svg")}
    files = {path.relative_to(place).as_posix() for path in place.rglob("*") if path.is_file()}
    assert files == {"report.html", "report.md", "runs.csv", "cells.csv", *figures}
    html = (place / "report.html").read_text()
    assert "figures/" not in html  # it needs nothing but itself
    assert html.count("data:image/") == 2


def test_stale_files_vanish_and_a_broken_record_is_named_and_leaves_the_old_report(tmp_path):
    stale = tmp_path / "report" / "figures" / "figure_9.png"
    stale.parent.mkdir(parents=True)
    stale.write_text("old")
    assert page.write(ONE_SEED, tmp_path, [FLAT]) == [tmp_path / "report" / name for name in ("report.html", "report.md")]
    assert not stale.exists()
    record = tmp_path / "runs" / "strong-n1-seed0" / "record.json"
    record.parent.mkdir(parents=True)
    record.write_text("{")
    with pytest.raises(InputError, match=r"strong-n1-seed0/record\.json must be a record of this program"):
        page.write(ONE_SEED, tmp_path, [FLAT])
    assert (tmp_path / "report" / "report.md").exists()


def test_a_plan_is_for_sweeps_that_train_to_a_target(tmp_path):
    with pytest.raises(InputError, match=r"--plan needs a sweep that trains to a target; got .* leave it out"):
        page.write(replace(GRID, mode="throughput"), tmp_path, [], tmp_path / "plan.json")
