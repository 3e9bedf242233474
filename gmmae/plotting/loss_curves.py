"""Figures of losses: of one run by epochs, of several numbers of devices by time, and of one run with its start enlarged."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import matplotlib
import numpy as np
from jaxtyping import Float, Int
from matplotlib.artist import Artist
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
    curve = LossCurve("", epoch, train_loss, val_loss)
    varies = len(np.unique(learning_rate[np.isfinite(learning_rate)])) > 1
    figure = canvas.blank(4.6 if varies else 3.8, title)
    axes, *below = figure.subplots(1 + varies, sharex=True, squeeze=False, height_ratios=(4, 1)[: 1 + varies])[:, 0]
    canvas.dress(axes, "" if below else "epoch", "loss")
    handles = [*_plot_both(axes, curve, epoch), *_plot_target(axes, target)]
    reached = np.flatnonzero(val_loss <= target) if target is not None else []
    if len(reached):
        at, style = reached[0], {"marker": "o", "ms": 8, "mfc": "none", "mec": "black", "ls": "none"}
        handles += axes.plot(epoch[at], val_loss[at], label=f"reached at epoch {epoch[at]}", zorder=3, **style)
    sound = _finite_epochs(curve)
    if sound < len(epoch):
        label = f"not finite from epoch {epoch[sound]}"
        handles.append(axes.axvline(epoch[sound], color="black", ls=":", lw=1.2, label=label))
    _scale(axes, [curve], target)
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
    handles, reached, broken = [], False, False
    for curve, colour in zip(curves, colours, strict=True):
        style = {"color": colour, "ms": 3}
        axes.plot(curve.time_s, finite(curve.train_loss), lw=0.9, ls=":", marker=_alone(curve.train_loss), mfc="none", **style)
        axes.plot(curve.time_s, finite(curve.val_loss), lw=1.5, marker=_alone(curve.val_loss), **style)
        reached |= _mark_target(axes, curve, target, colour)
        broken |= _mark_end(axes, curve)
        suffix = "" if _finite_epochs(curve) == len(curve.time_s) else " (not finite)"
        handles.append(Line2D([], [], color=colour, lw=2.5, label=curve.label + suffix))
    handles.append(Line2D([], [], color=GREY, lw=1.5, label="validation"))
    handles.append(Line2D([], [], color=GREY, lw=0.9, ls=":", label="training"))
    handles += [*_plot_target(axes, target), *_marks(reached, broken)]
    _scale(axes, curves, target)
    _scale_time(axes, curves)
    canvas.legend_above(axes, handles)
    return figure


def warmup_curve(
    curve: LossCurve, *, title: str, target: float | None, first_epochs: int, epoch_s: float, x_label: str = "time (s)"
) -> Figure:
    """Draws the losses of one run over time, and beside them those of its first epochs.

    The second panel is missing if the run has no finite loss in its first epochs, or no further epochs.

    Args:
      curve: losses of the run.
      title: title of the figure.
      target: target of the validation loss, or None.
      first_epochs: number of epochs in the second panel. They are shaded in the first panel.
      epoch_s: duration of an epoch in seconds.
      x_label: label of the time axis.

    Source: Fig. 3 of the paper.
    """
    end_s = first_epochs * epoch_s
    # The extra half epoch allows for measured epochs of unequal length.
    within = curve.time_s < end_s + epoch_s / 2
    first = LossCurve(curve.label, *(values[within] for values in curve[1:]))
    enlarged = not within.all() and bool((np.isfinite(first.train_loss) | np.isfinite(first.val_loss)).any())
    figure = canvas.blank(4.0, title)
    axes, *panel = figure.subplots(1, 1 + enlarged, squeeze=False, width_ratios=(2, 1)[: 1 + enlarged])[0]
    canvas.dress(axes, x_label, "loss")
    handles: list[Artist] = [*_plot_both(axes, curve, curve.time_s), *_plot_target(axes, target)]
    handles += _marks(_mark_target(axes, curve, target, VERMILION), _mark_end(axes, curve))
    _scale(axes, [curve], target)
    axes.set_xlim(0, 1.02 * float(curve.time_s[-1]))
    handles.append(axes.axvspan(0, end_s, color="#e4e4e4", zorder=0, lw=0, label=f"first {first_epochs} epochs"))
    canvas.legend_above(axes, handles, canvas.WIDTH * (2 / 3 if enlarged else 1))
    for beside in panel:
        canvas.dress(beside, "epoch", "")
        beside.set_facecolor("#f3f3f3")
        _plot_both(beside, first, first.time_s / epoch_s, marker="o")
        _scale(beside, [first], None)
        beside.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    return figure


def _plot_both(axes: Axes, curve: LossCurve, x: np.ndarray, marker: str | None = None) -> list[Line2D]:
    """Draws the two losses of a run. Returns their lines for a legend."""
    handles = []
    for loss, label, colour, ls in (
        (curve.train_loss, "training", BLUE, "--"),
        (curve.val_loss, "validation", VERMILION, "-"),
    ):
        handles += axes.plot(x, finite(loss), color=colour, lw=1.3, ls=ls, marker=marker or _alone(loss), ms=3, label=label)
    return handles


def _alone(loss: np.ndarray) -> str | None:
    """Returns a marker for a single point, which a line would not show."""
    return "o" if np.isfinite(loss).sum() == 1 else None


def _plot_target(axes: Axes, target: float | None) -> list[Line2D]:
    """Draws a line at the target. Returns it for a legend; the list is empty for None."""
    if target is None:
        return []
    return [axes.axhline(target, color=GREY, ls="--", lw=1, zorder=1, label=f"target {canvas.plain(target)}")]


def _mark_target(axes: Axes, curve: LossCurve, target: float | None, colour: str | np.ndarray) -> bool:
    """Marks the first epoch at or below the target with a circle. Tells whether there is one."""
    reached = np.flatnonzero(curve.val_loss <= target) if target is not None else []
    if not len(reached):
        return False
    at = reached[0]
    axes.plot(curve.time_s[at], curve.val_loss[at], marker="o", ms=6, mfc="white", mec=colour, mew=1.5, zorder=4)
    return True


def _finite_epochs(curve: LossCurve) -> int:
    """Returns the number of epochs before the first non-finite loss."""
    return int(np.logical_and.accumulate(np.isfinite(curve.train_loss) & np.isfinite(curve.val_loss)).sum())


def _mark_end(axes: Axes, curve: LossCurve) -> bool:
    """Marks the last finite loss with a cross if non-finite ones follow. Tells whether there is a mark."""
    last = _finite_epochs(curve) - 1
    if not 0 <= last < len(curve.time_s) - 1:
        return False
    axes.plot(curve.time_s[last], curve.val_loss[last], marker="x", ms=6, mew=1.5, color="black", zorder=4)
    return True


def _marks(reached: bool, broken: bool) -> list[Line2D]:
    """Returns the legend's entries for circles and crosses."""
    circle = Line2D([], [], color="black", marker="o", mfc="white", ms=6, ls="none", label="target reached")
    cross = Line2D([], [], color="black", marker="x", ms=6, mew=1.5, ls="none", label="last finite loss")
    return [circle] * reached + [cross] * broken


def _scale(axes: Axes, curves: Sequence[LossCurve], target: float | None) -> None:
    """Sets a logarithmic axis if all finite losses and the target are positive, otherwise a linear one."""
    drawn = np.concatenate([loss for curve in curves for loss in curve[2:]])
    drawn = drawn[np.isfinite(drawn)]
    if not len(drawn):
        axes.text(0.5, 0.7, "no finite loss", transform=axes.transAxes, ha="center", fontsize=9, color=GREY)
    drawn = np.append(drawn, [] if target is None else [target])
    if len(drawn) and (drawn > 0).all():
        margin = (drawn.max() / drawn.min()) ** 0.05 * 1.02 if drawn.max() > drawn.min() else 2
        axes.set_ylim(drawn.min() / margin, drawn.max() * margin)
        canvas.log_axis(axes, "y")


def _scale_time(axes: Axes, curves: Sequence[LossCurve]) -> None:
    time_s = np.concatenate([curve.time_s for curve in curves])
    if (time_s > 0).all():
        axes.set_xlim(time_s.min() / 1.1, time_s.max() * 1.1)
        canvas.log_axis(axes, "x")
