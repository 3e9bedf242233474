"""`gmmae judge`, from files to the page, and its refusals of nodules that are not new to each other."""

import csv
import json

import numpy as np
import pytest

from gmmae.config.schema import changed
from gmmae.config.toml import to_toml
from gmmae.data.splits import split
from gmmae.generation.judging import page
from gmmae.training.records import Record, to_json
from tests.commands import last_refusal, lines_of
from tests.generation.nodules import balls
from tests.small import small

REAL, MADE = balls(0, 60), balls(1, 30, "new")
FILES = [f"{name}.npy" for name in REAL.names]
TRAINING, HELD_OUT = ([FILES[i] for i in part] for part in split(REAL.groups, [""] * 60, 26, 0))

pytestmark = pytest.mark.usefixtures("few_divisions")


def folder(path, nodules, **columns):
    """A folder of cubes, as `gmmae generate` writes one, with arrays for files."""
    for kind, volumes in (("images", nodules.values), ("masks", nodules.masks)):
        (path / kind).mkdir(parents=True)
        for name, volume in zip(nodules.names, volumes, strict=True):
            np.save(path / kind / f"{name}.npy", volume)
    columns = {"file": [f"{name}.npy" for name in nodules.names], "category": nodules.categories} | columns
    with (path / "nodules.csv").open("w", newline="") as file:
        csv.writer(file).writerows([columns, *zip(*columns.values(), strict=True)])
    return path


@pytest.fixture
def sets(tmp_path):
    """A folder of real nodules, one of generated ones that names what they were made from, and one of others; and options."""
    made = {
        "run": ["abc123"] * 30,
        "nearest": [TRAINING[i % 20] for i in range(30)],
        "shape_donors": [f"{TRAINING[i]} {TRAINING[33 - i]}" for i in range(30)],
        "texture_donors": [TRAINING[(7 * i) % 34] for i in range(30)],
        "group": [f"donor{i // 3}" for i in range(30)],
    }
    real = folder(tmp_path / "real", REAL, patient=REAL.groups)
    generated = folder(tmp_path / "generated", MADE, **made)
    train = folder(tmp_path / "train", balls(2, 60, "trained"))
    words = ("--data.shape", "8", "--data.crop", "whole", "--data.workers", "1", "--data.validation", "26")
    return real, generated, train, (*words, "--data.cache", tmp_path / "cache", "--out", tmp_path / "out")


@pytest.fixture
def no_page(monkeypatch):
    """For what the page does not show."""
    monkeypatch.setattr(page, "write", lambda *_: [])


def test_a_judgement_is_a_page_plain_data_and_a_dozen_lines(sets, tmp_path, capsys):
    real, generated, _, options = sets
    said = lines_of(capsys, "judge", real, generated, "--split", "validation", *options)
    out = tmp_path / "out"
    found = json.loads((out / "judgement.json").read_text())
    assert said[0].startswith("30 generated and 26 real nodules; compared: 26 generated and 26 other real nodules")
    assert "generated, n = 26" in said[1]
    assert said[2].split()[:3] == ["C2ST,", "AUC", f"{found['generated']['c2st'][0]:.2f}"]
    assert "because gmmae generate rejects copies by distances of these same validation nodules" in " ".join(said)
    assert said[-3:] == [str(out / name) for name in ("judgement.html", "judgement.md", "judgement.json")]
    # Each generated nodule lies in the group of its donor's patient, of which 10 gave three each.
    assert found["generated"]["patients"][1] == 10
    assert 0.8 < found["novelty"]["nn"][0] < 1.2
    assert next(iter(found["novelty"]["nearest_distance"])) == "new0.npy"
    text = (out / "judgement.md").read_text()
    for words in ("| C2ST, AUC |", "| novelty NNsym |", "copies by distances of these same", "Generated: A"):
        assert words in text
    assert (out / "judgement.html").read_text().count("data:image/") == 2
    # The folder of an earlier judgement is replaced.
    (out / "stale").write_text("")
    lines_of(capsys, "judge", real, generated, "--split", "validation", *options)
    assert not (out / "stale").exists()


def test_what_differs_beside_the_figures_is_told(sets, tmp_path, capsys, no_page):
    *_, train, options = sets
    real = folder(tmp_path / "few", REAL, patient=[f"patient{i % 5}" for i in range(60)])
    made = folder(tmp_path / "made", balls(1, 30, "new", size=12), category=["solid"] * 20 + ["part-solid"] * 10)
    (made / "masks").rename(made / "others")
    said = " ".join(lines_of(capsys, "judge", real, made, "--train", train, *options))
    for words in (
        "shapes follow from intensity",
        "of real and generated nodules part-solid 0% and 33%, solid 100% and 67%",
        "one set has only 5 patients",
        "12 × 12 × 12 voxels and were resampled to 8 × 8 × 8",
    ):
        assert words in said


