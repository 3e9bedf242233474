"""`gmmae classify`, and the other commands on data of MedMNIST's form."""

import json
import shutil

import numpy as np
import pytest

from gmmae.classification import samples
from gmmae.classification.classifiers import LINEAR
from gmmae.config.schema import changed
from tests import medmnist_files
from tests.commands import last_refusal, lines_of, rows, run_gmmae
from tests.small import finish, small

KINDS = ("mixture", "latent", "voxels", "all three", "PCA")


def config_of(root, **changes):
    options = {"data__source": "medmnist", "data__root": str(root), "data__cache": str(root.parent / "cache")}
    return changed(small(), **options | {"stop__max_epochs": 2, "data__workers": 1} | changes)


@pytest.fixture(scope="module")
def medmnist_runs(tmp_path_factory):
    """The file of two classes, and two runs on it."""
    folder = tmp_path_factory.mktemp("medmnist")
    path = medmnist_files.write(folder / "nodulemnist3d.npz")
    for seed in (0, 1):
        finish(config_of(path, seed=seed), folder / f"run_{seed}")
    return folder / "run_0", folder / "run_1"


def test_two_runs_give_a_table_beside_the_published_one(medmnist_runs, tmp_path, capsys):
    out = tmp_path / "out"
    printed = "\n".join(lines_of(capsys, "classify", *medmnist_runs, "--seeds", 2, "--out", out))
    table = rows(out / "classification.csv")
    assert [row["features"] for row in table] == [kind for kind in KINDS for _ in range(2)]
    assert next(float(row["auc"]) for row in table if row["features"] == "voxels") == 1  # the radius tells the class
    for shown in (printed, (out / "classification.md").read_text()):
        assert "auto-sklearn" in shown
    assert "24 training and 16 test samples; in the test set 8 of 'benign', 8 of 'malignant'" in printed
    assert "is not the file of https://zenodo.org/records/10519652: its MD5 differs" in printed
    content = json.loads((out / "classification.json").read_text())
    assert [result["auc"] for result in content["results"]] == pytest.approx([float(row["auc"]) for row in table], abs=1e-4)
    assert all(len(result["settings"]) == 2 for result in content["results"])
    predictions = rows(out / "predictions.csv")
    assert len(predictions) == 16 * 10
    np.testing.assert_allclose([float(row["benign"]) + float(row["malignant"]) for row in predictions], 1, atol=2e-5)
    assert run_gmmae("classify", medmnist_runs[0], "--seeds", 1, "--out", out) == 0  # an earlier result is replaced
    assert rows(out / "classification.csv")[0]["auc_sd"] == ""


def test_the_test_set_is_seen_by_no_training(medmnist_runs, tmp_path):
    """Other test images change no parameter and no chosen setting."""
    one, _ = medmnist_runs
    moved = medmnist_files.write(tmp_path / "nodulemnist3d.npz", test_images=medmnist_files.arrays()["test_images"][::-1])
    record, _ = finish(config_of(moved), tmp_path / "run")
    assert record.best_val_loss == json.loads((one / "record.json").read_text())["best_val_loss"]
    found = []
    for place, options in ((tmp_path / "own", ()), (tmp_path / "moved", ("--data.root", moved))):
        assert run_gmmae("classify", one, *options, "--seeds", 1, "--out", place) == 0
        results = json.loads((place / "classification.json").read_text())["results"]
        found.append([[result[key] for result in results] for key in ("settings", "auc")])
    assert [one == other for one, other in zip(*found, strict=True)] == [True, False]


