"""Draws the learning rate and the global batch by epoch for each scaling strategy.

    python -m experiments.schedules --out results/study/schedules.svg

The figure is of 8 devices, a base batch of 32 and 574 training samples. It is computed by the functions that train.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.options import Parser, guarded
from gmmae.config.schema import OptimConfig
from gmmae.plotting import canvas
from gmmae.scaling import schedules, strategies
from gmmae.scaling.batches import plan_batches

DEVICES, SAMPLES, EPOCHS = 8, 574, 30

CONSTANT = OptimConfig(batch_doubling_epochs=(5, 10, 15))
DECAYING = OptimConfig(cosine_epochs=EPOCHS)


class Panel(NamedTuple):
    """A column of the figure: strategies that are compared with each other."""

    title: str
    optim: OptimConfig
    names: Sequence[str]


PANELS = (
    Panel("One batch", CONSTANT, ("strong", "weak", "sqrt", "sqrt-warmup", "linear", "linear-warmup")),
    Panel("A batch that doubles", CONSTANT, ("growing", "growing-sqrt")),
    Panel("With a decay of the rate", DECAYING, ("strong", "seesaw")),
)
COLOURS = {
    "strong": canvas.BLUE,
    "weak": canvas.ORANGE,
    "sqrt": canvas.GREEN,
    "sqrt-warmup": canvas.GREEN,
    "linear": canvas.VERMILION,
    "linear-warmup": canvas.VERMILION,
    "growing": canvas.PURPLE,
    "growing-sqrt": canvas.SKY,
    "seesaw": canvas.GREY,
}
LABELS = {"sqrt": "sqrt, sde", "sqrt-warmup": "sqrt-warmup, sde-warmup"}


class Course(NamedTuple):
    """A strategy's batch and learning rate at each of its steps.

    Attributes:
      epochs: the position of each step, in epochs.
      batches: the global batch of each step.
      rates: the learning rate of each step, relative to η.
    """

    epochs: np.ndarray
    batches: np.ndarray
    rates: np.ndarray


def course(name: str, optim: OptimConfig) -> Course:
    """Returns the batches and the learning rates of a strategy.

    >>> found = course("linear", CONSTANT)
    >>> found.batches[0].item(), round(found.rates[-1].item(), 3)
    (256, 8.0)
    """
    strategy = strategies.resolve(name, optim, DEVICES, SAMPLES)
    assert strategy.first_epochs is not None
    firsts = [1, *strategy.first_epochs, EPOCHS + 1]
    at, batches, rates = [], [], []
    for stage, first, following in zip(strategy.stages, firsts, firsts[1:], strict=False):
        steps = plan_batches(SAMPLES, stage.global_batch, DEVICES).steps
        schedule = schedules.learning_rate(stage.learning_rate, steps)
        for epoch in range(first, following):
            at.append(epoch - 1 + np.arange(steps) / steps)
            batches.append(np.full(steps, stage.global_batch))
            rates.append(schedules.epoch_learning_rates(schedule, epoch, steps) / optim.learning_rate)
    return Course(np.concatenate(at), np.concatenate(batches), np.concatenate(rates))


def figure() -> Figure:
    """Draws a column for each panel: batches above, learning rates below."""
    drawn = canvas.blank(4.2, f"Batch and learning rate on {DEVICES} devices, base batch 32")
    axes = drawn.subplots(2, len(PANELS), sharex=True, sharey="row", squeeze=False)
    for column, panel in enumerate(PANELS):
        above, below = axes[0, column], axes[1, column]
        above.set_title(panel.title, fontsize=9)
        for name in panel.names:
            _draw(above, below, name, course(name, panel.optim))
        canvas.dress(above, "", "global batch" if column == 0 else "")
        canvas.dress(below, "epoch", "learning rate / η" if column == 0 else "")
        above.legend(frameon=False, fontsize=8, loc="lower right" if column == 1 else "center left", handlelength=1.6)
    axes[0, 0].set_ylim(24, 340)
    axes[1, 0].set_ylim(0.08, 11)
    canvas.log_axis(axes[0, 0], "y", (32, 64, 128, 256))
    canvas.log_axis(axes[1, 0], "y")
    return drawn


def _draw(above: Axes, below: Axes, name: str, of: Course) -> None:
    style = {"color": COLOURS[name], "lw": 1.6, "ls": "--" if name.endswith("warmup") else "-"}
    above.plot(of.epochs, of.batches, drawstyle="steps-post", label=LABELS.get(name, name), **style)
    below.plot(of.epochs, of.rates, **style)


def main() -> None:
    """Writes the figure."""
    parser = Parser(__doc__)
    parser.add_argument("--out", type=Path, required=True)
    print(canvas.save(figure(), parser.parse_args().out))


if __name__ == "__main__":
    guarded(main)
