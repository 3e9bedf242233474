"""What is read of volumes and masks: units, labels, and masks on grids of their own."""

import numpy as np
import pytest
import SimpleITK as sitk
from scipy.spatial.transform import Rotation

from gmmae.data.extraction import scan
from gmmae.data.extraction.scan import Scan
from gmmae.data.volumes import DataError
from tests import volume_folders as folders
from tests.volume_folders import scan_of

IDENTITY = np.eye(3)


def ball(shape, spacing, origin, direction=IDENTITY, centre=(5.0, 6.0, 4.0), radius=4.0) -> Scan:
    """A ball of the world on any grid."""
    index = np.stack(np.indices(shape)[::-1], -1)
    points = index * spacing @ np.asarray(direction).T + origin
    inside = np.linalg.norm(points - centre, axis=-1) <= radius
    return scan_of(folders.image(inside.astype(np.uint8), origin, spacing, np.ravel(direction).tolist()))


GRID = ball((10, 24, 22), (0.5, 0.6, 1.0), (0.0, 0.0, 0.0))


@pytest.mark.parametrize(
    "mask",
    [
        ball((12, 30, 30), (0.5, 0.6, 1.0), (-1.0, -1.2, -1.0)),
        ball((10, 20, 20), (0.5, 0.6, 1.0), (0.5, 1.2, 0.0)),
        ball((10, 24, 22), (-0.5, 0.6, 1.0) * np.array([-1, 1, 1]), (10.5, 0.0, 0.0), np.diag([-1.0, 1.0, 1.0])),
        ball((24, 10, 22), (0.5, 1.0, 0.6), (0.0, 0.0, 0.0), np.eye(3)[[0, 2, 1]]),
    ],
    ids=["larger", "smaller", "mirrored", "axes exchanged"],
)
def test_a_mask_whose_voxels_are_the_volumes_is_the_same(mask):
    wanted = scan.mask_on_grid(GRID, GRID)
    assert wanted.sum() > 500
    np.testing.assert_array_equal(scan.mask_on_grid(mask, GRID), wanted)


@pytest.mark.parametrize(
    "mask",
    [
        ball((60, 60, 60), (0.3, 0.3, 0.3), (-4.0, -3.0, -5.0)),
        ball((40, 40, 40), (0.5, 0.5, 0.5), (5.0, -8.0, -6.0), Rotation.from_euler("z", 45, degrees=True).as_matrix()),
    ],
    ids=["finer", "turned"],
)
def test_a_mask_on_a_finer_grid_is_that_ball_but_for_its_surface(mask):
    wanted, resampled = scan.mask_on_grid(GRID, GRID), scan.mask_on_grid(mask, GRID)
    assert (resampled != wanted).sum() < 0.1 * wanted.sum()
    inner = scan.mask_on_grid(ball((10, 24, 22), (0.5, 0.6, 1.0), (0.0, 0.0, 0.0), radius=3.3), GRID)
    assert resampled[inner > 0].all()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([0, 1, 2, 2], "0 and one other value; got 1 2: "),
        ([0.1, 0.2, 0.3, 0.4, 0.5, 0.6], "0 and one other value; got 0.1 0.2 0.3 0.4 0.5 and 1 more: "),
        ([0, np.nan, 1, 1], "finite numbers; 1 of the 4 .* NaN or infinite"),
    ],
)
def test_masks_that_are_none(values, message):
    mask = scan_of(sitk.GetImageFromArray(np.array([[values]])))
    with pytest.raises(DataError, match=message):
        scan.mask_region(mask)


@pytest.mark.parametrize("values", [[0, 1, 1, 0], [0, 255, 255, 0], [0.0, 0.5, 0.5, 0.0], [0, -1, -1, 0]])
def test_any_one_value_marks_the_nodule(values):
    mask = scan_of(sitk.GetImageFromArray(np.array([[values]])))
    labels = scan.mask_region(mask)
    assert labels.ravel().tolist() == [0, 1, 1, 0]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.array([0, 255], np.uint8), "8 bits .*; got uint8: .*data.window"),
        (np.array([0, 1], np.int16), "got 0 to 1, .* windowed already"),
        (np.array([0.0, 0.3]), "got 0 to 0.3, .* windowed already"),
        (np.array([-1.0, 0.9]), "got -1 to 0.9, .* scaled already: .*data.window"),
        (np.array([-2.5, 9.0]), "got -2.5 to 9, .* scaled already"),
        (np.array([-1, 1], np.int16), "got -1 to 1, .* scaled already"),
        (np.array([-1000, 40000], np.int32), "between -32768 and 32767; got -1000 to 40000"),
    ],
)
def test_only_hu_are_taken_for_hu(values, message):
    volume = scan_of(sitk.GetImageFromArray(values[None, None]))
    with pytest.raises(DataError, match="^voxels must be HU.*" + message):
        scan.region(volume, hu=True)
    np.testing.assert_array_equal(scan.region(volume, hu=False).ravel(), values)


def test_water_and_its_noise_are_hu():
    water = scan_of(sitk.GetImageFromArray(np.zeros((2, 2, 2), np.int16)))
    assert not scan.region(water, hu=True).any()
    noise = np.random.default_rng(0).normal(0, 8, (3, 5, 5)).astype(np.int16)
    assert np.abs(noise).max() > scan.MIN_LARGEST_HU
    scan.region(scan_of(sitk.GetImageFromArray(noise)), hu=True)


def test_numbers_that_32_bits_do_not_hold_are_refused_in_any_unit():
    volume = scan_of(sitk.GetImageFromArray(np.array([[[0.0, 1e300]]])))
    with pytest.raises(DataError, match=r"must be numbers that 32 bits can hold; got 1e\+300"):
        scan.region(volume, hu=False)
