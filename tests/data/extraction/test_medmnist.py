"""Files of MedMNIST's form, sound and otherwise."""

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest

from gmmae.config.rules import ConfigError
from gmmae.data import sources
from gmmae.data.extraction import cubes, cutting, medmnist
from gmmae.data.extraction.prepare import load_prepared, prepare
from gmmae.data.extraction.scan import of_array
from gmmae.data.extraction.summary import lines
from gmmae.data.settings import DataConfig
from gmmae.data.volumes import DataError
from tests import medmnist_files


@pytest.fixture
def config(tmp_path):
    path = medmnist_files.write(tmp_path / "nodulemnist3d.npz")
    return DataConfig("medmnist", str(path), shape=6, cache=str(tmp_path / "cache"), workers=1, scan_time_limit_s=None)


def changed(config, **changes):
    medmnist_files.write(config.folder, **changes)
    return config


def test_a_file_has_its_own_split_its_classes_and_bytes(config):
    loaded = sources.load(config)
    nodules, content = loaded.nodules, medmnist_files.arrays()
    assert [len(part) for part in (*loaded.split, loaded.test)] == [24, 12, 16]
    for part, index in zip(("train", "val", "test"), (*loaded.split, loaded.test), strict=True):
        means = content[f"{part}_images"].reshape(-1, 6, 2, 6, 2, 6, 2).mean((2, 4, 6))
        np.testing.assert_allclose(nodules.values[index], means, rtol=1e-5)
        assert [nodules.names[i] for i in index] == [f"nodulemnist3d_{part}_{i:05d}" for i in range(len(index))]
        assert [nodules.categories[i] for i in index[:3]] == ["benign", "malignant", "benign"]
    assert (config.hu, config.window, config.crop, config.outside) == (False, (0.0, 255.0), "whole", 0.0)


def test_the_split_depends_on_no_option_and_is_kept_in_the_cache(config):
    first = sources.load(config)
    again = sources.load(dataclasses.replace(config, validation=3, seed=9))
    for one, other in zip((*first.split, first.test), (*again.split, again.test), strict=True):
        np.testing.assert_array_equal(one, other)
    prepared = prepare(config)
    assert prepared.from_cache
    assert load_prepared(prepared).splits.count("test") == 16
    said = lines(prepared.summary)
    assert said[1] == "divided by the file itself, which names no patient: 24 train, 12 validation, 16 test"
    assert any(line.startswith("values: 1 % below ") for line in said)
    assert not [line for line in said if "HU" in line]


def test_other_names_have_numbers_for_classes(config):
    other = config.folder.rename(config.folder.with_name("mine.npz"))
    assert set(sources.load(dataclasses.replace(config, root=str(other))).nodules.categories) == {"0", "1"}


def test_labels_may_be_a_plain_column(config):
    flat = {f"{part}_labels": np.zeros(count, np.int64) for part, count in medmnist_files.COUNTS.items()}
    assert set(sources.load(changed(config, **flat)).nodules.categories) == {"benign"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"val_labels": None, "test_images": None},
            r"must hold train_images, .*; it lacks val_labels, test_images and has train_im",
        ),
        ({"train_images": np.zeros((24, 12, 12, 12), np.float32)}, r"train_images must be .*bytes.*; got float32"),
        ({"val_labels": np.zeros((12, 1))}, r"val_labels must be a whole number .*; got float64"),
        (
            {"test_labels": np.zeros((15, 1), np.uint8)},
            r"test_labels must be .* of the shape \(16, 1\); got uint8 of the shape \(15, 1\)",
        ),
        ({"train_labels": np.zeros((24, 14), np.uint8)}, r"train_labels must be .* of the shape \(24, 1\); got .*\(24, 14\)"),
        (
            {"train_images": np.zeros((24, 28, 28, 3), np.uint8)},
            r"train_images must be cubes .*; got uint8 of the shape \(24, 28, 28",
        ),
        (
            {"train_images": np.zeros((24, 28, 28), np.uint8)},
            r"train_images must be cubes .*; got uint8 of the shape \(24, 28, 28",
        ),
        ({"train_images": np.zeros((24, 12, 12, 10), np.uint8)}, r"train_images must be cubes .*; got .*\(24, 12, 12, 10\)"),
        (
            {"test_images": np.zeros((16, 8, 8, 8), np.uint8)},
            r"all images must have one shape; got \(12, 12, 12\) and \(8, 8, 8\)|got \(8, 8, 8\) and \(12, 12, 12\)",
        ),
        ({"val_images": np.zeros((0, 12, 12, 12), np.uint8)}, r"val_images must be cubes .*\(0, 12, 12, 12\)"),
        ({"test_labels": np.full((16, 1), 2, np.uint8)}, r"test_labels must be 0 to 1; got 2 to 2"),
        ({"test_labels": np.full((16, 1), -1)}, r"test_labels must be 0 to 1; got -1 to -1"),
    ],
)
def test_a_file_of_another_form_is_refused_in_one_line(config, changes, message):
    with pytest.raises(DataError, match=message) as caught:
        sources.load(changed(config, **changes))
    assert "\n" not in str(caught.value)


