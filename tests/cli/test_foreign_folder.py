"""A folder as a user has it: volumes of any size in folders of his, and one CSV with names and columns of his."""

import numpy as np
import pytest

from gmmae.config.toml import to_toml
from tests.commands import last_refusal, lines_of, rows, run_gmmae
from tests.small import small
from tests.volume_folders import Grid, write_image, write_rows

HEADER = ("nodule_id", "image_path", "PatientID", "size_mm", "diagnosis")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """32 nodules of 16 patients: flat ones, and round ones."""
    root, rng, table = tmp_path_factory.mktemp("foreign"), np.random.default_rng(0), []
    for i in range(32):
        spacing = rng.uniform(0.6, 2.0, 3)
        places = np.stack(np.meshgrid(*(mm * np.linspace(-6, 6, 13) for mm in spacing), indexing="ij"), -1)
        distance = np.linalg.norm(places * [1 + i % 2, 1, 1], axis=-1)
        values = np.where(distance < 5, 50, -850) + rng.normal(0, 20, (13, 13, 13))
        write_image(root / f"scans/{i}.nii.gz", values.astype(np.int16), Grid(spacing=tuple(spacing[::-1].tolist())))
        table.append([f"N{i}", f"scans/{i}.nii.gz", f"P{i // 2}", f"{10 - i / 100}", ("round", "flat")[i % 2]])
    write_rows(root / "labels.csv", table, HEADER)
    return root


def linked(folder, place, text):
    """Another folder of the same volumes, with a CSV of its own."""
    place.mkdir()
    (place / "scans").symlink_to(folder / "scans")
    (place / "nodules.csv").write_text(text)
    return place


def words_of(root, tmp_path):
    """The options that name a folder of cubes, which this process reads."""
    words = ("--data.source", "cubes", "--data.root", root, "--data.crop", "12mm", "--data.cache", tmp_path / "cache")
    return *words, "--data.workers", 1, "--data.scan-time-limit-s", "none"


