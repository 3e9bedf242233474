"""`gmmae describe`: mixtures in the world's millimetres, and files that lie over what was described."""

import shutil

import numpy as np
import pytest
import SimpleITK as sitk

from gmmae.cli import describe as described
from gmmae.cli.describe import COMPONENT_COLUMNS, NODULE_COLUMNS
from gmmae.data.extraction import prepare
from gmmae.data.given import cut
from gmmae.data.settings import DataConfig
from gmmae.training import preparation
from gmmae.training.trained import Trained
from tests.commands import last_refusal, lines_of, rows
from tests.small import finish, small
from tests.volume_folders import image

MIDDLE = np.array([-30.0, 12.0, 250.0])  # x, y, z
SPACING = np.array([1.0, 0.8, 2.0])


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run whose own data are then gone."""
    folder = tmp_path_factory.mktemp("run")
    finish(small(stop__max_epochs=30, optim__learning_rate=0.003), folder)
    return folder


def bright(at, shape=(12, 30, 24)):
    """An image with a blob of 3 mm around a point of the world, whose rows run against the axes x and y."""
    steps = SPACING * [-1, -1, 1]
    origin = MIDDLE - (np.array(shape[::-1]) - 1) / 2 * steps
    z, y, x = np.indices(shape)
    distance = np.stack([x, y, z], -1) * steps + origin - at
    values = -900 + 1000 * np.exp(-0.5 * np.square(distance / 3).sum(-1))
    return image(values.astype(np.float32), origin.tolist(), SPACING.tolist(), [-1, 0, 0, 0, -1, 0, 0, 0, 1])


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scans")
    at = MIDDLE + np.array([3.5, -3.0, -1.0])
    sitk.WriteImage(bright(MIDDLE), folder / "middle.nii.gz")
    sitk.WriteImage(bright(at), folder / "moved.mhd")
    return [folder / "middle.nii.gz", folder / "moved.mhd"], at


@pytest.fixture
def describe(trained, tmp_path, capsys):
    """Describes; returns the folder and the printed lines. This process reads the volumes."""

    def call(*words, run=trained, out="out", crop="20mm"):
        own = ("--data.crop", crop, "--data.cache", tmp_path / "cache", "--data.workers", 1, "--data.scan-time-limit-s", "none")
        return tmp_path / out, lines_of(capsys, "describe", run, *words, "--out", tmp_path / out, *own)

    return call


def arrays(out):
    with np.load(out / "mixtures.npz") as found:
        return dict(found)


def test_mixtures_lie_where_the_nodules_are_in_the_world_and_reconstructions_over_the_volumes(describe, files, tmp_path):
    out, printed = describe(*files[0], "--refine", 60)
    found = arrays(out)
    assert found["names"].tolist() == ["middle", "moved"]
    np.testing.assert_allclose(found["centre_mm"], [MIDDLE, MIDDLE], atol=1e-4)
    assert found["edge_mm"].tolist() == [20, 20]
    weights, means, covariances = (found[name] for name in ("weights", "means_mm", "covariances_mm2"))
    assert weights.shape == (2, 4)
    # The centre of mass of all components, which an even background draws towards the cube's middle.
    np.testing.assert_allclose(np.einsum("k,kd->d", weights[0], means[0]), MIDDLE, atol=0.5)
    # The component that is the blob itself.
    narrow = np.linalg.det(covariances[1]).argmin()
    np.testing.assert_allclose(means[1, narrow], files[1], atol=1.5)  # 0.6 voxels; a wrong axis or sign is 4 mm or more off
    components, nodules = rows(out / "mixtures.csv"), rows(out / "nodules.csv")
    assert [list(components[0]), list(nodules[0])] == [list(COMPONENT_COLUMNS), list(NODULE_COLUMNS)[:-1]]
    assert len(components) == 8
    row = components[4 + narrow]
    assert (row["name"], row["component"]) == ("moved", str(narrow))
    xx, xy, xz, _, yy, yz, _, _, zz = covariances[1, narrow].ravel()
    wanted = [weights[1, narrow], *means[1, narrow], xx, xy, xz, yy, yz, zz]
    names = "weight x_mm y_mm z_mm xx_mm2 xy_mm2 xz_mm2 yy_mm2 yz_mm2 zz_mm2"
    assert [float(row[name]) for name in names.split()] == pytest.approx(wanted, rel=1e-4)
    assert float(nodules[1]["loss"]) < 0.5 * float(nodules[1]["loss_before"])
    assert printed[0].startswith("2 volumes described, mean loss ")
    assert "after 60 steps, " in printed[0]
    for name, path in zip(("middle", "moved"), files[0], strict=True):
        made, volume = (sitk.ReadImage(str(file)) for file in (out / "reconstructions" / f"{name}.nii.gz", path))
        assert (made.GetSize(), made.GetSpacing()) == ((8, 8, 8), (2.5, 2.5, 2.5))
        there = sitk.GetArrayFromImage(sitk.Resample(volume, made, sitk.Transform(), sitk.sitkLinear, -900.0))
        alike = np.corrcoef(sitk.GetArrayFromImage(made).ravel(), there.ravel())[0, 1]
        assert alike > 0.94  # 0.87 and less with an axis turned round
    # The output is a folder of cubes for the project.
    cubes = prepare.load(DataConfig(source="cubes", root=str(out), crop="whole", shape=8, cache=str(tmp_path / "again")))
    assert cubes.names == ("reconstructions/middle.nii.gz", "reconstructions/moved.nii.gz")
    moved = sitk.ReadImage(str(out / "reconstructions" / "moved.nii.gz"))
    np.testing.assert_array_equal(cubes.values[1], sitk.GetArrayFromImage(moved))
    assert (out / "described.png").read_bytes().startswith(b"\x89PNG")


def test_a_folder_of_cubes_is_cut_by_its_diameters_and_names_what_is_left_out(trained, describe, tmp_path, capsys):
    folder = tmp_path / "cubes"
    (folder / "images").mkdir(parents=True)
    sitk.WriteImage(bright(MIDDLE), folder / "images" / "one.nii.gz")
    (folder / "images" / "two.nii.gz").write_bytes(b"")
    lines = ["file,diameter_mm,category,coordX,coordY,coordZ", "one.nii.gz,8,solid,-28,12,250"]
    (folder / "nodules.csv").write_text("\n".join([*lines, "two.nii.gz,8,solid,0,0,0", "tree.nii.gz,x,solid,0,0,0"]))
    out, printed = describe(folder, crop="1.25x")
    assert "nodules.csv line 4: diameter_mm must be a finite number; got x" in printed[0]
    assert printed[1].startswith("two.nii.gz")
    assert arrays(out)["edge_mm"].tolist() == [10]
    np.testing.assert_allclose(arrays(out)["centre_mm"], [[-28, 12, 250]], atol=1e-4)
    (row,) = rows(out / "nodules.csv")
    assert (row["file"], row["category"], row["diameter_mm"]) == ("reconstructions/one.nii.gz", "solid", "8")
    assert row["loss"] == row["loss_before"]
    of_others = tmp_path / "run"  # trained on what a CSV at a place of its own lists: it does not list these
    shutil.copytree(trained, of_others)
    config = of_others / "config.toml"
    config.write_text(config.read_text().replace('csv = "auto"', f'csv = "{tmp_path / "others.csv"}"'))
    assert rows(describe(folder, run=of_others, out="again", crop="1.25x")[0] / "nodules.csv") == [row]
    words = ("describe", of_others, folder, "--data.csv", "mine.csv", "--out", tmp_path / "more")
    assert "mine.csv" in last_refusal(capsys, *words)


def test_the_volumes_of_a_run_on_scans_are_in_hu_whatever_its_window(files, tmp_path):
    config = DataConfig(source="luna16", root="gone", window=(-1200.0, 600.0), crop="40mm", shape=8, cache=str(tmp_path))
    values = cut(config, files[0][:1]).sections
    assert values.dtype == np.int16
    assert values.min() == -1000  # what lies outside is air, and not the window's low


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "RUN FILE",
            "data.crop = 1.25x needs a diameter_mm; there is none: fill it in, name its column (--data.diameter-column)",
        ),
        ("RUN", "a folder with a nodules.csv, a folder shaped like LUNA16, or an .npz of volumes; got none"),
        ("RUN nowhere.nii.gz", "volume file not found: nowhere.nii.gz"),
        ("RUN CSV", "a volume must end in .npy, .npz"),
        ("RUN FILE FILE --data.crop 20mm", "each volume must be given once; got "),
        ("RUN FILE DARK --data.crop 20mm", "lower end, -1000; DARK has none: lower data.window"),
        ("RUN --data.source luna16 --data.root gone", "data.root must be the folder of the .mhd scans"),
    ],
)
def test_what_cannot_be_described_is_said_in_a_line(trained, files, tmp_path, capsys, words, message):
    (tmp_path / "table.csv").write_text("file\n")
    sitk.WriteImage(sitk.Cast(bright(MIDDLE) * 0 - 1024, sitk.sitkInt16), tmp_path / "dark.nii.gz")
    known = {"RUN": trained, "FILE": files[0][0], "CSV": tmp_path / "table.csv", "DARK": tmp_path / "dark.nii.gz"}
    given = [known.get(word, word) for word in words.split()]
    error = last_refusal(capsys, "describe", *given, "--out", tmp_path / "out", "--data.cache", tmp_path / "cache")
    assert message.replace("DARK", str(known["DARK"])) in error
    assert not (tmp_path / "out").exists()


def test_each_volume_has_a_file_and_a_row_with_its_path_and_a_whole_scan_is_named(describe, tmp_path):
    volumes = [tmp_path / name for name in ("a.mha", "a.nii.gz", "a_1.nii.gz", "A.nii", "b/a.mha", "large.mha")]
    (tmp_path / "b").mkdir()
    for i, path in enumerate(volumes):
        moved = bright(MIDDLE, (80, 160, 150)) if path.stem == "large" else bright(MIDDLE)
        moved.SetOrigin([*moved.GetOrigin()[:2], moved.GetOrigin()[2] + 100 * i])
        sitk.WriteImage(moved, path)
    out, printed = describe(*volumes)
    [line] = [line for line in printed if line.startswith("described is only")]
    assert "large.mha of 150 × 128 × 160 mm (cube: 20 mm). For nodules in other places" in line
    table = rows(out / "nodules.csv")
    assert {row["path"] for row in table} == set(map(str, volumes))
    assert len({row["file"] for row in table}) == 6
    assert arrays(out)["paths"].tolist() == [row["path"] for row in table]
    assert [f"reconstructions/{name}.nii.gz" for name in arrays(out)["names"]] == [row["file"] for row in table]
    for row in table:  # each reconstruction lies in the middle of its own volume
        np.testing.assert_allclose(middle(out / row["file"]), middle(row["path"]), atol=1e-3)


def middle(path):
    """The middle of an image in the world."""
    read = sitk.ReadImage(str(path))
    return read.TransformContinuousIndexToPhysicalPoint([(n - 1) / 2 for n in read.GetSize()])


def test_arrays_in_one_file_are_described_some_at_a_time_with_the_same_result(describe, tmp_path, monkeypatch):
    values = np.stack([sitk.GetArrayFromImage(bright(MIDDLE + np.array([i / 2, 0, 0])))[2:10, 11:19, 8:16] for i in range(5)])
    np.savez(tmp_path / "many.npz", volumes=values, names=np.array(["a/b.nii.gz", "a b", "é" * 150 + ".nii", "d", ".nii.gz"]))
    monkeypatch.setattr(preparation, "EVAL_DEVICE_BATCH", 2)
    at_once, refine = [], Trained.refine
    monkeypatch.setattr(
        Trained, "refine", lambda self, samples, steps: at_once.append(len(samples)) or refine(self, samples, steps)
    )
    for name, most in (("whole", 2**22), ("parts", 1)):
        monkeypatch.setattr(described, "MAX_VOXELS", most)
        describe(tmp_path / "many.npz", out=name, crop="1.25x")
    assert at_once == [5, 2, 2, 2]
    names = ["0_volume", "1_a_b", "2_a_b", "3_d", "4_" + "é" * 100]
    assert arrays(tmp_path / "whole")["names"].tolist() == names
    assert arrays(tmp_path / "whole")["edge_mm"].tolist() == [8] * 5
    for file in ("nodules.csv", "mixtures.csv", *(f"reconstructions/{name}.nii.gz" for name in names)):
        assert (tmp_path / "whole" / file).read_bytes() == (tmp_path / "parts" / file).read_bytes()


def test_each_annotated_nodule_of_a_luna16_folder_is_described(describe, tmp_path):
    """Two nodules in one scan, and an annotation without a scan. The options of `train` name the same data."""
    scans, centres = tmp_path / "luna16", [[-30, 12, 250], [-28, 11, 252]]
    (scans / "subset0").mkdir(parents=True)
    sitk.WriteImage(bright(MIDDLE), scans / "subset0" / "1.2.3.mhd")
    lines = ["seriesuid,coordX,coordY,coordZ,diameter_mm", "1.2.3,-30,12,250,8", "1.2.3,-28,11,252,6", "9.9,0,0,0,5"]
    (scans / "annotations.csv").write_text("\n".join([*lines, ""]))
    (scans / "mine.csv").write_text("\n".join([*lines[:2], ""]))
    out, printed = describe(scans, crop="2x")
    assert printed[0].startswith("9.9: there is no such file")
    assert printed[1].startswith("2 volumes described")
    table = rows(out / "nodules.csv")
    assert [row["file"] for row in table] == ["reconstructions/1.2.3_0.nii.gz", "reconstructions/1.2.3_1.nii.gz"]
    assert [row["diameter_mm"] for row in table] == ["8", "6"]
    assert {(row["path"], row["group"]) for row in table} == {(str(scans / "subset0" / "1.2.3.mhd"), table[0]["group"])}
    np.testing.assert_allclose(arrays(out)["centre_mm"], centres, atol=1e-4)
    assert arrays(out)["edge_mm"].tolist() == [16, 12]
    np.testing.assert_allclose([middle(out / row["file"]) for row in table], centres, atol=1e-3)
    mine = ("--data.csv", "mine.csv")
    for count, *words in ((2, "--data.root", scans), (1, "--data.root", scans, *mine), (1, scans, *mine)):
        out, _ = describe(*words, "--data.source", "luna16", out=f"{len(words)} words")
        assert len(rows(out / "nodules.csv")) == count
