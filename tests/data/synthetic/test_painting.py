"""Phantoms as a scanner shows them, and their random parameters."""

import numpy as np
import pytest
from scipy import ndimage

from gmmae.data.synthetic.painting import Field, blur_of, paint, paint_tube
from gmmae.data.synthetic.phantom import CATEGORIES, DIAMETER_MM, Tube, Wall, draw_phantom
from tests.smooth_ball import smooth

LUNG_HU = -850.0
BALL = smooth(draw_phantom(np.random.default_rng(0), "solid"), 6.0)._replace(shell_hu=0.0, core_hu=0.0)
LINE = np.arange(-6, 6.1, 0.25)
LUNG = np.full((49, 49, 49), LUNG_HU)


def field(blur_mm):
    """Voxels of 0.25 mm, the middle one at index 24."""
    return Field(np.ix_(LINE, LINE, LINE), np.broadcast_to(blur_mm, 3))


@pytest.mark.parametrize("radius_mm", [1.6, 3.1])
def test_a_ball_looks_as_if_it_had_been_blurred(radius_mm):
    sharp = sum(map(np.square, np.ix_(LINE, LINE, LINE))) < radius_mm**2
    blurred = ndimage.gaussian_filter(np.where(sharp, 0.0, LUNG_HU), 0.8 / 0.25, mode="nearest")
    painted, mask = paint(smooth(BALL, 2 * radius_mm), field(0.8), LUNG)
    # The centre is exact up to the sharp ball's staircase; the edge is a smoothstep of the right slope, not a Gaussian.
    assert painted[24, 24, 24] == pytest.approx(blurred[24, 24, 24], abs=15)
    assert np.abs(painted - blurred).mean() < 12
    np.testing.assert_array_equal(mask, sharp)
    assert (LUNG == LUNG_HU).all()
    assert (paint(BALL, field(0.8), LUNG * 0 + 40)[0] == 40).all()  # nothing darkens what is denser


def test_blur_is_wider_along_the_axis_that_has_thicker_slices():
    painted, _ = paint(BALL, field([1.4, 0.5, 0.5]), LUNG)
    assert painted[24 + 15, 24, 24] > painted[24, 24, 24 + 15] + 50  # 0.75 mm outside
    np.testing.assert_allclose(blur_of(np.array([0.0, 0.6, 1.5])), [0.5, np.sqrt(0.25 + 0.06), np.sqrt(0.25 + 0.375)])


def test_a_wall_cuts_the_mask_and_fills_its_side():
    painted, mask = paint(BALL._replace(wall=Wall(np.array([1.0, 0, 0]), 1.0, 0.0, 40.0)), field(0.3), LUNG)
    assert mask[24 + 3].any()
    assert not mask[24 + 4 :].any()  # 1 mm and beyond
    np.testing.assert_allclose(painted[24 + 8 :], 40)
    assert painted[24 - 20, 24, 24] == LUNG_HU
    # At 6 mm from the axis this wall has come 0.1 / 2 · 36 = 1.8 mm nearer: at z = 2 mm it covers the edge, not the axis.
    painted, _ = paint(smooth(BALL, 1.0)._replace(wall=Wall(np.array([1.0, 0, 0]), 3.0, 0.1, 40.0)), field(0.3), LUNG)
    assert painted[24 + 8, 24, 24] == LUNG_HU
    assert painted[24 + 8, 24, 0] == pytest.approx(40)


def test_a_tube_bends_tapers_ends_and_fades():
    tube = Tube(np.array([-4.0, 0, 0]), np.array([1.0, 0, 0]), np.array([0, 0.05, 0]), 8.0, 1.5, 0.5, 0.0)
    painted = paint_tube(tube, field(0.3), LUNG)
    widths = (painted > -400).sum((1, 2))
    assert widths[24 - 12] > 1.5 * widths[24 + 12]  # radii of 1.4 and 0.9 mm
    assert widths[0] == 0
    assert LINE[np.argmax(painted[24 + 12, :, 24])] == pytest.approx(2.45, abs=0.3)  # at z = 3, t = 7: y = 0.05 · 49
    thin = tube._replace(bend=np.zeros(3), radius_mm=0.8, taper=1.0)
    # In the middle of a disc with r = s: 1 - exp(-1/2) = 0.39 of the contrast, times the smoothstep's cover there.
    cover = 0.5 + 0.8 / (1.5 * np.sqrt(2 * np.pi) * 0.8)
    expected = LUNG_HU * (1 - (1 - np.exp(-0.5)) * cover**2 * (3 - 2 * cover))
    assert paint_tube(thin, field(0.8), LUNG)[24, 24, 24] == pytest.approx(expected)


def test_phantoms_are_drawn_as_they_are_said_to_be():
    drawn = [draw_phantom(np.random.default_rng([7, index])) for index in range(1000)]
    diameters = np.array([phantom.diameter_mm for phantom in drawn])
    assert diameters.min() == DIAMETER_MM[0]
    assert 20 < diameters.max() <= DIAMETER_MM[1]
    assert np.median(diameters) == pytest.approx(7.2, rel=0.08)  # exp(1.97); it scatters by 2 %
    spiculated = {name: np.mean([len(p.spicules) > 0 for p in drawn if p.category == name]) for name in CATEGORIES}
    assert spiculated["solid"] == pytest.approx(1 / 3, abs=0.08)  # four standard deviations
    assert spiculated["ground-glass"] == 0
