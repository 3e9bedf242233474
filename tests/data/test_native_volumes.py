"""Volumes and masks as they were scanned, and the patches that are cut from them."""

from pathlib import Path

import numpy as np
import pytest
import SimpleITK as sitk

from gmmae.data.native_volumes import read
from gmmae.data.patches import NODULE, OUTSIDE, boxes, slices
from gmmae.data.settings import DataConfig
from gmmae.data.synthetic.volumes import _native, native_nodules
from gmmae.data.volumes import DataError, NativeNodule
from tests import volume_folders as folders

SPACING = (2.0, 0.5, 0.8)


def write(folder: Path, name: str, values: np.ndarray, direction=(1, 0, 0, 0, 1, 0, 0, 0, 1)) -> sitk.Image:
    image = folders.image(values, (10, 20, 30), SPACING[::-1], direction)
    folder.mkdir(parents=True, exist_ok=True)
    sitk.WriteImage(image, str(folder / name))
    return image


def folder(tmp_path, mask=None, direction=(1, 0, 0, 0, 1, 0, 0, 0, 1)):
    values = np.arange(4 * 6 * 5, dtype=np.int16).reshape(4, 6, 5) - 1000
    if mask is None:
        mask = np.zeros((4, 6, 5), np.uint8)
        mask[1:3, 2:4, 1:3] = 1
    image = write(tmp_path / "images", "a.nii.gz", values, direction)
    write(tmp_path / "masks", "a.nii.gz", mask, direction)
    x, y, z = image.TransformContinuousIndexToPhysicalPoint((1.5, 2.5, 1.25))
    rows = f"file,patient,coordX,coordY,coordZ,diameter_mm,category\na.nii.gz,P1,{x},{y},{z},4.5,solid\n"
    (tmp_path / "nodules.csv").write_text(rows)
    return DataConfig(source="cubes", root=str(tmp_path)), values, mask


@pytest.mark.parametrize("direction", [(1, 0, 0, 0, 1, 0, 0, 0, 1), (-1, 0, 0, 0, -1, 0, 0, 0, 1)])
def test_a_volume_is_read_on_its_own_grid_in_one_orientation(tmp_path, direction):
    config, values, mask = folder(tmp_path, direction=direction)
    (scanned,) = read(config)
    turned = (slice(None), slice(None, None, direction[4]), slice(None, None, direction[0]))
    np.testing.assert_array_equal(scanned.values, values[turned])
    np.testing.assert_array_equal(scanned.mask, mask[turned])
    assert scanned[:3] == ("a.nii.gz", "P1", "solid")
    x = 1.5 if direction[0] > 0 else 2.5
    np.testing.assert_allclose(scanned.centre, (1.25, 2.5, x), atol=1e-5)  # the file's geometry is in float32
    np.testing.assert_allclose(scanned.spacing_mm, SPACING, rtol=1e-6)
    assert scanned.diameter_mm == 4.5


@pytest.mark.parametrize("order", ["LPS", "RAS", "PIR", "SAL"])
def test_slices_are_axial_however_the_volume_is_stored(tmp_path, order):
    config, values, mask = folder(tmp_path)
    for name in ("images", "masks"):
        path = str(tmp_path / name / "a.nii.gz")
        sitk.WriteImage(sitk.DICOMOrient(sitk.ReadImage(path), order), path)
    (scanned,) = read(config)
    np.testing.assert_array_equal(scanned.values, values)
    np.testing.assert_array_equal(scanned.mask, mask)
    np.testing.assert_allclose(scanned.centre, (1.25, 2.5, 1.5), atol=1e-5)
    np.testing.assert_allclose(scanned.spacing_mm, SPACING, rtol=1e-6)


def test_what_cannot_be_segmented_is_refused(tmp_path):
    config, _, mask = folder(tmp_path)
    (tmp_path / "masks" / "a.nii.gz").unlink()
    with pytest.raises(DataError, match=r"^a.nii.gz \(nodules.csv line 2\): .*mask.* add a.nii.gz to masks/"):
        read(config)
    write(tmp_path / "masks", "a.nii.gz", 0 * mask)
    with pytest.raises(DataError, match=r"line 2\): the mask .*no voxel"):
        read(config)
    with pytest.raises(DataError, match=r"must be a folder of volumes with masks .*all\.npz"):
        read(DataConfig(source="cubes", root="all.npz"))


