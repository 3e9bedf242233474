"""Pictures of the data: a sheet of nodules, slices of one, predicted masks, and scans before and after insertions."""

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Real, Shaped
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from gmmae.plotting import canvas
from gmmae.plotting.canvas import BLUE, ORANGE, SKY

TITLES = {4: "Central axial slices of ", 3: "Images of ", 2: "Signals of "}
MAX_SHOWN = 400
"""Maximum number of nodules on a sheet."""
PLANES = ("axial", "coronal", "sagittal")
"""Names of the slices across z, y and x."""
WINDOW_HU = (-1000.0, 400.0)
"""Window of pictures of insertions."""
INCHES = 1.55
"""Edge of a slice in pictures of insertions."""


def contact_sheet(
    path: str | os.PathLike[str],
    values: Real[np.ndarray, "samples *volume"],
    filled: Float[np.ndarray, " samples"],
    window: tuple[float, float],
    unit: str = "HU",
) -> Path:
    """Draws the nodules row by row: central axial slices, images or signals.

    Args:
      path: path of the PNG, which is complete or absent.
      values: volumes, images or signals. If there are more than `MAX_SHOWN`, evenly spaced ones are shown.
      filled: share of each nodule outside its scan. Such cells have an orange frame, whose width grows with the share.
      window: values shown black and white, or for signals the limits of a cell.
      unit: unit of the values; empty if it is unknown.
    """
    shown = np.unique(np.linspace(0, len(values) - 1, min(MAX_SHOWN, len(values))).round().astype(int))
    images = values[:, values.shape[1] // 2] if values.ndim == 4 else values
    height, width = images.shape[-2:] if images.ndim == 3 else images.shape[-1:] * 2
    columns = math.ceil(math.sqrt(1.4 * len(shown) * height / width))
    rows = math.ceil(len(shown) / columns)
    sheet = np.full((rows * (height + 2), columns * (width + 2)), np.nan)
    high = 0.42 * rows * height / width * max(1, 4.5 / (0.42 * columns))
    figure = Figure(figsize=(max(0.42 * columns, 4.5), high + 0.4))
    axes = figure.add_axes((0.01, 0.01, 0.98, 1 - 0.4 / figure.get_figheight()))
    for i, sample in enumerate(shown):
        top, left = i // columns * (height + 2) + 1, i % columns * (width + 2) + 1
        if images.ndim == 3:
            sheet[top : top + height, left : left + width] = images[sample]
        else:
            share = np.clip((images[sample].astype(float) - window[0]) / (window[1] - window[0]), 0, 1)
            axes.plot(left + np.arange(width), top + (height - 1) * (1 - share), color=BLUE, linewidth=0.6)
        if filled[sample] > 0:
            thickness = 0.4 + 2 * float(filled[sample])
            axes.add_patch(Rectangle((left - 1, top - 1), width + 1, height + 1, fill=False, color=ORANGE, linewidth=thickness))
    axes.imshow(sheet, cmap="gray", vmin=window[0], vmax=window[1], interpolation="nearest")
    axes.set_axis_off()
    count = f"{len(shown)} of {len(values)} nodules" if len(shown) < len(values) else f"{len(values)} nodules"
    title = f"{TITLES[values.ndim]}{count}, {unit or 'values'} {window[0]:g} to {window[1]:g}"
    if filled.any():
        title += "; orange: partly outside the scan"
    figure.text(0.01, 1 - 0.3 / figure.get_figheight(), title, fontsize=8)
    return canvas.save(figure, path)


def nodule_slices(
    path: str | os.PathLike[str],
    values: Real[np.ndarray, "*volume"],
    mask: Shaped[np.ndarray, "*volume"] | None,
    window: tuple[float, float],
    edge_mm: float,
    title: str,
) -> Path:
    """Draws the three central slices of a nodule, or its image or signal, in mm from its centre. A mask is orange.

    Args:
      path: path of the PNG.
      values: the volume, image or signal.
      mask: mask of the nodule, or None.
      window: values shown black and white, or for a signal the range of its vertical axis.
      edge_mm: longest edge of the volume.
      title: title of the picture.
    """
    figure = Figure(figsize=(7.2, 2.9))
    voxel_mm = edge_mm / max(values.shape)
    if values.ndim == 1:
        _signal(figure.add_axes((0.075, 0.15, 0.89, 0.6)), values, mask, window, voxel_mm)
    elif values.ndim == 2:
        _slice(figure.add_axes((0.075, 0.15, 0.24, 0.6)), values, mask, window, voxel_mm, "yx")
    else:
        for axis, plane in enumerate(PLANES):
            axes = figure.add_axes((0.075 + 0.325 * axis, 0.15, 0.24, 0.6))
            middle = values.shape[axis] // 2
            section = None if mask is None else mask.take(middle, axis)
            _slice(axes, values.take(middle, axis), section, window, voxel_mm, "zyx".replace("zyx"[axis], ""))
            axes.set_title(plane, fontsize=8)
    figure.text(0.01, 0.93, title, fontsize=9)
    return canvas.save(figure, path)


def _slice(
    axes: Axes,
    image: Real[np.ndarray, "up right"],
    mask: Shaped[np.ndarray, "up right"] | None,
    window: tuple[float, float],
    voxel_mm: float,
    names: str,
) -> None:
    """Draws a slice in the radiological view from the feet: y runs down in an axial slice, z runs up in the others."""
    down = names[0] == "y"
    height, width = (n * voxel_mm / 2 for n in image.shape)
    extent = (-width, width, height, -height) if down else (-width, width, -height, height)
    origin = "upper" if down else "lower"
    axes.imshow(image, cmap="gray", vmin=window[0], vmax=window[1], extent=extent, origin=origin)
    if mask is not None and mask.any():
        up, right = (_centres(n, voxel_mm) for n in image.shape)
        axes.contour(right, up, mask, [0.5], colors=ORANGE, linewidths=1)
    axes.set_xlabel(f"{names[1]} / mm", fontsize=7, labelpad=1)
    axes.set_ylabel(f"{names[0]} / mm", fontsize=7, labelpad=0)
    axes.tick_params(labelsize=6)


def _signal(
    axes: Axes,
    values: Real[np.ndarray, " n"],
    mask: Shaped[np.ndarray, " n"] | None,
    window: tuple[float, float],
    voxel_mm: float,
) -> None:
    along = _centres(len(values), voxel_mm)
    axes.plot(along, values, color=BLUE, linewidth=1)
    axes.set_ylim(*window)
    if mask is not None and mask.any():
        axes.fill_between(along, *window, where=mask > 0, step="mid", color=ORANGE, linewidth=0)
    axes.set_xlabel("x / mm", fontsize=7, labelpad=1)
    axes.tick_params(labelsize=6)


def described_volumes(
    path: str | os.PathLike[str],
    volumes: Real[np.ndarray, "samples *volume"],
    reconstructions: Real[np.ndarray, "samples *volume"],
    names: Sequence[str],
    window: tuple[float, float],
) -> Path:
    """Draws a row for each volume: its central slices, and beside each the one of its mixture. Signals are curves.

    Args:
      path: path of the picture.
      volumes: volumes, images or signals.
      reconstructions: their mixtures at the same voxels.
      names: titles of the rows.
      window: values shown black and white, or for signals the limits of an axis.
    """
    ndim, low, high = volumes.ndim - 1, *window
    planes = {3: PLANES, 2: ("image",), 1: ("signal",)}[ndim]
    columns = len(planes) * (1 if ndim == 1 else 2)
    width, cell, below, above = 4.0 if ndim == 1 else 1.1 * columns, 1.04, 0.2, 0.16  # inches
    height = len(volumes) * (cell + below + above)
    figure = Figure(figsize=(width, height))
    edges = {"left": 0.12 if ndim == 1 else 0.01, "right": 0.99}
    inner = {"bottom": below / height, "top": 1 - above / height, "wspace": 0.06, "hspace": (below + above) / cell}
    grid = figure.subplots(len(volumes), columns, squeeze=False, gridspec_kw=edges | inner)
    for row, name, volume, reconstruction in zip(grid, names, volumes, reconstructions, strict=True):
        row[0].set_title(name, fontsize=6, loc="left", pad=3)
        for axis, plane in enumerate(planes):
            if ndim == 1:
                row[0].plot(volume, color=BLUE, linewidth=1, label="signal")
                row[0].plot(reconstruction, color=ORANGE, linewidth=1, label="mixture")
                row[0].set_ylim(low, high)
                row[0].legend(fontsize=6)
                row[0].tick_params(labelsize=6)
                continue
            for cell, values, what in zip(
                row[2 * axis : 2 * axis + 2], (volume, reconstruction), (plane, "mixture"), strict=True
            ):
                section = values.take(values.shape[axis] // 2, axis) if ndim == 3 else values
                cell.imshow(section, cmap="gray", vmin=low, vmax=high, origin="upper" if axis == 0 else "lower")
                cell.set(xticks=[], yticks=[])
                cell.set_xlabel(what, fontsize=6, labelpad=2)
    return canvas.save(figure, path)


def _centres(n: int, voxel_mm: float) -> Float[np.ndarray, " n"]:
    return (np.arange(n) - (n - 1) / 2) * voxel_mm


class Prediction(NamedTuple):
    """Predicted probabilities of masks, and the heading of their column."""

    heading: str
    probabilities: Float[np.ndarray, "samples y x"]


def segmentations(
    images: Float[np.ndarray, "samples y x"],
    masks: Bool[np.ndarray, "samples y x"],
    outside: Bool[np.ndarray, "samples y x"],
    predictions: Sequence[Prediction],
    path: str | os.PathLike[str],
    title: str = "",
    labels: Sequence[str] = (),
) -> Path:
    """Draws a row for each sample: the image, the true mask (orange), and columns of predictions (blue) with the true outline.

    Args:
      images: images with values from -1 to 1.
      masks: pixels of the nodules.
      outside: pixels outside of the volume, which are drawn black.
      predictions: predictions, each in its own column.
      path: path of the picture.
      title: title of the picture.
      labels: labels of the rows, or none.
    """
    columns, rows = 2 + len(predictions), len(images)
    figure = Figure(figsize=(1.15 * columns + 0.1, 1.15 * rows + 0.65), dpi=canvas.DPI, layout="constrained")
    if title:
        figure.suptitle(title, fontsize=8)
    axes = figure.subplots(rows, columns, squeeze=False)
    for row, (image, mask, beyond) in enumerate(zip(np.where(outside, -1, images), masks, outside, strict=True)):
        for cell in axes[row]:
            cell.imshow(image, cmap="gray", vmin=-1, vmax=1)
            cell.set(xticks=[], yticks=[])
        _outline(axes[row, 1], mask, ORANGE)
        for cell, prediction in zip(axes[row, 2:], predictions, strict=True):
            _outline(cell, mask, ORANGE)
            _outline(cell, (prediction.probabilities[row] > 0.5) & ~beyond, SKY)
        if labels:
            axes[row, 0].set_ylabel(labels[row], fontsize=7)
    for cell, heading in zip(axes[0], ["image", "truth", *(prediction.heading for prediction in predictions)], strict=True):
        cell.set_title(heading, fontsize=7)
    return canvas.save(figure, path)


def _outline(axes: Axes, mask: Bool[np.ndarray, "y x"], colour: str) -> None:
    if mask.any() and not mask.all():
        axes.contour(mask, [0.5], colors=colour, linewidths=0.9)


class InsertionView(NamedTuple):
    """A nodule's surroundings before and after its insertion, its voxels, its centre's index, and the spacing (z, y, x)."""

    title: str
    before: Real[np.ndarray, "z y x"]
    after: Real[np.ndarray, "z y x"]
    label: Bool[np.ndarray, "z y x"]
    centre: tuple[int, int, int]
    spacing_mm: Float[np.ndarray, "3"]


def draw_insertions(path: str | os.PathLike[str], views: Sequence[InsertionView]) -> Path:
    """Draws a row for each nodule: axial, coronal and sagittal slices, each before and after, and with its outline."""
    low, high = WINDOW_HU
    height = INCHES + 0.22
    figure = Figure(figsize=(9 * INCHES + 0.1, len(views) * height + 0.25))
    grid = figure.subplots(
        len(views),
        9,
        squeeze=False,
        gridspec_kw={"left": 0.005, "right": 0.995, "bottom": 0.005, "top": 1 - 0.4 / figure.get_figheight()},
    )
    figure.subplots_adjust(wspace=0.03, hspace=0.16)
    for row, view in zip(grid, views, strict=True):
        row[0].set_title(view.title, fontsize=7, loc="left", pad=3)
        for axis in range(3):
            z, x = view.spacing_mm[[a for a in range(3) if a != axis]]
            label = view.label.take(view.centre[axis], axis)
            for column, voxels in enumerate((view.before, view.after, view.after)):
                axes = row[3 * axis + column]
                axes.imshow(
                    voxels.take(view.centre[axis], axis),
                    cmap="gray",
                    vmin=low,
                    vmax=high,
                    origin="upper" if axis == 0 else "lower",
                    aspect=float(z / x),
                    interpolation="bilinear",
                )
                if column == 2 and label.any():
                    axes.contour(label, [0.5], colors=ORANGE, linewidths=0.8)
                axes.set_axis_off()
    for axis, plane in enumerate(PLANES):
        caption = f"{plane}: before, after, outline"
        figure.text((axis + 0.03) / 3, 1 - 0.16 / figure.get_figheight(), caption, fontsize=8)
    return canvas.save(figure, path)
