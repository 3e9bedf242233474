import numpy as np

from gmmae.generation.distance import signed_distance
from gmmae.generation.texture import (
    blend_residual_blocks,
    block_weights,
    grey_levels,
    innermost,
    with_grey_levels,
)


def test_where_a_block_is_alone_its_donor_s_residual_stands():
    residuals = np.stack([np.full((6, 6), 1.0), np.full((6, 6), 5.0)])
    found = blend_residual_blocks(residuals, np.array([[0, 1, 0, 1], [1, 1, 1, 1]]), block_weights((6, 6), 2))
    np.testing.assert_allclose(found[0, 0, 0], 1.0)  # the first block's corner
    np.testing.assert_allclose(found[0, 0, 5], 5.0)  # the second's, which lies behind it along the last axis
    np.testing.assert_allclose(found[0, 5, 0], 1.0)


def test_the_variance_of_independent_residuals_is_kept():
    rng = np.random.default_rng(0)
    residuals = rng.normal(size=(500, 8, 8))
    donors = rng.integers(500, size=(2000, 9))
    np.testing.assert_allclose(
        blend_residual_blocks(residuals, donors, block_weights((8, 8), 3)).std(0), 1, atol=0.1
    )  # 500 samples: 0.03


def test_voxels_get_the_grey_levels_and_keep_their_order_inside_and_outside():
    values = np.array([[[0.3, 0.9], [0.1, 0.2]]])
    nowhere, left = np.zeros((1, 2, 2), bool), np.array([[[True, False], [True, False]]])
    found = with_grey_levels(values, np.array([[10.0, 20.0, 30.0, 40.0]]), nowhere)
    np.testing.assert_array_equal(found, [[[30.0, 40.0], [10.0, 20.0]]])
    donor = np.array([[[1.0, 8.0], [9.0, 2.0]]])
    levels = grey_levels(donor, np.array([[[0, 1], [1, 0]]]))
    np.testing.assert_array_equal(levels, [[1, 2, 8, 9]])
    np.testing.assert_array_equal(with_grey_levels(values, levels, left), [[[9, 2], [8, 1]]])


def test_the_innermost_voxels_are_as_many_as_asked_for():
    found = innermost(np.array([[-1.0, 0.5, 0.5, 2.0]] * 3), np.array([0, 2, 4]))
    assert found.sum(1).tolist() == [0, 2, 4]
    assert found[1, 3]


def test_signed_distances_by_hand():
    mask = np.zeros((5, 5), bool)
    mask[1:4, 1:4] = True
    found = signed_distance(mask, np.array([1.0, 2.0]))
    assert (found[2, 2], found[1, 1], found[0, 2], found[2, 0]) == (1.5, 0.5, -0.5, -1.5)
    np.testing.assert_array_equal(found > 0, mask)
    assert (signed_distance(np.zeros((1, 4), bool)) < 0).all()
    assert (signed_distance(np.ones((1, 4), bool)) > 0).all()