def test_a_file_of_volumes_is_told_its_source(config):
    np.savez(config.folder, volumes=np.zeros((3, 4, 4, 4)))
    with pytest.raises(DataError, match=r"it lacks .* and has volumes: one .npz of volumes is read with --data.source cubes"):
        medmnist.plan(config)


def test_cubes_name_the_source_of_such_a_file(config):
    with pytest.raises(DataError, match=r"is a file of MedMNIST, and has no array volumes: give --data.source medmnist"):
        cubes.plan(dataclasses.replace(config, source="cubes"))


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _no_zip(path: Path) -> None:
    path.write_bytes(b"<html>not found</html>")


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    place = content.index(b"test_images.npy") + 4000
    content[place : place + 8] = bytes(byte ^ 0xFF for byte in content[place : place + 8])
    path.write_bytes(content)


@pytest.mark.parametrize("damage", [_truncate, _no_zip, _flip])
def test_a_damaged_file_is_refused_in_one_line_also_where_faults_are_skipped(config, damage):
    damage(config.folder)
    assert config.on_error == "skip"
    with pytest.raises(DataError, match=r"nodulemnist3d.npz.* cannot be read as arrays") as caught:
        sources.load(config)
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith(f"get it again from {medmnist.RECORD}")
    with pytest.raises(DataError, match="cannot be read as arrays"):
        prepare(config)


@pytest.mark.parametrize("root", [None, "gone.npz", "."])
def test_a_root_that_is_no_file_is_refused(config, root):
    with pytest.raises(
        DataError, match=r"one .npz of MedMNIST .*, such as nodulemnist3d.npz of https://zenodo.org/records/10519652"
    ):
        sources.load(dataclasses.replace(config, root=root))


@pytest.mark.parametrize(("changes", "key"), [({"crop": "20mm"}, "data.crop"), ({"shape": (6, 6, 8)}, "data.shape")])
def test_options_that_do_not_fit_are_refused(config, changes, key):
    with pytest.raises(ConfigError, match=rf"{key} must be .* for data.source = medmnist"):
        dataclasses.replace(config, **changes)


def test_more_voxels_than_the_file_has_are_interpolated(config):
    values = sources.load(dataclasses.replace(config, shape=18)).nodules.values
    assert values.shape[1:] == (18, 18, 18)
    fewer = sources.load(config).nodules.values
    np.testing.assert_allclose(values.mean((1, 2, 3)), fewer.mean((1, 2, 3)), atol=4)


@pytest.mark.parametrize(("size", "edge"), [(28, 16), (64, 16), (28, 28), (32, 16)])
def test_each_voxel_is_the_mean_of_the_part_that_it_covers(size, edge):
    values = np.random.default_rng(0).uniform(0, 255, (size,) * 3).astype(np.float32)
    fewer = cutting.averaged(of_array(values), (edge,) * 3, hu=False)
    # Voxels that are divided until whole ones fit into each of the fewer.
    parts = math.lcm(size, edge) // size
    width = size * parts // edge
    fine = values.astype(np.float64)
    for axis in range(3):
        fine = np.repeat(fine, parts, axis)
        fine = np.moveaxis(np.moveaxis(fine, axis, 0).reshape(edge, width, *np.delete(fine.shape, axis)).mean(1), 0, axis)
    np.testing.assert_allclose(fewer, fine, rtol=1e-5)


def test_the_finest_pattern_is_not_aliased():
    planes = np.zeros((64,) * 3, np.float32)
    planes[::2] = 255  # interpolation between two planes of four would depend on their place
    fewer = cutting.averaged(of_array(planes), (16,) * 3, hu=False)
    np.testing.assert_allclose(fewer, 127.5)


def test_the_adrenal_glands_are_those_of_cubes(shared_data, tmp_path):
    path = shared_data / "adrenal_shapes.npz"
    if not path.is_file():
        pytest.skip(f"there is no {path}")
    content = np.load(path)
    file = {}
    for part in ("train", "val", "test"):
        which = np.flatnonzero(content["split"] == part)[:20]
        file |= {f"{part}_images": content["volumes"][which], f"{part}_labels": content["label"][which][:, None]}
    np.savez_compressed(tmp_path / "adrenalmnist3d.npz", allow_pickle=False, **file)
    np.savez(tmp_path / "cubes.npz", volumes=file["test_images"])
    common = {"cache": str(tmp_path), "workers": 1, "scan_time_limit_s": None}
    loaded = sources.load(DataConfig("medmnist", str(tmp_path / "adrenalmnist3d.npz"), **common))
    cubes = sources.load(DataConfig("cubes", str(tmp_path / "cubes.npz"), crop="whole", window=(0.0, 255.0), **common))
    np.testing.assert_allclose(loaded.nodules.values[loaded.test], cubes.nodules.values, atol=1e-4)
    assert set(loaded.nodules.categories) == {"normal", "hyperplasia"}
