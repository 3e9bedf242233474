"""`gmmae generate`, from a run to a folder that the project reads, and its messages."""

import csv

import pytest
import SimpleITK as sitk

from gmmae.data import sources
from gmmae.data.extraction import prepare
from gmmae.data.settings import DataConfig
from gmmae.training.loop import run
from tests.commands import run_gmmae
from tests.interrupting import full_disk, moments
from tests.small import SMALL_LATTICE, Recorder, small


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    run(small(**SMALL_LATTICE), folder, Recorder())
    return folder


@pytest.fixture(scope="module")
def flat(tmp_path_factory):
    """A run on volumes whose axes differ."""
    folder = tmp_path_factory.mktemp("flat")
    run(small(**SMALL_LATTICE, data__shape=(6, 8, 10)), folder, Recorder())
    return folder


def generate(capsys, *arguments):
    code = run_gmmae("generate", *arguments)
    return code, *capsys.readouterr()


def test_it_writes_cubes_that_are_read_back_and_sheets_to_look_at(trained, tmp_path, capsys):
    code, printed, _ = generate(capsys, trained, "--count", 30, "--seed", 5, "--out", tmp_path / "made")
    assert code == 0
    assert printed.startswith("30 nodules in ")
    assert printed.endswith(f"to train with them: --data.augment-with {tmp_path / 'made'}\n")
    with (tmp_path / "made" / "nodules.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 30
    assert {row["seed"] for row in rows} == {"5"}
    assert all(float(row["distance"]) > 0 and row["nearest"].startswith("synthetic-") for row in rows)
    for sheet in ("contact_sheet.png", "contact_sheet_labelled.png"):
        assert (tmp_path / "made" / sheet).stat().st_size > 1000
    back = prepare.load(DataConfig(source="cubes", root=str(tmp_path / "made"), shape=8, cache=str(tmp_path / "cache")), print)
    assert len(back.names) == 30
    assert back.masks is not None


def shapes(folder):
    """Voxels along z, y, x of the files of a folder, and of what they are of in mm."""
    images = [sitk.ReadImage(str(path)) for path in sorted(folder.iterdir())]
    edges = {tuple(round(n * mm, 3) for n, mm in zip(i.GetSize()[::-1], i.GetSpacing()[::-1], strict=True)) for i in images}
    return {image.GetSize()[::-1] for image in images}, edges


@pytest.mark.parametrize(
    ("of", "size", "shape"),
    [
        ("trained", 12, (12, 12, 12)),
        ("trained", 5, (5, 5, 5)),
        ("flat", "auto", (6, 8, 10)),
        ("flat", 24, (14, 19, 24)),
    ],
)
def test_nodules_of_any_size_come_with_masks_and_sheets(of, size, shape, request, tmp_path, capsys):
    out = tmp_path / "made"
    code, printed, _ = generate(capsys, request.getfixturevalue(of), "--count", 5, "--size", size, "--out", out)
    assert code == 0
    for folder in ("images", "masks"):
        assert shapes(out / folder)[0] == {shape}
    with (out / "nodules.csv").open(newline="") as file:
        assert len({row["category"] for row in csv.DictReader(file)} - {""}) >= 2
    for sheet in ("contact_sheet.png", "contact_sheet_labelled.png"):
        assert (out / sheet).stat().st_size > 1000
        assert str(out / sheet) in printed


def test_another_size_shows_the_same_nodules(flat, tmp_path, capsys):
    for size in (10, 20):
        assert generate(capsys, flat, "--count", 3, "--size", size, "--texture", 0, "--out", tmp_path / f"{size}")[0] == 0
    coarse, fine = (shapes(tmp_path / f"{size}" / "masks")[1] for size in (10, 20))
    assert coarse == fine
    for path in sorted((tmp_path / "10" / "images").iterdir()):
        one, two = (
            sitk.GetArrayFromImage(sitk.ReadImage(str(tmp_path / size / "images" / path.name))) for size in ("10", "20")
        )
        mean = two.reshape(6, 2, 8, 2, 10, 2).mean((1, 3, 5))
        assert abs(mean - one).mean() < 0.1 * abs(one - one.mean()).mean()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--category", "cyst"], "category must be one of "),
        (["--insert-into", "nowhere"], "SCANS must be a folder of .mhd scans; got nowhere"),
    ],
)
def test_bad_input_is_one_line(trained, tmp_path, capsys, arguments, message):
    code, _, error = generate(capsys, trained, "--out", tmp_path / "made", *arguments)
    assert code == 2
    assert message in error
    assert error.count("\n") == 1


