"""What is read of volumes that are cut already. Their faults are in `tests/fuzz`."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import SimpleITK as sitk

from gmmae.data import sources
from gmmae.data.extraction.prepare import load, prepare
from gmmae.data.extraction.summary import lines
from gmmae.data.settings import DataConfig
from gmmae.data.volumes import DataError, central_section
from tests.volume_folders import write_image, write_rows

RANDOM = np.random.default_rng(0).integers(-1000, 400, (5, 16, 16, 16)).astype(np.int16)
SHARES = np.random.default_rng(0).uniform(0, 1, (5, 16, 16, 16))
OWN = {"window": (0.0, 1.0)}
"""A window of the data's own: they are no HU then."""


@pytest.fixture
def config(tmp_path):
    (tmp_path / "cubes").mkdir()
    cache = str(tmp_path / "cache")
    return DataConfig("cubes", str(tmp_path / "cubes"), cache=cache, crop="16mm", workers=1, scan_time_limit_s=None)


@pytest.fixture
def folder(config):
    return Path(config.root)


@pytest.fixture
def npz(config, folder):
    """Writes one file of arrays; returns the configuration that reads it."""

    def write(**arrays):
        np.savez_compressed(folder / "all.npz", **arrays)
        return replace(config, root=str(folder / "all.npz"))

    return write


def listed(folder, *rows):
    """Writes the CSV: the columns, and a row for each volume."""
    columns, *others = rows
    write_rows(folder / "nodules.csv", [row.split(" ") for row in others], columns.split(" "))


def test_without_coordinates_the_middle_of_the_volume_is_cut_in_its_spacing(config, folder):
    voxels = np.full((30, 40, 50), -800, np.int16)
    voxels[13:17, 18:22, 23:27] = 100
    np.save(folder / "plain.npy", voxels)
    np.save(folder / "spaced.npy", voxels)
    listed(folder, "file spacingX spacingY spacingZ", "plain.npy   ", "spaced.npy 0.5 0.5 2")
    plain, spaced = load(config).values
    # 16 mm in 16 voxels: voxel for voxel. Half the spacing in the plane shows 2 mm of the nodule, twice it in z shows 8.
    np.testing.assert_array_equal(plain, voxels[7:23, 12:28, 17:33])
    assert (spaced > -350).sum((1, 2)).astype(bool).sum() == 8
    assert [(spaced[8] > -350).sum(axis).astype(bool).sum() for axis in (0, 1)] == [2, 2]


def test_no_nodule_goes_without_a_place_where_others_have_one(config, folder):
    for name in "ab":
        np.save(folder / f"{name}.npy", RANDOM[0])
    listed(folder, "file coordX_mm coordY_mm coordZ_mm", "a.npy 8 8 8", "b.npy   ")
    with pytest.raises(DataError, match="line 3: coordX_mm must not be empty"):
        load(replace(config, on_error="refuse"))


def test_a_whole_scan_is_not_cut_in_its_middle(config, folder):
    np.save(folder / "scan.npy", np.full((4, 200, 200), -800, np.int16))
    listed(folder, "file", "scan.npy")
    with pytest.raises(DataError, match=r"must have a place, in columns coordX.*and a scan of 200 × 200"):
        load(config)
    listed(folder, "file coordX coordY coordZ", "scan.npy 99 99 2")
    assert load(config).values.shape == (1, 16, 16, 16)


def test_diameters_in_centimetres_are_refused(config, folder):
    np.save(folder / "a.npy", RANDOM[0])
    listed(folder, "file diameter_cm", "a.npy 1.2")
    with pytest.raises(DataError, match="diameters must be in mm; got the column diameter_cm"):
        load(replace(config, diameter_column="diameter_cm"))


def test_arrays_that_are_cubes_already_are_taken_as_they_are(config, folder):
    np.save(folder / "a.npy", RANDOM[0])
    np.savez(folder / "b.npz", volume=RANDOM[1].astype(np.float32), mask=RANDOM[1] > 0)
    np.savez_compressed(folder / "c.npz", anything=np.asfortranarray(RANDOM[2]))
    listed(folder, "file patient category", "a.npy P1 solid", "b.npz P1 ", "c.npz P2 solid")
    nodules = load(replace(config, crop="1.25x"))
    np.testing.assert_array_equal(nodules.values, RANDOM[:3])
    assert (nodules.groups, nodules.categories) == (("P1", "P1", "P2"), ("solid", "", "solid"))
    np.testing.assert_array_equal(nodules.masks, RANDOM[:3] * np.array([0, 1, 0])[:, None, None, None] > 0)


def test_names_groups_and_categories_of_one_npz(npz):
    nodules = load(npz(volumes=RANDOM, groups=[3, 3, 4, 5, 5], categories=list("xyxyx"), names=list("abcde")))
    assert (nodules.names, nodules.groups, nodules.categories) == (tuple("abcde"), tuple("33455"), tuple("xyxyx"))
    with pytest.raises(DataError, match="category and another one are category: rename one"):
        load(npz(volumes=RANDOM, categories=list("xyxyx"), category=list("yyxxx")))


def test_a_compressed_volume_of_some_megabytes(config, folder):
    voxels = np.random.default_rng(0).integers(-1000, 400, (160, 100, 100)).astype(np.int16)
    write_image(folder / "a.nii.gz", voxels, compressed=True)
    write_image(folder / "b.mhd", voxels, compressed=True)
    listed(folder, "file", "a.nii.gz", "b.mhd")
    first, second = load(config).values
    # NIfTI keeps its affine in single precision.
    np.testing.assert_allclose(first, second, atol=1)
    assert first.std() > 100