def volume(shape=(4, 9, 9), centre=(2.0, 4.0, 4.0), spacing_mm=(1.0, 1.0, 1.0)):
    values = np.arange(np.prod(shape), dtype=np.int16).reshape(shape)
    mask = np.zeros(shape, np.uint8)
    mask[1:3, 4, 3:5] = 1
    return NativeNodule("a", "a", "", values, mask, centre, spacing_mm, 3.0)


def test_slices_that_hold_nodule_are_cut_around_its_centre():
    one = volume()
    patches = slices([one], size=4, jitter=1)
    np.testing.assert_array_equal(patches.corners, [[1, 1, 1], [2, 1, 1]])
    np.testing.assert_array_equal(patches.values[..., 0], one.values[1:3, 1:7, 1:7])
    np.testing.assert_array_equal(patches.labels, one.mask[1:3, 1:7, 1:7])
    assert set(patches.offsets.ravel()) <= {0, 1, 2}


def test_beyond_a_volume_the_edge_goes_on_and_is_labelled():
    one = volume(centre=(2.0, 1.0, 4.0))
    patches = slices([one], size=4, jitter=1)  # rows -2 to 3
    assert (patches.labels[:, :2] == OUTSIDE).all()
    assert (patches.labels[:, 2:] != OUTSIDE).all()
    np.testing.assert_array_equal(patches.values[:, 0], patches.values[:, 2])
    assert patches.corners[0].tolist() == [1, -2, 1]


def test_empty_slices_and_neighbours_are_taken_where_asked():
    one = volume()
    patches = slices([one, one], size=4, jitter=1, neighbours=1, empty=True)
    assert patches.corners[:, 0].tolist() == [0, 1, 2, 3] * 2
    assert patches.volumes.tolist() == [0] * 4 + [1] * 4
    np.testing.assert_array_equal(patches.values[1], np.moveaxis(one.values[0:3, 1:7, 1:7], 0, -1))
    np.testing.assert_array_equal(patches.values[0, ..., 0], patches.values[0, ..., 1])  # the outermost slice goes on
    holding = slices([one, one], size=4, jitter=1)
    np.testing.assert_array_equal(holding.offsets, patches.offsets[[1, 2, 5, 6]])
    assert len(np.unique(patches.offsets, axis=0)) > 1
    assert not np.array_equal(slices([one, one], 4, 1, empty=True, seed=1).offsets, patches.offsets)


def test_boxes_are_of_cubic_voxels():
    steps = np.arange(6) * 100
    values = (steps[:, None, None] + np.zeros((6, 9, 9))).astype(np.int16)
    one = volume((6, 9, 9), (2.5, 4.0, 4.0), (2.0, 1.0, 1.0))._replace(values=values)
    patches = boxes([one], size=4, jitter=2, voxel_mm=1.0)
    assert patches.values.shape == (1, 8, 8, 8, 1)
    # Voxels of 1 mm: a slice of 2 mm rises by 50 a voxel, through 250 in the middle.
    np.testing.assert_array_equal(patches.values[0, :, 4, 4, 0], [75, 125, 175, 225, 275, 325, 375, 425])
    assert not (patches.labels == OUTSIDE).any()
    assert (patches.labels == NODULE).sum() == 2 * one.mask.sum()
    wide = boxes([one], size=4, jitter=8, voxel_mm=1.0)
    np.testing.assert_array_equal(wide.values[0, :, 4, 4, 0][:4], [0] * 4)
    assert (wide.labels != OUTSIDE).sum() == 12 * 9 * 9


def test_synthetic_volumes_depend_on_seed_and_number_only():
    several, one = native_nodules(3, 20, 5), native_nodules(1, 20, 5)
    np.testing.assert_array_equal(several[0].values, one[0].values)
    assert len({volume.values.tobytes() for volume in several}) == 3
    assert all(volume.mask.any() and volume.values.shape[1:] == (20, 20) for volume in several)


def test_a_small_synthetic_nodule_is_not_missed_by_thick_slices():
    """Nodule 376 has 3 mm and slices of 2.4 mm. It lay between two slices, so no voxel was in its mask."""
    nodule = _native(24, 0, 376)
    assert nodule.mask.any()
    assert nodule.diameter_mm == 3
    assert nodule.values.shape == (3, 24, 24)
