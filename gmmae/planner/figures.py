"""The figure of a plan: times to the target by number of devices.

A plan from curves has two others: the curves with the target, and the steps to the target by batch.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from gmmae.planner.prediction import Prediction
from gmmae.plotting import canvas
from gmmae.plotting.comparison import STYLES

CHOICE_RING: dict[str, Any] = {"marker": "o", "ms": 12, "mec": "black", "mfc": "none", "mew": 1.0, "ls": "none"}
"""The look of the ring around the choice."""

FAINT = 0.3
"""Opacity of the marker of an untested prediction."""

SHIFT = 1.035
"""The ratio of the horizontal places of two strategies on one number of devices, so that their intervals lie side by side."""


def times(
    cells: Mapping[str, Sequence[Prediction]], labels: Sequence[str], *, title: str, choice: Prediction | None = None
) -> Figure:
    """Draws the time to the target against the number of devices, both logarithmic, with intervals as vertical lines.

    Hollow markers show predictions by which more runs fail than reach the target. Faint ones have a learning rate that no trial
    covers. A ring shows the choice.

    Args:
      cells: predictions by the label of their strategy, with increasing numbers of devices.
      labels: all labels, in the order of their colours.
      title: title of the figure.
      choice: the recommended prediction, if it is one of them.
    """
    figure = canvas.blank(4.2, title)
    axes = figure.subplots()
    canvas.dress(axes, "devices", "time to target (s)")
    handles = []
    for place, (label, of_strategy) in enumerate(cells.items()):
        colour, marker = STYLES[labels.index(label) % len(STYLES)]
        shift = SHIFT ** (place - (len(cells) - 1) / 2)
        beside = [shift * cell.devices for cell in of_strategy]
        low, high = [cell.seconds_low for cell in of_strategy], [cell.seconds_high for cell in of_strategy]
        axes.vlines(beside, low, high, color=colour, alpha=0.55, lw=1.3)
        axes.plot(beside, [cell.seconds for cell in of_strategy], color=colour, lw=0.9, alpha=0.8)
        for n, cell in zip(beside, of_strategy, strict=True):
            face = "white" if cell.probability_of_failure > 0.5 else colour
            axes.plot(n, cell.seconds, marker=marker, ms=5, mec=colour, mfc=face, ls="none", alpha=1 if cell.tested else FAINT)
            if cell == choice:
                axes.plot(n, cell.seconds, zorder=1, **CHOICE_RING)
        handles.append(Line2D([], [], color=colour, marker=marker, ms=5, lw=1.3, label=label))
    all_cells = [cell for of_strategy in cells.values() for cell in of_strategy]
    if any(cell.probability_of_failure > 0.5 for cell in all_cells):
        handles.append(Line2D([], [], color="black", marker="o", ms=5, mfc="white", ls="none", label="likely to fail"))
    if not all(cell.tested for cell in all_cells):
        untested = Line2D([], [], color="black", marker="o", ms=5, ls="none", alpha=FAINT, label="learning rate untested")
        handles.append(untested)
    if choice in all_cells:
        handles.append(Line2D([], [], label="the choice", **CHOICE_RING))
    counts = sorted({cell.devices for cell in all_cells})
    margin = 1.1 * SHIFT ** (len(cells) / 2)
    axes.set_xlim(counts[0] / margin, counts[-1] * margin)
    axes.set_ylim(min(cell.seconds_low for cell in all_cells) / 1.2, max(cell.seconds_high for cell in all_cells) * 1.2)
    canvas.log_axis(axes, "x", counts)
    canvas.log_axis(axes, "y")
    canvas.legend_above(axes, handles)
    return figure


class TargetCurve(NamedTuple):
    """A metric by step, and the step at which it reaches the target."""

    batch: int
    steps: tuple[float, ...]  # increasing
    values: tuple[float, ...]
    reached: float


def curves_with_target(curves: Sequence[TargetCurve], metric: str, target: float) -> Figure:
    """Draws a metric against the steps, a colour for each batch. A mark shows where each curve reaches the target.

    Args:
      curves: curves of all runs.
      metric: label of the vertical axis.
      target: level of the metric.
    """
    figure = canvas.blank(3.6, "Curves")
    axes = figure.subplots()
    canvas.dress(axes, "steps", metric)
    batches = sorted({curve.batch for curve in curves})
    styles = {batch: STYLES[place % len(STYLES)] for place, batch in enumerate(batches)}
    for curve in curves:
        colour, marker = styles[curve.batch]
        axes.plot(curve.steps, curve.values, color=colour, lw=1)
        axes.plot(curve.reached, target, marker=marker, ms=5, color=colour, ls="none")
    axes.axhline(target, color=canvas.GREY, lw=1, ls="--")
    handles = [Line2D([], [], color=colour, marker=marker, ms=5, label=f"batch {b}") for b, (colour, marker) in styles.items()]
    handles.append(Line2D([], [], color=canvas.GREY, lw=1, ls="--", label="target"))
    positive = [step for curve in curves for step in curve.steps if step > 0]
    axes.set_xlim(min(positive) / 1.1, max(positive) * 1.1)
    canvas.log_axis(axes, "x")
    values = np.concatenate([np.asarray(curve.values) for curve in curves])
    if values.min() > 0 and values.max() > 5 * values.min():
        axes.set_ylim(values.min() / 1.1, values.max() * 1.1)
        canvas.log_axis(axes, "y")
    canvas.legend_above(axes, handles)
    return figure


def steps_by_batch(
    batches: Sequence[float],
    quantiles: Float[np.ndarray, "3 batches"],
    measured: Sequence[tuple[int, float]],
    *,
    title: str,
) -> Figure:
    """Draws the steps to the target against the batch, both logarithmic, with the law's interval as a band.

    Args:
      batches: batches of the law, increasing.
      quantiles: lower end, median and upper end of the law's steps at these batches.
      measured: batch and steps of each curve.
      title: title of the figure.
    """
    figure = canvas.blank(3.6, title)
    axes = figure.subplots()
    canvas.dress(axes, "batch", "steps to target")
    low, middle, high = quantiles
    axes.fill_between(batches, low, high, color=canvas.BLUE, alpha=0.15, lw=0)
    axes.plot(batches, middle, color=canvas.BLUE, lw=1.3)
    axes.plot(*zip(*measured, strict=True), color=canvas.VERMILION, marker="o", ms=5, ls="none")
    axes.set_xlim(batches[0], batches[-1])
    every = np.concatenate([low, high, [steps for _, steps in measured]])
    axes.set_ylim(every.min() / 1.2, every.max() * 1.2)
    canvas.log_axis(axes, "x")
    canvas.log_axis(axes, "y")
    handles = [
        Line2D([], [], color=canvas.BLUE, lw=1.3, label="law, with 80 % of its draws"),
        Line2D([], [], color=canvas.VERMILION, marker="o", ms=5, ls="none", label="curves"),
    ]
    canvas.legend_above(axes, handles)
    return figure
