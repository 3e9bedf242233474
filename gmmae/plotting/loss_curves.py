"""Figures of losses: of one run by epochs, and of several numbers of devices by time."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import matplotlib
import numpy as np
from jaxtyping import Float, Int
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from gmmae.plotting import canvas
from gmmae.plotting.canvas import BLUE, GREY, VERMILION, finite


class LossCurve(NamedTuple):
    """The losses of a run against time.

    Attributes:
      label: label of the run, such as "8 devices".
      time_s: increasing times at the end of each epoch.
      train_loss: training loss of each epoch; NaN and infinity are allowed.
      val_loss: validation loss of each epoch; NaN and infinity are allowed.
    """

    label: str
    time_s: Float[np.ndarray, " epochs"]
    train_loss: Float[np.ndarray, " epochs"]
    val_loss: Float[np.ndarray, " epochs"]


def losses(
    epoch: Int[np.ndarray, " epochs"],
    train_loss: Float[np.ndarray, " epochs"],
    val_loss: Float[np.ndarray, " epochs"],
    learning_rate: Float[np.ndarray, " epochs"],
    path: str | os.PathLike[str],
    *,
    target: float | None = None,
    title: str = "",
) -> Path:
    """Draws the losses of a run against its epochs, and below them the learning rate if it varies.

    Marks show the first epoch with a validation loss at or below the target, and the first without a finite loss.

    Args:
      epoch: increasing numbers of the epochs.
      train_loss: mean training loss of each epoch; NaN and infinity are allowed.
      val_loss: validation loss after each epoch; NaN and infinity are allowed.
      learning_rate: learning rate of each epoch.
      path: path of the PNG or SVG file. Missing folders are created, and an existing file is replaced atomically.
      target: target of the validation loss, or None.
      title: title of the figure.

    Returns:
      The path.
    """
    varies = len(np.unique(learning_rate[np.isfinite(learning_rate)])) > 1
    figure = canvas.blank(4.6 if varies else 3.8, title)
    axes, *below = figure.subplots(1 + varies, sharex=True, squeeze=False, height_ratios=(4, 1)[: 1 + varies])[:, 0]
    canvas.dress(axes, "" if below else "epoch", "loss")
    handles = []
    for loss, colour, ls, label in ((train_loss, BLUE, "--", "training"), (val_loss, VERMILION, "-", "validation")):
        handles += axes.plot(epoch, finite(loss), color=colour, lw=1.3, ls=ls, marker=_alone(loss), ms=3, label=label)
    handles += _scale(axes, [train_loss, val_loss], target)
    for at in _reached(val_loss, target):
        style = {"marker": "o", "ms": 8, "mfc": "none", "mec": "black", "ls": "none"}
        handles += axes.plot(epoch[at], val_loss[at], label=f"reached at epoch {epoch[at]}", zorder=3, **style)
    for at in _broken(train_loss, val_loss):
        handles.append(axes.axvline(epoch[at], color="black", ls=":", lw=1.2, label=f"not finite from epoch {epoch[at]}"))
    for panel in below:
        canvas.dress(panel, "epoch", "learning\nrate")
        panel.plot(epoch, finite(learning_rate), color=GREY, lw=1.2, drawstyle="steps-mid")
        panel.set_ylim(bottom=0)
    axes.set_xlim(min(0, int(epoch[0])), int(epoch[-1]) + max(1, 0.02 * np.ptp(epoch)))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    canvas.legend_above(axes, handles)
    return canvas.save(figure, path)


def losses_by_devices(curves: Sequence[LossCurve], *, title: str, target: float | None, x_label: str = "time (s)") -> Figure:
    """Draws the losses of several runs over time, from dark to light in their order.

    Time is logarithmic, so 32 devices get as much room as one. A circle marks the first validation loss at or below the target.
    A cross marks the last finite loss of a run that later has non-finite ones, and the legend names the run.

    Args:
      curves: the runs, each with its own colour.
      title: title of the figure.
      target: target of the validation loss, or None.
      x_label: label of the time axis.

    Source: Fig. 4 and 5 of the paper.
    """
    figure = canvas.blank(4.0, title)
    axes = figure.subplots()
    canvas.dress(axes, x_label, "loss")
    # Lighter colours of the map would be invisible on white.
    colours = matplotlib.colormaps["viridis"](np.linspace(0, 0.85, len(curves)))
    handles, marks = [], {}
    for curve, colour in zip(curves, colours, strict=True):
        _, time_s, train_loss, val_loss = curve
        for loss, lw, ls, mfc in ((train_loss, 0.9, ":", "none"), (val_loss, 1.5, "-", None)):
            axes.plot(time_s, finite(loss), color=colour, lw=lw, ls=ls, marker=_alone(loss), ms=3, mfc=mfc)
        broken = _broken(train_loss, val_loss)
        for label, places, marker, edge in (
            ("target reached", _reached(val_loss, target), "o", colour),
            ("last finite loss", broken[broken > 0] - 1, "x", "black"),
        ):
            for at in places:
                axes.plot(time_s[at], val_loss[at], marker=marker, ms=6, mfc="white", mec=edge, mew=1.5, zorder=4)
                marks[label] = Line2D([], [], ls="none", marker=marker, ms=6, mfc="white", mec="black", mew=1.5, label=label)
        suffix = " (not finite)" if len(broken) else ""
        handles.append(Line2D([], [], color=colour, lw=2.5, label=curve.label + suffix))
    handles.append(Line2D([], [], color=GREY, lw=1.5, label="validation"))
    handles.append(Line2D([], [], color=GREY, lw=0.9, ls=":", label="training"))
    handles += [*_scale(axes, [loss for curve in curves for loss in curve[2:]], target), *marks.values()]
    times = np.concatenate([curve.time_s for curve in curves])
    if (times > 0).all():
        axes.set_xlim(times.min() / 1.1, times.max() * 1.1)
        canvas.log_axis(axes, "x")
    canvas.legend_above(axes, handles)
    return figure


def _alone(loss: np.ndarray) -> str | None:
    """Returns a marker for a single point, which a line would not show."""
    return "o" if np.isfinite(loss).sum() == 1 else None


def _reached(val_loss: np.ndarray, target: float | None) -> np.ndarray:
    """Returns the place of the first loss at or below the target, or none."""
    return np.flatnonzero(val_loss <= (np.nan if target is None else target))[:1]


def _broken(train_loss: np.ndarray, val_loss: np.ndarray) -> np.ndarray:
    """Returns the place of the first loss that is not finite, or none."""
    return np.flatnonzero(~(np.isfinite(train_loss) & np.isfinite(val_loss)))[:1]


def _scale(axes: Axes, losses: Sequence[np.ndarray], target: float | None) -> list[Line2D]:
    """Draws the target, and returns its line. The axis is logarithmic if all finite losses and the target are positive."""
    drawn = np.concatenate(losses)
    drawn = drawn[np.isfinite(drawn)]
    if not len(drawn):
        axes.text(0.5, 0.7, "no finite loss", transform=axes.transAxes, ha="center", fontsize=9, color=GREY)
    handles = []
    if target is not None:
        handles = [axes.axhline(target, color=GREY, ls="--", lw=1, zorder=1, label=f"target {canvas.plain(target)}")]
        drawn = np.append(drawn, target)
    if len(drawn) and (drawn > 0).all():
        margin = (drawn.max() / drawn.min()) ** 0.05 * 1.02 if drawn.max() > drawn.min() else 2
        axes.set_ylim(drawn.min() / margin, drawn.max() * margin)
        canvas.log_axis(axes, "y")
    return handles


# For the report's third figure, until it has gone: from here to the end.


def warmup_curve(
    curve: LossCurve, *, title: str, target: float | None, first_epochs: int, epoch_s: float, x_label: str = "time (s)"
) -> Figure:
    """Draws `losses_by_devices` of one run."""
    return losses_by_devices([curve], title=title, target=target, x_label=x_label)
