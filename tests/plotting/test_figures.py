"""Files of figures, and nodules beside their mixtures. Other tests check with it that the texts of a figure fit."""

import math

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text

from gmmae.plotting import canvas, mixtures, surfaces

HALF = surfaces.HALF_WIDTH


def drawn_texts(figure):
    """Every text but the labels of ticks outside their axis' range, which matplotlib keeps and does not draw."""
    hidden = set()
    for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
        low, high = sorted(axis.get_view_interval())
        ticks = axis.get_major_ticks() + axis.get_minor_ticks()
        hidden |= {text for tick in ticks if not low <= tick.get_loc() <= high for text in (tick.label1, tick.label2)}
    return [text for text in figure.findobj(Text) if text not in hidden and text.get_visible() and text.get_text().strip()]


def assert_texts_fit(figure):
    renderer = FigureCanvasAgg(figure).get_renderer()
    figure.draw(renderer)
    texts = drawn_texts(figure)
    assert texts
    boxes = [text.get_window_extent(renderer) for text in texts]
    for i, (box, text) in enumerate(zip(boxes, texts, strict=True)):
        inside = box.x0 >= 0 and box.y0 >= 0 and box.x1 <= figure.bbox.x1 and box.y1 <= figure.bbox.y1
        assert inside, f"{text} is clipped"
        overlapped = [str(other) for other, its in zip(texts[:i], boxes[:i], strict=True) if box.overlaps(its)]
        assert not overlapped, f"{text} overlaps {overlapped}"


def test_a_figure_is_a_png_and_an_svg_and_the_same_bytes_again(tmp_path):
    content = []
    for name in ("one", "two"):
        figure = canvas.blank(2.0, "A title")
        figure.subplots().plot([1, 2], [2, 1])
        files = canvas.save_both(figure, tmp_path / name / "figure.v1")
        assert files == tuple(tmp_path / name / f"figure.v1.{ending}" for ending in ("png", "svg"))
        content.append([path.read_bytes() for path in files])
    (png, svg), again = content
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    assert b"<text" not in svg  # text is outlines
    assert [png, svg] == again


def gaussian(centre=(0.0, 0.0, 0.0), sigma=0.4, size=16):
    """A density at the voxel centres of [-1, 1]^n, array axes z, y, x, about a world point (x, y, z)."""
    line = (2 * np.arange(size) + 1) / size - 1
    grid = np.stack(np.meshgrid(*[line] * len(centre), indexing="ij")[::-1], -1)
    return np.exp(-((grid - np.array(centre)) ** 2).sum(-1) / (2 * sigma**2)).astype(np.float32)


# Surfaces


def test_a_box_is_closed_and_a_volume_under_the_level_is_blank():
    pixels, box = 128, np.ones((16, 4, 8), np.float32)
    seen = np.isfinite(surfaces.surface(box, 0.5, pixels))
    x, y, z = 1.0, 0.5, 2.0
    area = np.array([y * z, x * z, x * y]) @ np.abs(surfaces.camera()[:, 2])  # of the box's shadow along the view
    assert seen.sum() * (2 * HALF / pixels) ** 2 == pytest.approx(area, rel=0.04)
    assert len(surfaces.domain_edges(box.shape)) == 9  # three of the twelve edges meet at the nearest corner
    assert np.isnan(surfaces.surface(box, 1.5, 32)).all()


@pytest.mark.parametrize("world", [(0.6, 0, 0), (0, 0, 0.6), (-0.5, 0.3, 0.2)])
def test_points_land_where_the_camera_shows_them(world):
    right, up, _ = np.array(world) @ surfaces.camera()
    seen = np.isfinite(surfaces.surface(gaussian(world, 0.15), 0.5, 96))
    place = np.array([HALF - up, HALF + right]) * 48 / HALF - 0.5
    np.testing.assert_allclose(np.argwhere(seen).mean(0), place, atol=1.5)
    assert (right > 0.3) == (world[0] > 0)
    assert (up > 0.3) == (world[2] > 0.5)


def test_what_is_near_hides_what_is_far_and_is_brighter():
    away = surfaces.camera()[:, 2]
    near, far = gaussian(-0.6 * away, 0.15), gaussian(0.6 * away, 0.15)
    both, front, back = (surfaces.surface(volume, 0.5, 64)[30:34, 30:34] for volume in (near + far, near, far))
    np.testing.assert_allclose(both, front, rtol=0.02)
    assert 1 >= front.mean() > 1.1 * back.mean() >= 0


