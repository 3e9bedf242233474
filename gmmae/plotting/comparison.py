"""Figures that compare scaling strategies by the number of devices: time to target, throughput and step time."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from gmmae.plotting import canvas
from gmmae.plotting.canvas import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILION

STYLES = ((BLUE, "o"), (VERMILION, "s"), (GREEN, "^"), (PURPLE, "D"), (ORANGE, "v"), (SKY, "P"), ("black", "X"))
"""Colour and marker of each line. The same order gives a strategy the same style in every figure."""

ROW = 0.19
"""Height in inches of a strategy's row in the strip of missed targets."""


class Measured(NamedTuple):
    """A quantity measured at several counts; all tuples are in the order of `at`.

    Attributes:
      label: label of the line.
      at: increasing numbers of devices, or of samples per device.
      median: medians; NaN and infinity are not drawn.
      low: lower end of the interval about the median, such as a quartile; NaN for none.
      high: upper end of the interval; NaN for none, and it may be infinite.
      reached: number of runs that reached the target, for times to a target.
      runs: number of these runs.
    """

    label: str
    at: tuple[int, ...]
    median: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    reached: tuple[int, ...] = ()
    runs: tuple[int, ...] = ()


class _Ideal(NamedTuple):
    """The value for perfect scaling: `at_one` · n^`power`."""

    colour: str
    at_one: float
    power: int

    def __call__(self, n: int) -> float:
        return self.at_one * float(n) ** self.power


def time_to_target(series: Sequence[Measured], *, title: str, y_label: str = "time to target (s)") -> Figure:
    """Draws the time to the target loss against the number of devices, both logarithmic.

    Infinite medians are missing from their line. A strip above the axes shows the number of successful runs if some missed the
    target. The dashed line is T₁ / n, with the first finite median on one device for T₁.

    Args:
      series: times of the strategies in seconds, each with its own line.
      title: title of the figure.
      y_label: label of the time axis.

    Source: Fig. 2 of the paper.
    """
    return time_to_target_panels({"": series}, title=title, y_label=y_label)


def time_to_target_panels(panels: Mapping[str, Sequence[Measured]], *, title: str, y_label: str, height: float = 4.0) -> Figure:
    """Draws `time_to_target` of several machines side by side, on one scale and with one legend.

    Args:
      panels: titles of the panels, each with times of the same strategies in the same order.
      title: title of the figure.
      y_label: label of the time axis.
      height: height of the figure in inches, without the strip of missed targets.
    """
    everything = [one for series in panels.values() for one in series]
    labels = dict.fromkeys(one.label for one in everything if any(k < m for k, m in zip(one.reached, one.runs, strict=True)))
    strip_height = ROW * len(labels)
    figure = canvas.blank(height + strip_height, title)
    ratios = (strip_height, height - 1) if labels else (1,)
    grid = figure.subplots(len(ratios), len(panels), sharex=True, sharey="row", height_ratios=ratios, squeeze=False)
    handles = []
    for column, (name, series) in enumerate(panels.items()):
        strip, axes = grid[0, column], grid[-1, column]
        ideals = [_Ideal(GREY, t, -1) for t in map(_on_one, series) if math.isfinite(t)][:1]
        canvas.dress(axes, "devices", "" if column else y_label)
        handles = _plot(axes, series, ideals, "ideal, $T_1/n$", within=everything if len(panels) > 1 else ())
        if not any(math.isfinite(t) for one in series for t in one.median):
            middle = {"transform": axes.transAxes, "ha": "center", "fontsize": 9, "color": GREY}
            axes.text(0.5, 0.5, "no median run reached the target", **middle)
        if labels:
            missed = [(one, STYLES[i % len(STYLES)]) for i, one in enumerate(series) if one.label in labels]
            _plot_misses(strip, missed, "" if column else "reached")
        if name:
            axes.set_title(name, fontsize=9)
    if len(panels) == 1:
        canvas.legend_above(grid[0, 0], handles)
    else:
        figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    return figure


def throughput(series: Sequence[Measured], *, title: str) -> Figure:
    """Draws the throughput against the number of devices. Dashed lines are n times the value on one device.

    Args:
      series: lines in samples per second: strong scaling at a global batch, or weak scaling at a device batch.
      title: title of the figure.
    """
    ideals = [_Ideal(STYLES[i % len(STYLES)][0], _on_one(one), 1) for i, one in enumerate(series)]
    ideals = [ideal for ideal in ideals if math.isfinite(ideal.at_one)]
    return _draw_lines(series, ideals, title, "devices", "samples per second")


