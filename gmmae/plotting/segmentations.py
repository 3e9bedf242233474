"""Masks that a network found, beside the true ones."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gmmae.plotting import canvas
from gmmae.plotting.canvas import ORANGE, SKY


class Found(NamedTuple):
    """Probabilities of a mask, and the heading of their column."""

    heading: str
    probabilities: Float[np.ndarray, "samples y x"]


def segmentations(
    images: Float[np.ndarray, "samples y x"],
    masks: Bool[np.ndarray, "samples y x"],
    outside: Bool[np.ndarray, "samples y x"],
    found: Sequence[Found],
    path: str | os.PathLike[str],
    title: str = "",
    labels: Sequence[str] = (),
) -> Path:
    """A row for each sample: the image, the true mask (orange), and each column of found ones (blue) with the true outline.

    Args:
      images: from -1 to 1.
      masks, outside: the nodule's pixels, and those that lie outside of the volume, which are drawn black.
      found: what was found, a column each.
      path: the picture.
      title: above it.
      labels: of the rows, or none.
    """
    columns, rows = 2 + len(found), len(images)
    figure = Figure(figsize=(1.15 * columns + 0.1, 1.15 * rows + 0.65), dpi=canvas.DPI, layout="constrained")
    if title:
        figure.suptitle(title, fontsize=8)
    axes = figure.subplots(rows, columns, squeeze=False)
    for row, (image, mask, away) in enumerate(zip(np.where(outside, -1, images), masks, outside, strict=True)):
        for cell in axes[row]:
            cell.imshow(image, cmap="gray", vmin=-1, vmax=1)
            cell.set(xticks=[], yticks=[])
        _outline(axes[row, 1], mask, ORANGE)
        for cell, one in zip(axes[row, 2:], found, strict=True):
            _outline(cell, mask, ORANGE)
            _outline(cell, (one.probabilities[row] > 0.5) & ~away, SKY)
        if labels:
            axes[row, 0].set_ylabel(labels[row], fontsize=7)
    for cell, heading in zip(axes[0], ["image", "truth", *(one.heading for one in found)], strict=True):
        cell.set_title(heading, fontsize=7)
    return canvas.save(figure, path)


def _outline(axes: Axes, mask: Bool[np.ndarray, "y x"], colour: str) -> None:
    if mask.any() and not mask.all():
        axes.contour(mask, [0.5], colors=colour, linewidths=0.9)
