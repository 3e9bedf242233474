import numpy as np
import pytest

from gmmae.plotting.slices import (
    InsertionView,
    contact_sheet,
    described_volumes,
    draw_insertions,
    nodule_slices,
    segmentations,
)

WINDOW = (-1000.0, 400.0)


SHAPES = [(24,), (12, 24), (20, 12, 24)]


def images_of(figure):
    return [np.asarray(axes.images[0].get_array()) for axes in figure.axes]


def sections(values):
    """A signal as a strip, an image, or the central slices of a volume."""
    if values.ndim < 3:
        return [np.broadcast_to(values, (6 if values.ndim == 1 else len(values), 24))]
    return [values[10], values[:, 6], values[:, :, 12]]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_sheet_shows_every_central_slice_once(drawn, shape):
    values = np.random.default_rng(0).uniform(0, 1, (450, *shape))
    contact_sheet("unused", values, np.zeros(450), (0.0, 1.0))
    assert "400 of 450 nodules, HU 0 to 1" in drawn[0].texts[0].get_text()
    [sheet], first = images_of(drawn[0]), sections(values[0])[0]
    np.testing.assert_array_equal(sheet[1 : 1 + len(first), 1:25], first)
    assert np.isfinite(sheet.astype(float)).sum() == 400 * first.size


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_slices_have_the_proportions_of_their_volume(drawn, shape):
    values = np.random.default_rng(0).uniform(0, 1, shape)
    nodule_slices("unused", values, values > 0.5, (0.0, 1.0), 48.0, "a nodule")
    for axes, section in zip(drawn[0].axes, sections(values), strict=True):
        [picture] = axes.images
        np.testing.assert_array_equal(picture.get_array(), section)
        left, right, bottom, top = picture.get_extent()
        assert (abs(top - bottom), abs(right - left)) == tuple(np.multiply(section.shape, 2))  # voxels of 2 mm


def test_padded_nodules_have_a_frame(drawn):
    contact_sheet("unused", np.zeros((6, 16, 16, 16)), np.array([0, 0.2, 0.2, 0, 0.5, 0]), WINDOW)
    widths = {frame.get_xy(): frame.get_linewidth() for frame in drawn[0].axes[0].patches}
    assert widths[18, 0] == widths[36, 0] < widths[18, 18]  # three to a row, of 18 pixels each


def test_a_mask_is_outlined_where_it_is(drawn):
    mask = np.zeros((16, 16, 16), np.uint8)
    for last in (2, 8):
        mask[2:last, 5:11, 5:11] = 1
        nodule_slices("unused", 0.0 * mask, mask, WINDOW, 32.0, "a")
    assert not any(axes.collections for axes in drawn[0].axes)
    for axes in drawn[1].axes[1:]:
        box = axes.collections[0].get_paths()[0].get_extents()
        assert (box.y0, box.y1) == pytest.approx((-12, 0), abs=1e-6)  # z from voxel 2 to 7


@pytest.mark.parametrize(("shape", "planes"), [((16,) * 3, 3), ((16,) * 2, 1), ((16,), 1)])
def test_each_volume_has_its_mixture_beside_it_in_each_plane(drawn, shape, planes):
    volumes, mixtures = (np.full((2, *shape), value) for value in (-300.0, 50.0))
    described_volumes("unused", volumes, mixtures, ["2.25." + "1" * 60] * 2, WINDOW)
    assert [image[0, 0] for image in images_of(drawn[0])] == [-300, 50] * 2 * planes


def test_predictions_are_outlined_over_the_truth_and_not_outside_the_volume(drawn):
    masks, outside = np.zeros((2, 1, 8, 8), bool)
    masks[0, 2:4, 2:4], outside[0, :, 6:] = True, True
    predictions = {"found": masks * 1.0, "none": outside * 1.0}
    segmentations(np.zeros((1, 8, 8)), masks, outside, predictions, "unused")
    assert [axes.get_title() for axes in drawn[0].axes] == ["image", "truth", "found", "none"]
    assert [len(axes.collections) for axes in drawn[0].axes] == [0, 1, 2, 1]


def test_an_insertion_is_shown_before_and_after_in_each_plane(drawn):
    before, after = np.random.default_rng(0).uniform(-1000, 400, (2, 6, 8, 10))
    label = np.arange(480).reshape(6, 8, 10) % 7 == 0
    draw_insertions("unused", [InsertionView("a", before, after, label, (3, 4, 5), np.array([2.0, 0.5, 0.5]))])
    expected = [voxels.take(middle, axis) for axis, middle in enumerate((3, 4, 5)) for voxels in (before, after, after)]
    for found, image in zip(images_of(drawn[0]), expected, strict=True):
        np.testing.assert_array_equal(found, image)
    assert [axes.get_aspect() for axes in drawn[0].axes] == [1] * 3 + [4] * 6
    assert [len(axes.collections) for axes in drawn[0].axes] == [0, 0, 1] * 3
