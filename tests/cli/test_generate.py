"""`gmmae generate`, from a run to a folder that the project reads, and its messages."""

import csv
import os

import pytest
import SimpleITK as sitk

from gmmae.config.schema import changed
from gmmae.data import sources
from gmmae.data.extraction import prepare
from gmmae.data.settings import DataConfig
from gmmae.system.errors import InputError
from gmmae.training import fingerprint
from gmmae.workloads.configuration import read_config
from tests.commands import run_gmmae


def generate(capsys, *arguments):
    code = run_gmmae("generate", *arguments)
    return code, *capsys.readouterr()


def shapes(folder):
    """Voxels along z, y, x of the files of a folder, and of what they are of in mm."""
    images = [sitk.ReadImage(str(path)) for path in sorted(folder.iterdir())]
    edges = {tuple(round(n * mm, 3) for n, mm in zip(i.GetSize()[::-1], i.GetSpacing()[::-1], strict=True)) for i in images}
    return {image.GetSize()[::-1] for image in images}, edges


def test_it_writes_cubes_that_are_read_back_and_sheets_to_look_at(lattice_run, tmp_path, capsys):
    out = tmp_path / "made"
    code, printed, _ = generate(capsys, lattice_run.folder, "--count", 30, "--seed", 5, "--out", out)
    assert code == 0
    assert printed.startswith("30 nodules in ")
    assert printed.endswith(f"to train with them: --data.augment-with {out}\n")
    with (out / "nodules.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 30
    assert {row["seed"] for row in rows} == {"5"}
    assert all(float(row["distance"]) > 0 and row["nearest"].startswith("synthetic-") for row in rows)
    assert len({row["category"] for row in rows} - {""}) >= 2
    for name in ("images", "masks"):
        assert shapes(out / name)[0] == {(6, 8, 10)}
    for sheet in ("contact_sheet.png", "contact_sheet_labelled.png"):
        assert (out / sheet).stat().st_size > 1000
        assert str(out / sheet) in printed
    back = prepare.load(DataConfig(source="cubes", root=str(out), shape=8, cache=str(tmp_path / "cache")), print)
    assert len(back.names) == 30
    assert back.masks is not None


def test_nodules_are_not_trained_on_where_their_generator_saw_the_validation(lattice_run, tmp_path, capsys):
    out = tmp_path / "made"
    assert generate(capsys, lattice_run.folder, "--count", 4, "--out", out)[0] == 0
    config = read_config(lattice_run.folder / "config.toml")
    whole = fingerprint.load(config)
    assert fingerprint.read(out) == whole
    config = changed(config, data__augment_with=str(out))
    assert fingerprint.descended(config, whole).digests == whole.digests
    with pytest.raises(InputError, match=f"got 3 of 23 that the model of {out} was trained on"):
        fingerprint.descended(config, whole._replace(validation=whole.validation + whole.train[:3]))


def test_another_size_shows_the_same_nodules(lattice_run, tmp_path, capsys):
    for size in (10, 20):
        options = ("--count", 3, "--size", size, "--texture", 0, "--out", tmp_path / f"{size}")
        assert generate(capsys, lattice_run.folder, *options)[0] == 0
        assert shapes(tmp_path / f"{size}" / "images")[0] == {(6 * size // 10, 8 * size // 10, size)}
    coarse, fine = (shapes(tmp_path / f"{size}" / "masks")[1] for size in (10, 20))
    assert coarse == fine
    for path in sorted((tmp_path / "10" / "images").iterdir()):
        one, two = (
            sitk.GetArrayFromImage(sitk.ReadImage(str(tmp_path / size / "images" / path.name))) for size in ("10", "20")
        )
        mean = two.reshape(6, 2, 8, 2, 10, 2).mean((1, 3, 5))
        # Interpolation softens what the grey levels have added to the mixture.
        assert abs(mean - one).mean() < 0.2 * abs(one - one.mean()).mean()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--category", "cyst"], "category must be one of "),
        (["--insert-into", "nowhere"], "SCANS must be a folder of .mhd scans; got nowhere"),
        (
            ["--size", "5"],
            "--size must leave at least 4 voxels along each axis; got 5, which makes 3 × 4 × 5 of 6 × 8 × 10",
        ),
        (
            ["--count", "100000", "--size", "512"],
            "must fit into memory; got 100000 of 307 × 410 × 512 voxels, which take",
        ),
        (  # the evaluation of one mixture takes as much
            ["--count", "1", "--size", "512"],
            "which take 32 of 17 GB: make fewer in a call, each with another --seed, or lower --size",
        ),
    ],
)
def test_bad_input_is_one_line_before_any_work_is_done(lattice_run, tmp_path, capsys, monkeypatch, arguments, message):
    if arguments[0] != "--category":  # the data have the names of the categories
        monkeypatch.setattr(sources, "load", None)
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 4 * 2**20}.__getitem__)  # on any machine
    code, _, error = generate(capsys, lattice_run.folder, "--out", tmp_path / "made", *arguments)
    assert code == 2
    assert message in error
    assert error.count("\n") == 1


def test_a_folder_that_holds_something_is_left_as_it_is(lattice_run, tmp_path, capsys):
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "mine.txt").write_text("mine")
    code, _, error = generate(capsys, lattice_run.folder, "--out", tmp_path / "made")
    assert code == 2
    assert "--out must be a folder that is new or empty; got " in error
    assert [path.name for path in (tmp_path / "made").iterdir()] == ["mine.txt"]


def test_a_model_with_the_papers_heads_cannot_generate(mixture_run, tmp_path, capsys):
    code, _, error = generate(capsys, mixture_run.folder, "--out", tmp_path / "made")
    assert code == 2
    assert "RUN must have a model that makes volumes of latent vectors, model.decoder = lattice" in error
    assert not (tmp_path / "made").exists()


def test_it_puts_nodules_of_another_size_and_shape_into_scans(lattice_run, tmp_path, capsys):
    assert run_gmmae("data", "synth", tmp_path / "scans", "--scans", 1, "--pixels", 128) == 0
    to = ("--out", tmp_path / "made", "--insert-into", tmp_path / "scans")
    code, printed, _ = generate(capsys, lattice_run.folder, "--count", 2, "--size", 14, *to)
    assert code == 0, printed
    assert shapes(tmp_path / "made" / "images")[0] == {(8, 11, 14)}
    assert "nodules in 1 scans" in printed
    assert len(list((tmp_path / "made" / "scans").rglob("*.mhd"))) == 1