def test_the_window_is_that_of_the_data(sets, tmp_path, capsys, no_page):
    """Volumes of 0 to 1 are nearly constant in CT's window."""
    names = []
    for name, nodules in (("shares", REAL), ("made", balls(1, 30, "new", shift=140))):
        shares = (np.clip(nodules.values, -1000, 400) + 1000) / 1400
        names.append(folder(tmp_path / name, nodules._replace(values=shares.astype(np.float32)), patient=nodules.groups))
    said = lines_of(capsys, "judge", *names, "--data.window", 0, 1, *sets[3])
    assert float(said[2].split()[2]) > 0.9  # all features are equal in CT's window
    assert "stretched to -1000 to 400" in " ".join(said)
    assert "novelty is unknown" in " ".join(said)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("REAL MADE --split validation --train TRAIN", "must not be given together"),
        ("nowhere MADE", "REAL: data.root must be a folder"),
        ("REAL nowhere", "GENERATED: data.root must be a folder"),
        ("REAL MADE --train nowhere", "--train: data.root must be a folder"),
        ("TRAIN MADE --train TRAIN", "60 of its 60 patients are in --train"),
        ("REAL REAL", "must be two sets of nodules; both are "),
        ("TRAIN MADE --count 31", "--count must be all, or from 25 to 30"),
        ("REAL MADE --out MINE", "--out must be a folder that is new or empty"),
        # Names alone are no proof where the training set is at hand and has them too.
        ("REAL MADE", "GENERATED's nodules.csv names 34 of the 60"),
        ("REAL MADE --split validation --data.seed 1", "divide REAL as the run abc123 did, with its --data.validation"),
        ("REAL NAMED --train TRAIN", "2 of its 30 have names of REAL's, such as real3.npy, real5.npy"),
        ("REAL COPIED --train TRAIN", "no nodule with GENERATED; 1 of its 60 are in it, perhaps flipped, such as real7.npy"),
    ],
)
def test_what_is_wrong_is_told_in_a_line(sets, tmp_path, capsys, words, message):
    real, made, train, options = sets
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("")
    copied = MADE.values.copy()
    copied[4] = REAL.values[7]
    known = {"REAL": real, "MADE": made, "TRAIN": train, "MINE": tmp_path / "mine"}
    known["NAMED"] = folder(tmp_path / "named", MADE.with_columns(name=[*MADE.names[:28], "real3", "real5"]))
    known["COPIED"] = folder(tmp_path / "copied", MADE._replace(values=copied))
    assert message in last_refusal(capsys, "judge", *options, *(known.get(word, word) for word in words.split()))
    assert not (tmp_path / "out").exists()
    assert (tmp_path / "mine" / "thesis.tex").exists()


def test_names_alone_are_no_proof_where_the_training_set_has_them_too(sets, tmp_path, capsys, no_page):
    real, generated, _, options = sets
    train = folder(tmp_path / "others", REAL._replace(values=balls(2, 60).values), patient=[f"other{i}" for i in range(60)])
    assert lines_of(capsys, "judge", real, generated, "--train", train, *options)


def test_the_configuration_of_another_run_is_refused_and_the_runs_own_divides_as_it_did(sets, tmp_path, capsys, no_page):
    real, generated, _, options = sets
    config = tmp_path / "run" / "config.toml"
    config.parent.mkdir()
    config.write_text(to_toml(changed(small(), data__seed=0, data__validation=26, data__crop="whole")))
    counts = ("devices", "processes", "global_batch", "device_batch", "padding", "steps_per_epoch", "parameters",
              "train_samples", "validation_samples", "batch_size", "wanted_batch")  # fmt: skip
    record = Record("def456", "strong", 0, device_kind="cpu", oversubscribed=False, learning_rate=0.1, target=0.0,
                    **dict.fromkeys(counts, 1))  # fmt: skip
    (tmp_path / "run" / "record.json").write_text(to_json(record))
    words = ("judge", real, generated, *options[:6], *options[8:], "--config", config, "--split", "validation")
    assert f"abc123 in its nodules.csv; got {config}, of the run def456" in last_refusal(capsys, *words)
    table = generated / "nodules.csv"
    table.write_text(table.read_text().replace("abc123", "def456"))
    assert lines_of(capsys, *words)
