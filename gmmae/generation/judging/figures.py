"""Figures of a judgement: unlabelled slices, histograms, and generated volumes above their nearest training volumes."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Real
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from scipy.ndimage import zoom

from gmmae.plotting import canvas
from gmmae.plotting.canvas import BLUE, VERMILION, WIDTH

COLUMNS = 10
ROWS = "ABCDEF"
"""Names of the sheet's rows, for positions such as B7."""
BINS = 40
"""Maximum bins of a feature's histogram. Fewer values get as many as the root of their number."""


class Feature(NamedTuple):
    """A feature's values in both sets, and the title of its histogram."""

    title: str
    real: Float[np.ndarray, " real"]
    generated: Float[np.ndarray, " generated"]


def contact_sheet(
    real: Real[np.ndarray, "real z y x"],
    generated: Real[np.ndarray, "generated depth height width"],
    window: tuple[float, float],
    seed: int,
    labelled: bool = False,
) -> tuple[Figure, str]:
    """Draws central axial slices of equally many real and generated volumes; returns the generated ones' positions too.

    Their order is random. Slices of both sets have the coarser resolution, because sharpness would reveal the finer set.

    Args:
      real: real volumes. At most half a sheet is drawn at random.
      generated: generated volumes, maybe of another shape. At most half a sheet is drawn at random.
      window: values shown black and white.
      seed: seed of the choice and the order.
      labelled: whether generated volumes have a frame.
    """
    rng = np.random.default_rng(seed)
    count = min(len(real), len(generated), COLUMNS * len(ROWS) // 2)
    shown = [some[rng.permutation(len(some))[:count]] for some in (real, generated)]
    slices = _alike([some[:, some.shape[1] // 2] for some in shown])
    order = rng.permutation(2 * count)
    rows = -(-2 * count // COLUMNS)
    figure = canvas.blank(rows * 0.66 + 0.2, "")
    grid = figure.subplots(rows, COLUMNS, squeeze=False, gridspec_kw={"wspace": 0.04, "hspace": 0.04})
    for axes in grid.flat:
        axes.axis("off")
    names = [f"{ROWS[at // COLUMNS]}{at % COLUMNS + 1}" for at in range(2 * count)]
    for axes, name, sample in zip(grid.flat, names, order, strict=False):
        axes.imshow(slices[sample], cmap="gray", vmin=window[0], vmax=window[1])
        if labelled and sample >= count:
            axes.add_patch(Rectangle((0, 0), 1, 1, transform=axes.transAxes, fill=False, color=VERMILION, linewidth=2))
        axes.text(0.03, 0.97, name, transform=axes.transAxes, va="top", fontsize=5, color="white", alpha=0.8)
    return figure, ", ".join(name for name, sample in zip(names, order, strict=True) if sample >= count)


def _alike(sets: Sequence[Real[np.ndarray, "_ _ _"]]) -> Real[np.ndarray, "all rows columns"]:
    """Resamples the images of all sets to the smallest number of pixels along each axis."""
    fewest = np.min([images.shape[1:] for images in sets], axis=0)
    parts = []
    for images in sets:
        factors = fewest / images.shape[1:]
        if (factors != 1).any():
            images = np.asarray(zoom(images.astype(np.float32), (1, *factors), order=1, mode="nearest", grid_mode=True))
        parts.append(images)
    return np.concatenate(parts)


def feature_histograms(features: Sequence[Feature]) -> Figure:
    """Draws the densities of the real and the generated features, three in a row."""
    rows = -(-len(features) // 3)
    figure = canvas.blank(1.75 * rows, "")
    grid = figure.subplots(rows, 3, squeeze=False)
    for axes in grid.flat[len(features) :]:
        axes.axis("off")
    for axes, (title, real, generated) in zip(grid.flat, features, strict=False):
        both = np.concatenate([real, generated])
        edges = np.histogram_bin_edges(both, min(BINS, math.ceil(math.sqrt(len(both)))))
        for values, colour in ((real, BLUE), (generated, VERMILION)):
            axes.hist(values, edges, density=True, histtype="step", color=colour)
        canvas.dress(axes, "", "")
        axes.set_yticks([])
        axes.tick_params(labelsize=6)
        axes.set_title(title, fontsize=7)
    return figure


def neighbours(
    generated: Real[np.ndarray, "pairs z y x"],
    nearest: Real[np.ndarray, "pairs z y x"],
    titles: Sequence[str],
    window: tuple[float, float],
) -> Figure:
    """Draws the central axial slice of each generated volume above that of its nearest training volume."""
    figure = canvas.blank(2 * WIDTH / len(titles) + 0.35, "")
    grid = figure.subplots(2, len(titles), squeeze=False, gridspec_kw={"wspace": 0.04, "hspace": 0.04})
    for row, volumes, label in zip(grid, (generated, nearest), ("generated", "training"), strict=True):
        for axes, volume in zip(row, volumes, strict=True):
            axes.imshow(volume[len(volume) // 2], cmap="gray", vmin=window[0], vmax=window[1])
            axes.set(xticks=[], yticks=[])
        row[0].set_ylabel(label, fontsize=7)
    for axes, title in zip(grid[0], titles, strict=True):
        axes.set_title(title, fontsize=7)
    return figure
