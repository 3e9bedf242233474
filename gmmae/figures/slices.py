"""Pictures of the data before any model sees them: a contact sheet of many nodules, and one nodule from three sides."""

import math
import os
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int16, Shaped
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from gmmae.figures import canvas
from gmmae.figures.canvas import ORANGE

PLANES = (("axial", "x", "y"), ("coronal", "x", "z"), ("sagittal", "y", "z"))
"""The central slice across z, y and x, with the axes that run to the right and (in the array's order) down or up."""


def contact_sheet(
    path: str | os.PathLike[str],
    hu: Int16[np.ndarray, "samples size size size"],
    filled: Float[np.ndarray, " samples"],
    hu_window: tuple[float, float],
    limit: int = 400,
) -> Path:
    """The central axial slices of the nodules, left to right and down; the whole file is written or none.

    Args:
      path: the PNG.
      hu: cubes in HU; of more than `limit`, as many are shown, evenly spread.
      filled: share of each cube that lies outside its scan; such cubes have an orange frame, as thick as that share is large.
      hu_window: HU shown black and white.
      limit: cubes shown at most.
    """
    shown = np.unique(np.linspace(0, len(hu) - 1, min(limit, len(hu))).round().astype(int))
    columns = math.ceil(math.sqrt(1.4 * len(shown)))
    rows = math.ceil(len(shown) / columns)
    size = hu.shape[-1]
    step = size + 2
    sheet = np.full((rows * step, columns * step), np.nan)
    figure = Figure(figsize=(max(0.42 * columns, 4.5), 0.42 * rows * max(1, 4.5 / (0.42 * columns)) + 0.4))
    axes = figure.add_axes((0.01, 0.01, 0.98, 1 - 0.4 / figure.get_figheight()))
    for i, sample in enumerate(shown):
        top, left = i // columns * step + 1, i % columns * step + 1
        sheet[top : top + size, left : left + size] = hu[sample, size // 2]
        if filled[sample] > 0:
            corner = (left - 1, top - 1)
            axes.add_patch(
                Rectangle(corner, size + 1, size + 1, fill=False, color=ORANGE, linewidth=0.4 + 2 * float(filled[sample]))
            )
    axes.imshow(sheet, cmap="gray", vmin=hu_window[0], vmax=hu_window[1], interpolation="nearest")
    axes.set_axis_off()
    of = f"{len(shown)} of {len(hu)} nodules" if len(shown) < len(hu) else f"{len(hu)} nodules"
    title = f"Central axial slices of {of}, HU {hu_window[0]:g} to {hu_window[1]:g}"
    if filled.any():
        title += "; orange: partly outside the scan"
    figure.text(0.01, 1 - 0.3 / figure.get_figheight(), title, fontsize=8)
    return canvas.save(figure, path)


def nodule_slices(
    path: str | os.PathLike[str],
    hu: Int16[np.ndarray, "size size size"],
    mask: Shaped[np.ndarray, "size size size"] | None,
    hu_window: tuple[float, float],
    edge_mm: float,
    title: str,
) -> Path:
    """The three central slices of one nodule, in mm from its centre; where there is a mask, its outline in orange.

    Args:
      path: the PNG.
      hu: the cube in HU.
      mask: the nodule's voxels, or None.
      hu_window: HU shown black and white.
      edge_mm: of the cube.
      title: above the slices.
    """
    figure = Figure(figsize=(7.2, 2.9))
    middle, half = hu.shape[0] // 2, edge_mm / 2
    for axis, (plane, right, up) in enumerate(PLANES):
        axes = figure.add_axes((0.075 + 0.325 * axis, 0.15, 0.24, 0.6))
        # Patients are seen from their feet, front up: y runs down in an axial slice, z up in the others.
        down = plane == "axial"
        extent = (-half, half, half, -half) if down else (-half, half, -half, half)
        image, origin = hu.take(middle, axis), "upper" if down else "lower"
        axes.imshow(image, cmap="gray", vmin=hu_window[0], vmax=hu_window[1], extent=extent, origin=origin)
        if mask is not None and mask.take(middle, axis).any():
            centres = (np.arange(len(hu)) - (len(hu) - 1) / 2) * edge_mm / len(hu)
            axes.contour(centres, centres, mask.take(middle, axis), [0.5], colors=ORANGE, linewidths=1)
        axes.set_title(plane, fontsize=8)
        axes.set_xlabel(f"{right} / mm", fontsize=7, labelpad=1)
        axes.set_ylabel(f"{up} / mm", fontsize=7, labelpad=0)
        axes.tick_params(labelsize=6)
    figure.text(0.01, 0.93, title, fontsize=9)
    return canvas.save(figure, path)