def test_iso_level_separates_two_classes():
    volume = np.r_[np.full(90, 1.0), np.full(30, 5.0)]
    assert surfaces.iso_level(volume) == pytest.approx(3.0, abs=0.05)  # half-way: one of 256 bins is 0.016 wide
    assert surfaces.iso_level(np.full(8, 2.0)) == 2.0


# Reconstructions


def snapshot(density, epoch=3, val_loss=4.7e-3, mean: float | list[float] = 0.0):
    """A snapshot with one component per nodule."""
    means = np.broadcast_to(np.array(mean, np.float32), (len(density), 1, density.ndim - 1))
    return epoch, val_loss, {"density": density, "weights": np.ones((len(density), 1), np.float32), "means": means}


@pytest.mark.parametrize("shape", [(4, 6, 8), (4, 8), (8,)])
def test_central_slices_images_and_strips_have_square_pixels_on_one_grey_scale(drawn, shape):
    inputs = np.random.default_rng(0).uniform(0, 1, (1, *shape)).astype(np.float32)
    mixtures.reconstructions(inputs, [snapshot(2 * inputs)], "unused")
    expected = {1: np.tile(inputs, (2, 1)), 2: inputs[0]}.get(len(shape), inputs[0, 2])
    for axes, factor in zip([axes for axes in drawn[0].axes if axes.get_xlim() == (-1, 1)], (1, 2), strict=True):
        [picture] = axes.images
        np.testing.assert_array_equal(picture.get_array(), factor * expected)
        assert axes.get_aspect() == expected.shape[0] / expected.shape[1]
        assert picture.get_clim() == (inputs.min(), inputs.max())
        assert (axes.get_ylim(), picture.get_extent()) == ((1, -1), [-1, 1, 1, -1])


def test_means_stand_in_world_order(drawn):
    """To the right is x, down is y."""
    inputs = np.full((1, 4, 4), 0.5, np.float32)
    mixtures.reconstructions(inputs, [snapshot(inputs, mean=[0.5, -0.75])], "unused")
    [_, axes] = drawn[0].axes
    [place] = (axes.transData - axes.transAxes).transform(axes.collections[0].get_offsets())
    np.testing.assert_allclose(place, [0.75, 0.875])


def test_reconstructions_share_the_level_of_the_input(drawn):
    inputs = gaussian(sigma=0.4)[None]
    mixtures.reconstructions(inputs, [snapshot(2 * inputs)], "unused")
    views = [axes.images[0].get_array() for axes in drawn[0].axes if axes.get_xlim() == (-HALF, HALF)]
    areas = [(colours[..., 3] > 0).mean() * (2 * HALF) ** 2 for colours in views]
    level = surfaces.iso_level(inputs)
    expected = [math.pi * 2 * 0.4**2 * math.log(peak / level) for peak in (1, 2)]
    np.testing.assert_allclose(areas, expected, rtol=0.02)  # 256 pixels: a rim of 1 pixel is 4 %


@pytest.mark.parametrize("ndim", [1, 2, 3])
def test_a_density_that_is_not_finite_is_told(drawn, ndim):
    inputs = gaussian((0.0,) * ndim, size=8)[None]
    mixtures.reconstructions(inputs, [snapshot(inputs), snapshot(np.nan * inputs, mean=np.nan)], "unused")
    texts = [text.get_text() for axes in drawn[0].axes for text in axes.texts]
    assert texts.count("NaN") == (2 if ndim == 3 else 1)  # with its inset


@pytest.mark.parametrize("ndim", [1, 2, 3])
@pytest.mark.parametrize("columns", [1, 7])
def test_texts_stay_inside_and_apart(drawn, ndim, columns):
    inputs = np.stack([gaussian((0.0,) * ndim, size=4)] * 2)
    title = "A title that a figure with one column cannot hold on a single line"
    mixtures.reconstructions(inputs, [snapshot(inputs, 65536, 1.4e-4)] * columns, "unused", title=title)
    assert_texts_fit(drawn[0])
    assert {"epoch = 65536", r"loss = $1.4\times10^{-4}$"} <= {text.get_text() for text in drawn[0].texts}
