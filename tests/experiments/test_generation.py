"""Copies of training nodules are compared with held-out ones, and what is measured is not measured again."""

import sys

import pytest

from experiments import cohorts, generation
from experiments.cohorts import Cohorts
from gmmae.generation.judging import two_samples
from gmmae.system.errors import InputError
from tests.commands import rows
from tests.generation.nodules import balls


def test_a_table_of_likeness_and_novelty(tmp_path, monkeypatch):
    parts = train, tune, test = balls(0, 30, "train"), balls(1, 30, "tune"), balls(2, 30, "test")
    three = Cohorts(train, tune, test)
    monkeypatch.setattr(two_samples, "REPETITIONS", 1)
    monkeypatch.setattr(cohorts, "read", lambda root, division: three)
    options = ["--out", str(tmp_path / "out"), "--root", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["generation", *options, "--seeds", "1", "--parts", "fidelity"])
    generation.main()
    found = {(row["made"], row["figure"]): float(row["mean"]) for row in rows(tmp_path / "out" / "fidelity_tune.csv")}
    assert found["copy_paste", "nn_sym"] < 0.1
    assert ("real", "nn_sym") not in found
    assert 0 < found["real", "c2st"] < 1
    monkeypatch.setattr(generation, "fidelity_part", None)
    generation.main()
    cohorts.check_held_out(three, parts[0], tmp_path)
    with pytest.raises(InputError, match="has seen 15 others, such as tune0"):
        cohorts.check_held_out(three, tune, tmp_path)
