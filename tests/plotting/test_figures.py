import math

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.image import imread
from matplotlib.text import Text

from gmmae.plotting import canvas, loss_curves, mixtures, surfaces
from gmmae.plotting.canvas import DPI
from gmmae.plotting.mixtures import CELL, FOOTING, GAP, INSET, MARGIN, OVERLAP, Snapshot

HALF = surfaces.HALF_WIDTH


def grid(size, ndim=3):
    """World coordinates (x, y, z order, last axis) of the voxel centres; array axes z, y, x."""
    line = (2 * np.arange(size) + 1) / size - 1
    return np.stack(np.meshgrid(*[line] * ndim, indexing="ij")[::-1], -1)


def gaussian(centre=(0.0, 0.0, 0.0), sigma=0.4, size=16):
    squares = ((grid(size, len(centre)) - np.array(centre)) ** 2).sum(-1)
    return np.exp(-squares / (2 * sigma**2)).astype(np.float32)


def snapshot(density, epoch=3, val_loss=4.7e-3, mean=None):
    """A snapshot with one component per nodule."""
    nodules, ndim = len(density), density.ndim - 1
    means = np.zeros((nodules, 1, ndim), np.float32) if mean is None else np.full((nodules, 1, ndim), mean, np.float32)
    covariances = np.tile(np.eye(ndim, dtype=np.float32) * 0.1, (nodules, 1, 1, 1))
    return Snapshot(epoch, val_loss, density, np.ones((nodules, 1), np.float32), means, covariances)


def on_screen(world, pixels):
    """Row and column of a point (x, y, z) in a picture from `rendering.surface`."""
    right, up, _ = np.array(world) @ surfaces.camera()
    return round((HALF - up) / (2 * HALF) * pixels - 0.5), round((right + HALF) / (2 * HALF) * pixels - 0.5)


def pixels_of(picture, left, bottom, width, height):
    """Cut a rectangle, given in inches from the lower left, out of a picture."""
    inch = np.array([left, bottom, left + width, bottom + height]) * DPI
    x0, y0, x1, y1 = np.round(inch).astype(int)
    return picture[len(picture) - y1 : len(picture) - y0, x0:x1, :3]


def has_colour(picture, colour):
    return bool((np.abs(picture[..., :3] - to_rgb(colour)).max(-1) < 0.03).any())


# Rendering


def test_camera_is_a_right_handed_frame():
    camera = surfaces.camera()
    np.testing.assert_allclose(camera.T @ camera, np.eye(3), atol=1e-12)
    right, up, away = camera.T
    np.testing.assert_allclose(np.cross(right, up), -away, atol=1e-12)  # what is right and up comes towards the viewer


def test_ball_has_the_area_of_its_level_set_and_is_symmetric():
    sigma, level, pixels = 0.4, 0.5, 128
    seen = np.isfinite(surfaces.surface(gaussian(sigma=sigma), level, pixels))
    radius = sigma * math.sqrt(2 * math.log(1 / level))
    area = seen.sum() * (2 * HALF / pixels) ** 2
    assert area == pytest.approx(math.pi * radius**2, rel=0.03)  # 128 pixels: a rim of 1 pixel is 10 %
    mirrored = [seen[::-1], seen[:, ::-1], seen.T]
    assert max(np.mean(seen != other) for other in mirrored) < 0.003


@pytest.mark.parametrize("shape", [(8, 8, 8), (8, 8, 4), (8, 4, 8), (16, 4, 8)], ids=str)
def test_a_full_box_is_closed_and_has_the_proportions_of_its_voxels(shape):
    pixels = 128
    seen = np.isfinite(surfaces.surface(np.ones(shape, np.float32), 0.5, pixels))
    x, y, z = 2 * np.array(shape[::-1]) / max(shape)
    area = np.array([y * z, x * z, x * y]) @ np.abs(surfaces.camera()[:, 2])  # of the box's shadow along the view
    assert seen.sum() * (2 * HALF / pixels) ** 2 == pytest.approx(area, rel=0.04)  # a rim of 1 pixel is 5 % of the smaller ones
    rows, columns = np.argwhere(seen).T
    (left, up), (right, down) = np.array([columns.min(), rows.min()]), np.array([columns.max(), rows.max()]) + 1
    drawn = np.array([left - pixels / 2, pixels / 2 - down, right - pixels / 2, pixels / 2 - up]) * 2 * HALF / pixels
    corners = surfaces.domain_edges(shape).reshape(-1, 2)
    np.testing.assert_allclose(drawn, [*corners.min(0), *corners.max(0)], atol=1.5 * 2 * HALF / pixels)


@pytest.mark.parametrize("volume", [np.zeros((8, 8, 8), np.float32), 0.9 * gaussian(size=8)])
def test_volume_under_the_level_is_blank(volume):
    assert np.isnan(surfaces.surface(volume, 1.0, 32)).all()


