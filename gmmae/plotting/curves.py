"""Figure of a run's losses against its epochs."""

import os
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int
from matplotlib.ticker import MaxNLocator

from gmmae.plotting import canvas
from gmmae.plotting.canvas import GREY, finite
from gmmae.plotting.loss_curves import LossCurve, finite_epochs, plot_both, plot_target, scale


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

    Raises:
      ValueError: there is no epoch.
    """
    if not len(epoch):
        raise ValueError("there must be at least one epoch to draw; got none")
    curve = LossCurve("", epoch, train_loss, val_loss)
    varies = len(np.unique(learning_rate[np.isfinite(learning_rate)])) > 1
    figure = canvas.blank(4.6 if varies else 3.8, title)
    axes, *below = figure.subplots(1 + varies, sharex=True, squeeze=False, height_ratios=(4, 1)[: 1 + varies])[:, 0]
    canvas.dress(axes, "" if below else "epoch", "loss")
    handles = [*plot_both(axes, curve, epoch), *plot_target(axes, target)]
    reached = np.flatnonzero(val_loss <= target) if target is not None else []
    if len(reached):
        at, style = reached[0], {"marker": "o", "ms": 8, "mfc": "none", "mec": "black", "ls": "none"}
        handles += axes.plot(epoch[at], val_loss[at], label=f"reached at epoch {epoch[at]}", zorder=3, **style)
    sound = finite_epochs(curve)
    if sound < len(epoch):
        label = f"not finite from epoch {epoch[sound]}"
        handles.append(axes.axvline(epoch[sound], color="black", ls=":", lw=1.2, label=label))
    scale(axes, [curve], target)
    for panel in below:
        canvas.dress(panel, "epoch", "learning\nrate")
        panel.plot(epoch, finite(learning_rate), color=GREY, lw=1.2, drawstyle="steps-mid")
        panel.set_ylim(bottom=0)
    axes.set_xlim(min(0, int(epoch[0])), int(epoch[-1]) + max(1, 0.02 * np.ptp(epoch)))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    canvas.legend_above(axes, handles)
    return canvas.save(figure, path)
