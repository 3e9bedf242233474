"""Scans before and after the insertion of nodules: three slices through each."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Real
from matplotlib.figure import Figure

from gmmae.plotting import canvas
from gmmae.plotting.canvas import ORANGE

PLANES = ("axial", "coronal", "sagittal")
WINDOW_HU = (-1000.0, 400.0)
INCHES = 1.55


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
                    vmin=WINDOW_HU[0],
                    vmax=WINDOW_HU[1],
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