@pytest.mark.parametrize("world", [(0.6, 0, 0), (0, 0.6, 0), (0, 0, 0.6), (-0.5, 0.3, 0.2)])
def test_world_axes_land_where_the_camera_shows_them(world):
    pixels = 96
    seen = np.isfinite(surfaces.surface(gaussian(world, 0.15), 0.5, pixels))
    np.testing.assert_allclose(np.argwhere(seen).mean(0), on_screen(world, pixels), atol=1.5)


def test_x_points_right_and_z_up():
    rows, columns = zip(*(on_screen(world, 100) for world in [(0, 0, 0), (0.6, 0, 0), (0, 0, 0.6)]), strict=True)
    assert columns[1] > columns[0] + 10
    assert rows[2] < rows[0] - 10


def test_what_is_near_hides_what_is_far_and_is_brighter():
    away = surfaces.camera()[:, 2]
    near, far = gaussian(-0.6 * away, 0.15), gaussian(0.6 * away, 0.15)
    both, front, back = (surfaces.surface(volume, 0.5, 64) for volume in (near + far, near, far))
    centre = (slice(30, 34), slice(30, 34))
    np.testing.assert_allclose(both[centre], front[centre], rtol=0.02)
    assert front[centre].mean() > 1.1 * back[centre].mean()


def test_brightness_is_a_fraction_and_lit_from_the_upper_left():
    brightness = surfaces.surface(gaussian(sigma=0.5), 0.5, 64)
    assert 0 <= np.nanmin(brightness) < np.nanmax(brightness) <= 1
    rows, columns = np.indices(brightness.shape)
    assert np.nanmean(brightness[rows + columns < 50]) > 1.5 * np.nanmean(brightness[rows + columns > 76])


def test_iso_level_separates_two_classes():
    volume = np.r_[np.full(90, 1.0), np.full(30, 5.0)]
    assert surfaces.iso_level(volume) == pytest.approx(3.0, abs=0.05)  # half-way: one of 256 bins is 0.016 wide
    assert surfaces.iso_level(np.full(8, 2.0)) == 2.0


def test_domain_edges_leave_out_the_nearest_corner():
    edges = surfaces.domain_edges((8, 8, 8))
    assert edges.shape == (9, 2, 2)
    corner = -np.sign(surfaces.camera()[:, 2]) @ surfaces.camera()[:, :2]
    assert np.abs(edges - corner).max(-1).min() > 0.1


# Reconstructions


def test_volumes_with_different_edges_can_be_drawn(drawn):
    inputs = np.random.default_rng(0).uniform(0, 1, (1, 4, 6, 8)).astype(np.float32)
    mixtures.reconstructions(inputs, [snapshot(inputs)], "unused")
    images = [axes.images[0] for axes in drawn[0].axes if axes.images and axes.get_xlim() == (-1, 1)]
    assert [(image.get_array().shape, image.axes.get_aspect()) for image in images] == [((6, 8), 0.75)] * 2


@pytest.mark.parametrize("ndim", [1, 2, 3])
def test_reconstructions_writes_a_png(tmp_path, ndim):
    inputs = np.stack([gaussian((0.0,) * ndim, 0.3, 8), gaussian((0.3,) * ndim, 0.3, 8)])
    path = mixtures.reconstructions(inputs, [snapshot(inputs)], tmp_path / "new" / "figure.png", title="A title")
    assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    height, width, _ = imread(path).shape
    assert width == pytest.approx(DPI * (2 * CELL + 2 * GAP + 2 * MARGIN), abs=1)
    assert DPI * (2 * CELL + FOOTING) < height < DPI * (2 * CELL + FOOTING + 2)
    assert [file.name for file in path.parent.iterdir()] == ["figure.png"]


def test_images_with_different_edges_have_square_pixels(tmp_path):
    inputs, density = np.random.default_rng(0).uniform(0, 1, (2, 1, 4, 8)).astype(np.float32)
    picture = imread(mixtures.reconstructions(inputs, [snapshot(density, mean=5.0)], tmp_path / "figure.png"))
    columns = ((np.arange(8) + 0.5) / 8 * CELL * DPI).astype(int)
    rows = ((np.arange(4) + 2.5) / 8 * CELL * DPI).astype(int)  # the middle half of the cell
    for image, left in ((inputs[0], MARGIN), (density[0], MARGIN + CELL + 2 * GAP)):
        cell = pixels_of(picture, left, FOOTING, CELL, CELL)[np.ix_(rows, columns)][..., 0]
        grey = np.clip((image - inputs.min()) / np.ptp(inputs), 0, 1)
        np.testing.assert_allclose(cell, grey, atol=2 / 255)  # rounded twice, to the map's 256 greys and to the file's


