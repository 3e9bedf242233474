"""The losses of a run against its epochs."""

import os
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int
from matplotlib.ticker import MaxNLocator

from gmmae.plotting import canvas
from gmmae.plotting.canvas import GREY, finite
from gmmae.plotting.loss_curves import Course, finite_epochs, plot_both, plot_target, scale


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
    """Draw the losses of a run against its epochs, and below them the learning rate if it varies.

    The first epoch whose validation loss is at or below the target is marked, and so is the first with a loss that is not
    finite.

    Args:
      epoch: number of each epoch, increasing.
      train_loss: mean training loss of each epoch; NaN and infinity are allowed.
      val_loss: validation loss after each epoch; NaN and infinity are allowed.
      learning_rate: of each epoch.
      path: of the PNG or SVG file. Missing folders are made; an existing file is replaced in one step.
      target: validation loss to reach, if there is one.
      title: above the figure.

    Returns:
      The path.

    Raises:
      ValueError: there is no epoch.
    """
    if not len(epoch):
        raise ValueError("there must be at least one epoch to draw; got none")
    course = Course("", epoch, train_loss, val_loss)
    varies = len(np.unique(learning_rate[np.isfinite(learning_rate)])) > 1
    figure = canvas.blank(4.6 if varies else 3.8, title)
    axes, *below = figure.subplots(1 + varies, sharex=True, squeeze=False, height_ratios=(4, 1)[: 1 + varies])[:, 0]
    canvas.dress(axes, "" if below else "epoch", "loss")
    handles = [*plot_both(axes, course, epoch), *plot_target(axes, target)]
    reached = np.flatnonzero(val_loss <= target) if target is not None else []
    if len(reached):
        at, style = reached[0], {"marker": "o", "ms": 8, "mfc": "none", "mec": "black", "ls": "none"}
        handles += axes.plot(epoch[at], val_loss[at], label=f"reached at epoch {epoch[at]}", zorder=3, **style)
    sound = finite_epochs(course)
    if sound < len(epoch):
        label = f"not finite from epoch {epoch[sound]}"
        handles.append(axes.axvline(epoch[sound], color="black", ls=":", lw=1.2, label=label))
    scale(axes, [course], target)
    for panel in below:
        canvas.dress(panel, "epoch", "learning\nrate")
        panel.plot(epoch, finite(learning_rate), color=GREY, lw=1.2, drawstyle="steps-mid")
        panel.set_ylim(bottom=0)
    axes.set_xlim(min(0, int(epoch[0])), int(epoch[-1]) + max(1, 0.02 * np.ptp(epoch)))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    canvas.legend_above(axes, handles)
    return canvas.save(figure, path)
