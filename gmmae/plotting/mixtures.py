"""Nodules beside their mixtures at several epochs of training (Fig. 1 of the paper)."""

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float32
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch

from gmmae.plotting import canvas, surfaces
from gmmae.plotting.canvas import DPI, GREY, ORANGE, VERMILION, power_of_ten

SURFACE = LinearSegmentedColormap.from_list("surface", ["#1b2333", "#4f6d8c", "#b9cfda", "#fbfaf2"])

# Inches. For three axes the insets of a cell extend below it by INSET - OVERLAP.
CELL, INSET, OVERLAP, GAP, MARGIN, HEADING, TITLE_LINE, FOOTING = 1.6, 0.56, 0.1, 0.14, 0.12, 0.46, 0.22, 0.78


def reconstructions(
    inputs: Float32[np.ndarray, "nodules ..."],
    snapshots: Sequence[tuple[int, float, Mapping[str, np.ndarray]]],
    path: str | Path,
    *,
    title: str = "",
) -> Path:
    """Draws (a) nodules in rows, and (b) their reconstructions at several epochs, from densities over [-1, 1]^n.

    A snapshot is a number of trained epochs, the validation loss, which may be NaN, and arrays of the nodules for n axes and K
    components: `density`, M (Eq. 5) at the voxel centres of [-1, 1]^n, with array axes z, y, x (the last n of them); `weights`,
    α, nodules × K; `means`, μ on [-1, 1], nodules × K × n, world axes x, y, z (the first n of them).

    Three axes are a shaded surface at the row's `surfaces.iso_level`, with central slices of the input (left) and the density.
    Fewer are the image, or the signal as a strip, with the components' means, in the row's grey scale.
    """
    ndim, rows, columns = inputs.ndim - 1, len(inputs), len(snapshots)
    cell_height = CELL + (INSET - OVERLAP if ndim == 3 else 0)
    lefts = [MARGIN] + [MARGIN + (CELL + GAP) * (column + 1) + GAP for column in range(columns)]
    top = FOOTING + rows * (cell_height + GAP) - GAP
    width = lefts[-1] + CELL + MARGIN
    title_lines = textwrap.wrap(title, int(width / 0.09))
    figure = Figure(figsize=(width, top + HEADING + (TITLE_LINE * len(title_lines) + 0.06 if title else 0)), dpi=DPI)

    for row, nodule in enumerate(inputs):
        bottom = top - cell_height - row * (cell_height + GAP)
        for left, arrays in zip(lefts, [None, *(arrays for *_, arrays in snapshots)], strict=True):
            density = arrays["density"][row] if arrays else None
            if ndim == 3:
                _volume(figure, (left, bottom), nodule, density, labelled=row == rows - 1)
                continue
            axes = _axes(figure, (left, bottom, CELL, CELL))
            _image(axes, nodule if density is None else density, nodule)
            if arrays and np.isfinite(arrays["means"][row]).all() and np.isfinite(arrays["weights"][row]).all():
                x, y = np.pad(arrays["means"][row], ((0, 0), (0, 2 - ndim))).T  # a signal has its middle at 0
                axes.scatter(x, y, s=400 * arrays["weights"][row], color=ORANGE, alpha=0.8, linewidths=0)

    inches = {"transform": figure.dpi_scale_trans, "ha": "center"}
    headings = [("", "input")] + [(f"epoch = {epoch}", f"loss = {power_of_ten(loss)}") for epoch, loss, _ in snapshots]
    for left, lines in zip(lefts, headings, strict=True):
        for line, above in zip(lines, (0.28, 0.1), strict=True):
            figure.text(left + CELL / 2, top + above, line, fontsize=9, **inches)
    figure.text(width / 2, figure.get_figheight() - 0.08, "\n".join(title_lines), va="top", fontsize=11, **inches)

    start, end = lefts[1], lefts[-1] + CELL
    figure.add_artist(
        FancyArrowPatch(
            (start, 0.52),
            (end, 0.52),
            transform=figure.dpi_scale_trans,
            arrowstyle="-|>",
            mutation_scale=10,
            color=GREY,
            lw=1,
            shrinkA=0,
            shrinkB=0,
        )
    )
    box = {"facecolor": "white", "edgecolor": "none", "pad": 3}
    figure.text((start + end) / 2, 0.52, "training", va="center", fontsize=9, color=GREY, bbox=box, **inches)
    for x, label in ((lefts[0] + CELL / 2, "(a)"), ((start + end) / 2, "(b)")):
        figure.text(x, 0.38, label, va="top", fontsize=10, **inches)
    if ndim < 3:
        label = "means of the components, area by weight"
        handle = Line2D([], [], color=ORANGE, label=label, marker="o", ms=4, ls="none")
        figure.legend(handles=[handle], loc="lower center", frameon=False, fontsize=7.5, handletextpad=0)
    return canvas.save(figure, path)


def _volume(
    figure: Figure, corner: tuple[float, float], nodule: np.ndarray, density: np.ndarray | None, *, labelled: bool
) -> None:
    left, bottom = corner
    axes = _axes(figure, (left, bottom + INSET - OVERLAP, CELL, CELL))
    half, shown = surfaces.HALF_WIDTH, nodule if density is None else density
    axes.set(xlim=(-half, half), ylim=(-half, half))
    axes.add_collection(LineCollection(list(surfaces.domain_edges(nodule.shape)), colors="#cccccc", linewidths=0.5, zorder=0))
    if np.isfinite(shown).all():
        brightness = surfaces.surface(shown, max(surfaces.iso_level(nodule), 0.0))
        colours = SURFACE(np.ma.masked_invalid(brightness))
        colours[np.isnan(brightness)] = (1, 1, 1, 0)
        axes.imshow(colours, extent=(-half, half, -half, half), interpolation="bilinear")
    else:
        _say_nan(axes)
    insets = [] if density is None else [(nodule, "input", 0.0), (density, "estimate", CELL - INSET)]
    for volume, label, offset in insets:
        _image(_axes(figure, (left + offset, bottom, INSET, INSET), "#999999"), volume[len(volume) // 2], nodule)
        if labelled:
            x, inches = left + offset + INSET / 2, figure.dpi_scale_trans
            figure.text(x, bottom - 0.04, label, transform=inches, ha="center", va="top", fontsize=7, color=GREY)


def _image(axes: Axes, image: np.ndarray, scale: np.ndarray) -> None:
    axes.set(xlim=(-1, 1), ylim=(1, -1))
    if image.ndim == 1:
        image = np.tile(image, (-(-len(image) // 4), 1))
    height, width = image.shape
    if np.isfinite(image).all():
        axes.imshow(
            image,
            cmap="gray",
            vmin=scale.min(),
            vmax=scale.max(),
            interpolation="nearest",
            extent=(-1, 1, 1, -1),
            aspect=height / width,
        )
    else:
        _say_nan(axes)


def _say_nan(axes: Axes) -> None:
    axes.text(0.5, 0.5, "NaN", transform=axes.transAxes, ha="center", va="center", fontsize=9, color=VERMILION)


def _axes(figure: Figure, place: tuple[float, float, float, float], frame: str | None = None) -> Axes:
    left, bottom, width, height = np.array(place) / np.tile(figure.get_size_inches(), 2)
    axes = figure.add_axes((left, bottom, width, height), xticks=[], yticks=[], facecolor="none")
    axes.spines[:].set(visible=frame is not None, color=frame, linewidth=0.6)
    return axes
