"""`gmmae describe`: mixtures in the world's millimetres, and files that lie over what was described."""

import csv
import io
import shutil
from contextlib import redirect_stderr, redirect_stdout

import numpy as np
import pytest
import SimpleITK as sitk

from gmmae.commands import cli
from gmmae.commands.describe import _cut
from gmmae.data.config import DataConfig
from gmmae.data.extraction import prepare
from gmmae.training.loop import run
from tests.small import Recorder, small

MIDDLE = np.array([-30.0, 12.0, 250.0])  # x, y, z
SPACING = np.array([1.0, 0.8, 2.0])


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run whose own data are then gone."""
    folder = tmp_path_factory.mktemp("run")
    run(small(stop__max_epochs=30, optim__learning_rate=0.003), folder, Recorder())
    return folder


def bright(at, shape=(12, 30, 24)):
    """An image with a blob of 3 mm around a point of the world, whose rows run against the axes x and y."""
    image = sitk.Image([int(n) for n in shape[::-1]], sitk.sitkFloat32)
    image.SetSpacing(SPACING.tolist())
    image.SetDirection([-1, 0, 0, 0, -1, 0, 0, 0, 1])
    half = (np.array(shape[::-1]) - 1) / 2 * SPACING * [-1, -1, 1]
    image.SetOrigin((MIDDLE - half).tolist())
    z, y, x = np.indices(shape)
    places = np.stack([x, y, z], -1) * SPACING * [-1, -1, 1] + image.GetOrigin()
    values = -900 + 1000 * np.exp(-0.5 * np.square((places - at) / 3).sum(-1))
    filled = sitk.GetImageFromArray(values.astype(np.float32))
    filled.CopyInformation(image)
    return filled


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scans")
    at = MIDDLE + np.array([3.5, -3.0, -1.0])
    sitk.WriteImage(bright(MIDDLE), folder / "middle.nii.gz")
    sitk.WriteImage(bright(at), folder / "moved.mhd")
    return [folder / "middle.nii.gz", folder / "moved.mhd"], at


def describe(*arguments):
    """Exit code, and what was printed on standard output and error."""
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as error:
        code = cli.guarded(cli.COMMANDS["describe"], list(map(str, arguments)), "gmmae describe")
    return code, out.getvalue(), error.getvalue()


def rows(path):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def refined(trained, files, tmp_path_factory):
    tmp_path = tmp_path_factory.mktemp("described")
    options = ["--data.edge", "20mm", "--data.cache", tmp_path / "cache"]
    code, printed, error = describe(trained, *files[0], "--out", tmp_path / "out", "--refine", 60, *options)
    assert code == 0, error
    return tmp_path / "out", printed


def test_mixtures_lie_where_the_nodules_are_in_the_world(refined, files):
    out, printed = refined
    with np.load(out / "mixtures.npz") as found:
        arrays = dict(found)
    assert arrays["names"].tolist() == ["middle", "moved"]
    np.testing.assert_allclose(arrays["centre_mm"], [MIDDLE, MIDDLE], atol=1e-4)
    assert arrays["edge_mm"].tolist() == [20, 20]
    weights, means, covariances = (arrays[name] for name in ("weights", "means_mm", "covariances_mm2"))
    assert weights.shape == (2, 4)
    # The centre of mass of all components, which an even background draws towards the cube's middle.
    np.testing.assert_allclose(np.einsum("k,kd->d", weights[0], means[0]), MIDDLE, atol=0.5)
    # The component that is the blob itself.
    narrow = np.linalg.det(covariances[1]).argmin()
    np.testing.assert_allclose(means[1, narrow], files[1], atol=1.5)  # 0.6 voxels; a wrong axis or sign is 4 mm or more off
    table = rows(out / "mixtures.csv")
    assert len(table) == 8
    row = table[4 + narrow]
    assert (row["name"], row["component"]) == ("moved", str(narrow))
    for name, value in {
        "weight": weights[1, narrow],
        "y_mm": means[1, narrow, 1],
        "xx_mm2": covariances[1, narrow, 0, 0],
        "xz_mm2": covariances[1, narrow, 0, 2],
        "zz_mm2": covariances[1, narrow, 2, 2],
    }.items():
        assert float(row[name]) == pytest.approx(value, rel=1e-4)
    before, after = (float(rows(out / "nodules.csv")[1][name]) for name in ("loss_before", "loss"))
    assert after < 0.5 * before
    assert printed.startswith("2 volumes described, mean loss ")
    assert "after 60 steps, " in printed


def test_reconstructions_lie_over_the_volumes(refined, files):
    out, _ = refined
    for name, path in zip(("middle", "moved"), files[0], strict=True):
        found, volume = (sitk.ReadImage(str(file)) for file in (out / "reconstructions" / f"{name}.nii.gz", path))
        assert (found.GetSize(), found.GetSpacing()) == ((8, 8, 8), (2.5, 2.5, 2.5))
        there = sitk.GetArrayFromImage(sitk.Resample(volume, found, sitk.Transform(), sitk.sitkLinear, -900.0))
        alike = np.corrcoef(sitk.GetArrayFromImage(found).ravel(), there.ravel())[0, 1]
        assert alike > 0.94  # 0.87 and less with an axis turned round


def test_the_output_is_a_folder_of_cubes_for_the_project(refined):
    out, _ = refined
    nodules = prepare.load(DataConfig(source="cubes", root=str(out), edge="whole", size=8, cache=str(out / "cache")))
    assert nodules.names == ("reconstructions/middle.nii.gz", "reconstructions/moved.nii.gz")
    image = sitk.GetArrayFromImage(sitk.ReadImage(str(out / "reconstructions" / "moved.nii.gz")))
    np.testing.assert_array_equal(nodules.values[1], image)


def test_a_folder_of_cubes_is_cut_by_its_diameters(trained, files, tmp_path):
    folder = tmp_path / "cubes"
    (folder / "images").mkdir(parents=True)
    sitk.WriteImage(bright(MIDDLE), folder / "images" / "one.nii.gz")
    (folder / "nodules.csv").write_text("file,diameter_mm,category,coordX,coordY,coordZ\none.nii.gz,8,solid,-28,12,250\n")
    out = tmp_path / "out"
    assert describe(trained, folder, "--out", out, "--data.cache", tmp_path / "cache")[0] == 0
    with np.load(out / "mixtures.npz") as found:
        assert found["edge_mm"].tolist() == [10]
        np.testing.assert_allclose(found["centre_mm"], [[-28, 12, 250]], atol=1e-4)
    (row,) = rows(out / "nodules.csv")
    assert (row["file"], row["category"], row["diameter_mm"]) == ("reconstructions/one.nii.gz", "solid", "8")
    assert row["loss"] == row["loss_before"]
    of_others = tmp_path / "run"  # trained on what a CSV at a place of its own lists: it does not list these
    shutil.copytree(trained, of_others)
    config = of_others / "config.toml"
    config.write_text(config.read_text().replace('csv = ""', f'csv = "{tmp_path / "others.csv"}"'))
    options = ("--data.cache", tmp_path / "cache")
    assert describe(of_others, folder, "--out", tmp_path / "again", *options)[0] == 0
    assert rows(tmp_path / "again" / "nodules.csv") == [row]
    code, _, error = describe(of_others, folder, "--out", tmp_path / "again", "--data.csv", "mine.csv", *options)
    assert code == 2
    assert "mine.csv" in error


def test_the_volumes_of_a_run_on_scans_are_in_hu_whatever_its_window(files, tmp_path):
    config = DataConfig(source="luna16", root="gone", window=(-1200.0, 600.0), edge="40mm", size=8, cache=str(tmp_path))
    cubes = _cut(config, files[0][:1])
    (values,) = cubes.sections(2)
    assert values.dtype == np.int16
    assert values.min() == -1000  # what lies outside is air, and not the window's low


def test_arrays_in_one_file_are_described_too(trained, tmp_path):
    values = np.stack([sitk.GetArrayFromImage(bright(MIDDLE))[2:10, 11:19, 8:16]] * 2)
    np.savez(tmp_path / "many.npz", volumes=values, names=np.array(["a/b.nii.gz", "a b"]))
    out = tmp_path / "out"
    assert describe(trained, tmp_path / "many.npz", "--out", out, "--data.cache", tmp_path / "cache")[0] == 0
    with np.load(out / "mixtures.npz") as found:
        assert found["names"].tolist() == ["a_b", "a_b_1"]
        assert found["edge_mm"].tolist() == [8, 8]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["RUN", "FILE"], "data.edge = 1.25x needs a column diameter_mm; there is none: give data.edge in mm, or whole"),
        (["RUN"], "FILE must be one volume or more, a folder with a nodules.csv, or an .npz of volumes; got none"),
        (["RUN", "nowhere.nii.gz"], "a volume must be a file that is there; got nowhere.nii.gz"),
        (["RUN", "CSV"], "a volume must end in .npy, .npz"),
        (["nowhere", "FILE"], "the first argument must be the work directory of a run"),
    ],
)
def test_what_cannot_be_described_is_said_in_a_line(trained, files, tmp_path, arguments, message):
    (tmp_path / "table.csv").write_text("file\n")
    known = {"RUN": trained, "FILE": files[0][0], "CSV": tmp_path / "table.csv"}
    words = [known.get(word, word) for word in arguments]
    code, _, error = describe(*words, "--out", tmp_path / "out", "--data.cache", tmp_path / "cache")
    assert code == 2
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()
