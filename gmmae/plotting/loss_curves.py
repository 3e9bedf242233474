"""The losses of runs against time: of several numbers of devices, and of one run with its first epochs enlarged."""

from collections.abc import Sequence
from typing import NamedTuple

import matplotlib
import numpy as np
from jaxtyping import Float
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from gmmae.plotting import canvas
from gmmae.plotting.canvas import BLUE, GREY, VERMILION, finite


class Course(NamedTuple):
    """How the losses of a run went.

    Attributes:
      label: of the run, say "8 devices".
      time_s: at the end of each epoch, increasing.
      train_loss, val_loss: of each epoch; NaN and infinity are allowed.
    """

    label: str
    time_s: Float[np.ndarray, " epochs"]
    train_loss: Float[np.ndarray, " epochs"]
    val_loss: Float[np.ndarray, " epochs"]


def losses_by_devices(courses: Sequence[Course], *, title: str, target: float | None, x_label: str = "time (s)") -> Figure:
    """The losses of several runs over time, from dark to light in the order given.

    Time is logarithmic, so that 32 devices have as much room as one. Where the validation loss first is at or below the target
    there is a circle; where a run stops being finite there is a cross at its last finite loss, and the legend says so.

    Args:
      courses: a colour each.
      title: above the figure.
      target: validation loss to reach, if there is one.
      x_label: of the axis of time.

    Raises:
      ValueError: there is no course, or one without epochs.

    Source: Fig. 4 and 5 of the paper.
    """
    if not courses:
        raise ValueError("there must be at least one course to draw; got none")
    _check(courses)
    figure = canvas.blank(4.0, title)
    axes = figure.subplots()
    canvas.dress(axes, x_label, "loss")
    # Lighter colours of the map would be lost on white.
    colours = matplotlib.colormaps["viridis"](np.linspace(0, 0.85, len(courses)))
    handles, reached, broken = [], False, False
    for course, colour in zip(courses, colours, strict=True):
        style = {"color": colour, "ms": 3}
        axes.plot(
            course.time_s, finite(course.train_loss), lw=0.9, ls=":", marker=_alone(course.train_loss), mfc="none", **style
        )
        axes.plot(course.time_s, finite(course.val_loss), lw=1.5, marker=_alone(course.val_loss), **style)
        reached |= _mark_target(axes, course, target, colour)
        broken |= _mark_end(axes, course)
        suffix = "" if finite_epochs(course) == len(course.time_s) else " (not finite)"
        handles.append(Line2D([], [], color=colour, lw=2.5, label=course.label + suffix))
    handles.append(Line2D([], [], color=GREY, lw=1.5, label="validation"))
    handles.append(Line2D([], [], color=GREY, lw=0.9, ls=":", label="training"))
    handles += [*plot_target(axes, target), *_marks(reached, broken)]
    scale(axes, courses, target)
    _scale_time(axes, courses)
    canvas.legend_above(axes, handles)
    return figure


def warmup_course(
    course: Course, *, title: str, target: float | None, first_epochs: int, epoch_s: float, x_label: str = "time (s)"
) -> Figure:
    """The losses of one run over time, and beside them its first epochs against their number.

    The second panel is missing if the run has no finite loss in its first epochs, or no more epochs than those.

    Args:
      course: of the run.
      title, target, x_label: as in `losses_by_devices`.
      first_epochs: epochs in the second panel, and shaded in the first.
      epoch_s: duration of an epoch in seconds.

    Raises:
      ValueError: there is no epoch.

    Source: Fig. 3 of the paper.
    """
    _check([course])
    end_s = first_epochs * epoch_s
    # Half an epoch more, because measured epochs are not equally long.
    within = course.time_s < end_s + epoch_s / 2
    first = Course(course.label, *(values[within] for values in course[1:]))
    enlarged = not within.all() and bool((np.isfinite(first.train_loss) | np.isfinite(first.val_loss)).any())
    figure = canvas.blank(4.0, title)
    axes, *panel = figure.subplots(1, 1 + enlarged, squeeze=False, width_ratios=(2, 1)[: 1 + enlarged])[0]
    canvas.dress(axes, x_label, "loss")
    handles: list[Artist] = [*plot_both(axes, course, course.time_s), *plot_target(axes, target)]
    handles += _marks(_mark_target(axes, course, target, VERMILION), _mark_end(axes, course))
    scale(axes, [course], target)
    axes.set_xlim(0, 1.02 * float(course.time_s[-1]))
    handles.append(axes.axvspan(0, end_s, color="#e4e4e4", zorder=0, lw=0, label=f"first {first_epochs} epochs"))
    canvas.legend_above(axes, handles, canvas.WIDTH * (2 / 3 if enlarged else 1))
    for beside in panel:
        canvas.dress(beside, "epoch", "")
        beside.set_facecolor("#f3f3f3")
        plot_both(beside, first, first.time_s / epoch_s, marker="o")
        scale(beside, [first], None)
        beside.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    return figure


