"""`gmmae classify`, and the other commands on data of MedMNIST's form."""

import json
import shutil

import numpy as np
import pytest

from gmmae.classification import report, samples
from gmmae.classification.samples import LabelRule
from gmmae.config.schema import changed
from gmmae.data.extraction.medmnist import DATASETS
from gmmae.data.settings import DataConfig
from gmmae.system.errors import InputError
from gmmae.training import fingerprint
from gmmae.training.loop import run
from tests import medmnist_files
from tests.commands import lines_of, refusal, rows, run_gmmae
from tests.small import Recorder, small

KINDS = ("mixture", "latent", "voxels", "all three")


def config_of(root, **changes):
    options = {
        "data__source": "medmnist",
        "data__root": str(root),
        "data__cache": str(root.parent / "cache"),
        "stop__max_epochs": 2,
    }
    return changed(small(), **options | {"data__workers": 1} | changes)


@pytest.fixture(scope="module")
def medmnist_runs(tmp_path_factory):
    """The file of two classes, and two runs on it."""
    folder = tmp_path_factory.mktemp("medmnist")
    path = medmnist_files.write(folder / "nodulemnist3d.npz")
    for seed in (0, 1):
        run(config_of(path, seed=seed), folder / f"run_{seed}", Recorder())
    return path, folder / "run_0", folder / "run_1"


def test_two_runs_give_a_table_beside_the_published_one(medmnist_runs, tmp_path, capsys):
    _, one, other = medmnist_runs
    out = tmp_path / "out"
    printed = "\n".join(lines_of(capsys, "classify", one, other, "--seeds", 2, "--out", out))
    table = rows(out / "classification.csv")
    assert [row["features"] for row in table] == [kind for kind in KINDS for _ in range(2)]
    assert next(float(row["auc"]) for row in table if row["features"] == "voxels") == 1  # the radius tells the class
    for row in table:
        assert float(row["auc_low"] or 0) <= float(row["auc"]) <= float(row["auc_high"] or 1)
        assert 0 <= float(row["accuracy"]) <= 1
    for shown in (printed, (out / "classification.md").read_text()):
        assert "auto-sklearn" in shown
        assert "0.914" in shown
    assert "24 training and 16 test samples; in the test set 8 of 'benign', 8 of 'malignant'" in printed
    assert "nodulemnist3d.npz is not the file of https://zenodo.org/records/10519652: its MD5 differs" in printed
    content = json.loads((out / "classification.json").read_text())
    assert content["runs"] == [str(one), str(other)]
    assert all(len(result["settings"]) == 2 for result in content["results"])
    predictions = rows(out / "predictions.csv")
    assert len(predictions) == 16 * 8
    assert {row["name"].split("_")[1] for row in predictions} == {"test"}
    np.testing.assert_allclose([float(row["benign"]) + float(row["malignant"]) for row in predictions], 1, atol=2e-5)
    assert all(str(out / name) in printed for name in (report.MARKDOWN, report.TABLE, report.PREDICTIONS, report.JSON))
    assert run_gmmae("classify", one, "--seeds", 1, "--out", out) == 0  # an earlier result is replaced
    assert rows(out / "classification.csv")[0]["auc_sd"] == ""


def test_the_test_set_is_seen_by_no_training(medmnist_runs, tmp_path, capsys):
    """Other test images change no parameter and no chosen setting."""
    _, one, _ = medmnist_runs
    content = medmnist_files.arrays()
    content["test_images"] = content["test_images"][::-1]
    moved = tmp_path / "nodulemnist3d.npz"
    np.savez(moved, allow_pickle=False, **content)
    record = run(config_of(moved), tmp_path / "run", Recorder())
    assert record.best_val_loss == json.loads((one / "record.json").read_text())["best_val_loss"]
    for place, options in ((tmp_path / "own", ()), (tmp_path / "moved", ("--data.root", moved))):
        assert run_gmmae("classify", one, *options, "--seeds", 1, "--out", place) == 0
    capsys.readouterr()
    first, second = (json.loads((tmp_path / name / "classification.json").read_text()) for name in ("own", "moved"))
    assert [r["settings"] for r in first["results"]] == [r["settings"] for r in second["results"]]
    assert [r["auc"] for r in first["results"]] != [r["auc"] for r in second["results"]]


def test_more_classes_and_the_other_commands(tmp_path, capsys):
    path, folder = tmp_path / "fracturemnist3d.npz", tmp_path / "run"
    np.savez(path, allow_pickle=False, **medmnist_files.arrays(classes=3, counts={"train": 36, "val": 12, "test": 15}))
    run(config_of(path, model__decoder="lattice", model__lattice_size=2), folder, Recorder())
    for words, said in (
        (("classify", folder, "--seeds", 1), "nondisplaced rib fracture"),
        (("evaluate", folder, "--split", "test"), "on 15 test samples"),
        (("evaluate", folder, "--split", "all"), "on 36 train, 12 validation and 15 test samples"),
        (("describe", folder, path, "--out", tmp_path / "described"), "63 volumes described"),
    ):
        assert said in " ".join(lines_of(capsys, *words))
    assert (folder / "classification" / "classification.md").is_file()
    assert {row["split"] for row in rows(folder / "evaluation_test.csv")} == {"test"}