@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("ndim", [1, 2, 3])
def test_of_data_with_more_axes_than_asked_for_the_central_section_is_taken(npz, ndim, axes):
    whole = SHARES[:, :8, :12] if ndim == 3 else SHARES[:, :, :12] if ndim == 2 else SHARES
    volumes = whole[(slice(None), *[0] * (3 - axes))].astype(np.float32)
    config = replace(npz(volumes=volumes, masks=volumes > 0.5), ndim=ndim, shape=whole.shape[-ndim:], validation=2, **OWN)
    if axes < ndim:
        with pytest.raises(DataError, match=r"all.npz.*volumes.*data\.ndim"):
            load(config)
        return
    nodules = load(config)
    np.testing.assert_array_equal(nodules.values, volumes)
    np.testing.assert_array_equal(nodules.masks, volumes > 0.5)
    np.testing.assert_array_equal(sources.load(config).nodules.values, central_section(volumes, ndim))


def test_images_and_signals_from_arrays(config, folder):
    """A window of 8 × 16 pixels around (x, y) = (21.5, 11.5); and of 16 samples beyond a signal's beginning."""
    pixels = np.random.default_rng(0).integers(0, 255, (30, 40), np.uint8)
    np.save(folder / "image.npy", pixels)
    np.save(folder / "mask.npy", pixels > 99)
    listed(folder, "file coordX coordY mask", "image.npy 21.5 11.5 mask.npy")
    nodules = load(replace(config, ndim=2, shape=(8, 16), window=(0.0, 255.0)))
    np.testing.assert_array_equal(nodules.values, pixels[None, 8:16, 14:30])
    np.testing.assert_array_equal(nodules.masks, pixels[None, 8:16, 14:30] > 99)
    signal = np.sin(np.arange(64) / 5)
    np.save(folder / "signal.npy", signal)
    listed(folder, "file coordX spacingX", "signal.npy 2.75 0.5")
    (values,) = load(replace(config, ndim=1, crop="8mm", window=(-1.5, 1.0))).values
    np.testing.assert_allclose(values, np.r_[[-1.5] * 2, signal[:14]], rtol=1e-6)  # filled with the window's end


def test_coordinates_and_masks_of_too_few_axes_are_faults(config, folder):
    np.savez(folder / "a.npz", volume=SHARES[0])
    np.save(folder / "flat.npy", SHARES[0, 0])
    np.save(folder / "line.npy", SHARES[0, 0, 0])
    sitk.WriteImage(sitk.GetImageFromArray(SHARES[0]), str(folder / "mask.mhd"))
    rows = ["a.npz 3 4 ", "a.npz 3  ", "line.npy   ", "flat.npy   line.npy", "flat.npy 1 1 mask.mhd", "flat.npy 2 1 "]
    listed(folder, "file coordX coordY mask", *rows)
    messages = []
    assert load(replace(config, ndim=2, crop="whole", **OWN), messages.append).values.shape == (1, 16, 16)
    assert any("5 of 6" in message for message in messages)


def test_voxels_are_cubic_where_edges_differ(config, folder):
    """A box of 8 × 12 × 16 voxels, 16 mm long, takes as much from a volume with voxels of 1 mm."""
    volume = np.random.default_rng(0).integers(-1000, 400, (20, 30, 40)).astype(np.int16)
    np.save(folder / "a.npy", volume)
    listed(folder, "file", "a.npy")
    np.testing.assert_array_equal(load(replace(config, shape=(8, 12, 16))).values[0], volume[6:14, 9:21, 12:28])
    for size, edge in (((10, 15, 20), 40.0), ((10, 10, 20), 60.0), (20, 40.0)):
        whole = load(replace(config, shape=size, crop="whole"))
        assert whole.edge_mm.tolist() == [pytest.approx(edge)]
        assert (whole.filled[0] == 0) == (size == (10, 15, 20))


def test_values_in_their_own_unit_are_not_rounded(npz):
    volumes = SHARES.copy()
    volumes[2, 0, 0, 0] = np.nan
    config = replace(npz(volumes=volumes), **OWN)
    np.testing.assert_array_equal(load(config).values, np.delete(volumes, 2, 0).astype(np.float32))
    assert any(line.startswith("values: 1 % below 0.0") for line in lines(prepare(config).summary, config.window))


def test_the_real_nodules(shared_data, config, folder):
    # All 770 take long; every 24th shows whether they are read rightly.
    for name in ("images", "masks"):
        (folder / name).symlink_to(shared_data / "luna16_nodules" / name)
    rows = (shared_data / "luna16_nodules" / "nodules.csv").read_text().splitlines(True)
    (folder / "nodules.csv").write_text("".join([rows[0], *rows[1::24]]))
    messages = []
    nodules = load(replace(config, crop="1.25x", padding="replicate"), messages.append)
    assert len(nodules.values) == len(rows[1::24])
    assert not [message for message in messages if "left out" in message]
    # Readers drew the masks around what LUNA16's coordinates are the middle of.
    assert nodules.masks is not None
    steps = (np.indices((16, 16, 16)) - 7.5) / 16
    assert np.median([np.linalg.norm((mask * steps).sum((1, 2, 3)) / mask.sum()) for mask in nodules.masks]) < 0.05
