import numpy as np
import pytest

from gmmae.plotting import canvas, loss_curves
from gmmae.plotting.comparison import STYLES
from gmmae.plotting.loss_curves import LossCurve
from tests.plotting.test_figures import assert_texts_fit

EPOCHS = np.arange(1, 41)


def course(label="1 device", epoch_s=10.0):
    loss = 1e-3 + 1e-2 * np.exp(-EPOCHS / 10)
    return LossCurve(label, EPOCHS * epoch_s, loss, 1.1 * loss)


def broken(one, first):
    """The course with a training loss of NaN and a validation loss of infinity from an epoch (counted from 0)."""
    after = np.arange(len(one.time_s)) >= first
    return one._replace(train_loss=np.where(after, np.nan, one.train_loss), val_loss=np.where(after, np.inf, one.val_loss))


def legend(figure):
    return [text.get_text() for text in figure.axes[0].get_legend().get_texts()]


def marks(figure, label):
    return [(line.get_xdata()[0], line.get_ydata()[0]) for line in figure.axes[0].lines if line.get_label() == label]


def draw_runs(*curves, target: float | None = 2e-3):
    return loss_curves.losses_by_devices(curves, title="A title", target=target)


@pytest.mark.parametrize(("rate", "panels"), [(np.ones(40), 1), (np.minimum(EPOCHS / 5, 1.0), 2)])
def test_a_run_s_target_is_marked_where_it_is_reached_and_a_learning_rate_that_varies_has_a_panel(drawn, rate, panels):
    one = course()
    target = one.val_loss[6]  # at the target counts as reached
    loss_curves.losses(EPOCHS, one.train_loss, one.val_loss, rate, "x", target=target)
    [figure] = drawn
    assert legend(figure) == ["validation", "training", f"target {canvas.plain(target)}", "target reached"]
    assert marks(figure, "target reached") == [(7, target)]
    assert figure.axes[0].get_yscale() == "log"
    for axes in figure.axes[1:]:
        np.testing.assert_allclose(axes.lines[0].get_ydata(), rate)
    assert len(figure.axes) == panels
    assert_texts_fit(figure)


def test_each_run_has_a_colour_solid_for_validation_and_dotted_for_training():
    one, two = course(), course("2 devices", epoch_s=5.0)
    [axes] = draw_runs(one, two).axes
    curves = [line for line in axes.lines if np.size(line.get_xdata()) == 40]
    assert [line.get_linestyle() for line in curves] == [":", "-", ":", "-"]
    (first, _), (second, _), *_ = STYLES
    assert [line.get_color() for line in curves] == [first, first, second, second]  # as in other figures
    np.testing.assert_array_equal(curves[1].get_ydata(), one.val_loss)
    np.testing.assert_array_equal(curves[2].get_xdata(), two.time_s)
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")


def test_a_circle_marks_the_target_and_a_cross_the_last_finite_loss():
    one = course()
    figure = draw_runs(broken(one, 20), broken(one, 0)._replace(label="32 devices"), target=one.val_loss[6])
    assert marks(figure, "target reached") == [(70, one.val_loss[6])]
    assert marks(figure, "last finite loss") == [(200, one.val_loss[19])]
    assert {"1 device (not finite)", "32 devices (not finite)", "last finite loss", "target reached"} <= set(legend(figure))
    assert {"last finite loss", "target reached"}.isdisjoint(legend(draw_runs(one, target=1e-5)))


SMALL = LossCurve("1 device", *(values[:1] for values in course()[1:]))


@pytest.mark.parametrize(
    ("curves", "target"),
    [
        ([SMALL], None),
        ([course(f"{2**i} devices", epoch_s=10 / 2**i) for i in range(6)], 2e-3),
        ([broken(course(f"{2**i} devices"), 0) for i in range(6)], 2e-3),
        ([course()._replace(time_s=np.arange(40.0), train_loss=np.zeros(40))], None),
        ([course()._replace(train_loss=np.full(40, 1e9))], 2e-3),
    ],
    ids=["one epoch", "six", "never finite", "zeros", "nine decades"],
)
def test_texts_stay_inside_and_apart(curves, target):
    assert_texts_fit(draw_runs(*curves, target=target))


def test_where_no_loss_is_finite_the_figure_says_so():
    assert [text.get_text() for text in draw_runs(broken(SMALL, 0), target=None).axes[0].texts] == ["no finite loss"]
