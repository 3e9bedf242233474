"""Common parts of all figures: resolution, colours, number formats, axes, and files."""

import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import matplotlib
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, LogLocator, MaxNLocator, NullLocator

from gmmae.system.files import whole_file

DPI = 150
MARK = "drawn by gmmae"
"""At the head of every picture."""
WIDTH = 6.4
"""Inches of a figure on a page."""
# Okabe and Ito's colours, safe for readers who confuse red and green.
BLUE, ORANGE, VERMILION, GREY = "#0072B2", "#E69F00", "#D55E00", "#666666"
GREEN, PURPLE, SKY = "#009E73", "#CC79A7", "#56B4E9"


def power_of_ten(value: float) -> str:
    """Formats a loss like the paper: 4.7×10⁻³."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "∞"
    mantissa, exponent = f"{value:.1e}".split("e")
    if int(exponent) == 0:
        return mantissa
    return rf"${mantissa}\times10^{{{int(exponent)}}}$"


def plain(value: int | float, digits: int = 3) -> str:
    """Formats a positive number; very small and very large ones get a power of ten.

    >>> plain(0.0016384), plain(20000)
    ('0.00164', '20000')
    """
    return f"{float(f'{value:.{digits}g}'):g}" if 1e-4 <= value < 1e6 else power_of_ten(value)


def blank(height: float, title: str) -> Figure:
    """Creates a figure of a height in inches."""
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    if title:
        figure.suptitle(textwrap.fill(title, round(12.5 * WIDTH)), fontsize=10)
    return figure


def dress(axes: Axes, x_label: str, y_label: str) -> None:
    """Sets the labels, and removes the frame except for the two axes."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(which="both", labelsize=8)
    axes.set_xlabel(x_label, fontsize=9)
    axes.set_ylabel(y_label, fontsize=9)


def legend_above(axes: Axes, handles: Sequence[Artist]) -> None:
    """Adds a legend above the data, in as many columns as fit."""
    lengths = [len(str(handle.get_label())) for handle in handles]
    columns = min(4, len(handles))
    # In inches: a handle with its gaps, and letters of 8 points.
    while columns > 1 and sum(0.5 + 0.065 * max(part) for part in np.array_split(lengths, columns)) > WIDTH - 0.7:
        columns -= 1
    columns = math.ceil(len(handles) / math.ceil(len(handles) / columns))  # as many rows, evenly filled
    axes.legend(
        handles=list(handles),
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=columns,
        frameon=False,
        fontsize=8,
        borderaxespad=0.3,
        columnspacing=1.2,
        handlelength=1.8,
    )


def log_axis(axes: Axes, which: Literal["x", "y"], at: Sequence[int] = ()) -> None:
    """Makes an axis with set limits logarithmic, with plain numbers at these values or about eight round ones."""
    scale, axis = (axes.set_xscale, axes.xaxis) if which == "x" else (axes.set_yscale, axes.yaxis)
    scale("log")
    low, high = axis.get_view_interval()
    decades = math.log10(high / low)
    digits = (1, 2, 3, 5, 7) if decades < 1.5 else (1, 2, 5) if decades < 2.5 else (1, 3) if decades < 4 else (1,)
    even = MaxNLocator(5, steps=[1, 2, 5, 10])
    axis.set_major_locator(FixedLocator(at) if at else even if high < 3 * low else LogLocator(subs=digits))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(lambda value, _: plain(float(value), 6))


def save(figure: Figure, path: str | Path) -> Path:
    """Writes an SVG if the path ends in .svg, otherwise a PNG; equal figures give equal bytes."""
    path = Path(path)
    kind = "svg" if path.suffix == ".svg" else "png"
    path.parent.mkdir(parents=True, exist_ok=True)
    # Outlines do not depend on installed fonts, nor identifiers with a salt on chance.
    with whole_file(path) as part, matplotlib.rc_context({"svg.fonttype": "path", "svg.hashsalt": "gmmae"}):
        metadata = {"Date": None, "Creator": MARK} if kind == "svg" else {"Software": MARK}
        figure.savefig(part, format=kind, dpi=DPI, facecolor="white", metadata=metadata)
    return path


def save_both(figure: Figure, stem: str | Path) -> tuple[Path, Path]:
    """Writes `stem`.png and `stem`.svg."""
    return save(figure, f"{stem}.png"), save(figure, f"{stem}.svg")
