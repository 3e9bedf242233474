"""`gmmae generate`: from a run to a folder that the project reads, what may be asked of the nodules, and its messages."""

import os

import numpy as np
import pytest
import SimpleITK as sitk
from scipy import ndimage

from gmmae.config.schema import changed
from gmmae.data import sources
from gmmae.system.errors import InputError
from gmmae.system.files import csv_text
from gmmae.training import fingerprint
from gmmae.workloads.configuration import on_its_data, read_config
from tests.cli.conftest import TrainedRun
from tests.commands import lines_of, refusal, rows, run_gmmae
from tests.interrupting import tree
from tests.small import SMALL_LATTICE, finish, small
from tests.volume_folders import Grid, write_image

SHAPE, SPACING = (9, 24, 22), (0.7, 0.8, 1.6)
COLUMNS = ("file", "patient", "diameter_mm", "category", "malignancy")


def read(folder):
    """The images of a folder by name, and their spacings."""
    images = {path.name: sitk.ReadImage(str(path)) for path in folder.iterdir()}
    return {name: (sitk.GetArrayFromImage(image), image.GetSpacing()[0]) for name, image in images.items()}


def trained(root, columns=COLUMNS, masks=True):
    """A run on balls of 5 to 11 mm on the grids of calm and noisy scans."""
    lines = []
    for number in range(30):
        rng = np.random.default_rng(number)
        diameter = 5.0 + 6 * rng.random()
        away = (np.moveaxis(np.indices(SHAPE), 0, -1) - (np.array(SHAPE) - 1) / 2) * SPACING[::-1]
        inside = np.linalg.norm(away, axis=-1) < diameter / 2
        hu = np.where(inside, -500 * (number % 3 == 0), -850) + rng.normal(0, 20 if number % 2 else 60, SHAPE)
        name = f"n{number:02d}.nii.gz"
        for folder, array in (("images", np.rint(hu).astype(np.int16)), ("masks", inside.astype(np.uint8))):
            if folder == "images" or masks:
                write_image(root / "cubes" / folder / name, array, Grid(spacing=SPACING))
        kind = "solid" if number % 3 else "ground-glass"
        row = (name, f"P{number}", f"{diameter:.3f}", kind, "" if number == 7 else 1 + number % 5)
        lines.append(dict(zip(COLUMNS, row, strict=True)))
    (root / "cubes/nodules.csv").write_text(csv_text(lines, columns))
    data = {"data__source": "cubes", "data__root": str(root / "cubes"), "data__cache": str(root / "cache"), "data__workers": 1}
    config = small(**SMALL_LATTICE | data | {"data__validation": 8, "data__padding": "replicate"})
    return TrainedRun(root / "run", finish(config, root / "run")[0])


@pytest.fixture(scope="module")
def full(tmp_path_factory):
    """A run with everything in the CSV."""
    return trained(tmp_path_factory.mktemp("full"))


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """A run on volumes without masks, whose CSV has files, patients and diameters only."""
    return trained(tmp_path_factory.mktemp("bare"), COLUMNS[:3], masks=False)


def test_it_writes_cubes_and_sheets_to_look_at(lattice_run, tmp_path, capsys):
    out = tmp_path / "made"
    printed = lines_of(capsys, "generate", lattice_run.folder, "--count", 30, "--seed", 5, "--out", out)
    assert printed[0].startswith("30 nodules in ")
    assert printed[-1] == f"to train with them: --data.augment-with {out}"
    table = rows(out / "nodules.csv")
    assert len(table) == 30
    assert all(row["seed"] == "5" and float(row["distance"]) > 0 for row in table)
    assert len({row["category"] for row in table} - {""}) >= 2
    assert {array.shape for name in ("images", "masks") for array, _ in read(out / name).values()} == {(6, 8, 10)}
    for sheet in ("contact_sheet.png", "contact_sheet_labelled.png"):
        assert (out / sheet).stat().st_size > 1000
        assert str(out / sheet) in printed
    # They are not trained on where their generator saw the validation set.
    config = read_config(lattice_run.folder / "config.toml")
    whole = fingerprint.load(config)
    assert fingerprint.read(out) == whole
    config = changed(config, data__augment_with=str(out))
    assert fingerprint.descended(config, whole).digests == whole.digests
    for root, augments in ((None, True), ("elsewhere", False)):  # other data are evaluated without them
        assert bool(on_its_data(changed(config, data__root=root), config).settings.data.augment_with) == augments
    with pytest.raises(InputError, match=f"got 3 of 23 that the model of {out} was trained on"):
        fingerprint.descended(config, whole._replace(validation=whole.validation + whole.train[:3]))
    # Another call leaves them as they are.
    before = tree(out)
    assert "--out must be a folder that is new" in refusal(capsys, "generate", lattice_run.folder, "--out", out, "--count", 3)
    assert tree(out) == before