def test_it_is_read_at_the_first_call_and_its_columns_are_in_every_output(folder, tmp_path, capsys):
    run, words = tmp_path / "run", words_of(folder, tmp_path)
    printed = "\n".join(lines_of(capsys, "data", "prepare", *words))
    assert "32 nodules in 16 groups" in printed
    assert "PatientID, diameter_mm (as size_mm), file (as image_path); that are only kept: nodule_id, diagnosis" in printed
    (tmp_path / "small.toml").write_text(to_toml(small(stop__max_epochs=1)))
    assert run_gmmae("train", "--config", tmp_path / "small.toml", *words, "--workdir", run) == 0
    lines_of(capsys, "evaluate", run, "--split", "all", "--out", tmp_path / "evaluated.csv")
    lines_of(capsys, "classify", run, "--label-column", "diagnosis", "--seeds", 1)
    lines_of(capsys, "describe", run, "--out", tmp_path / "described")
    text = (folder / "labels.csv").read_text()
    renamed = text.replace("image_path", "volume").replace("size_mm", "long axis")
    other = linked(folder, tmp_path / "other", renamed)
    names = ("--data.file-column", "volume", "--data.diameter-column", "long axis")
    lines_of(capsys, "describe", run, other, *names, "--out", tmp_path / "others")
    assert len(rows(tmp_path / "others" / "nodules.csv")) == 32
    known = {row["nodule_id"]: row for row in rows(folder / "labels.csv")}
    evaluated, described = rows(tmp_path / "evaluated.csv"), rows(tmp_path / "described" / "nodules.csv")
    predicted = rows(run / "classification" / "predictions.csv")
    for output in (evaluated, described, predicted):
        assert all({name: row[name] for name in HEADER} == known[row["nodule_id"]] for row in output)
    assert {row["nodule_id"] for row in evaluated} == {row["nodule_id"] for row in described} == set(known)
    assert all(row["label"] == row["diagnosis"] for row in predicted)
    assert "diameter" not in {row["features"] for row in predicted}  # which cubes of one width show already
    assert len({row["group"] for row in evaluated}) == 16
    (tmp_path / "smaller.csv").write_text(text.replace(",9.", ",8."))
    lines_of(capsys, "evaluate", run, "--data.csv", tmp_path / "smaller.csv", "--out", tmp_path / "smaller")
    assert {row["split"] for row in rows(tmp_path / "smaller")} == {"train", "validation"}  # though they are cut in another way
    # So few patients are cross-validated, and other cuts of theirs are no test.
    assert {row["nodule_id"] for row in predicted} == set(known)
    printed = lines_of(capsys, "predict", run, folder, "--data.csv", tmp_path / "smaller.csv")
    assert "32 fitted" in printed[0]
    assert "labels for a test: none" in " ".join(printed)
    # Labels of held-out nodules that no classifier had are a test.
    held_out = {row["nodule_id"] for row in evaluated if row["split"] == "validation"}
    lines = text.splitlines()
    some = [line.rpartition(",")[0] + "," if line.split(",")[0] in held_out else line for line in lines]
    (tmp_path / "some.csv").write_text("\n".join(some))
    lines_of(capsys, "classify", run, "--data.csv", tmp_path / "some.csv", "--label-column", "diagnosis", "--seeds", 1)
    lines_of(capsys, "predict", run, folder, "--out", tmp_path / "predicted")
    found = rows(tmp_path / "predicted" / "probabilities.csv")
    assert {row["nodule_id"]: row["split"] for row in found} == dict.fromkeys(known, "fitted") | dict.fromkeys(
        held_out, "validation"
    )
    # A patient of the training set is known by any column that names patients, and by a scan, and without a label too.
    trained = next(row for row in evaluated if row["split"] == "train")
    patient = trained["PatientID"]
    unlabelled = [line.rpartition(",")[0] + "," if f",{patient}," in line else line for line in lines]
    with_scans = [f"{line},scan of {line.partition(',')[0]}" for line in unlabelled[1:]]
    (tmp_path / "unlabelled.csv").write_text("\n".join([f"{lines[0]},seriesuid", *with_scans]))
    lines_of(capsys, "classify", run, "--data.csv", tmp_path / "unlabelled.csv", "--label-column", "diagnosis", "--seeds", 1)
    (tmp_path / "new").mkdir()
    table = ["nodule_id,file,PatientID,MRN,seriesuid,diameter_mm,category"]
    for i, names in enumerate(
        (f"{patient},,", f",{patient.lower()},", "Q1,Q1,scan of Q1", f"Q3,,scan of {trained['nodule_id']}", "Q2,,")
    ):
        np.save(tmp_path / "new" / f"{i}.npy", np.random.default_rng(i).normal(-400, 300, (12, 12, 12)))
        table.append(f"M{i},{i}.npy,{names},9,flat")
    # A volume of the run under another patient's name.
    (tmp_path / "new" / "copy.nii.gz").write_bytes((folder / trained["image_path"]).read_bytes())
    table.append(f"M5,copy.nii.gz,Q2,,,{trained['size_mm']},flat")
    (tmp_path / "new" / "nodules.csv").write_text("\n".join(table))
    lines_of(capsys, "predict", run, tmp_path / "new", "--out", tmp_path / "of_new")
    assert "replaced" in "\n".join(lines_of(capsys, "predict", run, tmp_path / "new", "--out", tmp_path / "of_new"))
    found = rows(tmp_path / "of_new" / "probabilities.csv")
    assert [row["split"] for row in found] == ["fitted", "fitted", "unseen", "fitted", "fitted", "fitted"]
    assert {row["label"] for row in found} == {""}  # the classified column is not there


def test_of_two_columns_for_one_thing_the_first_of_the_list_is_used_and_said(folder, tmp_path, capsys):
    header, *lines = (folder / "labels.csv").read_text().splitlines()
    text = "\n".join([f"path,{header}", *(f"gone.nii,{line}" for line in lines)])
    other = linked(folder, tmp_path / "other", text)
    words = ("data", "prepare", *words_of(other, tmp_path))
    printed = "\n".join(lines_of(capsys, *words))
    assert "file (as image_path); that are only kept: path, nodule_id, diagnosis" in printed
    (other / "nodules.csv").rename(other / "a.csv")
    (other / "b.csv").touch()
    error = last_refusal(capsys, *words)
    assert "data.csv must say which CSV lists the nodules" in error
    assert "a.csv, b.csv" in error
