"""`gmmae generate`: from a run to a folder that the project reads, what may be asked of the nodules, and its messages."""

import csv
import os

import numpy as np
import pytest
import SimpleITK as sitk

from gmmae.config.schema import changed
from gmmae.data import sources
from gmmae.data.extraction import prepare
from gmmae.data.settings import DataConfig
from gmmae.system.errors import InputError
from gmmae.training import fingerprint
from gmmae.training.loop import run
from gmmae.workloads.configuration import read_config
from tests.cli.conftest import TrainedRun
from tests.commands import lines_of, refusal, rows, run_gmmae
from tests.interrupting import tree
from tests.small import SMALL_LATTICE, Recorder, small


def shapes(folder):
    """Voxels along z, y, x of the files of a folder, and of what they are of in mm."""
    images = [sitk.ReadImage(str(path)) for path in sorted(folder.iterdir())]
    edges = {tuple(round(n * mm, 3) for n, mm in zip(i.GetSize()[::-1], i.GetSpacing()[::-1], strict=True)) for i in images}
    return {image.GetSize()[::-1] for image in images}, edges


COUNT = 30
SHAPE = (9, 24, 22)
HEAD = ("file", "patient", "diameter_mm", "category", "malignancy")


def write_cubes(root, spacing=(0.7, 0.8, 1.6), columns=HEAD, masks=True):
    """Writes balls of 5 to 11 mm on the grids of calm and noisy scans. `spacing` is along x, y, z."""
    for folder in ("images", "masks"):
        (root / folder).mkdir(parents=True)
    rows = []
    for number in range(COUNT):
        rng = np.random.default_rng(number)
        diameter = 5.0 + 6 * rng.random()
        away = (np.indices(SHAPE) - (np.array(SHAPE) - 1)[:, None, None, None] / 2) * np.array(spacing)[::-1, None, None, None]
        inside = np.sqrt((away**2).sum(0)) < diameter / 2
        noise = 20 if number % 2 else 60
        hu = np.where(inside, -500 * (number % 3 == 0), -850) + rng.normal(0, noise, SHAPE)
        name = f"n{number:02d}.nii.gz"
        for folder, array in (("images", np.rint(hu).astype(np.int16)), ("masks", inside.astype(np.uint8))):
            image = sitk.GetImageFromArray(array)
            image.SetSpacing(spacing)
            if folder == "images" or masks:
                sitk.WriteImage(image, str(root / folder / name))
        kind = "solid" if number % 3 else "ground-glass"
        rows.append((name, f"P{number}", f"{diameter:.3f}", kind, "" if number == 7 else 1 + number % 5))
    with (root / "nodules.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, HEAD, extrasaction="ignore")
        writer.fieldnames = list(columns)
        writer.writeheader()
        writer.writerows(dict(zip(HEAD, row, strict=True)) for row in rows)
    return root


def trained(root, cubes):
    data = {"data__source": "cubes", "data__root": str(cubes), "data__cache": str(root / "cache"), "data__workers": 1}
    kept = {name: value for name, value in SMALL_LATTICE.items() if not name.startswith("data__")}
    config = small(**kept, **data, data__validation=8, data__padding="replicate")
    return TrainedRun(root / "run", run(config, root / "run", Recorder()))


@pytest.fixture(scope="module")
def anisotropic(tmp_path_factory):
    """A run on scans' grids, with everything in the CSV."""
    root = tmp_path_factory.mktemp("anisotropic")
    return trained(root, write_cubes(root / "cubes"))


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """A run on volumes of 1 mm without masks, whose CSV has files, patients and diameters only."""
    root = tmp_path_factory.mktemp("bare")
    return trained(root, write_cubes(root / "cubes", (1.0, 1.0, 1.0), HEAD[:3], masks=False))


def test_it_writes_cubes_that_are_read_back_and_sheets_to_look_at(lattice_run, tmp_path, capsys):
    out = tmp_path / "made"
    printed = lines_of(capsys, "generate", lattice_run.folder, "--count", 30, "--seed", 5, "--out", out)
    assert printed[0].startswith("30 nodules in ")
    assert printed[-1] == f"to train with them: --data.augment-with {out}"
    table = rows(out / "nodules.csv")
    assert len(table) == 30
    assert {row["seed"] for row in table} == {"5"}
    assert all(float(row["distance"]) > 0 and row["nearest"].startswith("synthetic-") for row in table)
    assert len({row["category"] for row in table} - {""}) >= 2
    for name in ("images", "masks"):
        assert shapes(out / name)[0] == {(6, 8, 10)}
    for sheet in ("contact_sheet.png", "contact_sheet_labelled.png"):
        assert (out / sheet).stat().st_size > 1000
        assert str(out / sheet) in printed
    back = prepare.load(DataConfig(source="cubes", root=str(out), shape=8, cache=str(tmp_path / "cache")), print)
    assert len(back.names) == 30
    assert back.masks is not None
    # They are not trained on where their generator saw the validation set.
    config = read_config(lattice_run.folder / "config.toml")
    whole = fingerprint.load(config)
    assert fingerprint.read(out) == whole
    config = changed(config, data__augment_with=str(out))
    assert fingerprint.descended(config, whole).digests == whole.digests
    with pytest.raises(InputError, match=f"got 3 of 23 that the model of {out} was trained on"):
        fingerprint.descended(config, whole._replace(validation=whole.validation + whole.train[:3]))
    # Another call leaves them as they are.
    before = tree(out)
    message = "--out must be a folder that is new or empty; got "
    assert message in refusal(capsys, "generate", lattice_run.folder, "--out", out, "--count", 3)
    assert tree(out) == before


def test_another_size_shows_the_same_nodules(lattice_run, tmp_path):
    for size in (10, 20):
        options = ("--count", 3, "--size", size, "--texture", 0, "--out", tmp_path / f"{size}")
        assert run_gmmae("generate", lattice_run.folder, *options) == 0
        assert shapes(tmp_path / f"{size}" / "images")[0] == {(6 * size // 10, 8 * size // 10, size)}
    coarse, fine = (shapes(tmp_path / f"{size}" / "masks")[1] for size in (10, 20))
    assert coarse == fine
    for path in sorted((tmp_path / "10" / "images").iterdir()):
        one, two = (sitk.GetArrayFromImage(sitk.ReadImage(str(tmp_path / n / "images" / path.name))) for n in ("10", "20"))
        mean = two.reshape(6, 2, 8, 2, 10, 2).mean((1, 3, 5))
        # Interpolation softens what the grey levels have added to the mixture.
        assert abs(mean - one).mean() < 0.2 * abs(one - one.mean()).mean()


def test_it_puts_nodules_of_another_size_and_shape_into_scans(lattice_run, tmp_path, capsys):
    assert run_gmmae("data", "synth", tmp_path / "scans", "--scans", 1, "--pixels", 128) == 0
    to = ("--out", tmp_path / "made", "--insert-into", tmp_path / "scans")
    assert "nodules in 1 scans" in " ".join(lines_of(capsys, "generate", lattice_run.folder, "--count", 2, "--size", 14, *to))
    assert shapes(tmp_path / "made" / "images")[0] == {(8, 11, 14)}
    assert len(list((tmp_path / "made" / "scans").rglob("*.mhd"))) == 1


def test_everything_may_be_asked_for_at_once(anisotropic, tmp_path):
    wanted, out = ("--diameter-mm", 6, 10, "--category", "solid", "--malignancy", 2, 4), tmp_path / "made"
    more = ("--size", 12, "--bandwidth", 0.9, "--count", 6, "--out", out)
    assert run_gmmae("generate", anisotropic.folder, *wanted, *more) == 0
    made = rows(out / "nodules.csv")
    assert len(made) == 6
    assert {row["category"] for row in made} == {"solid"}
    assert all(6 <= float(row["diameter_mm"]) <= 10 for row in made)
    assert {int(row["shape_donors"].split()[0][1:3]) % 5 for row in made} <= {1, 2, 3}
    assert shapes(out / "images")[0] == {(12, 12, 12)}


def test_data_without_masks_and_columns_make_nodules(bare, tmp_path):
    out = tmp_path / "made"
    assert run_gmmae("generate", bare.folder, "--out", out, "--count", 3, "--diameter-mm", 6, 10) == 0
    assert {row["category"] for row in rows(out / "nodules.csv")} == {""}


@pytest.mark.parametrize(
    ("made_with", "words", "message"),
    [
        ("lattice_run", "--category cyst", "category must be one of "),
        ("lattice_run", "--malignancy 1 99", "--malignancy needs "),
        ("lattice_run", "--insert-into nowhere", "SCANS must be a folder of .mhd scans; got nowhere"),
        ("lattice_run", "--size 5", "--size must leave at least 4 voxels along each axis; got 5, which makes 3 × 4 × 5 of"),
        ("lattice_run", "--count 100000 --size 512", "must fit into memory; got 100000 of 307 × 410 × 512 voxels, which take"),
        # The evaluation of one mixture takes as much.
        ("lattice_run", "--count 1 --size 512", "which take 32 of 17 GB: make fewer in a call, each with another --seed, or"),
        ("mixture_run", "", "RUN must have a model that makes volumes of latent vectors, model.decoder = lattice"),
        ("anisotropic", "--diameter-mm 12 6", "--diameter-mm must be "),
        ("anisotropic", "--diameter-mm 6mm 12mm", "--diameter-mm must be "),
        ("anisotropic", "--diameter-mm 6 inf", "--diameter-mm must be "),
        ("anisotropic", "--diameter-mm 100 200", "--diameter-mm must hold a training nodule that fits the other options too"),
        ("anisotropic", "--malignancy 6 9", "--malignancy must hold a training nodule that fits the other options too; got 6"),
        ("anisotropic", "--category Solid", "category must be one of ground-glass, solid; got 'Solid'"),
        ("anisotropic", "--category=", "category must be one of ground-glass, solid; got ''"),
        ("bare", "--malignancy 4 5", "malignancy"),
        ("bare", "--category solid", "training nodules must have categories for --category; got none"),
    ],
)
def test_what_cannot_be_is_one_line_and_writes_nothing(made_with, words, message, tmp_path, capsys, monkeypatch, request):
    folder = request.getfixturevalue(made_with).folder
    if made_with == "lattice_run" and words.split()[0] in ("--insert-into", "--size", "--count"):  # before any work is done
        monkeypatch.setattr(sources, "load", None)
    if "512" in words:  # the memory is the same on any machine
        monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 4 * 2**20}.__getitem__)
    assert message in refusal(capsys, "generate", folder, "--out", tmp_path / "made", "--count", 2, *words.split())
    assert not (tmp_path / "made").exists()