def test_another_size_shows_the_same_nodules_also_in_scans(lattice_run, tmp_path, capsys):
    assert run_gmmae("data", "synth", tmp_path / "scans", "--scans", 1, "--pixels", 128) == 0
    made = {}
    for size, options in ((10, ()), (14, ("--insert-into", tmp_path / "scans")), (20, ())):
        words = ("--count", 3, "--size", size, "--texture", 0, "--out", tmp_path / f"{size}", *options)
        assert ("nodules in 1 scans" in " ".join(lines_of(capsys, "generate", lattice_run.folder, *words))) == bool(options)
        made[size] = read(tmp_path / f"{size}/images")
    assert len(list((tmp_path / "14/scans").rglob("*.mhd"))) == 1
    for size, shape in ((14, (8, 11, 14)), (20, (12, 16, 20))):
        for name, (fine, voxel_mm) in made[size].items():
            coarse, coarse_mm = made[10][name]
            assert fine.shape == shape
            assert voxel_mm * size == pytest.approx(coarse_mm * 10, rel=1e-4)
            middles = [(np.array(each.shape) - 1)[:, None, None, None] / 2 for each in (fine, coarse)]
            places = (np.indices(shape) - middles[0]) * voxel_mm / coarse_mm + middles[1]
            seen = ndimage.map_coordinates(coarse.astype(float), places, order=1, mode="nearest")
            # Interpolation softens what the grey levels have added to the mixture.
            assert abs(seen - fine).mean() < 0.25 * abs(coarse - coarse.mean()).mean()


def test_everything_may_be_asked_for_at_once(full, tmp_path):
    out = tmp_path / "made"
    words = "--diameter-mm 6 10 --category solid --malignancy 2 4 --size 12 --bandwidth 0.9 --count 6"
    assert run_gmmae("generate", full.folder, *words.split(), "--out", out) == 0
    made = rows(out / "nodules.csv")
    assert len(made) == 6
    assert all(row["category"] == "solid" and 6 <= float(row["diameter_mm"]) <= 10 for row in made)
    assert {int(row["shape_donors"].split()[0][1:3]) % 5 for row in made} <= {1, 2, 3}
    assert {array.shape for array, _ in read(out / "images").values()} == {(12, 12, 12)}


def test_data_without_masks_and_columns_make_nodules_others_for_each_seed(bare, tmp_path):
    distances = []
    for seed in "01":
        words = f"--count 3 --diameter-mm 6 10 --seed {seed}"
        assert run_gmmae("generate", bare.folder, *words.split(), "--out", tmp_path / seed) == 0
        made = rows(tmp_path / seed / "nodules.csv")
        assert {row["category"] for row in made} == {""}
        distances.append([row["distance"] for row in made])
    assert distances[0] != distances[1]


@pytest.mark.parametrize(
    ("made_with", "words", "message"),
    [
        ("lattice_run", "--insert-into nowhere", "SCANS must be a folder of .mhd scans; got nowhere"),
        ("lattice_run", "--size 5", "--size must leave at least 4 voxels along each axis; got 5"),
        ("lattice_run", "--count 100000 --size 512", "must fit into memory; got 100000 of 307 × 410 × 512 voxels"),
        # The evaluation of one mixture takes as much.
        ("lattice_run", "--count 1 --size 512", "which take 32 of 17 GB"),
        ("mixture_run", "", "RUN must have a model that makes volumes of latent vectors"),
        ("full", "--diameter-mm 12 6", "--diameter-mm must be "),
        ("full", "--diameter-mm 100 200", "--diameter-mm must hold a training nodule"),
        ("full", "--category=", "category must be one of ground-glass, solid; got ''"),
        ("bare", "--malignancy 4 5", "--malignancy needs "),
        ("bare", "--category solid", "training nodules have no categories"),
    ],
)
def test_what_cannot_be_is_one_line_and_writes_nothing(made_with, words, message, tmp_path, capsys, monkeypatch, request):
    folder = request.getfixturevalue(made_with).folder
    if made_with == "lattice_run":  # before any work is done
        monkeypatch.setattr(sources, "load", None)
    if "512" in words:  # the memory is the same on any machine
        monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 4 * 2**20}.__getitem__)
    assert message in refusal(capsys, "generate", folder, "--out", tmp_path / "made", "--count", 2, *words.split())
    assert not (tmp_path / "made").exists()
