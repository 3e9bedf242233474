import numpy as np
import pytest

from gmmae.data.synthetic.phantom import CATEGORIES, DIAMETER_MM, draw_phantom


def drawn(count, **arguments):
    return [draw_phantom(np.random.default_rng([7, index]), **arguments) for index in range(count)]


def test_diameters_are_log_normal_between_the_limits():
    diameters = np.array([phantom.diameter_mm for phantom in drawn(1000)])
    assert diameters.min() == DIAMETER_MM[0]
    assert 20 < diameters.max() <= DIAMETER_MM[1]
    # exp(1.97) = 7.2; the median of 1000 draws scatters by 2 %.
    assert np.median(diameters) == pytest.approx(7.2, rel=0.08)


def test_largest_diameter_is_kept():
    assert max(phantom.diameter_mm for phantom in drawn(50, largest_mm=6.0)) == 6


@pytest.mark.parametrize("category", CATEGORIES)
def test_a_given_category_is_drawn_with_orthogonal_axes(category):
    for phantom in drawn(5, category=category):
        assert phantom.category == category
        product = phantom.axes @ phantom.axes.T
        np.testing.assert_allclose(product, np.diag(np.diag(product)), atol=1e-12)


def test_a_third_of_the_solid_nodules_is_spiculated_and_no_ground_glass_one():
    spiculated = [len(phantom.spicules) > 0 for phantom in drawn(600, category="solid")]
    assert np.mean(spiculated) == pytest.approx(1 / 3, abs=0.08)  # four standard deviations
    assert not any(len(phantom.spicules) for phantom in drawn(50, category="ground-glass"))


def test_juxta_pleural_nodules_always_have_a_wall_that_cuts_them():
    for phantom in drawn(50, category="juxta-pleural"):
        assert phantom.wall is not None
        assert phantom.wall.distance_mm < phantom.diameter_mm / 2
