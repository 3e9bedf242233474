"""`gmmae judge`, from arrays in files to the page."""

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

OPTIONS = ("--data.shape", "8", "--data.crop", "whole", "--data.workers", "1")

pytestmark = pytest.mark.usefixtures("few_divisions")


@pytest.fixture
def no_page(monkeypatch):
    """For what the page does not show."""
    monkeypatch.setattr(page, "write", lambda *_: [])


def stored(path, nodules):
    names = dict(names=np.array(nodules.names), groups=np.array(nodules.groups), categories=np.array(nodules.categories))
    masks = {} if nodules.masks is None else {"masks": nodules.masks}
    np.savez(path, volumes=nodules.values, **names, **masks)
    return str(path)


@pytest.fixture
def files(tmp_path):
    real = stored(tmp_path / "real.npz", balls(0, 60))
    generated = stored(tmp_path / "generated.npz", balls(1, 30, "new"))
    train = stored(tmp_path / "train.npz", balls(2, 60, "trained"))
    return real, generated, train, (*OPTIONS, "--data.cache", tmp_path / "cache", "--out", tmp_path / "out")


def test_a_judgement_is_a_page_plain_data_and_a_dozen_lines(files, tmp_path, capsys):
    real, generated, train, options = files
    said = lines_of(capsys, "judge", real, generated, "--train", train, *options)
    out = tmp_path / "out"
    found = json.loads((out / "judgement.json").read_text())
    patients = found["real_vs_real"]["patients"][0]
    assert said[0] == (
        "30 generated and 60 real nodules; compared: 30 generated and 30 other real nodules, each with the same 30 of the real "
        f"ones ({patients} patients, or scans if no patient is named)"
    )
    assert [part in said[1] for part in ("generated, n = 30", "real, n = 30", "  perfect")] == [True] * 3
    assert said[-3:] == [str(out / name) for name in ("judgement.html", "judgement.md", "judgement.json")]
    assert said[2].split()[:3] == ["C2ST,", "AUC", f"{found['generated']['c2st'][0]:.2f}"]
    assert {found[column]["samples"] for column in ("generated", "real_vs_real")} == {30}
    assert 0.8 < found["novelty"]["nn"][0] < 1.2
    assert next(iter(found["novelty"]["nearest_distance"])) == "new0"
    text = (out / "judgement.md").read_text()
    for words in ("| C2ST, AUC |", "| novelty NNsym |", "## Nearest training nodules", "](figures/slices.png)", "Generated: A"):
        assert words in text
    assert (out / "judgement.html").read_text().count("data:image/") == 3
    # The folder of an earlier judgement is replaced.
    (out / "stale").write_text("")
    assert "novelty is unknown" in " ".join(lines_of(capsys, "judge", real, generated, *options))
    assert not (out / "stale").exists()


def test_split_divides_the_real_nodules_as_training_did(files, capsys, no_page):
    real, generated, _, options = files
    said = lines_of(capsys, "judge", real, generated, "--split", "validation", "--data.validation", "26", *options)
    assert said[0].startswith("30 generated and 26 real nodules; compared: 26 generated and 26 other real")
    assert "rejects copies" not in " ".join(said)  # these have no record of a run
    assert "novelty is unknown" not in " ".join(said)


def test_what_differs_beside_the_figures_is_told(files, tmp_path, capsys, no_page):
    """Shapes without masks, shares of categories, the size of volumes, few patients, and the window of the data."""
    *_, options = files
    few = tuple(f"patient{i % 5}" for i in range(60))
    real = stored(tmp_path / "few.npz", balls(0, 60).with_columns(group=few))
    made = balls(1, 30, "new", size=12).with_columns(category=["solid"] * 20 + ["part-solid"] * 10)._replace(masks=None)
    said = " ".join(lines_of(capsys, "judge", real, stored(tmp_path / "made.npz", made), "--train", files[2], *options))
    for words in (
        "shapes follow from intensity",
        "of real and generated nodules part-solid 0% and 33%, solid 100% and 67%",
        "intervals are too narrow, because one set has only 5 patients",
        "GENERATED's volumes have 12 × 12 × 12 voxels and were resampled to 8 × 8 × 8, which changes their texture; "
        "--data.shape 12 compares them as they are",
    ):
        assert words in said


