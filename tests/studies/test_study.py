"""The page of the study says what the results say."""

import math

import pytest

from studies import study


def test_the_page_is_what_the_results_say():
    assert study.PAGE.read_text(encoding="utf-8") == study.page(), "run `python -m studies.study`"


def test_a_name_that_there_is_not_is_told(tmp_path, monkeypatch):
    (tmp_path / "study.md").write_text("{{nodules_runs}} of {{moons}}", encoding="utf-8")
    monkeypatch.setattr(study, "TEMPLATE", tmp_path / "study.md")
    with pytest.raises(SystemExit, match=r"study.md may name .*; got moons"):
        study.page()


def test_misses_count_in_a_median():
    assert study.middle([20.0, 30.0, math.inf]) == "30 (20–∞)"
    assert study.middle([20.0, math.inf, math.inf]) == "– (20–∞)"


def test_cells_that_share_a_run_are_one():
    row = {"path": "strong-n1-seed0", "seed": "0"}
    assert study.distinct([row | {"arm": "strong"}, row | {"arm": "weak"}, row | {"path": "weak-n2-seed0"}]) == [
        row | {"arm": "weak"},
        row | {"path": "weak-n2-seed0"},
    ]
