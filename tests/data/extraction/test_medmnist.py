"""What is read of files of MedMNIST's form. Their faults are in `tests/fuzz`."""

from dataclasses import replace

import numpy as np
import pytest

from gmmae.config.rules import ConfigError
from gmmae.data import sources
from gmmae.data.extraction.prepare import prepare
from gmmae.data.extraction.summary import lines
from gmmae.data.settings import DataConfig
from tests import medmnist_files


@pytest.fixture
def config(tmp_path):
    path = medmnist_files.write(tmp_path / "nodulemnist3d.npz")
    return DataConfig("medmnist", str(path), shape=6, cache=str(tmp_path / "cache"), workers=1, scan_time_limit_s=None)


def test_a_file_has_its_own_split_its_classes_and_bytes(config):
    loaded = sources.load(config)
    nodules = loaded.nodules
    for part, index in zip(("train", "val", "test"), (*loaded.split, loaded.test), strict=True):
        assert [nodules.names[i] for i in index] == [f"nodulemnist3d_{part}_{i:05d}" for i in range(len(index))]
        assert [nodules.categories[i] for i in index[:3]] == ["benign", "malignant", "benign"]
    assert (config.hu, config.window, config.crop, config.outside) == (False, (0.0, 255.0), "whole", 0.0)


def test_the_split_depends_on_no_option_and_is_kept_in_the_cache(config):
    first, again = sources.load(config), sources.load(replace(config, validation=3, seed=9))
    for one, other in zip((*first.split, first.test), (*again.split, again.test), strict=True):
        np.testing.assert_array_equal(one, other)
    prepared = prepare(config)
    assert prepared.from_cache
    said = lines(prepared.summary, config.window)
    assert "divided by the file itself, which names no patient: 24 train, 12 validation, 16 test" in said
    assert not [line for line in said if "HU" in line]


def test_volumes_of_training_among_the_others_are_named(config, capsys):
    with np.load(config.root) as arrays:
        shared = arrays["train_images"][: medmnist_files.COUNTS["val"]]
    sources.load(replace(config, root=str(medmnist_files.write(config.folder.with_name("leaks.npz"), val_images=shared))))
    assert "12 nodules for validation or test that share voxels with training nodules, such as leaks_val_00000" in " ".join(
        capsys.readouterr().err.split()
    )


def test_labels_may_be_a_plain_column_and_in_files_of_other_names_are_numbers(config, tmp_path):
    labels = {f"{part}_labels": np.arange(count) % 3 for part, count in medmnist_files.COUNTS.items()}
    other = medmnist_files.write(tmp_path / "mine.npz", **labels)
    assert set(sources.load(replace(config, root=str(other))).nodules.categories) == set("012")


@pytest.mark.parametrize(("changes", "key"), [({"crop": "20mm"}, "data.crop"), ({"shape": (6, 6, 8)}, "data.shape")])
def test_options_that_do_not_fit_are_refused(config, changes, key):
    with pytest.raises(ConfigError, match=rf"{key}.*medmnist"):
        replace(config, **changes)


@pytest.mark.parametrize(("size", "edge"), [(28, 16), (64, 16), (28, 28), (12, 18)])
def test_each_voxel_is_the_mean_of_the_part_that_it_covers_or_interpolated_as_in_other_files(config, tmp_path, size, edge):
    images = np.random.default_rng(0).integers(0, 256, (3, *(size,) * 3), np.uint8)
    images[2] = 255 * (np.arange(size) % 2)[:, None, None]  # interpolation between two planes would depend on their place
    for_all = {"images": images, "labels": np.zeros(3, np.uint8)}
    parts = {f"{part}_{kind}": array for part in medmnist_files.COUNTS for kind, array in for_all.items()}
    medmnist_files.write(config.folder, **parts)
    fewer = sources.load(replace(config, shape=edge)).nodules.values[:3]
    np.savez(root := tmp_path / "cubes.npz", volumes=images)
    cubes = sources.load(replace(config, source="cubes", root=str(root), shape=edge, validation=1)).nodules.values
    np.testing.assert_array_equal(cubes, fewer)
    if edge > size:
        np.testing.assert_allclose(fewer.mean((1, 2, 3)), images.mean((1, 2, 3)), atol=4)
        return
    # Of voxels that are divided in `edge` parts each, every one of the fewer covers `size`.
    wanted = images.astype(np.float64)
    for axis in (1, 2, 3):
        wanted = np.add.reduceat(np.repeat(wanted, edge, axis), range(0, size * edge, size), axis) / size
    np.testing.assert_allclose(fewer, wanted, rtol=1e-5, atol=1e-3)
