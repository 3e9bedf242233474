"""Sheets of slices: real and generated ones in random order, and any others."""

from collections.abc import Container, Sequence

import numpy as np
from jaxtyping import Real
from matplotlib.figure import Figure
from scipy.ndimage import zoom

from gmmae.plotting import canvas

COLUMNS = 10
ROWS = "ABCDEF"
"""A contact sheet's rows, for positions such as B7."""


def contact_sheet(
    real: Real[np.ndarray, "real z y x"],
    generated: Real[np.ndarray, "generated depth height width"],
    window: tuple[float, float],
    seed: int,
    labelled: bool = False,
) -> tuple[Figure, str]:
    """Draws central slices of equally many real and generated volumes; returns the generated ones' positions too.

    Their order is random, and both have the coarser resolution, because sharpness would reveal the finer set.
    """
    rng = np.random.default_rng(seed)
    count = min(len(real), len(generated), COLUMNS * len(ROWS) // 2)
    fewest = np.minimum(real.shape[2:], generated.shape[2:])
    parts = []
    for volumes in (real, generated):
        images = volumes[rng.permutation(len(volumes))[:count], volumes.shape[1] // 2].astype(np.float32)
        parts.append(zoom(images, (1, *fewest / images.shape[1:]), order=1, mode="nearest", grid_mode=True))
    order = rng.permutation(2 * count)
    made = np.flatnonzero(order >= count).tolist()
    figure = sheet(np.concatenate(parts)[order], window, ROWS, range(1, COLUMNS + 1), made if labelled else ())
    return figure, ", ".join(f"{ROWS[at // COLUMNS]}{at % COLUMNS + 1}" for at in made)


def sheet(
    slices: Real[np.ndarray, "slices y x"],
    window: tuple[float, float],
    rows: Sequence[object],
    columns: Sequence[object],
    framed: Container[int] = (),
) -> Figure:
    """Draws images in rows and columns with their titles, some with a frame."""
    count = -(-len(slices) // len(columns))
    figure = canvas.blank(canvas.WIDTH / (len(columns) + 1) * count + 0.3, "")
    grid = figure.subplots(count, len(columns), squeeze=False, gridspec_kw={"wspace": 0.04, "hspace": 0.04})
    for axes, title in zip(grid[0], columns, strict=True):
        axes.set_title(str(title), fontsize=8)
    for axes, row in zip(grid[:, 0], rows, strict=False):
        axes.set_ylabel(str(row), fontsize=8, rotation="horizontal", ha="right", va="center")
    for at, axes in enumerate(grid.flat):
        axes.set(xticks=[], yticks=[], frame_on=at in framed)
        if at < len(slices):
            axes.imshow(slices[at], cmap="gray", vmin=window[0], vmax=window[1])
            axes.spines[:].set(color=canvas.VERMILION, linewidth=2)
    return figure
