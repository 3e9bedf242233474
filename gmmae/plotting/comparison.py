"""Scaling strategies compared by the number of devices: time to target, throughput, and the time of a step."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from gmmae.plotting import canvas
from gmmae.plotting.canvas import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILION

STYLES = ((BLUE, "o"), (VERMILION, "s"), (GREEN, "^"), (PURPLE, "D"), (ORANGE, "v"), (SKY, "P"), ("black", "X"))
"""Colour and marker of each line, in the order given: the same order gives a strategy the same style in every figure."""

ROW = 0.19
"""Height in inches of a strategy in the strip of misses."""


class Series(NamedTuple):
    """The times of one scaling strategy to a target loss; all tuples are in the order of `devices`.

    Attributes:
      label: of the strategy.
      devices: numbers of devices, increasing.
      median_s: over the runs; infinite where the median run missed the target.
      low_s, high_s: ends of the interval about the median; NaN for none, and the high end may be infinite.
      reached: runs that reached the target.
      runs: runs made.
    """

    label: str
    devices: tuple[int, ...]
    median_s: tuple[float, ...]
    low_s: tuple[float, ...]
    high_s: tuple[float, ...]
    reached: tuple[int, ...]
    runs: tuple[int, ...]


class Measured(NamedTuple):
    """A quantity measured at several counts; all tuples are in the order of `at`.

    Attributes:
      label: of the line.
      at: numbers of devices, or samples a device, increasing.
      median: may be NaN or infinite, and then is not drawn.
      low, high: ends of the interval about the median, say its quartiles; NaN for none, and the high end may be infinite.
    """

    label: str
    at: tuple[int, ...]
    median: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


class _Ideal(NamedTuple):
    """What perfect scaling would give: `at_one` · n^`power`."""

    colour: str
    at_one: float
    power: int

    def __call__(self, n: int) -> float:
        return self.at_one * float(n) ** self.power


def time_to_target(
    series: Sequence[Series], *, title: str, y_label: str = "time to target (s)", width: float = canvas.WIDTH
) -> Figure:
    """The time to the target loss against the number of devices, both logarithmic.

    A median that is infinite is missing from its line. A strip above the axes says for each strategy with misses how many runs
    reached the target, wherever not all did. The dashed line is T₁ / n, with the first finite median on one device for T₁.

    Args:
      series: a line each.
      title: above the figure.
      y_label: of the axis of time.
      width: of the figure in inches.

    Raises:
      ValueError: there is no series, or one whose tuples differ in length or are empty.

    Source: Fig. 2 of the paper.
    """
    _check(series)
    missed = [i for i, one in enumerate(series) if any(k < m for k, m in zip(one.reached, one.runs, strict=True))]
    lines = [Measured(*one[:5]) for one in series]
    ideals = [_Ideal(GREY, t, -1) for t in (_on_one(line) for line in lines) if math.isfinite(t)][:1]

    height = 4.0 + ROW * len(missed)
    figure = canvas.blank(height, title, width)
    if missed:
        strip_height = ROW * len(missed)
        strip, axes = figure.subplots(2, sharex=True, height_ratios=(strip_height, height - 1 - strip_height))
    else:
        strip = axes = figure.subplots()
    canvas.dress(axes, "devices", y_label)
    handles = _plot(axes, lines, ideals, "ideal, $T_1/n$")
    if not any(math.isfinite(t) for line in lines for t in line.median):
        axes.text(0.5, 0.5, "no median run reached the target", transform=axes.transAxes, ha="center", fontsize=9, color=GREY)
    if missed:
        _plot_misses(strip, [(series[i], STYLES[i % len(STYLES)]) for i in missed])
    canvas.legend_above(strip, handles, width)
    return figure


def throughput(series: Sequence[Measured], *, title: str) -> Figure:
    """Samples a second against the number of devices; dashed, n times each line's value on one device.

    Args:
      series: a line each, in samples a second: strong scaling at a global batch, or weak scaling at a device batch.
      title: above the figure.

    Raises:
      ValueError: as in `time_to_target`.
    """
    _check(series)
    ideals = [_Ideal(STYLES[i % len(STYLES)][0], _on_one(one), 1) for i, one in enumerate(series)]
    ideals = [ideal for ideal in ideals if math.isfinite(ideal.at_one)]
    return _draw_lines(series, ideals, title, "devices", "samples per second")


def step_time(series: Sequence[Measured], *, title: str) -> Figure:
    """The time of a training step in ms against the device batch.

    Args:
      series: a line each, in seconds.
      title: above the figure.

    Raises:
      ValueError: as in `time_to_target`.
    """
    _check(series)
    in_ms = [
        one._replace(**{name: tuple(1e3 * t for t in getattr(one, name)) for name in Measured._fields[2:]}) for one in series
    ]
    return _draw_lines(in_ms, [], title, "device batch (samples)", "time of a step (ms)")


def _on_one(line: Measured) -> int | float:
    """The median on one device; NaN if there is none."""
    return dict(zip(line.at, line.median, strict=True)).get(1, math.nan)


def _draw_lines(lines: Sequence[Measured], ideals: Sequence[_Ideal], title: str, x_label: str, y_label: str) -> Figure:
    figure = canvas.blank(4.0, title)
    axes = figure.subplots()
    canvas.dress(axes, x_label, y_label)
    canvas.legend_above(axes, _plot(axes, lines, ideals, "ideal, n × one device"))
    return figure


def _check(series: Sequence[Series] | Sequence[Measured]) -> None:
    if not series:
        raise ValueError("there must be at least one series to draw; got none")
    for one in series:
        lengths = [len(values) for values in one[1:]]
        if len(set(lengths)) != 1 or not lengths[0]:
            raise ValueError(f"the tuples of {one.label!r} must have one length, not 0; got lengths {lengths}")


def _plot(axes: Axes, lines: Sequence[Measured], ideals: Sequence[_Ideal], ideal_label: str) -> list[Line2D]:
    """Lines with markers and intervals on logarithmic axes, and the ideals below them; returns what the legend shows."""
    counts = sorted({n for line in lines for n in line.at})
    ends = (counts[0], counts[-1])
    ideals = ideals if len(counts) > 1 else []
    axes.set_xlim(ends[0] / 1.35, ends[1] * 1.35)
    canvas.log_axis(axes, "x", counts)
    values = np.array(
        [value for line in lines for part in line[2:] for value in part] + [ideal(n) for ideal in ideals for n in ends]
    )
    values = values[np.isfinite(values) & (values > 0)]
    if len(values):
        axes.set_ylim(values.min() / 1.2, values.max() * 1.2)
        canvas.log_axis(axes, "y")
        axes.grid(axis="y", color="#e8e8e8", lw=0.6)
    else:
        axes.set_yticks([])

    # Octaves between neighbouring lines, so that their intervals stand side by side.
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
    """A bar between two ends with a cap at each; one without upper end has an arrow where the axes end."""
    if not math.isfinite(low) or math.isnan(high):
        return
    is_open = math.isinf(high)
    top = axes.get_ylim()[1] if is_open else high
    style = {"color": colour, "lw": 1, "ls": "-", "ms": 5, "alpha": 0.8, "zorder": 2, "clip_on": False}
    axes.plot([at, at], [low, top], **style)
    axes.plot([at], [low], marker="_", **style)
    axes.plot([at], [top], marker=6 if is_open else "_", **style)  # 6: a caret that points up, its base at the point


def _plot_misses(strip: Axes, missed: Sequence[tuple[Series, tuple[str, str]]]) -> None:
    """A row for each series: its marker, and how many runs reached the target wherever not all did."""
    strip.set_ylim(len(missed) - 0.5, -0.5)
    strip.set_yticks([])
    strip.tick_params(axis="x", which="both", length=0, labelbottom=False)
    strip.spines[["top", "right", "left", "bottom"]].set_visible(False)
    strip.set_facecolor("#f3f3f3")
    strip.set_ylabel("reached", fontsize=8, rotation=0, ha="right", va="center", labelpad=12)
    for row, (one, (colour, marker)) in enumerate(missed):
        strip.plot([-0.015], [row], color=colour, marker=marker, ms=5, transform=strip.get_yaxis_transform(), clip_on=False)
        for n, reached, runs in zip(one.devices, one.reached, one.runs, strict=True):
            if reached < runs:
                text = f"{reached}/{runs}" if reached else f"✕ 0/{runs}"
                strip.text(n, row, text, ha="center", va="center", fontsize=7.5)