def test_insets_are_the_central_slices_on_one_grey_scale(tmp_path):
    rng = np.random.default_rng(0)
    inputs, density = rng.uniform(0, 1, (2, 1, 4, 4, 4)).astype(np.float32)
    picture = imread(mixtures.reconstructions(inputs, [snapshot(density)], tmp_path / "figure.png"))
    left = MARGIN + CELL + 2 * GAP
    centres = ((np.arange(4) + 0.5) / 4 * INSET * DPI).astype(int)
    for volume, offset in ((inputs[0], 0), (density[0], CELL - INSET)):
        inset = pixels_of(picture, left + offset, FOOTING, INSET, INSET)[np.ix_(centres, centres)][..., 0]
        grey = np.clip((volume[2] - inputs.min()) / np.ptp(inputs), 0, 1)
        np.testing.assert_allclose(inset, grey, atol=2 / 255)  # rounded twice, to the map's 256 greys and to the file's


def test_reconstructions_share_the_level_of_the_input(drawn):
    inputs = gaussian(sigma=0.4)[None]
    mixtures.reconstructions(inputs, [snapshot(2 * inputs)], "unused")
    views = [axes.images[0].get_array() for axes in drawn[0].axes if axes.get_xlim() == (-HALF, HALF)]
    areas = [(colours[..., 3] > 0).mean() * (2 * HALF) ** 2 for colours in views]
    level = surfaces.iso_level(inputs)
    expected = [math.pi * 2 * 0.4**2 * math.log(peak / level) for peak in (1, 2)]
    np.testing.assert_allclose(areas, expected, rtol=0.02)  # 256 pixels: a rim of 1 pixel is 4 %


@pytest.mark.parametrize(("factor", "says_nan"), [(np.nan, True), (0.01, False)])
def test_a_density_without_a_surface_gives_an_empty_cell(tmp_path, factor, says_nan):
    inputs = gaussian(size=8)[None]
    picture = imread(mixtures.reconstructions(inputs, [snapshot(factor * inputs)], tmp_path / "figure.png"))
    cell = pixels_of(picture, MARGIN + CELL + 2 * GAP, FOOTING + INSET, CELL, CELL - OVERLAP)
    assert has_colour(cell, canvas.VERMILION) == says_nan
    if not says_nan:
        assert cell.min() > 0.75


@pytest.mark.parametrize("ndim", [1, 2])
def test_nan_is_said_for_fewer_axes_too(drawn, ndim):
    inputs = gaussian((0.0,) * ndim, size=8)[None]
    mixtures.reconstructions(inputs, [snapshot(inputs), snapshot(np.nan * inputs, mean=np.nan)], "unused")
    assert [text.get_text() for axes in drawn[0].axes for text in axes.texts].count("NaN") == 1


def test_two_axes_show_the_image_and_the_means_in_world_order(tmp_path):
    inputs = np.random.default_rng(1).uniform(0, 1, (1, 4, 4)).astype(np.float32)
    estimate = snapshot(inputs[:, ::-1].copy(), mean=np.array([0.5, -0.75]))  # x to the right, y down: upper right
    picture = imread(mixtures.reconstructions(inputs, [estimate], tmp_path / "figure.png"))
    cells = [pixels_of(picture, left, FOOTING, CELL, CELL) for left in (MARGIN, MARGIN + CELL + 2 * GAP)]
    centres = ((np.arange(4) + 0.5) / 4 * CELL * DPI).astype(int)
    for cell, image, rows in ((cells[0], inputs[0], slice(None)), (cells[1], inputs[0, ::-1], slice(1, None))):
        grey = (image - inputs.min()) / np.ptp(inputs)
        np.testing.assert_allclose(cell[np.ix_(centres, centres)][rows, :, 0], grey[rows], atol=2 / 255)
    rows, columns = np.nonzero(np.ptp(cells[1], -1) > 0.3)
    side = CELL * DPI
    np.testing.assert_allclose([columns.mean() / side, rows.mean() / side], [0.75, 0.125], atol=0.01)


def test_one_axis_shows_density_and_components(drawn):
    inputs = gaussian((0.0,), size=8)[None]
    mixtures.reconstructions(inputs, [snapshot(0.5 * inputs, mean=0.25)], "unused")
    component, density = drawn[0].axes[1].lines
    np.testing.assert_allclose(density.get_ydata(), 0.5 * inputs[0])
    np.testing.assert_allclose(density.get_xdata(), grid(8, 1)[:, 0])
    assert component.get_xdata()[np.argmax(component.get_ydata())] == pytest.approx(0.25, abs=0.01)
    assert np.sum(component.get_ydata()) * 2 / 400 == pytest.approx(0.98, abs=0.02)  # of its mass, inside the domain


