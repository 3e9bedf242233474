"""Pictures of the data: nodules, their slices, predicted masks, and scans before and after insertions."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Real, Shaped
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import Rectangle

from gmmae.plotting import canvas
from gmmae.plotting.canvas import ORANGE, SKY

Volumes = Real[np.ndarray, "samples *volume"]
TITLES = {4: "Central axial slices of ", 3: "Images of ", 2: "Signals of "}
MAX_SHOWN = 400
"""Most nodules on a sheet."""
PLANES = ("axial", "coronal", "sagittal")
"""Slices across z, y and x."""
WINDOW_HU = (-1000.0, 400.0)
INCHES = 1.55
"""Edge of a slice in pictures of insertions."""


def contact_sheet(
    path: str | Path,
    values: Volumes,
    filled: Float[np.ndarray, " samples"],
    window: tuple[float, float],
    unit: str = "HU",
) -> Path:
    """Draws the nodules row by row: central axial slices, images, or signals as strips.

    Of more than `MAX_SHOWN`, evenly spaced ones are shown. An orange frame grows with `filled`, the share outside the scan.
    """
    shown = np.linspace(0, len(values) - 1, min(MAX_SHOWN, len(values))).round().astype(int)
    images = [next(iter(_sections(volume).values())) for volume in values[shown]]
    height, width = images[0].shape
    columns = math.ceil(math.sqrt(1.4 * len(shown) * height / width))
    rows = math.ceil(len(shown) / columns)
    sheet = np.full((rows * (height + 2), columns * (width + 2)), np.nan)
    high = 0.42 * rows * height / width * max(1, 4.5 / (0.42 * columns))
    head = 0.4 + 0.14 * filled.any()  # inches above the sheet, for one line or two
    figure = Figure(figsize=(max(0.42 * columns, 4.5), high + head))
    axes = figure.add_axes((0.01, 0.01, 0.98, 1 - head / figure.get_figheight()))
    for i, (image, share) in enumerate(zip(images, filled[shown], strict=True)):
        top, left = i // columns * (height + 2) + 1, i % columns * (width + 2) + 1
        sheet[top : top + height, left : left + width] = image
        if share > 0:
            corner, thick = (left - 1, top - 1), 0.4 + 2 * share
            axes.add_patch(Rectangle(corner, width + 1, height + 1, fill=False, color=ORANGE, linewidth=thick))
    _show(axes, sheet, window).set_interpolation("nearest")
    axes.set_axis_off()
    count = f"{len(shown)} of {len(values)}" if len(shown) < len(values) else len(values)
    title = f"{TITLES[values.ndim]}{count} nodules, {unit or 'values'} {window[0]:g} to {window[1]:g}"
    if filled.any():
        title += "\norange: partly outside the scan"
    figure.text(0.01, 1 - (head - 0.1) / figure.get_figheight(), title, fontsize=8)
    return canvas.save(figure, path)


def nodule_slices(
    path: str | Path,
    values: Real[np.ndarray, "*volume"],
    mask: Shaped[np.ndarray, "*volume"] | None,
    window: tuple[float, float],
    edge_mm: float,
    title: str,
) -> Path:
    """Draws the three central slices of a nodule, its image, or its signal as a strip, in mm from its centre.

    It is the radiological view from the feet: y runs down in an axial slice, z runs up in the others.
    """
    figure = Figure(figsize=(7.2, 2.9))
    masks = {} if mask is None else _sections(mask)
    for place, (plane, image) in enumerate(_sections(values).items()):
        axes = figure.add_axes((0.075 + 0.325 * place, 0.15, 0.24, 0.6))
        height, width = (n * edge_mm / max(values.shape) / 2 for n in image.shape)
        extent = (-width, width, -height, height) if place else (-width, width, height, -height)
        _show(axes, image, window, {ORANGE: masks[plane]} if masks else {}, axial=not place, extent=extent)
        up, right = "zyx".replace("zyx"[place], "") if values.ndim == 3 else "yx"
        axes.set_xlabel(f"{right} / mm", fontsize=7, labelpad=1)
        axes.set_ylabel(f"{up} / mm", fontsize=7, labelpad=0)
        axes.tick_params(labelsize=6)
        axes.set_title(plane, fontsize=8)
        if values.ndim == 1:
            axes.yaxis.set_visible(False)
    figure.text(0.01, 0.93, title, fontsize=9)
    return canvas.save(figure, path)


def described_volumes(
    path: str | Path,
    volumes: Volumes,
    reconstructions: Volumes,
    names: Sequence[str],
    window: tuple[float, float],
) -> Path:
    """Rows of a volume's central slices, each beside the one of its mixture. Signals are strips."""
    columns = 2 * len(_sections(volumes[0]))
    cell, below, above = 1.04, 0.2, 0.16  # inches
    height = len(volumes) * (cell + below + above)
    figure = Figure(figsize=(1.1 * columns, height))
    figure.subplots_adjust(
        left=0.01,
        right=0.99,
        bottom=below / height,
        top=1 - above / height,
        wspace=0.06,
        hspace=(below + above) / cell,
    )
    grid = figure.subplots(len(volumes), columns, squeeze=False, subplot_kw={"xticks": [], "yticks": []})
    for row, name, pair in zip(grid, names, zip(volumes, reconstructions, strict=True), strict=True):
        row[0].set_title(name, fontsize=6, loc="left", pad=3)
        for place, axes in enumerate(row):
            plane, image = list(_sections(pair[place % 2]).items())[place // 2]
            _show(axes, image, window, axial=place < 2)
            axes.set_xlabel("mixture" if place % 2 else plane, fontsize=6, labelpad=2)
    return canvas.save(figure, path)


def segmentations(
    images: Float[np.ndarray, "samples y x"],
    masks: Bool[np.ndarray, "samples y x"],
    outside: Bool[np.ndarray, "samples y x"],
    predictions: Mapping[str, Float[np.ndarray, "samples y x"]],
    path: str | Path,
    title: str = "",
    labels: Sequence[str] = (),
) -> Path:
    """Draws rows of the image (-1 to 1), the true mask (orange), and predictions (blue) with the true outline.

    `predictions` are probabilities by the heading of their column.
    """
    headings = ["image", "truth", *predictions]
    rows, columns = len(images), len(headings)
    figure = Figure(figsize=(1.15 * columns + 0.1, 1.15 * rows + 0.65), layout="constrained")
    if title:
        figure.suptitle(title, fontsize=8)
    grid = figure.subplots(rows, columns, squeeze=False, subplot_kw={"xticks": [], "yticks": []})
    for axes, heading in zip(grid[0], headings, strict=True):
        axes.set_title(heading, fontsize=7)
    for axes, label in zip(grid[:, 0], labels, strict=False):
        axes.set_ylabel(label, fontsize=7)
    for row, image in enumerate(np.where(outside, -1, images)):
        found = [(probabilities[row] > 0.5) & ~outside[row] for probabilities in predictions.values()]
        outlines = [{}, {ORANGE: masks[row]}, *({ORANGE: masks[row], SKY: mask} for mask in found)]
        for axes, shown in zip(grid[row], outlines, strict=True):
            _show(axes, image, (-1.0, 1.0), shown)
    return canvas.save(figure, path)


class InsertionView(NamedTuple):
    """A nodule's surroundings before and after, its voxels, its centre's index, and the spacing (z, y, x)."""

    title: str
    before: Real[np.ndarray, "z y x"]
    after: Real[np.ndarray, "z y x"]
    label: Bool[np.ndarray, "z y x"]
    centre: tuple[int, int, int]
    spacing_mm: Float[np.ndarray, "3"]


def draw_insertions(path: str | Path, views: Sequence[InsertionView]) -> Path:
    """Rows of axial, coronal and sagittal slices, each before and after, and with the nodule's outline."""
    figure = Figure(figsize=(9 * INCHES + 0.1, len(views) * (INCHES + 0.22) + 0.25))
    top = 1 - 0.4 / figure.get_figheight()
    figure.subplots_adjust(left=0.005, right=0.995, bottom=0.005, top=top, wspace=0.03, hspace=0.16)
    grid = figure.subplots(len(views), 9, squeeze=False)
    for row, view in zip(grid, views, strict=True):
        row[0].set_title(view.title, fontsize=7, loc="left", pad=3)
        for place, axes in enumerate(row):
            axis, column = divmod(place, 3)
            voxels = view.after if column else view.before
            image, label = (array.take(view.centre[axis], axis) for array in (voxels, view.label))
            up, right = np.delete(view.spacing_mm, axis)
            picture = _show(axes, image, WINDOW_HU, {ORANGE: label} if column == 2 else {}, axial=axis == 0)
            picture.set_interpolation("bilinear")
            axes.set_aspect(up / right)
            axes.set_axis_off()
    for axis, plane in enumerate(PLANES):
        caption = f"{plane}: before, after, outline"
        figure.text((axis + 0.03) / 3, 1 - 0.16 / figure.get_figheight(), caption, fontsize=8)
    return canvas.save(figure, path)


def _sections(values: Shaped[np.ndarray, "*volume"]) -> dict[str, Shaped[np.ndarray, "up right"]]:
    if values.ndim == 3:
        return {plane: values.take(values.shape[axis] // 2, axis) for axis, plane in enumerate(PLANES)}
    return {"image": values} if values.ndim == 2 else {"signal": np.tile(values, (math.ceil(len(values) / 4), 1))}


def _show(
    axes: Axes,
    image: Real[np.ndarray, "up right"],
    window: tuple[float, float],
    outlines: Mapping[str, Shaped[np.ndarray, "up right"]] = {},
    axial: bool = True,
    extent: tuple[float, float, float, float] | None = None,
) -> AxesImage:
    """The first row of an axial image is on top."""
    origin = "upper" if axial else "lower"
    for colour, mask in outlines.items():
        if mask.any() and not mask.all():
            axes.contour(mask, [0.5], colors=colour, linewidths=0.9, origin=origin if extent else None, extent=extent)
    return axes.imshow(image, cmap="gray", vmin=window[0], vmax=window[1], origin=origin, extent=extent)