def test_a_folder_that_holds_something_is_left_as_it_is(trained, tmp_path, capsys):
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "mine.txt").write_text("mine")
    code, _, error = generate(capsys, trained, "--out", tmp_path / "made")
    assert code == 2
    assert "--out must be a folder that is new or empty; got " in error
    assert [path.name for path in (tmp_path / "made").iterdir()] == ["mine.txt"]


def test_a_size_that_leaves_an_axis_without_voxels_is_told_before_any_work_is_done(flat, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sources, "load", None)
    code, _, error = generate(capsys, flat, "--out", tmp_path / "made", "--size", 5)
    assert code == 2
    assert "--size must leave at least 4 voxels along each axis; got 5, which makes 3 × 4 × 5 of 6 × 8 × 10" in error


def test_nodules_that_do_not_fit_into_memory_are_one_line(trained, tmp_path, capsys):
    code, _, error = generate(capsys, trained, "--out", tmp_path / "made", "--count", 100_000, "--size", 512)
    assert code == 2
    assert "must fit into memory; got 100000 of 512 × 512 × 512 voxels, which take 671089 of " in error
    assert error.count("\n") == 1


def test_the_prior_is_kept_beside_the_run_and_where_it_cannot_be_that_is_said(trained, tmp_path, capsys, monkeypatch):
    assert generate(capsys, trained, "--count", 2, "--out", tmp_path / "one")[0] == 0
    kept = (trained / "prior.npz").read_bytes()
    with moments(trained, 1, full_disk, for_good=True):
        code, printed, _ = generate(capsys, trained, "--count", 2, "--out", tmp_path / "two")
    assert code == 0
    assert f"the prior was not kept: {trained / 'prior.npz'} cannot be written (No space left on device)" in printed
    assert (trained / "prior.npz").read_bytes() == kept


def test_a_model_with_the_papers_heads_cannot_generate(tmp_path, capsys):
    run(small(stop__max_epochs=1), tmp_path / "run", Recorder())
    code, _, error = generate(capsys, tmp_path / "run", "--out", tmp_path / "made")
    assert code == 2
    assert "RUN must have a model that makes volumes of latent vectors, model.decoder = lattice" in error
    assert not (tmp_path / "made").exists()


def test_it_puts_them_into_scans(trained, tmp_path, capsys):
    assert run_gmmae("data", "synth", tmp_path / "scans", "--scans", 1, "--pixels", 128) == 0
    code, printed, _ = generate(capsys, trained, "--count", 2, "--out", tmp_path / "made", "--insert-into", tmp_path / "scans")
    assert code == 0, printed
    assert "nodules in 1 scans" in printed
    assert len(list((tmp_path / "made" / "scans").rglob("*.mhd"))) == 1


def test_it_puts_nodules_of_another_size_and_shape_into_scans(flat, tmp_path, capsys):
    assert run_gmmae("data", "synth", tmp_path / "scans", "--scans", 1, "--pixels", 128) == 0
    to = ("--out", tmp_path / "made", "--insert-into", tmp_path / "scans")
    code, printed, _ = generate(capsys, flat, "--count", 2, "--size", 14, *to)
    assert code == 0, printed
    assert shapes(tmp_path / "made" / "images")[0] == {(8, 11, 14)}
    assert "nodules in 1 scans" in printed