def step_time(series: Sequence[Measured], *, title: str) -> Figure:
    """Draws the time of a training step in ms against the device batch.

    Args:
      series: lines in seconds.
      title: title of the figure.
    """

    def in_ms(times: tuple[float, ...]) -> tuple[float, ...]:
        return tuple(1e3 * t for t in times)

    lines = [one._replace(median=in_ms(one.median), low=in_ms(one.low), high=in_ms(one.high)) for one in series]
    return _draw_lines(lines, [], title, "device batch (samples)", "time of a step (ms)")


def _on_one(line: Measured) -> int | float:
    """Returns the median on one device; NaN if there is none."""
    return dict(zip(line.at, line.median, strict=True)).get(1, math.nan)


def _draw_lines(lines: Sequence[Measured], ideals: Sequence[_Ideal], title: str, x_label: str, y_label: str) -> Figure:
    figure = canvas.blank(4.0, title)
    axes = figure.subplots()
    canvas.dress(axes, x_label, y_label)
    canvas.legend_above(axes, _plot(axes, lines, ideals, "ideal, n × one device"))
    return figure


def _plot(
    axes: Axes, lines: Sequence[Measured], ideals: Sequence[_Ideal], ideal_label: str, within: Sequence[Measured] = ()
) -> list[Line2D]:
    """Draws lines with markers and intervals on logarithmic axes, with the ideals below. Returns the legend's handles.

    The vertical axis has the extent of `within`, by default that of the lines and the ideals.
    """
    counts = sorted({n for line in lines for n in line.at})
    ends = (counts[0], counts[-1])
    ideals = ideals if len(counts) > 1 else []
    axes.set_xlim(ends[0] / 1.35, ends[1] * 1.35)
    canvas.log_axis(axes, "x", counts)
    values = np.array(
        [value for line in within or lines for part in (line.median, line.low, line.high) for value in part]
        + [ideal(n) for ideal in ideals for n in ends if not within]
    )
    values = values[np.isfinite(values) & (values > 0)]
    if len(values):
        axes.set_ylim(values.min() / 1.2, values.max() * 1.2)
        canvas.log_axis(axes, "y")
        axes.grid(axis="y", color="#e8e8e8", lw=0.6)
    else:
        axes.set_yticks([])

    # Offset between neighbouring lines in octaves, so their intervals do not overlap.
    dodge = min(0.1, 0.5 / len(lines))
    handles = []
    for i, line in enumerate(lines):
        colour, marker = STYLES[i % len(STYLES)]
        x = np.array(line.at) * 2 ** (dodge * (i - (len(lines) - 1) / 2))
        style = {"color": colour, "marker": marker, "ms": 5, "lw": 1.4, "label": line.label}
        handles += axes.plot(x, canvas.finite(np.array(line.median, float)), zorder=3, **style)
        for at, low, high in zip(x, line.low, line.high, strict=True):
            _interval(axes, at, low, high, colour)
    dashed = {"lw": 0.9, "ls": (0, (4, 3)), "label": ideal_label}
    for ideal in ideals:
        axes.plot(ends, [ideal(n) for n in ends], color=ideal.colour, zorder=1, **dashed)
    return handles + ([Line2D([], [], color=GREY, **dashed)] if ideals else [])


def _interval(axes: Axes, at: float, low: int | float, high: int | float, colour: str) -> None:
    """Draws an interval as a bar with caps. An infinite upper end is an arrow at the end of the axes."""
    if not math.isfinite(low) or math.isnan(high):
        return
    is_open = math.isinf(high)
    top = axes.get_ylim()[1] if is_open else high
    style = {"color": colour, "lw": 1, "ls": "-", "ms": 5, "alpha": 0.8, "zorder": 2, "clip_on": False}
    axes.plot([at, at], [low, top], **style)
    axes.plot([at], [low], marker="_", **style)
    # Marker 6 is a caret that points up, with its base at the point.
    axes.plot([at], [top], marker=6 if is_open else "_", **style)


def _plot_misses(strip: Axes, missed: Sequence[tuple[Measured, tuple[str, str]]], label: str) -> None:
    """Draws a row for each series: its marker, and the numbers of successful runs if some missed the target."""
    strip.set_ylim(len(missed) - 0.5, -0.5)
    strip.set_yticks([])
    strip.tick_params(axis="x", which="both", length=0, labelbottom=False)
    strip.spines[["top", "right", "left", "bottom"]].set_visible(False)
    strip.set_facecolor("#f3f3f3")
    strip.set_ylabel(label, fontsize=8, rotation=0, ha="right", va="center", labelpad=12)
    for row, (one, (colour, marker)) in enumerate(missed):
        strip.plot([-0.015], [row], color=colour, marker=marker, ms=5, transform=strip.get_yaxis_transform(), clip_on=False)
        for n, reached, runs in zip(one.at, one.reached, one.runs, strict=True):
            if reached < runs:
                text = f"{reached}/{runs}" if reached else f"✕ 0/{runs}"
                strip.text(n, row, text, ha="center", va="center", fontsize=7.5)
