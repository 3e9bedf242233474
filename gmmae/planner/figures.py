"""The two figures of a plan: times to the target by number of devices, and the best strategy by overhead."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from gmmae.plotting import canvas
from gmmae.plotting.comparison import STYLES


class TimeBand(NamedTuple):
    """The predicted times of one strategy. All tuples are in the order of `devices`.

    Attributes:
      label: name of the strategy.
      devices: numbers of devices, increasing.
      middle, low, high: median seconds, and the ends of their interval.
      doubtful: whether more runs are expected to fail than to reach the target.
    """

    label: str
    devices: tuple[int, ...]
    middle: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    doubtful: tuple[bool, ...]


class ClusterOverheads(NamedTuple):
    """The overhead of a cluster by number of devices."""

    label: str
    devices: tuple[int, ...]
    ratios: tuple[float, ...]


def times(bands: Sequence[TimeBand], *, title: str) -> Figure:
    """Draws the time to the target against the number of devices, both logarithmic, with intervals as bands.

    Hollow markers show strategies that are expected to fail.
    """
    figure = canvas.blank(4.2, title)
    axes = figure.subplots()
    canvas.dress(axes, "devices", "time to target (s)")
    handles = []
    for place, band in enumerate(bands):
        colour, marker = STYLES[place % len(STYLES)]
        beside = [n * (1 + 0.02 * (place - len(bands) / 2)) for n in band.devices]  # strategies of one batch lie on each other
        axes.fill_between(beside, band.low, band.high, color=colour, alpha=0.12, lw=0)
        axes.plot(beside, band.middle, color=colour, lw=1.3)
        for n, middle, doubtful in zip(beside, band.middle, band.doubtful, strict=True):
            axes.plot(n, middle, marker=marker, ms=5, mec=colour, mfc="white" if doubtful else colour, ls="none")
        handles.append(Line2D([], [], color=colour, marker=marker, ms=5, lw=1.3, label=band.label))
    if any(any(band.doubtful) for band in bands):
        handles.append(Line2D([], [], color="black", marker="o", ms=5, mfc="white", ls="none", label="likely to fail"))
    counts = sorted({n for band in bands for n in band.devices})
    axes.set_xlim(counts[0] / 1.1, counts[-1] * 1.1)
    axes.set_ylim(min(map(min, (band.low for band in bands))) / 1.2, max(map(max, (band.high for band in bands))) * 1.2)
    canvas.log_axis(axes, "x", counts)
    canvas.log_axis(axes, "y")
    canvas.legend_above(axes, handles)
    return figure


def best_strategies(
    best: Sequence[Sequence[str]],
    labels: Sequence[str],
    devices: Sequence[int],
    ratios: Sequence[float],
    overheads: Sequence[ClusterOverheads],
    *,
    title: str,
) -> Figure:
    """Draws the best strategy by number of devices and by overhead of a step. Each cluster is a line through the map.

    Args:
      best: labels, one row for each ratio and one column for each number of devices.
      labels: all labels, in the order of their colours in `times`.
      devices: numbers of devices of the columns, increasing.
      ratios: overheads of the rows, increasing.
      overheads: the clusters.
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
    for cluster, style in zip(overheads, ("-", "--", ":", "-.") * len(overheads), strict=False):
        levels = np.log10(np.clip(cluster.ratios, 10 ** edges[0], 10 ** edges[-1]))
        handles += axes.plot(
            [devices.index(n) for n in cluster.devices],
            levels,
            color="black",
            ls=style,
            marker="o",
            ms=4,
            lw=1.2,
            label=cluster.label,
        )
    axes.set_ylim(edges[0], edges[-1])
    canvas.legend_above(axes, handles)
    return figure
