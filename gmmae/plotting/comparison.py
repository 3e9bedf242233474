"""Figures that compare scaling strategies by the number of devices: time to target, and throughput."""

import math
from collections.abc import Sequence
from itertools import cycle
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from gmmae.plotting import canvas
from gmmae.plotting.canvas import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILION

STYLES = ((BLUE, "o"), (VERMILION, "s"), (GREEN, "^"), (PURPLE, "D"), (ORANGE, "v"), (SKY, "P"), ("black", "X"))
"""Colour and marker of each line, the same for a strategy in every figure."""

ROW = 0.19
"""Height in inches of a strategy's row in the strip of missed targets."""


class Measured(NamedTuple):
    """A quantity measured at several counts; all tuples are in the order of `at`.

    Attributes:
      label: of the line.
      at: increasing numbers of devices, or of samples per device.
      median: NaN and infinity are not drawn.
      low, high: the ends of the interval about the median; NaN for none, and `high` may be infinite.
      reached: number of runs at the target.
      runs: number of all.
    """

    label: str
    at: tuple[int, ...]
    median: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    reached: tuple[int, ...] = ()
    runs: tuple[int, ...] = ()


def time_to_target(
    *panels: Sequence[Measured],
    title: str,
    y_label: str = "time to target (s)",
    titles: Sequence[str] = ("",),
    height: float = 4.0,
) -> Figure:
    """Draws the time to the target loss against the number of devices, both logarithmic; each panel is of one machine.

    A strip above the axes shows the number of successful runs if some missed the target. The dashed line is T₁ / n, with the
    first finite median on one device for T₁.

    Source: Fig. 2 of the paper.
    """
    everything = [one for series in panels for one in series]
    missed = [*dict.fromkeys(one.label for one in everything if sum(one.reached) < sum(one.runs))]
    figure = canvas.blank(height + ROW * len(missed), title)
    ratios = (ROW * len(missed), height - 1) if missed else (1,)
    grid = figure.subplots(len(ratios), len(panels), sharex=True, sharey="row", height_ratios=ratios, squeeze=False)
    handles = []
    for column, (series, name) in enumerate(zip(panels, titles, strict=True)):
        strip, axes = grid[0, column], grid[-1, column]
        canvas.dress(axes, "devices", "" if column else y_label)
        handles = _plot(axes, series, -1, "ideal, $T_1/n$", everything if len(panels) > 1 else ())
        if not np.isfinite([t for one in series for t in one.median]).any():
            text = "no median run reached the target"
            axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", fontsize=9, color=GREY)
        if missed:
            strip.set(ylim=(len(missed) - 0.5, -0.5), yticks=[], facecolor="#f3f3f3")
            strip.tick_params(axis="x", which="both", length=0, labelbottom=False)
            strip.spines[:].set_visible(False)
            strip.set_ylabel("" if column else "reached", fontsize=8, rotation=0, ha="right", va="center", labelpad=12)
        for one, (colour, marker) in zip(series, cycle(STYLES), strict=False):
            if one.label in missed:
                row, left = missed.index(one.label), strip.get_yaxis_transform()
                strip.plot([-0.015], [row], color=colour, marker=marker, ms=5, transform=left, clip_on=False)
                for n, reached, runs in zip(one.at, one.reached, one.runs, strict=True):
                    if reached < runs:
                        text = f"{'' if reached else '✕ '}{reached}/{runs}"
                        strip.text(n, row, text, ha="center", va="center", fontsize=7.5)
        axes.set_title(name, fontsize=9)
    if len(panels) == 1:
        canvas.legend_above(grid[0, 0], handles)
    else:
        figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    return figure


def throughput(series: Sequence[Measured], *, title: str) -> Figure:
    """Draws samples per second against devices. Dashed lines are n times the value on one device."""
    figure = canvas.blank(4.0, title)
    axes = figure.subplots()
    canvas.dress(axes, "devices", "samples per second")
    canvas.legend_above(axes, _plot(axes, series, 1, "ideal, n × one device"))
    return figure


def _plot(axes: Axes, lines: Sequence[Measured], power: int, label: str, within: Sequence[Measured] = ()) -> list[Line2D]:
    """Ideals are the values on one device times `n**power`: of the first line that has one for -1, of all for 1.

    `within` are the lines that set the extent of the vertical axis.
    """
    ends = np.array([min(line.at[0] for line in lines), max(line.at[-1] for line in lines)], float)
    axes.set_xlim(ends[0] / 1.35, ends[1] * 1.35)
    canvas.log_axis(axes, "x", sorted({n for line in lines for n in line.at}))
    firsts = [
        (colour, line.median[0])
        for line, (colour, _) in zip(lines, cycle(STYLES), strict=False)
        if line.at[0] == 1 < ends[1] and math.isfinite(line.median[0])
    ]
    ideals = firsts if power > 0 else [(GREY, value) for _, value in firsts[:1]]
    drawn = [line[2:5] for line in within or lines] + [[value * ends**power for _, value in ideals]] * (not within)
    values = np.concatenate([np.ravel(part) for part in drawn])
    values = values[np.isfinite(values) & (values > 0)]
    if len(values):
        axes.set_ylim(values.min() / 1.2, values.max() * 1.2)
        canvas.log_axis(axes, "y")
        axes.grid(axis="y", color="#e8e8e8", lw=0.6)
    else:
        axes.set_yticks([])

    # Between neighbouring lines, in octaves, so their intervals do not overlap.
    dodge = min(0.1, 0.5 / len(lines))
    handles = []
    for i, (line, (colour, marker)) in enumerate(zip(lines, cycle(STYLES), strict=False)):
        x = np.array(line.at) * 2 ** (dodge * (i - (len(lines) - 1) / 2))
        handles += axes.plot(x, line.median, zorder=3, color=colour, marker=marker, ms=5, lw=1.4, label=line.label)
        for at, low, high in zip(x, line.low, line.high, strict=True):
            if math.isfinite(low) and not math.isnan(high):
                top = min(high, axes.get_ylim()[1])
                style = {"color": colour, "lw": 1, "ls": "-", "ms": 5, "alpha": 0.8, "zorder": 2, "clip_on": False}
                axes.plot([at, at], [low, top], **style)
                # 6 is a caret that points up.
                for end, cap in ((low, "_"), (top, 6 if math.isinf(high) else "_")):
                    axes.plot([at], [end], marker=cap, **style)
    dashed = {"lw": 0.9, "ls": (0, (4, 3)), "label": label}
    for colour, value in ideals:
        axes.plot(ends, value * ends**power, color=colour, zorder=1, **dashed)
    return handles + ([Line2D([], [], color=GREY, **dashed)] if ideals else [])
