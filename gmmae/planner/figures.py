"""The figure of a plan: times or steps to the target by number of devices."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from gmmae.planner.prediction import Prediction
from gmmae.plotting import canvas
from gmmae.plotting.comparison import STYLES

RING: dict[str, Any] = {"marker": "o", "ms": 12, "mec": "black", "mfc": "none", "mew": 1.0, "ls": "none"}
"""The look of the ring around the choice."""

MARK: dict[str, Any] = {"color": "black", "marker": "o", "ms": 5, "ls": "none"}
"""The look of the markers in the legend."""

FAINT = 0.3
"""Opacity of the marker of an untested prediction."""

SHIFT = 1.035
"""The ratio of the horizontal places of two strategies on one number of devices, so that their intervals lie side by side."""


def predictions(
    cells: Mapping[str, Sequence[Prediction]],
    labels: Sequence[str],
    *,
    title: str,
    quantity: Literal["seconds", "steps"] = "seconds",
    choice: Prediction | None = None,
) -> Figure:
    """Draws the time or the steps to the target against the number of devices, both logarithmic, with intervals.

    Hollow markers show predictions by which more runs fail than reach the target. Faint ones have a learning rate that no trial
    covers. A ring shows the choice.

    Args:
      cells: predictions by the label of their strategy, with increasing numbers of devices.
      labels: all labels, in the order of their colours.
      title: title of the figure.
      quantity: what is drawn.
      choice: the recommended prediction, if it is one of them.
    """
    figure = canvas.blank(4.2, title)
    axes = figure.subplots()
    canvas.dress(axes, "devices", "time to target (s)" if quantity == "seconds" else "steps to target")
    handles, ends = [], []
    for place, (label, of_strategy) in enumerate(cells.items()):
        colour, marker = STYLES[labels.index(label) % len(STYLES)]
        beside = [SHIFT ** (place - (len(cells) - 1) / 2) * cell.devices for cell in of_strategy]
        low, middle, high = ([getattr(cell, f"{quantity}{end}") for cell in of_strategy] for end in ("_low", "", "_high"))
        ends += low + high
        axes.vlines(beside, low, high, color=colour, alpha=0.55, lw=1.3)
        axes.plot(beside, middle, color=colour, lw=0.9, alpha=0.8)
        for n, value, cell in zip(beside, middle, of_strategy, strict=True):
            face = "white" if cell.probability_of_failure > 0.5 else colour
            axes.plot(n, value, marker=marker, ms=5, mec=colour, mfc=face, ls="none", alpha=1 if cell.tested else FAINT)
            if cell == choice:
                axes.plot(n, value, zorder=1, **RING)
        handles.append(Line2D([], [], color=colour, marker=marker, ms=5, lw=1.3, label=label))
    every = [cell for of_strategy in cells.values() for cell in of_strategy]
    if any(cell.probability_of_failure > 0.5 for cell in every):
        handles.append(Line2D([], [], label="likely to fail", mfc="white", **MARK))
    if not all(cell.tested for cell in every):
        handles.append(Line2D([], [], label="learning rate untested", alpha=FAINT, **MARK))
    if choice in every:
        handles.append(Line2D([], [], label="the choice", **RING))
    counts = sorted({cell.devices for cell in every})
    margin = 1.1 * SHIFT ** (len(cells) / 2)
    axes.set_xlim(counts[0] / margin, counts[-1] * margin)
    axes.set_ylim(min(ends) / 1.2, max(ends) * 1.2)
    canvas.log_axis(axes, "x", counts)
    canvas.log_axis(axes, "y")
    canvas.legend_above(axes, handles)
    return figure
