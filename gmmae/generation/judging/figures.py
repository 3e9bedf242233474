"""Figures of a judgement: unlabelled slices, and generated volumes above their nearest training volumes."""

from collections.abc import Collection, Sequence

import numpy as np
from jaxtyping import Real
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from scipy.ndimage import zoom

from gmmae.plotting import canvas
from gmmae.plotting.canvas import VERMILION

COLUMNS = 10
ROWS = "ABCDEF"
"""Names of the sheet's rows, for positions such as B7."""


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
    fewest = np.minimum(real.shape[2:], generated.shape[2:])
    parts = []
    for volumes in (real, generated):
        images = volumes[rng.permutation(len(volumes))[:count], volumes.shape[1] // 2].astype(np.float32)
        parts.append(zoom(images, (1, *fewest / images.shape[1:]), order=1, mode="nearest", grid_mode=True))
    order = rng.permutation(2 * count)
    names = [f"{row}{column + 1}" for row in ROWS for column in range(COLUMNS)]
    made = [name for name, sample in zip(names, order, strict=False) if sample >= count]
    figure = _sheet(np.concatenate(parts)[order], names, window, COLUMNS, made if labelled else ())
    return figure, ", ".join(made)


def neighbours(
    generated: Real[np.ndarray, "pairs z y x"],
    nearest: Real[np.ndarray, "pairs z y x"],
    titles: Sequence[str],
    window: tuple[float, float],
) -> Figure:
    """Draws the central axial slice of each generated volume, with a title in it, above that of its nearest training volume."""
    middle = generated.shape[1] // 2
    slices = np.concatenate([generated[:, middle], nearest[:, middle]])
    return _sheet(slices, [*titles, *[""] * len(titles)], window, len(titles))


def _sheet(
    slices: Real[np.ndarray, "slices y x"],
    titles: Sequence[str],
    window: tuple[float, float],
    columns: int,
    framed: Collection[str] = (),
) -> Figure:
    rows = -(-len(slices) // columns)
    figure = canvas.blank(canvas.WIDTH / columns * rows + 0.2, "")
    grid = figure.subplots(rows, columns, squeeze=False, gridspec_kw={"wspace": 0.04, "hspace": 0.04})
    for axes in grid.flat:
        axes.axis("off")
    for axes, image, title in zip(grid.flat, slices, titles, strict=False):
        axes.imshow(image, cmap="gray", vmin=window[0], vmax=window[1])
        if title in framed:
            axes.add_patch(Rectangle((0, 0), 1, 1, transform=axes.transAxes, fill=False, color=VERMILION, linewidth=2))
        axes.text(0.03, 0.97, title, transform=axes.transAxes, va="top", fontsize=5, color="white", alpha=0.8)
    return figure