def test_a_run_without_a_test_set_of_its_own_is_judged_by_its_validation_patients(tmp_path, capsys):
    cubes, folder = cubes_with_scores(tmp_path / "cubes"), tmp_path / "run"
    options = {"data__source": "cubes", "data__validation": 24, "data__window": (0.0, 255.0), "data__crop": "1.25x"}
    run(config_of(cubes, **options), folder, Recorder())
    labels = ("--label-column", "score", "--label-at-most", 2, "--label-at-least", 4)
    printed = " ".join(lines_of(capsys, "classify", folder, *labels, "--seeds", 1))
    assert "16 volumes have no label and are left out" in printed
    assert "the test set is the run's validation set; the split is by" in printed
    table = rows(folder / "classification" / "classification.csv")
    assert [row["features"] for row in table][::2] == [*KINDS, "diameter", "all three and diameter"]
    assert float(next(row["auc"] for row in table if row["features"] == "diameter")) > 0.9
    held_out = {row["name"] for row in rows(folder / "classification" / "predictions.csv")}
    lines_of(capsys, "evaluate", folder)
    assert held_out < {row["name"] for row in rows(folder / "evaluation.csv")}
    for wrong, message in (
        (labels[:4], "must be given together"),
        (("--label-column", "nothing"), "--label-column must be one of the data's columns, file, patient"),
        ((), "the column 'category' gives none"),
        (("--label-column", "patient", *labels[2:]), "needs numbers in the column 'patient'; got 'p"),
        (("--label-column", "score", "--label-at-most", 4, "--label-at-least", 2), "must be below --label-at-least"),
        ((*labels, "--data.validation", 10), "got data.validation otherwise in"),
        ((*labels, "--data.seed", 3), "got data.seed otherwise in"),
    ):
        assert message in refusal(capsys, "classify", folder, *wrong, "--seeds", 1)


def cubes_with_scores(folder):
    """Balls of 40 patients, two each, whose diameter follows the score."""
    (folder / "images").mkdir(parents=True)
    volumes = medmnist_files.arrays(counts={"train": 80})["train_images"]
    lines = ["file,patient,diameter_mm,score"]
    for i, volume in enumerate(volumes):
        np.save(folder / "images" / f"n{i:02d}.npy", volume)
        score = (1, 5, 2, 4, 3)[i // 2 % 5]
        lines.append(f"n{i:02d}.npy,p{i // 2},{4 + score + i % 3 / 10},{score}")
    (folder / "nodules.csv").write_text("\n".join(lines) + "\n")
    return folder


def test_runs_and_labels_that_do_not_fit_are_refused(medmnist_runs, tmp_path, capsys):
    _, one, other = medmnist_runs
    shutil.copytree(one, tmp_path / "data")
    known = fingerprint.read(one)
    assert known is not None
    fingerprint.write(known._replace(digests=known.digests | {"train samples": "others"}), tmp_path / "data")
    shutil.copytree(other, tmp_path / "settings")
    config = tmp_path / "settings" / "config.toml"
    config.write_text(config.read_text().replace("components = 4", "components = 5"))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("mine")
    for words, message in (
        ((tmp_path / "data",), 'where train samples was "others"'),
        ((tmp_path / "settings",), "model.components otherwise in"),
        ((other, one), f"each run must be given once, because results are means over all runs; got {one} twice"),
        (("--label-column", "score"), "--label-column must be one of the data's columns, none; got score"),
        (("--label-at-most", 2, "--label-at-least", 4), "needs numbers in the column of the categories; got 'benign': name"),
        (("--out", tmp_path / "mine"), "which holds something else"),
    ):
        assert message in refusal(capsys, "classify", one, "--out", tmp_path / "out", *words)


def test_a_class_without_samples_in_the_test_set_is_refused(tmp_path):
    path = medmnist_files.write(tmp_path / "nodulemnist3d.npz", test_labels=np.zeros((16, 1), np.uint8))
    data = DataConfig("medmnist", str(path), shape=8, cache=str(tmp_path / "cache"), workers=1)
    with pytest.raises(InputError, match="the test set must have 1 or more samples of each class; it has 0 of 'malignant'"):
        samples.load(data, LabelRule())


def test_published_results_are_of_each_data_set_and_plausible():
    for name in DATASETS:
        methods = report.published(name).methods
        assert len(methods) == 8
        assert all(0.3 < value <= 1 for pair in methods.values() for value in pair)
    assert report.published("mine").methods == {}
