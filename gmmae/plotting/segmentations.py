"""Predicted masks beside the true ones."""

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