def test_more_classes_and_the_other_commands(tmp_path, capsys):
    path, folder = tmp_path / "fracturemnist3d.npz", tmp_path / "run"
    np.savez(path, allow_pickle=False, **medmnist_files.arrays(classes=3, counts={"train": 36, "val": 12, "test": 15}))
    finish(config_of(path, model__decoder="lattice", model__lattice_size=2), folder)
    for words, said in (
        (("classify", folder, "--seeds", 1), "nondisplaced rib fracture"),
        (("evaluate", folder, "--split", "test"), "on 15 test samples"),
        (("evaluate", folder, "--split", "all"), "on 36 train, 12 validation and 15 test samples"),
        (("describe", folder, path, "--out", tmp_path / "described"), "63 volumes described"),
    ):
        assert said in " ".join(lines_of(capsys, *words))
    assert {row["split"] for row in rows(folder / "evaluation_test.csv")} == {"test"}


def test_a_run_without_a_test_set_of_its_own_is_judged_by_its_validation_patients(tmp_path, capsys, monkeypatch):
    """Balls of 40 patients, two each, whose diameter follows the score."""
    monkeypatch.setattr(samples, "MIN_TEST_GROUPS", 1)  # fewer would be cross-validated
    cubes, folder = tmp_path / "cubes", tmp_path / "run"
    (cubes / "images").mkdir(parents=True)
    lines = ["file,patient,diameter_mm,score"]
    for i, volume in enumerate(medmnist_files.arrays(counts={"train": 80})["train_images"]):
        np.save(cubes / "images" / f"n{i}.npy", volume)
        score = (1, 5, 2, 4, 3)[i // 2 % 5]
        lines.append(f"n{i}.npy,p{i // 2},{4 + score + i % 3 / 10},{score}")
    (cubes / "nodules.csv").write_text("\n".join(lines))
    options = {"data__source": "cubes", "data__validation": 24, "data__window": (0.0, 255.0), "data__crop": "1.25x"}
    finish(config_of(cubes, **options), folder)
    labels = ("--label-column", "score", "--label-at-most", 2, "--label-at-least", 4)
    printed = " ".join(lines_of(capsys, "classify", folder, *labels, "--seeds", 1))
    assert "16 volumes have no label and are left out" in printed
    assert "the test set is the run's validation set; the split is by" in printed
    table = rows(folder / "classification" / "classification.csv")
    aucs = {row["features"]: float(row["auc"]) for row in table[::2]}  # of logistic regression
    assert [*aucs] == [*KINDS, "diameter", "all three and diameter"]
    assert aucs["diameter"] > 0.9
    predictions = rows(folder / "classification" / "predictions.csv")  # with the columns of the CSV
    assert all(row["label"] == ("at most 2" if int(row["score"]) < 3 else "at least 4") for row in predictions)
    new = medmnist_files.arrays(counts={"train": 4})["train_images"][:, :8, :8, :8]
    np.savez(tmp_path / "new.npz", volumes=new, diameter_mm=[5, 5, 5, np.nan])
    printed = " ".join(lines_of(capsys, "predict", folder, tmp_path / "new.npz"))
    assert "4 unseen" in printed
    assert "diameter: left out" in printed
    lines_of(capsys, "evaluate", folder)
    assert {row["name"] for row in predictions} < {row["name"] for row in rows(folder / "evaluation.csv")}
    for wrong, message in (
        (labels[:4], "must be given together"),
        (("--label-column", "nothing"), "must be one of the data's columns, file, patient"),
        ((), "the column 'category' gives none"),
        (("--label-column", "patient", *labels[2:]), "needs numbers in patient"),
        (("--label-column", "score", "--label-at-most", 4, "--label-at-least", 2), "must be below --label-at-least"),
        ((*labels, "--data.seed", 3), "got data.seed otherwise in"),
    ):
        assert message in last_refusal(capsys, "classify", folder, *wrong, "--seeds", 1)


def test_runs_and_labels_that_do_not_fit_are_refused(medmnist_runs, tmp_path, capsys):
    one, other = medmnist_runs
    config = shutil.copytree(other, tmp_path / "settings") / "config.toml"
    config.write_text(config.read_text().replace("components = 4", "components = 5"))
    without = medmnist_files.write(tmp_path / "nodulemnist3d.npz", test_labels=np.zeros((16, 1), np.uint8))
    for words, message in (
        ((config.parent,), "model.components otherwise in"),
        ((other, one), f"each run must be given once, because results are means over all runs; got {one} twice"),
        (("--label-column", "score"), "must be one of the data's columns, none; got score"),
        (("--data.root", without), "the test set must have 1 or more samples of each class; it has 0 of 'malignant'"),
    ):
        assert message in last_refusal(capsys, "classify", one, "--out", tmp_path / "out", *words)


@pytest.fixture(scope="module")
def classified_run(medmnist_runs, tmp_path_factory):
    folder = shutil.copytree(medmnist_runs[0], tmp_path_factory.mktemp("classified") / "run")
    assert run_gmmae("classify", folder, "--seeds", 1) == 0
    return folder


def test_what_is_kept_gives_the_probabilities_of_the_test(medmnist_runs, classified_run, tmp_path, capsys):
    path, out = medmnist_runs[0].parent / "nodulemnist3d.npz", tmp_path / "out"
    assert "16 unseen, 24 fitted, 12 validation" in lines_of(capsys, "predict", classified_run, path, "--out", out)[0]
    found = {row["name"]: row for row in rows(out / "probabilities.csv")}
    judged = [row for row in rows(classified_run / "classification" / "predictions.csv") if row["classifier"] == LINEAR]
    assert len(judged) == 16 * len(KINDS)
    for row in judged:
        same = found[row["name"]]
        assert same["split"] == "unseen"
        assert float(same[f"{row['features']}: malignant"]) == pytest.approx(float(row["malignant"]), abs=1e-4)
    other, damaged = (shutil.copytree(classified_run, tmp_path / name) for name in ("other", "damaged"))
    for file, old, new in (
        (other / "record.json", '"best_val_loss": ', '"best_val_loss": 2'),
        (damaged / "classification" / "classification.json", '"blocks"', '"block"'),
    ):
        file.write_text(file.read_text().replace(old, new))
    for words, message in (
        ((medmnist_runs[1], path), "must have been classified"),
        ((damaged, path), f"be of a classification; got no 'blocks': give `gmmae classify {damaged}`"),
        ((classified_run, path, "--data.shape", 12), "got data.shape otherwise"),
        ((other, path), "its parameters have changed"),
    ):
        assert message in last_refusal(capsys, "predict", *words)


@pytest.mark.parametrize(
    ("count", "labels"), [(30, ()), (30, ("benign", "malignant")), (30, ("benign", "malignant", "metastasis")), (1, ("?",))]
)
def test_new_nodules_have_probabilities_and_with_labels_a_test(classified_run, tmp_path, capsys, count, labels):
    lines = ["nodule_id,image_path,truth" if labels else "nodule_id,image_path"]
    for i, volume in enumerate(medmnist_files.arrays(counts={"train": count})["train_images"]):
        np.save(tmp_path / f"{i}.npy", volume)
        label = labels[2] if i > 26 and labels[2:] else labels[i % 2] if labels else ""
        lines.append(f"N{99 - i},{i}.npy" + f",{label}" * bool(labels))
    (tmp_path / "mine.csv").write_text("\n".join(lines))
    options = ("--label-column", "truth") if labels else ()
    printed = "\n".join(lines_of(capsys, "predict", classified_run, tmp_path, *options, "--out", tmp_path / "out"))
    table = rows(tmp_path / "out" / "probabilities.csv")
    assert {(row["nodule_id"], row["image_path"]) for row in table} == {(f"N{99 - i}", f"{i}.npy") for i in range(count)}
    assert all((float(row["voxels: malignant"]) > 0.5) == int(row["image_path"][:-4]) % 2 for row in table)
    assert (tmp_path / "out" / "roc.png").exists() == ("beats chance" in printed) == bool(labels[1:])
    assert ("3 metastasis" in printed and "27 volumes of" in printed) == bool(labels[2:])
