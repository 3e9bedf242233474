"""`gmmae describe`: mixtures in the world's millimetres, and files that lie over what was described."""

import io
import shutil
from contextlib import redirect_stderr, redirect_stdout

import numpy as np
import pytest
import SimpleITK as sitk

from gmmae.cli import describe as described
from gmmae.cli.describe import cut
from gmmae.data.extraction import prepare
from gmmae.data.settings import DataConfig
from gmmae.training import compilation
from gmmae.training.loop import run
from gmmae.training.trained import Trained
from tests.commands import rows, run_gmmae
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
    """Exit code, and what was printed on standard output and error. This process reads the volumes."""
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as error:
        code = run_gmmae("describe", *arguments, "--data.workers", 1, "--data.scan-time-limit-s", "none")
    return code, out.getvalue(), error.getvalue()


@pytest.fixture(scope="module")
def refined(trained, files, tmp_path_factory):
    tmp_path = tmp_path_factory.mktemp("described")
    options = ["--data.crop", "20mm", "--data.cache", tmp_path / "cache"]
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
    nodules = prepare.load(DataConfig(source="cubes", root=str(out), crop="whole", shape=8, cache=str(out / "cache")))
    assert nodules.names == ("reconstructions/middle.nii.gz", "reconstructions/moved.nii.gz")
    image = sitk.GetArrayFromImage(sitk.ReadImage(str(out / "reconstructions" / "moved.nii.gz")))
    np.testing.assert_array_equal(nodules.values[1], image)


def test_a_folder_of_cubes_is_cut_by_its_diameters_and_names_what_is_left_out(trained, files, tmp_path):
    folder = tmp_path / "cubes"
    (folder / "images").mkdir(parents=True)
    sitk.WriteImage(bright(MIDDLE), folder / "images" / "one.nii.gz")
    (folder / "images" / "two.nii.gz").write_bytes(b"")
    lines = ["file,diameter_mm,category,coordX,coordY,coordZ", "one.nii.gz,8,solid,-28,12,250"]
    left_out = ["two.nii.gz,8,solid,0,0,0", "tree.nii.gz,x,solid,0,0,0"]
    (folder / "nodules.csv").write_text("\n".join([*lines, *left_out]))
    out = tmp_path / "out"
    code, printed, error = describe(trained, folder, "--out", out, "--data.cache", tmp_path / "cache")
    assert code == 0, error
    assert "nodules.csv line 4: diameter_mm must be a finite number; got x\ntwo.nii.gz" in printed
    with np.load(out / "mixtures.npz") as found:
        assert found["edge_mm"].tolist() == [10]
        np.testing.assert_allclose(found["centre_mm"], [[-28, 12, 250]], atol=1e-4)
    (row,) = rows(out / "nodules.csv")
    assert (row["file"], row["category"], row["diameter_mm"]) == ("reconstructions/one.nii.gz", "solid", "8")
    assert row["loss"] == row["loss_before"]
    of_others = tmp_path / "run"  # trained on what a CSV at a place of its own lists: it does not list these
    shutil.copytree(trained, of_others)
    config = of_others / "config.toml"
    config.write_text(config.read_text().replace('csv = "auto"', f'csv = "{tmp_path / "others.csv"}"'))
    options = ("--data.cache", tmp_path / "cache")
    assert describe(of_others, folder, "--out", tmp_path / "again", *options)[0] == 0
    assert rows(tmp_path / "again" / "nodules.csv") == [row]
    code, _, error = describe(of_others, folder, "--out", tmp_path / "again", "--data.csv", "mine.csv", *options)
    assert code == 2
    assert "mine.csv" in error


def test_the_volumes_of_a_run_on_scans_are_in_hu_whatever_its_window(files, tmp_path):
    config = DataConfig(source="luna16", root="gone", window=(-1200.0, 600.0), crop="40mm", shape=8, cache=str(tmp_path))
    cubes = cut(config, files[0][:1])
    (values,) = cubes.sections(2)
    assert values.dtype == np.int16
    assert values.min() == -1000  # what lies outside is air, and not the window's low


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["RUN", "FILE"], "data.crop = 1.25x needs a column diameter_mm; there is none: give data.crop in mm, or whole"),
        (
            ["RUN"],
            "a folder with a nodules.csv, a folder shaped like LUNA16, or an .npz of volumes; got none",
        ),
        (["RUN", "nowhere.nii.gz"], "volume file not found: nowhere.nii.gz"),
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


