"""The losses of a run against its epochs."""

import os
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from gmmae.figures import canvas
from gmmae.figures.canvas import BLUE, DPI, GREY, VERMILION, finite, power_of_ten


def losses(
    epoch: Int[np.ndarray, " epochs"],
    train_loss: Float[np.ndarray, " epochs"],
    val_loss: Float[np.ndarray, " epochs"],
    learning_rate: Float[np.ndarray, " epochs"],
    path: str | os.PathLike[str],
    *,
    target: float | None = None,
    title: str | None = None,
    warmup_epochs: int = 0,
) -> Path:
    """Draw the losses of a run against its epochs, and below them the learning rate if it varies.

    The axis of the losses is logarithmic where all finite losses, and the target, are positive. The first epoch whose
    validation loss is at or below the target is marked, and so is the first with a loss that is not finite.

    Args:
      epoch: number of each epoch, increasing.
      train_loss: mean training loss of each epoch; NaN and infinity are allowed.
      val_loss: validation loss after each epoch; NaN and infinity are allowed.
      learning_rate: of each epoch.
      path: of the PNG or SVG file. Missing folders are made; an existing file is replaced in one step.
      target: validation loss to reach, if there is one.
      title: above the figure.
      warmup_epochs: shaded, from the start; none if 0.

    Returns:
      The path.

    Raises:
      ValueError: there is no epoch.
    """
    if not len(epoch):
        raise ValueError("there must be at least one epoch to draw; got none")
    finite_rates = learning_rate[np.isfinite(learning_rate)]
    varies = len(np.unique(finite_rates)) > 1
    figure = Figure(figsize=(6.4, 4.6 if varies else 3.8), dpi=DPI, layout="constrained")
    panels = figure.subplots(2 if varies else 1, sharex=True, squeeze=False, height_ratios=(4, 1) if varies else (1,))[:, 0]
    _plot_losses(panels[0], epoch, train_loss, val_loss, target)
    if varies:
        panels[1].plot(epoch, finite(learning_rate), color=GREY, lw=1.2, drawstyle="steps-mid")
        panels[1].set_ylabel("learning\nrate", fontsize=9)
        panels[1].set_ylim(bottom=0)
    span = (min(0, int(epoch[0])), int(epoch[-1]) + max(1, 0.02 * np.ptp(epoch)))
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(which="both", labelsize=8)
        if warmup_epochs:
            axes.axvspan(span[0], warmup_epochs, color="#eeeeee", zorder=0, lw=0, label="warmup")
    panels[-1].set_xlabel("epoch", fontsize=9)
    panels[-1].set_xlim(span)
    panels[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    panels[0].legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3, frameon=False, fontsize=8, borderaxespad=0.2)
    if title:
        figure.suptitle(title, fontsize=11)
    return canvas.save(figure, path)


def _plot_losses(axes: Axes, epoch: np.ndarray, train_loss: np.ndarray, val_loss: np.ndarray, target: float | None) -> None:
    """Both losses, the target and where it is reached, and where a loss stops being finite."""
    for loss, label, colour in ((train_loss, "training", BLUE), (val_loss, "validation", VERMILION)):
        alone = np.isfinite(loss).sum() == 1
        axes.plot(epoch, finite(loss), color=colour, lw=1.4, marker="o" if alone else None, ms=5, label=label)
    if target is not None:
        axes.axhline(target, color=GREY, ls="--", lw=1, label=f"target {power_of_ten(target, 2)}")
        reached = np.flatnonzero(val_loss <= target)
        if len(reached):
            at = reached[0]
            style = {"marker": "o", "ms": 8, "mfc": "none", "mec": "black", "ls": "none"}
            axes.plot(epoch[at], val_loss[at], label=f"reached at epoch {epoch[at]}", zorder=3, **style)
    broken = np.flatnonzero(~(np.isfinite(train_loss) & np.isfinite(val_loss)))
    if len(broken):
        first = int(epoch[broken[0]])
        axes.axvline(first, color="black", ls=":", lw=1.2, label=f"not finite from epoch {first}")
    drawn = np.concatenate([train_loss, val_loss, [] if target is None else [target]])
    drawn = drawn[np.isfinite(drawn)]
    if len(drawn) and (drawn > 0).all():
        axes.set_yscale("log")
    axes.set_ylabel("loss", fontsize=9)