def test_the_window_is_that_of_the_data(files, tmp_path, capsys, no_page):
    """Volumes of 0 to 1 are nearly constant in CT's window."""
    names = []
    for name, nodules in (("real", balls(0, 60)), ("made", balls(1, 30, "new", shift=140))):
        shares = (np.clip(nodules.values, -1000, 400) + 1000) / 1400
        names.append(stored(tmp_path / f"{name}_shares.npz", nodules._replace(values=shares.astype(np.float32))))
    said = lines_of(capsys, "judge", *names, "--data.window", 0, 1, *files[3])
    (row,) = (line for line in said if line.startswith("C2ST, AUC "))
    assert float(row.removeprefix("C2ST, AUC ").split()[0]) > 0.9  # all features are equal in CT's window
    assert "stretched to -1000 to 400" in " ".join(said)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("REAL MADE --split validation --train TRAIN", "must not be given together"),
        ("nowhere MADE", "REAL: data.root must be a folder of volumes or one .npz"),
        ("REAL nowhere", "GENERATED: data.root must be a folder of volumes"),
        ("REAL MADE --train nowhere", "--train: data.root must be a folder"),
        ("REAL MADE --train REAL", "30 of its 30 patients are in --train"),
        ("REAL REAL", "REAL and GENERATED must be two sets of nodules; both are "),
        ("REAL MADE --count -1", "1 to 100000, or all; got -1"),
        ("REAL MADE --count 31", "--count must be all, or from 25 to 30"),
        ("REAL MADE --out MINE", "--out must be a folder that is new or empty, or an earlier result, which is replaced"),
        (
            "FEW MADE",
            "REAL must have at least 50 nodules of at least 10 patients (or scans, if no patient is named); got 60 of 9",
        ),
    ],
)
def test_what_is_wrong_is_told_in_a_line(files, tmp_path, capsys, words, message):
    real, made, train, options = files
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("")
    few = stored(tmp_path / "few.npz", balls(0, 60).with_columns(group=[f"patient{i % 9}" for i in range(60)]))
    known = {"REAL": real, "MADE": made, "TRAIN": train, "MINE": tmp_path / "mine", "FEW": few}
    assert message in last_refusal(capsys, "judge", *options, *(known.get(word, word) for word in words.split()))
    assert not (tmp_path / "out").exists()
    assert (tmp_path / "mine" / "thesis.tex").exists()


