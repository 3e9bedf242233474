"""Residuals, grey levels and spectra that are added to decoded volumes."""

import numpy as np
from scipy import ndimage

from gmmae.generation import grain
from gmmae.generation.distance import signed_distance
from gmmae.generation.texture import blend_residual_blocks, block_weights, grey_levels, with_grey_levels


def test_the_variance_of_independent_residuals_is_kept():
    rng = np.random.default_rng(0)
    residuals, donors = rng.normal(size=(500, 8, 8)), rng.integers(500, size=(2000, 9))
    found = blend_residual_blocks(residuals, donors, block_weights((8, 8), 3))
    np.testing.assert_allclose(found.std(0), 1, atol=0.1)  # 500 samples: 0.03


def test_voxels_get_the_grey_levels_and_keep_their_order_inside_and_outside():
    values = np.array([[[0.3, 0.9], [0.1, 0.2]]])
    nowhere, left = np.zeros((1, 2, 2), bool), np.array([[[True, False], [True, False]]])
    found = with_grey_levels(values, np.array([[10.0, 20.0, 30.0, 40.0]]), nowhere)
    np.testing.assert_array_equal(found, [[[30.0, 40.0], [10.0, 20.0]]])
    levels = grey_levels(np.array([[[1.0, 8.0], [9.0, 2.0]]]), np.array([[[False, True], [True, False]]]))
    np.testing.assert_array_equal(levels, [[1, 2, 8, 9]])
    np.testing.assert_array_equal(with_grey_levels(values, levels, left), [[[9, 2], [8, 1]]])


def test_signed_distances_by_hand():
    mask = np.pad(np.ones((3, 3), bool), 1)
    found = signed_distance(mask, np.array([1.0, 2.0]))
    assert (found[2, 2], found[1, 1], found[0, 2], found[2, 0]) == (1.5, 0.5, -0.5, -1.5)
    np.testing.assert_array_equal(found > 0, mask)
    assert (signed_distance(mask & ~mask) < 0).all()
    assert (signed_distance(mask | ~mask) > 0).all()


def test_imposed_spectra_and_grey_levels_are_nearly_those_asked_for():
    rng = np.random.default_rng(0)
    shape = ndimage.gaussian_filter(rng.normal(size=(2, 5, 16, 16, 16)), (0, 0, 3, 3, 3)) * 20
    smooth, rough = shape + rng.normal(size=shape.shape) * np.array([0.05, 0.25]).reshape(2, 1, 1, 1, 1)
    levels, wanted = grey_levels(rough, shape[0] > 0), grain.spectra(rough)
    made = grain.with_spectra(smooth, wanted, levels, shape[0] > 0)
    np.testing.assert_array_equal(grey_levels(made, shape[0] > 0), levels)
    fine = np.flatnonzero(np.add.outer(*[np.array((0.0, *grain.EDGES)) >= 0.5] * 2).ravel())  # the upper half of an axis
    before, after = (np.abs(np.log(grain.spectra(some) / wanted))[:, fine].mean() for some in (smooth, made))
    assert after < 0.15 * before
