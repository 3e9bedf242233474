"""The two figures of a plan: times to the target by number of devices, and the best strategy by overhead."""

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from gmmae.planner.prediction import Prediction
from gmmae.plotting import canvas
from gmmae.plotting.comparison import STYLES


def times(cells: Mapping[str, Sequence[Prediction]], *, title: str) -> Figure:
    """Draws the time to the target against the number of devices, both logarithmic, with intervals as bands.

    Hollow markers show predictions by which more runs fail than reach the target.

    Args:
      cells: predictions by the label of their strategy, with increasing numbers of devices.
      title: title of the figure.
    """
    figure = canvas.blank(4.2, title)
    axes = figure.subplots()
    canvas.dress(axes, "devices", "time to target (s)")
    handles = []
    for place, (label, of_strategy) in enumerate(cells.items()):
        colour, marker = STYLES[place % len(STYLES)]
        shift = 1 + 0.02 * (place - len(cells) / 2)  # strategies of one batch lie on each other
        beside = [shift * cell.devices for cell in of_strategy]
        low, high = [cell.seconds_low for cell in of_strategy], [cell.seconds_high for cell in of_strategy]
        axes.fill_between(beside, low, high, color=colour, alpha=0.12, lw=0)
        axes.plot(beside, [cell.seconds for cell in of_strategy], color=colour, lw=1.3)
        for n, cell in zip(beside, of_strategy, strict=True):
            face = "white" if cell.probability_of_failure > 0.5 else colour
            axes.plot(n, cell.seconds, marker=marker, ms=5, mec=colour, mfc=face, ls="none")
        handles.append(Line2D([], [], color=colour, marker=marker, ms=5, lw=1.3, label=label))
    all_cells = [cell for of_strategy in cells.values() for cell in of_strategy]
    if any(cell.probability_of_failure > 0.5 for cell in all_cells):
        handles.append(Line2D([], [], color="black", marker="o", ms=5, mfc="white", ls="none", label="likely to fail"))
    counts = sorted({cell.devices for cell in all_cells})
    axes.set_xlim(counts[0] / 1.1, counts[-1] * 1.1)
    axes.set_ylim(min(cell.seconds_low for cell in all_cells) / 1.2, max(cell.seconds_high for cell in all_cells) * 1.2)
    canvas.log_axis(axes, "x", counts)
    canvas.log_axis(axes, "y")
    canvas.legend_above(axes, handles)
    return figure


def best_strategies(
    best: Sequence[Sequence[str]],
    labels: Sequence[str],
    devices: Sequence[int],
    ratios: Sequence[float],
    overheads: Mapping[str, Sequence[float]],
    *,
    title: str,
) -> Figure:
    """Draws the best strategy by number of devices and by overhead of a step. Each cluster is a line through the map.

    Args:
      best: labels, one row for each ratio and one column for each number of devices.
      labels: all labels, in the order of their colours in `times`.
      devices: numbers of devices of the columns, increasing.
      ratios: overheads of the rows, increasing.
      overheads: a cluster's overheads on these numbers of devices, by its name.
      title: title of the figure.
    """
    shown = [label for label in labels if any(label in row for row in best)]
    colours = [STYLES[labels.index(label) % len(STYLES)][0] for label in shown]
    figure = canvas.blank(4.2, title)
    axes = figure.subplots()
    canvas.dress(axes, "devices", "overhead of a step / time of the base batch's samples")
    places = np.arange(len(devices) + 1) - 0.5
    steps = np.log10(np.asarray(ratios))
    half = (steps[1] - steps[0]) / 2
    edges = np.append(steps - half, steps[-1] + half)
    numbers = np.array([[shown.index(label) for label in row] for row in best])
    axes.pcolormesh(places, edges, numbers, cmap=ListedColormap(colours), vmin=-0.5, vmax=len(shown) - 0.5, alpha=0.45)
    axes.set_xticks(range(len(devices)), [str(n) for n in devices])
    decades = np.arange(np.ceil(edges[0]), np.floor(edges[-1]) + 1)
    axes.set_yticks(decades, [canvas.plain(float(10**decade)) for decade in decades])
    handles: list[Line2D | Patch] = [Patch(color=c, alpha=0.45, label=label) for c, label in zip(colours, shown, strict=True)]
    for (label, levels), style in zip(overheads.items(), itertools.cycle(("-", "--", ":", "-."))):
        shown_levels = np.log10(np.clip(levels, 10 ** edges[0], 10 ** edges[-1]))
        handles += axes.plot(shown_levels, color="black", ls=style, marker="o", ms=4, lw=1.2, label=label)
    axes.set_ylim(edges[0], edges[-1])
    canvas.legend_above(axes, handles)
    return figure