def test_a_whole_scan_is_named_because_only_its_middle_is_described(trained, files, tmp_path):
    sitk.WriteImage(bright(MIDDLE, (80, 160, 150)), tmp_path / "large.mha")
    options = ["--data.crop", "20mm", "--data.cache", tmp_path / "cache"]
    code, printed, error = describe(trained, *files[0], tmp_path / "large.mha", "--out", tmp_path / "out", *options)
    assert code == 0, error
    [line] = [line for line in printed.splitlines() if line.startswith("described is only")]
    assert "large.mha of 150 × 128 × 160 mm (cube: 20 mm). For nodules in other places" in line


def test_each_volume_has_a_file_and_a_row_with_its_path(trained, tmp_path):
    volumes = [tmp_path / name for name in ("a.mha", "a.nii.gz", "a_1.nii.gz", "A.nii", "b/a.mha")]
    (tmp_path / "b").mkdir()
    for i, path in enumerate(volumes):
        moved = bright(MIDDLE)
        moved.SetOrigin([*moved.GetOrigin()[:2], moved.GetOrigin()[2] + 100 * i])
        sitk.WriteImage(moved, path)
    out, options = tmp_path / "out", ("--data.crop", "20mm", "--data.cache", tmp_path / "cache")
    code, _, error = describe(trained, *volumes, "--out", out, *options)
    assert code == 0, error
    table = rows(out / "nodules.csv")
    assert {row["path"] for row in table} == set(map(str, volumes))
    assert len({row["file"] for row in table}) == 5
    with np.load(out / "mixtures.npz") as found:
        assert found["paths"].tolist() == [row["path"] for row in table]
        assert [f"reconstructions/{name}.nii.gz" for name in found["names"]] == [row["file"] for row in table]
    for row in table:  # each reconstruction lies in the middle of its own volume
        found, volume = (sitk.ReadImage(str(path)) for path in (out / row["file"], row["path"]))
        middles = [
            np.array(i.TransformContinuousIndexToPhysicalPoint([(n - 1) / 2 for n in i.GetSize()])) for i in (found, volume)
        ]
        np.testing.assert_allclose(middles[0], middles[1], atol=1e-3)
    code, _, error = describe(trained, volumes[0], tmp_path / "b" / ".." / "a.mha", "--out", out, *options)
    assert (code, error.count("\n")) == (2, 1)
    assert f"each volume must be given once; got {volumes[0]} 2 times" in error


def test_arrays_in_one_file_are_described_some_at_a_time_with_the_same_result(trained, tmp_path, monkeypatch):
    values = np.stack([sitk.GetArrayFromImage(bright(MIDDLE + np.array([i / 2, 0, 0])))[2:10, 11:19, 8:16] for i in range(5)])
    np.savez(tmp_path / "many.npz", volumes=values, names=np.array(["a/b.nii.gz", "a b", "c", "d", "e"]))
    monkeypatch.setattr(compilation, "EVAL_DEVICE_BATCH", 2)
    at_once = []
    refine = Trained.refine

    def watched(self, samples, steps=30):
        at_once.append(len(samples))
        return refine(self, samples, steps)

    monkeypatch.setattr(Trained, "refine", watched)
    for name, most in (("whole", 2**22), ("parts", 1)):
        monkeypatch.setattr(described, "MAX_VOXELS", most)
        code, _, error = describe(trained, tmp_path / "many.npz", "--out", tmp_path / name, "--data.cache", tmp_path / "cache")
        assert code == 0, error
    assert at_once == [5, 2, 2, 2]
    names = ["0_a_b", "1_a_b", "2_c", "3_d", "4_e"]
    with np.load(tmp_path / "whole" / "mixtures.npz") as arrays:
        assert arrays["names"].tolist() == names
        assert arrays["edge_mm"].tolist() == [8] * 5
    for file in ("nodules.csv", "mixtures.csv", *(f"reconstructions/{name}.nii.gz" for name in names)):
        assert (tmp_path / "whole" / file).read_bytes() == (tmp_path / "parts" / file).read_bytes()


