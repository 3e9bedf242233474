import matplotlib.image
import numpy as np
import pytest

from gmmae.plotting.slices import contact_sheet, described_volumes, nodule_slices

WINDOW = (-1000.0, 400.0)
ORANGE = np.array([0xE6, 0x9F, 0x00]) / 255


def orange(path):
    return int((np.abs(matplotlib.image.imread(path)[..., :3] - ORANGE).max(-1) < 0.1).sum())


@pytest.mark.parametrize("samples", [1, 7, 450])
def test_the_contact_sheet_shows_every_central_slice_once(tmp_path, samples):
    # Black cubes with one white central slice: the white area counts them.
    hu = np.full((samples, 16, 16, 16), -1000, np.int16)
    hu[:, 8] = 0
    grey = (0 + 1000) / 1400
    path = contact_sheet(tmp_path / "sheet.png", hu, np.zeros(samples), WINDOW)
    image = matplotlib.image.imread(path)[..., 0]
    cells = (np.abs(image - grey) < 0.02).sum()
    one = contact_sheet(
        tmp_path / "half.png",
        np.where(np.arange(samples)[:, None, None, None] < 1, hu, -1000).astype(np.int16),
        np.zeros(samples),
        WINDOW,
    )
    single = (np.abs(matplotlib.image.imread(one)[..., 0] - grey) < 0.02).sum()
    # Edges of cells are blurred by less than a tenth of a cell's area.
    assert cells / single == pytest.approx(min(samples, 400), rel=0.1)
    assert orange(path) == 0


@pytest.mark.parametrize("shape", [(12, 24), (20, 12, 24), (24,)], ids=str)
def test_images_signals_and_boxes_have_a_sheet_too(drawn, shape):
    """The second of two is twice the first everywhere: so is what is drawn of it."""
    first = np.random.default_rng(0).uniform(0, 0.5, shape).astype(np.float32)
    contact_sheet("unused", np.stack([first, 2 * first]), np.zeros(2), (0.0, 1.0), "")
    (axes,) = drawn[0].axes
    (title,) = drawn[0].texts
    if len(shape) == 1:
        heights = [24 - line.get_ydata() for line in axes.lines]  # from the bottom of the cell, 23 rows above which is 1
        np.testing.assert_allclose(heights[0] / 23, first, atol=1e-6)
    else:
        sheet = axes.images[0].get_array().filled(np.nan)
        heights = [sheet[1:13, 1:25], sheet[1:13, 27:51]]
        np.testing.assert_array_equal(heights[0], first[10] if len(shape) == 3 else first)
    np.testing.assert_allclose(heights[1], 2 * heights[0], atol=1e-5)
    what = {1: "Signals", 2: "Images", 3: "Central axial slices"}[len(shape)]
    assert title.get_text() == f"{what} of 2 nodules, values 0 to 1"


@pytest.mark.parametrize("shape", [(12, 24), (20, 12, 24)], ids=str)
def test_slices_have_the_proportions_of_their_volume(drawn, shape):
    values = np.random.default_rng(0).uniform(0, 1, shape)
    nodule_slices("unused", values, values > 0.5, (0.0, 1.0), 48.0, "a nodule")
    pictures = [axes.images[0] for axes in drawn[0].axes]
    expected = [values] if len(shape) == 2 else [values[10], values[:, 6], values[:, :, 12]]
    for picture, section in zip(pictures, expected, strict=True):
        np.testing.assert_array_equal(picture.get_array(), section)
        left, right, *vertical = picture.get_extent()
        assert (right - left, abs(vertical[1] - vertical[0])) == (2 * section.shape[1], 2 * section.shape[0])  # voxels of 2 mm


def test_a_signal_is_a_curve_with_its_mask(drawn):
    values = np.linspace(-1, 1, 20)
    nodule_slices("unused", values, values > 0, (-2.0, 2.0), 10.0, "a signal")
    (axes,) = drawn[0].axes
    np.testing.assert_allclose(axes.lines[0].get_xydata()[[0, -1]], [(-4.75, -1), (4.75, 1)])
    assert axes.get_ylim() == (-2, 2)
    (area,) = axes.collections
    assert area.get_datalim(axes.transData).x0 == pytest.approx(0, abs=0.26)  # half a sample


def test_padded_nodules_have_a_frame(tmp_path):
    hu = np.zeros((6, 16, 16, 16), np.int16)
    few = orange(contact_sheet(tmp_path / "few.png", hu, np.array([0, 0.2, 0, 0, 0, 0]), WINDOW))
    more = orange(contact_sheet(tmp_path / "more.png", hu, np.array([0, 0.2, 0.2, 0, 0.2, 0]), WINDOW))
    assert few > 0
    assert more == pytest.approx(3 * few, rel=0.2)


def test_a_mask_is_outlined_where_there_is_one(tmp_path):
    hu = np.zeros((16, 16, 16), np.int16)
    mask = np.zeros((16, 16, 16), np.uint8)
    assert orange(nodule_slices(tmp_path / "a.png", hu, None, WINDOW, 20.0, "a")) == 0
    assert orange(nodule_slices(tmp_path / "b.png", hu, mask, WINDOW, 20.0, "b")) == 0
    mask[5:11, 5:11, 5:11] = 1
    assert orange(nodule_slices(tmp_path / "c.png", hu, mask, WINDOW, 20.0, "c")) > 100


@pytest.mark.parametrize("shape", [(16, 16, 16), (16, 16)], ids=str)
def test_each_volume_has_its_mixture_beside_it_in_each_plane(tmp_path, shape):
    """Volumes are of one grey, and mixtures of another: both have the same area, twice as much for two volumes."""
    areas = []
    for count in (1, 2):
        volumes, mixtures = (np.full((count, *shape), value) for value in (-300.0, 50.0))
        path = described_volumes(tmp_path / "pairs.png", volumes, mixtures, ["2.25." + "1" * 60] * count, WINDOW)
        image = matplotlib.image.imread(path)[..., 0]
        areas.append([(np.abs(image - (value + 1000) / 1400) < 0.02).sum() for value in (-300, 50)])
    assert areas[0][0] == pytest.approx(areas[0][1], rel=0.03)
    assert areas[1] == pytest.approx([2 * area for area in areas[0]], rel=0.05)
    planes = 3 if len(shape) == 3 else 1
    assert areas[0][0] / planes > 0.8 * image.shape[1] ** 2 / (2 * planes) ** 2


def test_a_signal_and_its_mixture_are_two_curves(tmp_path):
    signal = np.linspace(-1000, 400, 64)[None]
    path = described_volumes(tmp_path / "curves.png", signal, signal[:, ::-1], ["rising"], WINDOW)
    assert orange(path) > 100
