"""The study's parts: who is trained, tuned and tested on, what a table says, and going on where it was."""

import csv
import sys

import numpy as np
import pytest

from experiments import cohorts, fidelity, generation
from experiments.cohorts import Cohorts
from experiments.fidelity import Entry
from gmmae.data.splits import split
from gmmae.generation.judging import two_samples
from gmmae.system.errors import InputError
from tests.generation.nodules import balls


@pytest.fixture
def three():
    """Cohorts, with what a CSV says of them."""
    parts = train, tune, test = balls(0, 30, "train"), balls(1, 30, "tune"), balls(2, 30, "test")
    return Cohorts(train, tune, test, {name: {"file": name, "malignancy": "1"} for part in parts for name in part.names})


def test_the_parts_share_no_patient_and_training_divides_what_is_left_alike(tmp_path, monkeypatch):
    whole = balls(0, 80)
    monkeypatch.setattr(cohorts.prepare, "load", lambda config: whole)
    (tmp_path / "nodules.csv").write_text("file\n" + "\n".join(whole.names) + "\n")
    found = cohorts.read(tmp_path)
    assert [len(part.names) for part in found[:3]] == [40, 20, 20]
    patients = [set(part.groups) for part in found[:3]]
    assert sum(map(len, patients)) == len(set.union(*patients))
    options = cohorts.write_development(found, tmp_path, tmp_path / "out" / "development.csv").split()
    kept = (tmp_path / "out" / "development.csv").read_text().split()[1:]
    assert set(kept) == {*found.train.names, *found.tune.names}
    assert options[options.index("--data.validation") + 1] == "20"
    # What `gmmae train` does with these options.
    rest = whole.take(np.array([i for i, name in enumerate(whole.names) if name in set(kept)]))
    train, _ = split(rest.groups, rest.categories, 20, int(options[-1]))
    assert rest.take(train).names == found.train.names


def test_the_second_division_tests_on_patients_that_the_first_only_trained_on(tmp_path, monkeypatch):
    whole = balls(0, 80)
    monkeypatch.setattr(cohorts.prepare, "load", lambda config: whole)
    (tmp_path / "nodules.csv").write_text("file\n" + "\n".join(whole.names) + "\n")
    first, second = (cohorts.read(tmp_path, division) for division in cohorts.DIVISIONS)
    assert [len(part.names) for part in second[:3]] == [40, 20, 20]
    assert set(second.test.groups) <= set(first.train.groups)
    assert sorted(name for part in second[:3] for name in part.names) == sorted(whole.names)
    assert not set(second.test.groups) & {*second.train.groups, *second.tune.groups}


def test_a_run_that_has_seen_others_is_refused(three, tmp_path):
    cohorts.check_held_out(three, three.train, tmp_path)
    with pytest.raises(InputError, match=r"must be trained on its training patients only; .* has seen 1 others, such as tune0"):
        cohorts.check_held_out(three, three.train._replace(groups=(*three.train.groups[:-1], "tune0")), tmp_path)


def test_fidelity_has_a_row_for_each_way_and_novelty_but_of_real_nodules(three, monkeypatch):
    monkeypatch.setattr(two_samples, "REPETITIONS", 1)
    entries = fidelity.made(three.train, three.tune, seed=0)
    assert list(entries) == ["real", "copy_paste", "moved", "carved", "cutmix", "mosaic", "smote"]
    assert {len(entry.nodules.names) for entry in entries.values()} == {30}
    dimmed = three.tune._replace(values=(three.tune.values * 0.9).astype(np.int16), masks=None)
    chosen = {name: entries[name] for name in ("real", "smote")} | {"dimmed": Entry(dimmed, paired=True)}
    rows = fidelity.rows(chosen, three.train, three.tune, seed=0)
    assert "nn" not in rows["real"]
    assert "c2st_masks" not in rows["dimmed"]
    assert 0 < rows["smote"]["nn"][0] < 1
    assert rows["dimmed"]["c2st"][0] > 0.9
    (line,) = (found for found in fidelity.summary([rows, rows]) if (found["made"], found["figure"]) == ("smote", "nn"))
    assert float(line["mean"]) == pytest.approx(rows["smote"]["nn"][0], rel=1e-3)
    assert float(line["patients_low"]) == pytest.approx(rows["smote"]["nn"][1], rel=1e-3)
    assert line["seeds"] == "2"


def test_ways_are_compared_by_the_same_number_of_nodules(three):
    few = {"smote": Entry(fidelity.made(three.train, three.tune, seed=0)["smote"].nodules.take(np.arange(29)))}
    with pytest.raises(InputError, match="must give as many as are judged, 30; got 29 of smote: judge fewer"):
        fidelity.rows(few, three.train, three.tune, seed=0)


def test_what_is_measured_is_not_measured_again_and_other_runs_are_not_mixed_in(three, tmp_path, monkeypatch):
    calls = []

    def measure(found, judged, run, seed, describers, network_seeds, only):
        calls.append((judged.names[0], str(run), seed, *map(str, describers)))
        return {"rows": {"real": {"c2st": [0.5 + seed / 10, 0.4, 0.6]}}}

    monkeypatch.setattr(generation, "fidelity_part", measure)
    monkeypatch.setattr(generation.cohorts, "read", lambda root, division: three)

    def call(*more):
        options = ["--out", str(tmp_path / "out"), "--root", str(tmp_path), "--results", str(tmp_path / "results")]
        monkeypatch.setattr(sys, "argv", ["study", *options, "--seeds", "2", "--parts", "fidelity", *more])
        generation.main()

    call()
    call()
    assert calls == [("tune0", "None", 0), ("tune0", "None", 1)]
    with (tmp_path / "results" / "fidelity_tune.csv").open() as file:
        table = list(csv.DictReader(file))
    assert table[0]["mean"] == "0.55"
    assert (table[0]["seeds_min"], table[0]["seeds_max"]) == ("0.5", "0.6")
    call("--held-out", "test", "--runs", "runs/{seed}")
    assert calls[2:] == [("test0", "runs/0", 0), ("test0", "runs/1", 1)]
    with pytest.raises(InputError, match=r"is of the runs \(none\); got runs/0: name another --out"):
        call("--runs", "runs/{seed}")
    with pytest.raises(InputError, match=r"is of the runs runs/0; got runs/0 runs/paper: name another --out"):
        call("--held-out", "test", "--runs", "runs/{seed}", "--describers", "runs/paper")
