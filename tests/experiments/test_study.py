"""The page of the study says what the results say."""

import pytest

from experiments import study


def test_the_page_is_what_the_results_say():
    assert study.PAGE.read_text(encoding="utf-8") == study.page(), "run `python -m experiments.study`"


def test_a_name_that_there_is_not_is_told(tmp_path, monkeypatch):
    (tmp_path / "study.md").write_text("{{nodules_runs}} of {{moons}}", encoding="utf-8")
    monkeypatch.setattr(study, "TEMPLATE", tmp_path / "study.md")
    with pytest.raises(SystemExit, match=r"study.md may name .*; got moons"):
        study.page()


def test_a_split_is_told_by_its_outcomes_and_by_how_often_strong_scaling_was_faster():
    def row(scaling, n, seed, outcome, epochs, seconds):
        found = {
            "scaling": scaling,
            "devices": n,
            "seed": seed,
            "outcome": outcome,
            "epochs": epochs,
            "time_to_target_s": seconds,
        }
        return {key: str(value) for key, value in found.items()}

    rows = [
        *(row("strong", n, seed, "target_reached", 20, 10 / n) for n in (1, 4) for seed in (0, 1)),
        row("weak", 4, 0, "target_reached", 50, 5.0),
        row("weak", 4, 1, "stalled", 60, ""),
    ]
    assert study.of_split(rows) == (("4", "2 of 2", "– (2–∞)"),)
