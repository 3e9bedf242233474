"""`gmmae judge`, from files to the page, and its refusals of nodules that are not new to each other."""

import json

import numpy as np
import pytest

from gmmae.data.splits import split
from gmmae.generation.judging import page
from tests.commands import last_refusal, lines_of
from tests.generation.nodules import balls
from tests.volume_folders import write_rows

REAL, MADE = balls(0, 60), balls(1, 30, "new")
TRAINING = [f"real{i}.npy" for i in split(REAL.groups, [""] * 60, 26, 0).train]

pytestmark = pytest.mark.usefixtures("few_divisions")


def folder(path, nodules, **columns):
    """A folder of cubes with arrays for files, and with these columns."""
    for kind, volumes in (("images", nodules.values), ("masks", nodules.masks)):
        (path / kind).mkdir(parents=True)
        for name, volume in zip(nodules.names, volumes, strict=True):
            np.save(path / kind / f"{name}.npy", volume)
    columns = {"file": [f"{name}.npy" for name in nodules.names], "category": nodules.categories} | columns
    write_rows(path / "nodules.csv", [*zip(*columns.values(), strict=True)], [*columns])
    return path


@pytest.fixture
def sets(tmp_path):
    """A folder of real nodules, one of generated ones that names what they were made from, and one of others; and options."""
    donors = [f"{TRAINING[i]} {TRAINING[33 - i]}" for i in range(30)]
    record = {"run": ["abc123"] * 30, "nearest": TRAINING[:30], "shape_donors": donors, "group": [i // 3 for i in range(30)]}
    real = folder(tmp_path / "real", REAL, patient=REAL.groups)
    generated = folder(tmp_path / "generated", MADE, **record)
    train = folder(tmp_path / "train", balls(2, 60, "trained"))
    words = "--data.shape 8 --data.crop whole --data.workers 1 --data.scan-time-limit-s none --data.validation 26 --data.cache"
    return real, generated, train, (*words.split(), tmp_path / "cache", "--out", tmp_path / "out")


@pytest.fixture
def no_page(monkeypatch):
    """For what the page does not show."""
    monkeypatch.setattr(page, "write", lambda *_: [])


def test_a_judgement_is_a_page_plain_data_and_a_dozen_lines(sets, tmp_path, capsys):
    real, generated, _, options = sets
    out = tmp_path / "out"
    out.mkdir()
    (out / page.JSON).write_text("of an earlier judgement, which is replaced")
    said = lines_of(capsys, "judge", real, generated, "--split", "validation", *options)
    found = json.loads((out / "judgement.json").read_text())
    assert said[0].startswith("30 generated and 26 real nodules; compared: 26 generated and 26 other real nodules")
    assert said[2].split()[:3] == ["C2ST,", "AUC", f"{found['generated']['c2st'][0]:.2f}"]
    assert said[-3:] == [str(out / name) for name in ("judgement.html", "judgement.md", "judgement.json")]
    # Each generated nodule lies in the group of its donor's patient, of which 10 gave three each.
    assert found["generated"]["patients"][1] == 10
    assert 0.8 < found["novelty"]["nn"][0] < 1.2
    assert next(iter(found["novelty"]["nearest_distance"])) == "new0.npy"
    text = (out / "judgement.md").read_text()
    for words in ("| C2ST, AUC |", "| novelty NNsym |", "rejects copies by distances of these same", "Generated: A"):
        assert words in text
    assert (out / "judgement.html").read_text().count("data:image/") == 2


def test_what_differs_beside_the_figures_is_told(sets, tmp_path, capsys, no_page):
    *_, train, options = sets
    real = folder(tmp_path / "few", REAL, patient=[i % 5 for i in range(60)])
    kinds = ["solid"] * 20 + ["part-solid"] * 10
    made = folder(tmp_path / "made", balls(1, 30, "new", size=12), category=kinds, diameter_mm=[10] * 30)
    (made / "masks").rename(made / "others")
    call = ("judge", real, made, "--train", train, *options)
    said, wide = (" ".join(lines_of(capsys, *call, "--data.crop", crop)) for crop in ("whole", "2x"))
    assert "of GENERATED's cubes lie outside of their volumes, and " in wide
    assert "lie outside" not in said
    for words in (
        "shapes follow from intensity",
        "of real and generated nodules part-solid 0% and 33%, solid 100% and 67%",
        "one set has only 5 patients",
        "12 × 12 × 12 voxels and were resampled to 8 × 8 × 8",
    ):
        assert words in said


def test_the_window_is_that_of_the_data(sets, tmp_path, capsys, no_page):
    """Volumes of 0 to 1 are nearly constant in CT's window."""
    folders = []
    for name, nodules in (("shares", REAL), ("made", balls(1, 30, "new", shift=140))):
        shares = ((np.clip(nodules.values, -1000, 400) + 1000) / 1400).astype(np.float32)
        folders.append(folder(tmp_path / name, nodules._replace(values=shares), patient=nodules.groups))
    said = lines_of(capsys, "judge", *folders, "--data.window", 0, 1, *sets[3])
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
        ("REAL MADE", "GENERATED's nodules.csv names 34 of the 60"),
        ("REAL MADE --split validation --data.seed 1", "divide REAL as the run abc123 did, with its --data.validation"),
        ("REAL NAMED --train TRAIN", "2 of its 30 have names of REAL's, such as real3.npy, real5.npy"),
        ("REAL MADE --split validation --config RUN", "abc123 in its nodules.csv; got "),
    ],
)
def test_what_is_wrong_is_told_in_a_line(sets, mixture_run, tmp_path, capsys, words, message):
    real, made, train, options = sets
    thesis = tmp_path / "mine" / "thesis.tex"
    thesis.parent.mkdir()
    thesis.touch()
    known = {"REAL": real, "MADE": made, "TRAIN": train, "MINE": thesis.parent, "RUN": mixture_run.folder / "config.toml"}
    known["NAMED"] = folder(tmp_path / "named", MADE.with_columns(name=[*MADE.names[:28], "real3", "real5"]))
    assert message in last_refusal(capsys, "judge", *options, *(known.get(word, word) for word in words.split()))
    assert not (tmp_path / "out").exists()
    assert thesis.exists()


def test_names_alone_are_no_proof_where_the_training_set_has_them_too(sets, tmp_path, capsys, no_page):
    real, generated, _, options = sets
    train = folder(tmp_path / "others", REAL._replace(values=balls(2, 60).values))
    assert lines_of(capsys, "judge", real, generated, "--train", train, *options)


def test_the_configuration_of_the_run_divides_as_it_did(sets, mixture_run, capsys, no_page):
    real, generated, _, options = sets
    table = generated / "nodules.csv"
    table.write_text(table.read_text().replace("abc123", mixture_run.record.run_id))
    config = mixture_run.folder / "config.toml"
    assert lines_of(capsys, "judge", real, generated, "--config", config, "--split", "validation", *options)
