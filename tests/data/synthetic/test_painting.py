import numpy as np
import pytest
from scipy import ndimage

from gmmae.data.synthetic.painting import Field, blur_of, interpolate, paint, paint_tube
from gmmae.data.synthetic.phantom import Tube, Wall, draw_phantom
from tests.smooth_ball import smooth

LUNG_HU = -850.0


def ball(radius_mm, hu=0.0):
    """A smooth ball of one density, alone."""
    return smooth(draw_phantom(np.random.default_rng(0), "solid"), 2 * radius_mm)._replace(shell_hu=hu, core_hu=hu)


def field(half_mm=6.0, step_mm=0.25, blur_mm=0.8):
    line = np.arange(-half_mm, half_mm + step_mm / 2, step_mm)
    return Field(line, line, line, np.full(3, blur_mm))


def lung(view):
    return np.full([len(line) for line in view[:3]], LUNG_HU)


@pytest.mark.parametrize("radius_mm", [1.6, 3.1])
def test_a_ball_looks_as_if_it_had_been_blurred(radius_mm):
    view = field()
    squared = sum(np.square(axis) for axis in np.meshgrid(*view[:3], indexing="ij", sparse=True))
    sharp = np.where(squared < radius_mm**2, 0.0, LUNG_HU)
    blurred = ndimage.gaussian_filter(sharp, 0.8 / 0.25, mode="nearest")
    painted, mask = paint(ball(radius_mm), view, lung(view))
    centre = (24, 24, 24)
    # The centre is exact up to the sharp ball's staircase; the edge is a smoothstep of the right slope, not a Gaussian.
    assert painted[centre] == pytest.approx(blurred[centre], abs=15)
    assert np.abs(painted - blurred).mean() < 12
    np.testing.assert_array_equal(mask, squared < radius_mm**2)


def test_blur_is_wider_along_the_axis_that_has_thicker_slices():
    view = field()._replace(blur_mm=np.array([1.4, 0.5, 0.5]))
    painted, _ = paint(ball(3.0), view, lung(view))
    outside = 24 + 15  # 3.75 mm from the centre, 0.75 mm outside
    assert painted[outside, 24, 24] > painted[24, 24, outside] + 50


def test_a_nodule_neither_changes_tissue_in_place_nor_darkens_what_is_denser():
    view = field()
    painted, _ = paint(ball(3.0, hu=-600.0), view, np.full((49, 49, 49), 40.0))
    assert (painted == 40).all()
    tissue = lung(view)
    paint(ball(3.0), view, tissue)
    assert (tissue == LUNG_HU).all()


def test_a_wall_cuts_the_mask_and_fills_its_side():
    view = field(blur_mm=0.3)
    wall = Wall(np.array([1.0, 0, 0]), 1.0, 0.0, 40.0)
    painted, mask = paint(ball(3.0)._replace(wall=wall), view, lung(view))
    assert mask[24 + 3].any()
    assert not mask[24 + 4 :].any()  # 1 mm and beyond
    np.testing.assert_allclose(painted[24 + 8 :], 40)
    assert painted[24 - 20, 24, 24] == LUNG_HU


def test_a_curved_wall_leaves_the_plane():
    view = field(blur_mm=0.3)
    wall = Wall(np.array([1.0, 0, 0]), 3.0, 0.1, 40.0)
    painted, _ = paint(ball(0.5)._replace(wall=wall), view, lung(view))
    # At 6 mm from the axis the wall has come 0.1 / 2 · 36 = 1.8 mm nearer: at z = 2 mm it covers the edge, not the axis.
    assert painted[24 + 8, 24, 24] == LUNG_HU
    assert painted[24 + 8, 24, 0] == pytest.approx(40)


def test_a_tube_bends_tapers_and_ends():
    tube = Tube(np.array([-4.0, 0, 0]), np.array([1.0, 0, 0]), np.array([0, 0.05, 0]), 8.0, 1.5, 0.5, 0.0)
    view = field(blur_mm=0.3)
    painted = paint_tube(tube, view, lung(view))
    dense = painted > -400
    widths = dense.sum((1, 2))
    assert widths[24 - 12] > 1.5 * widths[24 + 12]  # radii of 1.4 and 0.9 mm
    assert not dense[0].any()
    middle = np.argmax(painted[24 + 12, :, 24])  # at z = 3, t = 7: y = 0.05 · 49 = 2.45 mm
    assert view.y_mm[middle] == pytest.approx(2.45, abs=0.3)


def test_a_thin_tube_fades():
    tube = Tube(np.array([-4.0, 0, 0]), np.array([1.0, 0, 0]), np.zeros(3), 8.0, 0.8, 1.0, 0.0)
    view = field(blur_mm=0.8)
    # In the middle of a disc with r = s: 1 - exp(-1/2) = 0.39 of the contrast, times the smoothstep's cover there.
    cover = 0.5 + 0.8 / (1.5 * np.sqrt(2 * np.pi) * 0.8)
    expected = LUNG_HU * (1 - (1 - np.exp(-0.5)) * cover**2 * (3 - 2 * cover))
    assert paint_tube(tube, view, lung(view))[24, 24, 24] == pytest.approx(expected)


def test_interpolation_equals_scipy():
    rng = np.random.default_rng(0)
    lattice = rng.standard_normal((3, 4, 5))
    lines = [rng.uniform(-1, n, 6) for n in lattice.shape]
    expected = ndimage.map_coordinates(lattice, np.meshgrid(*lines, indexing="ij"), order=1, mode="nearest")
    np.testing.assert_allclose(interpolate(lattice, *lines), expected, atol=1e-12)


def test_blur_adds_the_voxels_box_and_interpolation_to_half_a_millimetre():
    np.testing.assert_allclose(blur_of((0.0, 0.6, 1.5)), [0.5, np.sqrt(0.25 + 0.06), np.sqrt(0.25 + 0.375)])