@pytest.mark.parametrize("ndim", [1, 2, 3])
@pytest.mark.parametrize(("nodules", "columns"), [(1, 1), (2, 7)])
def test_texts_stay_inside_and_apart(drawn, monkeypatch, ndim, nodules, columns):
    monkeypatch.setattr(surfaces, "surface", lambda volume, level: np.full((2, 2), np.nan, np.float32))
    inputs = np.stack([gaussian((0.0,) * ndim, size=4)] * nodules)
    title = "A title that a figure with one column cannot hold on a single line"
    mixtures.reconstructions(inputs, [snapshot(inputs, 65536, 1.4e-4)] * columns, "unused", title=title)
    assert_texts_fit(drawn[0])


def drawn_texts(figure):
    """Every text but the labels of ticks outside their axis' range, which matplotlib keeps and does not draw."""
    hidden = set()
    for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
        low, high = sorted(axis.get_view_interval())
        ticks = axis.get_major_ticks() + axis.get_minor_ticks()
        hidden |= {text for tick in ticks if not low <= tick.get_loc() <= high for text in (tick.label1, tick.label2)}
    texts = figure.findobj(Text)
    return [text for text in texts if text not in hidden and text.get_visible() and text.get_text().strip()]


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


def test_headings_are_the_papers(drawn):
    inputs = gaussian((0.0,), size=4)[None]
    mixtures.reconstructions(inputs, [snapshot(inputs, 32, 4.7e-3), snapshot(inputs, 64, math.nan)], "unused")
    texts = [text.get_text() for text in drawn[0].texts]
    assert {"epoch = 32", r"loss = $4.7\times10^{-3}$", "epoch = 64", "loss = NaN"} <= set(texts)


# Losses


def run_of(epochs, floor=1e-3):
    epoch = np.arange(1, epochs + 1)
    loss = floor + 1e-2 / epoch
    return epoch, loss, 1.2 * loss, np.full(epochs, 1e-3)


def labels(figure):
    legend = figure.axes[0].get_legend()
    return [text.get_text() for text in legend.get_texts()]


@pytest.mark.parametrize("epochs", [1, 400])
def test_losses_writes_a_png(tmp_path, epochs):
    path = loss_curves.losses(*run_of(epochs), tmp_path / "losses.png", target=2e-3, title="A run")
    assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    picture = imread(path)
    assert picture.shape[:2] == (570, 960)
    assert has_colour(picture, canvas.BLUE)
    assert has_colour(picture, canvas.VERMILION)
    assert [file.name for file in tmp_path.iterdir()] == ["losses.png"]


def test_the_target_and_its_epoch_are_marked(drawn):
    epoch, train, val, rate = run_of(20)
    loss_curves.losses(epoch, train, val, rate, "unused", target=val[6])  # at the target counts as reached
    assert "reached at epoch 7" in labels(drawn[0])
    assert "target 0.00291" in labels(drawn[0])  # 1.2 (0.001 + 0.01 / 7)
    assert drawn[0].axes[0].get_yscale() == "log"
    (mark,) = [line for line in drawn[0].axes[0].lines if line.get_label().startswith("reached")]
    np.testing.assert_allclose([mark.get_xdata()[0], mark.get_ydata()[0]], [7, val[6]])
    loss_curves.losses(epoch, train, val, rate, "unused", target=1e-4)
    assert not any("reached" in label for label in labels(drawn[1]))


@pytest.mark.parametrize("last", [8, 0])
def test_the_epoch_where_the_loss_stops_being_finite_is_marked(drawn, last):
    epoch, train, val, rate = run_of(20)
    train[last:], val[last + 1 :] = np.inf, np.nan
    loss_curves.losses(epoch, train, val, rate, "unused")
    assert f"not finite from epoch {last + 1}" in labels(drawn[0])
    assert_texts_fit(drawn[0])


def test_a_loss_of_zero_gets_a_linear_axis(drawn):
    epoch, train, val, rate = run_of(3)
    loss_curves.losses(epoch, train * 0, val, rate, "unused")
    assert drawn[0].axes[0].get_yscale() == "linear"


def test_the_learning_rate_has_a_panel_only_if_it_varies(drawn):
    epoch, train, val, rate = run_of(10)
    loss_curves.losses(epoch, train, val, rate, "unused")
    loss_curves.losses(epoch, train, val, rate * np.minimum(epoch / 5, 1), "unused", target=2e-3, title="A run")
    assert [len(figure.axes) for figure in drawn] == [1, 2]
    np.testing.assert_allclose(drawn[1].axes[1].lines[0].get_ydata()[[0, 4, 9]], [2e-4, 1e-3, 1e-3])
    assert_texts_fit(drawn[1])


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = loss_curves.losses(*run_of(2), tmp_path / "losses.png")
    before = path.read_bytes()

    def fail(source, target):
        raise OSError("disk full")

    monkeypatch.setattr(canvas.os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        loss_curves.losses(*run_of(9), path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["losses.png"]