def test_a_volume_without_mass_is_named_and_nothing_is_written(trained, files, tmp_path):
    dark = sitk.Cast(bright(MIDDLE) * 0 - 1024, sitk.sitkInt16)
    sitk.WriteImage(dark, tmp_path / "dark.nii.gz")
    options = ("--data.crop", "20mm", "--data.cache", tmp_path / "cache")
    code, _, error = describe(trained, files[0][0], tmp_path / "dark.nii.gz", "--out", tmp_path / "out", *options)
    assert code == 2
    assert f"lower end, -1000; {tmp_path / 'dark.nii.gz'} has none: lower data.window" in error
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def scans(tmp_path_factory):
    """A folder shaped like LUNA16 with two nodules in one scan, and an annotation without a scan."""
    root = tmp_path_factory.mktemp("luna16")
    (root / "subset0").mkdir(parents=True)
    sitk.WriteImage(bright(MIDDLE), root / "subset0" / "1.2.3.mhd")
    lines = ["seriesuid,coordX,coordY,coordZ,diameter_mm", "1.2.3,-30,12,250,8", "1.2.3,-28,11,252,6", "9.9,0,0,0,5"]
    (root / "annotations.csv").write_text("\n".join([*lines, ""]))
    (root / "mine.csv").write_text("\n".join([*lines[:2], ""]))
    return root


def test_each_annotated_nodule_of_a_luna16_folder_is_described(trained, scans, tmp_path):
    out, options = tmp_path / "out", ("--data.cache", tmp_path / "cache", "--data.crop", "2x")
    code, printed, error = describe(trained, scans, "--out", out, *options)
    assert code == 0, error
    assert printed.startswith("9.9.mhd: there is no such scan; annotations.csv lists 1 of its nodules\n2 volumes described")
    table = rows(out / "nodules.csv")
    assert [row["file"] for row in table] == ["reconstructions/1.2.3_0.nii.gz", "reconstructions/1.2.3_1.nii.gz"]
    assert [row["diameter_mm"] for row in table] == ["8", "6"]
    assert {row["path"] for row in table} == {str(scans / "subset0" / "1.2.3.mhd")}
    with np.load(out / "mixtures.npz") as arrays:
        np.testing.assert_allclose(arrays["centre_mm"], [[-30, 12, 250], [-28, 11, 252]], atol=1e-4)
        assert arrays["edge_mm"].tolist() == [16, 12]
    for row, centre in zip(table, ((-30, 12, 250), (-28, 11, 252)), strict=True):
        found = sitk.ReadImage(str(out / row["file"]))
        middle = found.TransformContinuousIndexToPhysicalPoint([(n - 1) / 2 for n in found.GetSize()])
        np.testing.assert_allclose(middle, centre, atol=1e-3)
    assert (out / "described.png").read_bytes().startswith(b"\x89PNG")


def test_the_options_of_train_name_the_data_of_describe(trained, scans, tmp_path):
    options = ("--data.cache", tmp_path / "cache", "--data.source", "luna16")
    results = []
    for name, words in {
        "root": ["--data.root", scans],
        "csv": ["--data.root", scans, "--data.csv", "mine.csv"],
        "folder and csv": [scans, "--data.csv", "mine.csv"],
    }.items():
        code, _, error = describe(trained, *words, "--out", tmp_path / name, *options)
        assert code == 0, error
        results.append(len(rows(tmp_path / name / "nodules.csv")))
    assert results == [2, 1, 1]
    code, _, error = describe(trained, "--out", tmp_path / "out", *options, "--data.root", tmp_path / "gone")
    assert (code, "data.root must be the folder of the .mhd scans" in error) == (2, True)