def _check(courses: Sequence[Course]) -> None:
    for course in courses:
        lengths = [len(values) for values in course[1:]]
        if len(set(lengths)) != 1 or not lengths[0]:
            raise ValueError(f"the arrays of {course.label!r} must have one length, not 0; got lengths {lengths}")


def plot_both(axes: Axes, course: Course, x: np.ndarray, marker: str | None = None) -> list[Line2D]:
    """The two losses of a run; returns their lines, for a legend, as `plot_target` does."""
    handles = []
    for loss, label, colour, ls in (
        (course.train_loss, "training", BLUE, "--"),
        (course.val_loss, "validation", VERMILION, "-"),
    ):
        handles += axes.plot(x, finite(loss), color=colour, lw=1.3, ls=ls, marker=marker or _alone(loss), ms=3, label=label)
    return handles


def _alone(loss: np.ndarray) -> str | None:
    """A marker for a single point, which a line would not show."""
    return "o" if np.isfinite(loss).sum() == 1 else None


def plot_target(axes: Axes, target: float | None) -> list[Line2D]:
    """A line at the target, if there is one."""
    if target is None:
        return []
    return [axes.axhline(target, color=GREY, ls="--", lw=1, zorder=1, label=f"target {canvas.plain(target)}")]


def _mark_target(axes: Axes, course: Course, target: float | None, colour: str | np.ndarray) -> bool:
    """A circle where the target is first reached; returns whether it is."""
    reached = np.flatnonzero(course.val_loss <= target) if target is not None else []
    if not len(reached):
        return False
    at = reached[0]
    axes.plot(course.time_s[at], course.val_loss[at], marker="o", ms=6, mfc="white", mec=colour, mew=1.5, zorder=4)
    return True


def finite_epochs(course: Course) -> int:
    """Epochs before the first with a loss that is not finite."""
    return int(np.logical_and.accumulate(np.isfinite(course.train_loss) & np.isfinite(course.val_loss)).sum())


def _mark_end(axes: Axes, course: Course) -> bool:
    """A cross at the last loss before the first that is not finite; returns whether there are both."""
    last = finite_epochs(course) - 1
    if not 0 <= last < len(course.time_s) - 1:
        return False
    axes.plot(course.time_s[last], course.val_loss[last], marker="x", ms=6, mew=1.5, color="black", zorder=4)
    return True


def _marks(reached: bool, broken: bool) -> list[Line2D]:
    """What circles and crosses mean, where there are any."""
    circle = Line2D([], [], color="black", marker="o", mfc="white", ms=6, ls="none", label="target reached")
    cross = Line2D([], [], color="black", marker="x", ms=6, mew=1.5, ls="none", label="last finite loss")
    return [circle] * reached + [cross] * broken


def scale(axes: Axes, courses: Sequence[Course], target: float | None) -> None:
    """A logarithmic axis with plain numbers where all finite losses, and the target, are positive; else a linear one."""
    drawn = np.concatenate([loss for course in courses for loss in course[2:]])
    drawn = drawn[np.isfinite(drawn)]
    if not len(drawn):
        axes.text(0.5, 0.7, "no finite loss", transform=axes.transAxes, ha="center", fontsize=9, color=GREY)
    drawn = np.append(drawn, [] if target is None else [target])
    if len(drawn) and (drawn > 0).all():
        margin = (drawn.max() / drawn.min()) ** 0.05 * 1.02 if drawn.max() > drawn.min() else 2
        axes.set_ylim(drawn.min() / margin, drawn.max() * margin)
        canvas.log_axis(axes, "y")


def _scale_time(axes: Axes, courses: Sequence[Course]) -> None:
    time_s = np.concatenate([course.time_s for course in courses])
    if (time_s > 0).all():
        axes.set_xlim(time_s.min() / 1.1, time_s.max() * 1.1)
        canvas.log_axis(axes, "x")