def folder(path, nodules, **columns):
    """A folder of cubes, as `gmmae generate` writes one, with arrays for files."""
    (path / "images").mkdir(parents=True)
    rows = [
        {"file": f"{name}.npy", **{column: values[i] for column, values in columns.items()}}
        for i, name in enumerate(nodules.names)
    ]
    for row, volume in zip(rows, nodules.values, strict=True):
        np.save(path / "images" / row["file"], volume)
    with (path / "nodules.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


REAL = balls(0, 60)
FILES = tuple(f"{name}.npy" for name in REAL.names)


def divided(seed):
    """The names of the training and of the held-out nodules of a folder."""
    return [[FILES[i] for i in part] for part in split(REAL.groups, [""] * 60, 26, seed)]


@pytest.fixture
def traced(tmp_path):
    """A folder of real nodules, and one of generated ones that names what they were made from; and options."""
    training, _ = divided(0)
    real = folder(tmp_path / "real", REAL, patient=REAL.groups)
    made = {
        "run": ["abc123"] * 30,
        "nearest": [training[i % 20] for i in range(30)],
        "shape_donors": [f"{training[i]} {training[33 - i]}" for i in range(30)],
        "texture_donors": [training[(7 * i) % 34] for i in range(30)],
    }
    generated = folder(tmp_path / "generated", balls(1, 30, "new"), **made)
    cache = ("--data.cache", str(tmp_path / "cache"), "--out", str(tmp_path / "out"))
    return real, generated, (*OPTIONS, *cache, "--data.validation", "26")


def test_a_split_that_is_not_the_runs_is_noticed_by_the_donors(traced, capsys, no_page):
    real, generated, options = traced
    words = ("judge", real, generated, "--split", "validation", *options)
    seen = sorted(name for name in divided(1)[1] if name in divided(0)[0])
    assert seen
    error = last_refusal(capsys, *words, "--data.seed", 1)
    assert f"REAL's held-out nodules must be new to the generator; GENERATED's nodules.csv names {len(seen)} of the 26" in error
    assert f"such as {', '.join(seen[:3])} …: divide REAL as the run abc123 did, with its --data.validation" in error
    assert "rejects copies by distances of these same validation nodules" in " ".join(lines_of(capsys, *words))


def test_donors_among_real_nodules_are_noticed_without_a_split(traced, tmp_path, capsys, no_page):
    real, generated, options = traced
    words = "REAL's nodules must be new to the generator; GENERATED's nodules.csv names 34 of the 60"
    assert words in last_refusal(capsys, "judge", real, generated, *options)
    # Names alone are no proof where the training set is at hand and has them too.
    train = folder(tmp_path / "train", REAL._replace(values=balls(2, 60).values), patient=[f"other{i}" for i in range(60)])
    assert lines_of(capsys, "judge", real, generated, "--train", train, *options)


def test_the_configuration_of_another_run_is_refused_and_the_runs_own_divides_as_it_did(traced, tmp_path, capsys, no_page):
    real, generated, options = traced
    config = tmp_path / "run" / "config.toml"
    config.parent.mkdir()
    config.write_text(to_toml(changed(small(), data__seed=0, data__validation=26, data__crop="whole")))
    counts = ("devices", "processes", "global_batch", "device_batch", "padding", "steps_per_epoch", "parameters",
              "train_samples", "validation_samples", "batch_size", "wanted_batch")  # fmt: skip
    record = Record("def456", "strong", 0, device_kind="cpu", oversubscribed=False, learning_rate=0.1, target=0.0,
                    **dict.fromkeys(counts, 1))  # fmt: skip
    (tmp_path / "run" / "record.json").write_text(to_json(record))
    words = ("judge", real, generated, *options[2:], "--config", config, "--split", "validation")
    message = "--config must be of the run that made GENERATED, abc123 in its nodules.csv; got "
    assert f"{message}{config}, of the run def456: name the config.toml of the other" in last_refusal(capsys, *words)
    table = generated / "nodules.csv"
    table.write_text(table.read_text().replace("abc123", "def456"))
    assert lines_of(capsys, *words)


def test_real_nodules_among_the_generated_ones_are_refused(traced, tmp_path, capsys):
    real, _, options = traced
    options = (*options, "--train", folder(tmp_path / "train", balls(2, 60, "trained")))
    made = balls(1, 30, "new")
    named = folder(tmp_path / "named", made.with_columns(name=[*made.names[:28], "real3", "real5"]))
    words = "GENERATED must hold new nodules; 2 of its 30 have names of REAL's, such as real3.npy, real5.npy: take"
    assert words in last_refusal(capsys, "judge", real, named, *options)
    voxels = made.values.copy()
    voxels[4] = REAL.values[7]
    copied = folder(tmp_path / "copied", made._replace(values=voxels))
    error = last_refusal(capsys, "judge", real, copied, *options)
    assert "REAL must share no nodule with GENERATED; 1 of its 60" in error
    assert "such as real7.npy, which is new4.npy" in error
