"""Figures of losses: of one run by epochs, and of several runs by time."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from gmmae.plotting import canvas
from gmmae.plotting.canvas import BLUE, GREY, VERMILION
from gmmae.plotting.comparison import STYLES

Epochs = Float[np.ndarray, " epochs"]


class LossCurve(NamedTuple):
    """The losses of a run against time.

    Attributes:
      label: such as "8 devices".
      time_s: increasing times at the end of each epoch.
      train_loss: of each epoch; NaN and infinity are allowed.
      val_loss: likewise.
    """

    label: str
    time_s: Epochs
    train_loss: Epochs
    val_loss: Epochs


def losses(
    epoch: Int[np.ndarray, " epochs"],
    train_loss: Epochs,
    val_loss: Epochs,
    learning_rate: Epochs,
    path: str | Path,
    *,
    target: float | None = None,
    title: str = "",
) -> Path:
    """Draws the losses of a run against its epochs, and below them the learning rate if it varies.

    A circle marks the first validation loss at or below the target, a cross the last finite loss if others follow.
    """
    varies = bool(np.ptp(learning_rate) > 0)
    figure = canvas.blank(4.6 if varies else 3.8, title)
    axes, *below = figure.subplots(1 + varies, sharex=True, squeeze=False, height_ratios=(4, 1)[: 1 + varies])[:, 0]
    canvas.dress(axes, "" if below else "epoch", "loss")
    handles = _draw(axes, [LossCurve("", epoch, train_loss, val_loss)], [(BLUE, VERMILION)], target)
    for panel in below:
        canvas.dress(panel, "epoch", "learning\nrate")
        panel.plot(epoch, learning_rate, color=GREY, lw=1.2, drawstyle="steps-mid")
        panel.set_ylim(bottom=0)
    axes.set_xlim(0, 1.02 * epoch[-1] + 1)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    canvas.legend_above(axes, handles)
    return canvas.save(figure, path)


def losses_by_devices(curves: Sequence[LossCurve], *, title: str, target: float | None, x_label: str = "time (s)") -> Figure:
    """Draws the losses of several runs over logarithmic time, with the marks of `losses`; the legend names runs with a cross.

    Source: Fig. 4 and 5 of the paper.
    """
    figure = canvas.blank(4.0, title)
    axes = figure.subplots()
    canvas.dress(axes, x_label, "loss")
    colours = [colour for (colour, _), _ in zip(itertools.cycle(STYLES), curves, strict=False)]
    named = [
        Line2D([], [], color=colour, lw=2.5, label=curve.label + ("" if np.isfinite(curve[2:]).all() else " (not finite)"))
        for colour, curve in zip(colours, curves, strict=True)
    ]
    handles = _draw(axes, curves, [(colour, colour) for colour in colours], target)
    times = np.concatenate([curve.time_s for curve in curves])
    if (times > 0).all():
        axes.set_xlim(times.min() / 1.1, times.max() * 1.1)
        canvas.log_axis(axes, "x")
    canvas.legend_above(axes, [*named, *handles])
    return figure


def _draw(axes: Axes, curves: Sequence[LossCurve], colours: Sequence[tuple[Any, Any]], target: float | None) -> list[Line2D]:
    marks = {}
    for curve, both in zip(curves, colours, strict=True):
        _, time_s, train_loss, val_loss = curve
        for loss, colour, lw, ls, mfc in ((train_loss, both[0], 0.9, ":", "none"), (val_loss, both[1], 1.5, "-", None)):
            alone = np.isfinite(loss).sum() == 1  # a line would not show it
            axes.plot(time_s, loss, color=colour, lw=lw, ls=ls, marker="o" if alone else None, ms=3, mfc=mfc)
        reached = np.flatnonzero(val_loss <= (np.nan if target is None else target))[:1]
        broken = np.flatnonzero(~np.isfinite(curve[2:]).all(0))[:1]
        for label, marker, places in (("target reached", "o", reached), ("last finite loss", "x", broken[broken > 0] - 1)):
            for at in places:
                marks[label] = axes.plot(
                    time_s[at],
                    val_loss[at],
                    marker=marker,
                    label=label,
                    ls="none",
                    ms=6,
                    mfc="white",
                    mec="black",
                    mew=1.5,
                    zorder=4,
                )
    key = colours[0] if len(curves) == 1 else (GREY, GREY)
    handles = [
        Line2D([], [], color=key[1], lw=1.5, label="validation"),
        Line2D([], [], color=key[0], lw=0.9, ls=":", label="training"),
    ]
    drawn = np.concatenate([loss for curve in curves for loss in curve[2:]])
    drawn = drawn[np.isfinite(drawn)]
    if not len(drawn):
        axes.text(0.5, 0.7, "no finite loss", transform=axes.transAxes, ha="center", fontsize=9, color=GREY)
    if target is not None:
        handles.append(axes.axhline(target, color=GREY, ls="--", lw=1, zorder=1, label=f"target {canvas.plain(target)}"))
        drawn = np.append(drawn, target)
    if len(drawn) and (drawn > 0).all():
        margin = (drawn.max() / drawn.min()) ** 0.05 * 1.02 if drawn.max() > drawn.min() else 2
        axes.set_ylim(drawn.min() / margin, drawn.max() * margin)
        canvas.log_axis(axes, "y")
    return handles + [line for lines in marks.values() for line in lines]
