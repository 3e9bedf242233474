"""Volumes and masks as they were scanned, and the patches that are cut from them."""

import numpy as np
import pytest
import SimpleITK as sitk

from gmmae.data.native_volumes import read
from gmmae.data.patches import NODULE, OUTSIDE, boxes, slices
from gmmae.data.settings import DataConfig
from gmmae.data.synthetic.volumes import native_nodules
from gmmae.data.volumes import NativeNodule, cut_from
from tests import volume_folders as folders

GRID = folders.Grid((4, 6, 5), (0.8, 0.5, 2.0), (10.0, 20.0, 30.0))
VALUES = np.arange(120, dtype=np.int16).reshape(GRID.shape) - 1000
MASK = np.pad(np.ones((2, 2, 2), np.uint8), ((1, 1), (2, 2), (1, 2)))


@pytest.fixture
def root(tmp_path):
    for kind, voxels in (("images", VALUES), ("masks", MASK)):
        folders.write_image(tmp_path / kind / "a.nii.gz", voxels, GRID)
    row = ["a.nii.gz", "P1", *GRID.at(np.array([1.5, 2.5, 1.25])), 4.5, "solid"]
    folders.write_rows(tmp_path / "nodules.csv", [row], (*folders.COLUMNS, "category"))
    return tmp_path


@pytest.mark.parametrize("order", ["LPS", "RAS", "PIR", "SAL"])
def test_a_volume_is_read_on_its_own_grid_and_in_axial_slices_however_it_is_stored(root, order):
    for name in ("images", "masks"):
        path = str(root / name / "a.nii.gz")
        sitk.WriteImage(sitk.DICOMOrient(sitk.ReadImage(path), order), path)
    (scanned,) = read(DataConfig(source="cubes", root=str(root)))
    assert (*scanned[:3], scanned.diameter_mm) == ("a.nii.gz", "P1", "solid", 4.5)
    np.testing.assert_array_equal(scanned.values, VALUES)
    np.testing.assert_array_equal(scanned.mask, MASK)
    np.testing.assert_allclose(scanned.centre, (1.25, 2.5, 1.5), atol=1e-5)  # the file's geometry is in float32
    np.testing.assert_allclose(scanned.spacing_mm, GRID.spacing[::-1], rtol=1e-6)


def test_a_volume_has_the_uid_of_its_scan(root):
    table = root / "nodules.csv"
    head, line, *_ = table.read_text().splitlines()
    table.write_text(f"{head},seriesuid\n{line},1.2.3")
    (scanned,) = read(DataConfig(source="cubes", root=str(root)))
    assert cut_from(scanned.origin, scanned.series) == (scanned.origin, "1.2.3")


def volume(shape=(4, 9, 9), **changes):
    values, mask = np.arange(np.prod(shape), dtype=np.int16).reshape(shape), np.zeros(shape, np.uint8)
    mask[1:3, 4, 3:5] = 1
    return NativeNodule("a", "a", "", values, mask, (2.0, 4.0, 4.0), (1.0, 1.0, 1.0), 3.0)._replace(**changes)


def test_slices_that_hold_nodule_are_cut_around_its_centre():
    one = volume()
    patches = slices([one], size=4, jitter=1)
    np.testing.assert_array_equal(patches.corners, [[1, 1, 1], [2, 1, 1]])
    np.testing.assert_array_equal(patches.values[..., 0], one.values[1:3, 1:7, 1:7])
    np.testing.assert_array_equal(patches.labels, one.mask[1:3, 1:7, 1:7])
    assert set(patches.offsets.ravel()) <= {0, 1, 2}
    # Beyond a volume its edge goes on and is labelled.
    moved = slices([one._replace(centre=(2.0, 1.0, 4.0))], size=4, jitter=1, empty=True)  # rows -2 to 3
    np.testing.assert_array_equal(moved.labels == OUTSIDE, np.broadcast_to(np.arange(6)[:, None] < 2, (4, 6, 6)))
    np.testing.assert_array_equal(moved.values[:, 0], moved.values[:, 2])
    assert moved.corners[1].tolist() == [1, -2, 1]
    # A slice with another nodule of the same mask, beside the patch.
    wide = volume(values=np.pad(one.values, [(0, 0), (0, 0), (0, 9)]), mask=np.pad(one.mask, [(0, 0), (0, 0), (0, 9)]))
    wide.mask[0, 4, -1] = 1
    np.testing.assert_array_equal(slices([wide], size=4, jitter=1).corners, patches.corners)


def test_empty_slices_and_neighbours_are_taken_where_asked():
    pair = [volume()] * 2
    patches = slices(pair, size=4, jitter=1, neighbours=1, empty=True)
    assert patches.corners[:, 0].tolist() == [0, 1, 2, 3] * 2
    assert patches.volumes.tolist() == [0] * 4 + [1] * 4
    np.testing.assert_array_equal(patches.values[1], np.moveaxis(pair[0].values[0:3, 1:7, 1:7], 0, -1))
    np.testing.assert_array_equal(patches.values[0, ..., 0], patches.values[0, ..., 1])  # the outermost slice goes on
    np.testing.assert_array_equal(slices(pair, size=4, jitter=1).offsets, patches.offsets[[1, 2, 5, 6]])
    assert len(np.unique(patches.offsets, axis=0)) > 1
    assert not np.array_equal(slices(pair, 4, 1, empty=True, seed=1).offsets, patches.offsets)


def test_boxes_are_of_cubic_voxels():
    values = np.broadcast_to(np.int16(100) * np.arange(1, 7, dtype=np.int16)[:, None, None], (6, 9, 9))
    one = volume(values.shape, centre=(2.5, 4.0, 4.0), spacing_mm=(2.0, 1.0, 1.0), values=values)
    patches, wide = (boxes([one], size=4, jitter=jitter, voxel_mm=1.0) for jitter in (2, 8))
    assert patches.values.shape == (1, 8, 8, 8, 1)
    # Voxels of 1 mm: a slice of 2 mm rises by 50 a voxel, through 350 in the middle.
    np.testing.assert_array_equal(patches.values[0, :, 4, 4, 0], [175, 225, 275, 325, 375, 425, 475, 525])
    assert not (patches.labels == OUTSIDE).any()
    assert np.argwhere(patches.labels[0] == NODULE).tolist() == [[z, 3, x] for z in range(4) for x in (2, 3)]
    np.testing.assert_array_equal(wide.values[0, :, 4, 4, 0][:4], [100] * 4)
    assert (wide.labels != OUTSIDE).sum() == 12 * 9 * 9


def test_synthetic_volumes_depend_on_seed_and_number_only():
    """The last nodule has 3 mm and slices of 2.4 mm. It lay between two slices, so no voxel was in its mask."""
    several, one = native_nodules(377, 8, 0), native_nodules(1, 8, 0)
    np.testing.assert_array_equal(several[0].values, one[0].values)
    assert len({volume.values.tobytes() for volume in several}) == 377
    assert all(volume.mask.any() and volume.values.shape[1:] == (8, 8) for volume in several)
    assert (several[-1].diameter_mm, len(several[-1].values)) == (3, 3)
