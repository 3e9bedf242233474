"""What is asked of new nodules, through the command, on folders of cubes as others may have them."""

import csv

import numpy as np
import pytest
import SimpleITK as sitk

from gmmae.training.loop import run
from tests.cli.conftest import TrainedRun
from tests.commands import refusal, run_gmmae
from tests.small import SMALL_LATTICE, Recorder, small

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


def rows(out):
    with (out / "nodules.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_everything_may_be_asked_for_at_once(anisotropic, tmp_path, capsys):
    wanted = ("--diameter-mm", 6, 10, "--category", "solid", "--malignancy", 2, 4)
    out = tmp_path / "made"
    more = ("--size", 12, "--bandwidth", 0.9, "--count", 6, "--out", out)
    assert run_gmmae("generate", anisotropic.folder, *wanted, *more) == 0, capsys.readouterr().err
    made = rows(out)
    assert len(made) == 6
    assert {row["category"] for row in made} == {"solid"}
    assert all(6 <= float(row["diameter_mm"]) <= 10 for row in made)
    for row in made:
        shape = sitk.ReadImage(str(out / "images" / row["file"])).GetSize()
        assert shape == (12, 12, 12)
        assert int(row["shape_donors"].split()[0][1:3]) % 5 in (1, 2, 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--diameter-mm", 12, 6], "--diameter-mm must be "),
        (["--diameter-mm", "6mm", "12mm"], "--diameter-mm"),
        (["--diameter-mm", "nan", "nan"], "--diameter-mm must be "),
        (["--diameter-mm", "6", "inf"], "--diameter-mm must be "),
        (["--malignancy", "four", "five"], "--malignancy"),
        (
            ["--diameter-mm", 100, 200],
            "--diameter-mm must hold a training nodule that fits the other options too; got 100 to 200",
        ),
        (["--malignancy", 6, 9], "--malignancy must hold a training nodule that fits the other options too; got 6 to 9"),
        (["--category", "Solid"], "category must be one of ground-glass, solid; got 'Solid'"),
        (["--category", ""], "category must be one of ground-glass, solid; got ''"),
    ],
)
def test_what_cannot_be_is_one_line_and_writes_nothing(anisotropic, tmp_path, capsys, arguments, message):
    assert message in refusal(capsys, "generate", anisotropic.folder, "--out", tmp_path / "made", "--count", 2, *arguments)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--malignancy", 4, 5], "malignancy"),
        (["--category", "solid"], "training nodules must have categories for --category; got none"),
    ],
)
def test_what_the_data_do_not_say_cannot_be_asked_for(bare, tmp_path, capsys, arguments, message):
    assert message in refusal(capsys, "generate", bare.folder, "--out", tmp_path / "made", "--count", 2, *arguments)
    assert not (tmp_path / "made").exists()


def test_data_without_masks_and_columns_make_nodules(bare, tmp_path, capsys):
    out = tmp_path / "made"
    assert run_gmmae("generate", bare.folder, "--out", out, "--count", 3, "--diameter-mm", 6, 10) == 0, capsys.readouterr().err
    assert {row["category"] for row in rows(out)} == {""}


def test_synthetic_data_have_no_scores(lattice_run, tmp_path, capsys):
    message = refusal(capsys, "generate", lattice_run.folder, "--out", tmp_path / "made", "--count", 2, "--malignancy", 1, 99)
    assert "--malignancy needs " in message
    assert not (tmp_path / "made").exists()


def test_a_second_call_with_other_options_leaves_the_first_one_as_it_is(anisotropic, tmp_path, capsys):
    out = tmp_path / "made"
    assert run_gmmae("generate", anisotropic.folder, "--out", out, "--count", 2) == 0
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    capsys.readouterr()
    message = refusal(capsys, "generate", anisotropic.folder, "--out", out, "--count", 3, "--seed", 1)
    assert "--out must be a folder that is new or empty; got " in message
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
