import math
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from matplotlib.colors import to_rgba

from gmmae.plotting import canvas, comparison, loss_curves
from gmmae.plotting.comparison import STYLES, Measured
from gmmae.plotting.loss_curves import LossCurve
from tests.plotting.test_figures import assert_texts_fit

NAN, INF = math.nan, math.inf
COUNTS = (1, 2, 4, 8, 16, 32)


def series(label="Strong scaling", median=(640.0, 320.0, 160.0, 80.0, 40.0, 20.0), reached=(5,) * 6, spread=1.2):
    low, high = (tuple(t * factor if math.isfinite(t) else NAN for t in median) for factor in (1 / spread, spread))
    n = len(median)
    return Measured(label, COUNTS[:n], median, low, high, reached[:n], (5,) * n)


STRONG = series()
WARMUP = series("Linear scaling rule + warmup", (640.0, 400.0, 200.0, INF, INF, INF), (5, 5, 3, 1, 0, 0))


def measured(label="weak", median=(100.0, 190.0, 360.0), at=(1, 2, 4)):
    return Measured(label, at, median, tuple(0.9 * v for v in median), tuple(1.1 * v for v in median))


def course(label="1 device", epochs=40, epoch_s=10.0, floor=1e-3):
    epoch = np.arange(1, epochs + 1)
    loss = floor + 1e-2 * np.exp(-epoch / 10)
    return LossCurve(label, epoch * epoch_s, loss, 1.1 * loss)


def compare(*all_series):
    return comparison.time_to_target(all_series, title="A title")


def labelled(axes, label):
    (line,) = [line for line in axes.lines if line.get_label() == label]
    return line


def ticks_shown(axis):
    """The labels within the limits: locators also name places outside, where nothing is drawn."""
    low, high = axis.get_view_interval()
    places = zip(axis.get_majorticklocs(), axis.get_ticklabels(), strict=True)
    return [label.get_text() for place, label in places if low <= place <= high]


def xs(line):
    return np.asarray(line.get_xdata(), float)


def ys(line):
    return np.asarray(line.get_ydata(), float)


def legend(axes):
    return [text.get_text() for text in axes.get_legend().get_texts()]


# Files

DRAWN = {
    "time_to_target": lambda: compare(STRONG, WARMUP),
    "losses": lambda: draw_courses(course()),
}


@pytest.mark.parametrize("name", DRAWN)
def test_each_figure_is_a_png_and_an_svg_and_the_same_again(tmp_path, name):
    png, svg = canvas.save_both(DRAWN[name](), tmp_path / "new" / "figure.v1")
    assert sorted(path.name for path in png.parent.iterdir()) == ["figure.v1.png", "figure.v1.svg"]
    assert png.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    root = ElementTree.parse(svg).getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert list(root.iter("{http://www.w3.org/2000/svg}text")) == []  # text is outlines
    again = canvas.save_both(DRAWN[name](), tmp_path / "again")
    assert [path.read_bytes() for path in again] == [png.read_bytes(), svg.read_bytes()]


def test_the_ending_decides_the_format_and_nothing_else_does(tmp_path):
    figure = compare(STRONG)
    assert canvas.save(figure, tmp_path / "figure.svg").read_bytes().startswith(b"<?xml")
    for name in ("figure.png", "figure", "figure.svgz"):
        assert canvas.save(figure, tmp_path / name).read_bytes().startswith(b"\x89PNG"), name


# Time to target


def test_points_not_reached_are_missing_from_the_line():
    axes = compare(STRONG, WARMUP).axes[-1]
    np.testing.assert_array_equal(ys(labelled(axes, STRONG.label)), STRONG.median)
    np.testing.assert_array_equal(ys(labelled(axes, WARMUP.label)), [640, 400, 200, NAN, NAN, NAN])


def test_the_strip_says_how_many_runs_reached_the_target_wherever_not_all_did():
    strip = compare(STRONG, WARMUP).axes[0]
    assert [(t.get_position(), t.get_text()) for t in strip.texts] == [
        ((4, 0), "3/5"),
        ((8, 0), "1/5"),
        ((16, 0), "✕ 0/5"),
        ((32, 0), "✕ 0/5"),
    ]
    assert len(compare(STRONG).axes) == 1  # nothing was missed
    (marker,) = strip.lines  # of the second series: the first has no row
    assert (marker.get_color(), marker.get_marker()) == STYLES[1]


def test_the_axes_are_logarithmic_with_plain_ticks_at_the_counts():
    axes = compare(STRONG, WARMUP).axes[-1]
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["1", "2", "4", "8", "16", "32"]
    assert ticks_shown(axes.yaxis) == ["20", "50", "100", "200", "500"]


def test_ideal_is_the_time_on_one_device_over_n():
    first = series("Not on one device", (INF, 300.0), (0, 5))
    (ideal,) = [line for line in compare(first, STRONG).axes[-1].lines if str(line.get_label()).startswith("ideal")]
    np.testing.assert_allclose([xs(ideal), ys(ideal)], [[1, 32], [640, 20]])  # 640 / 32 = 20
    assert not any("ideal" in label for label in legend(compare(first).axes[0]))


def intervals(axes, colour):
    """The vertical bars of a colour: x, lower end, upper end."""
    bars = [line for line in axes.lines if line.get_color() == colour and len(set(xs(line))) == 1 < len(xs(line))]
    return [(xs(bar)[0], *ys(bar)) for bar in bars]


def test_intervals_stand_side_by_side_on_their_points():
    axes = compare(STRONG, WARMUP).axes[-1]
    for one, (colour, _) in zip((STRONG, WARMUP), STYLES, strict=False):
        x = xs(labelled(axes, one.label))
        finite = [(at, low, high) for at, low, high in zip(x, one.low, one.high, strict=True) if math.isfinite(low)]
        np.testing.assert_allclose(intervals(axes, colour), finite)
    np.testing.assert_allclose(xs(labelled(axes, WARMUP.label)) / xs(labelled(axes, STRONG.label)), 2**0.1)


def test_an_interval_without_upper_end_reaches_the_top_of_the_axes():
    one = STRONG._replace(high=(*STRONG.high[:5], INF))
    axes = compare(one).axes[-1]
    assert intervals(axes, STYLES[0][0])[-1] == pytest.approx((32, 20 / 1.2, axes.get_ylim()[1]))
    carets = [line for line in axes.lines if line.get_marker() == 6]
    assert [ys(line)[0] for line in carets] == [axes.get_ylim()[1]]


NEVER = series("Linear scaling rule", (INF,) * 6, (0,) * 6)
SIX = [STRONG, WARMUP, NEVER] + [series(f"Another strategy {i}", (700.0 + i, INF, 300.0), (5, 2, 5)) for i in range(3)]


@pytest.mark.parametrize(
    "drawn",
    [
        [STRONG],
        SIX,
        [NEVER, NEVER._replace(label="Linear scaling rule + warmup")],
        [series(median=(640.0,)), series("Weak scaling", (650.0,))],
        [series(median=(INF,), reached=(2,))],
        [STRONG._replace(low=(NAN,) * 6, high=(NAN,) * 6)],
        [series(f"Strategy {i}") for i in range(9)],
    ],
    ids=["one", "six", "never", "one count", "one count missed", "no interval", "more than styles"],
)
def test_texts_stay_inside_and_apart(drawn):
    assert_texts_fit(compare(*drawn))


def test_where_no_median_run_reached_the_target_the_figure_says_so():
    message = "no median run reached the target"
    assert [text.get_text() for text in compare(NEVER).axes[-1].texts] == [message]
    assert not list(compare(STRONG, NEVER).axes[-1].texts)


# Throughput and the time of a step


def test_throughput_has_an_ideal_for_each_line_and_one_entry_for_all():
    lines = [measured(), measured("strong", (200.0, 300.0, 400.0)), measured("late", (150.0,), (2,))]
    figure = comparison.throughput(lines, title="A title")
    (axes,) = figure.axes
    ideals = [line for line in axes.lines if str(line.get_label()).startswith("ideal")]
    np.testing.assert_allclose([ys(line) for line in ideals], [[100, 400], [200, 800]])  # 4 devices
    assert [line.get_color() for line in ideals] == [colour for colour, _ in STYLES[:2]]
    assert legend(axes) == ["weak", "strong", "late", "ideal, n × one device"]
    assert_texts_fit(figure)


def test_a_step_is_drawn_in_milliseconds():
    line = Measured("1 device", (1, 2, 4, 8), (0.004, 0.005, INF, NAN), (0.003, NAN, NAN, NAN), (0.0045, NAN, NAN, NAN))
    figure = comparison.step_time([line], title="A title")
    axes = figure.axes[0]
    np.testing.assert_allclose(ys(labelled(axes, "1 device")), [4, 5, NAN, NAN])
    np.testing.assert_allclose(intervals(axes, STYLES[0][0]), [(1, 3, 4.5)])
    assert_texts_fit(figure)


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (1.9, 2.1, ["1.9", "1.95", "2", "2.05", "2.1"]),
        (90, 1100, ["100", "200", "300", "500", "700", "1000"]),
        (0.0015, 0.012, ["0.002", "0.003", "0.005", "0.007", "0.01"]),
        (0.7, 110, ["1", "2", "5", "10", "20", "50", "100"]),
        (3, 3000, ["3", "10", "30", "100", "300", "1000", "3000"]),
        (1, 1e12, ["1", "100", "10000", r"$1.0\times10^{6}$", *(rf"$1.0\times10^{{{e}}}$" for e in (8, 10, 12))]),
    ],
)
@pytest.mark.parametrize("which", ["x", "y"])
def test_ticks_of_a_logarithmic_axis_are_few_and_round(which, low, high, ticks):
    axes = canvas.blank(4.0, "").subplots()
    axes.set(**{f"{which}lim": (low, high)})
    canvas.log_axis(axes, which)
    axis = getattr(axes, f"{which}axis")
    assert ticks_shown(axis) == ticks
    assert list(axis.get_minorticklocs()) == []


# Courses


def draw_courses(*all_courses, target: float | None = 2e-3):
    return loss_curves.losses_by_devices(all_courses, title="A title", target=target)


def test_each_course_has_a_colour_solid_for_validation_and_dotted_for_training():
    one, two = course(), course("2 devices", epoch_s=5.0)
    axes = draw_courses(one, two).axes[0]
    curves = [line for line in axes.lines if len(xs(line)) == 40]
    assert [line.get_linestyle() for line in curves] == [":", "-", ":", "-"]
    colours = [to_rgba(line.get_color()) for line in curves]
    assert colours[0] == colours[1] != colours[2] == colours[3]
    assert sum(colours[0][:3]) < sum(colours[2][:3])  # dark to light
    np.testing.assert_array_equal(curves[1].get_ydata(), one.val_loss)
    np.testing.assert_array_equal(curves[2].get_xdata(), two.time_s)
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")


def test_where_the_target_is_first_reached_there_is_a_circle():
    one = course()
    axes = draw_courses(one, target=one.val_loss[6]).axes[0]  # at the target counts
    (circle,) = [line for line in axes.lines if line.get_marker() == "o"]
    assert (xs(circle)[0], ys(circle)[0]) == (70, one.val_loss[6])
    assert "target reached" in legend(axes)
    missed = draw_courses(one, target=1e-5).axes[0]
    assert not [line for line in missed.lines if line.get_marker() == "o"]
    assert "target reached" not in legend(missed)


def broken(one, first):
    """The course with a training loss of NaN and a validation loss of infinity from an epoch (counted from 0)."""
    after = np.arange(len(one.time_s)) >= first
    return one._replace(train_loss=np.where(after, NAN, one.train_loss), val_loss=np.where(after, INF, one.val_loss))


def test_a_course_that_stops_being_finite_ends_in_a_cross_and_one_that_never_was_is_named():
    one = course()
    axes = draw_courses(broken(one, 20), broken(one, 0)._replace(label="32 devices"), one).axes[0]
    (cross,) = [line for line in axes.lines if line.get_marker() == "x"]
    assert (xs(cross)[0], ys(cross)[0]) == (200, one.val_loss[19])
    assert {"1 device (not finite)", "32 devices (not finite)", "1 device", "last finite loss"} <= set(legend(axes))
    assert np.isfinite(axes.get_ylim()).all()


SMALL = course(epochs=1)


@pytest.mark.parametrize(
    ("drawn", "target"),
    [
        ([SMALL], None),
        ([course(f"{n} devices", epoch_s=10 / n) for n in COUNTS], 2e-3),
        ([broken(course(f"{n} devices"), 0) for n in COUNTS], 2e-3),
        ([broken(course(f"{n} devices"), 0) for n in COUNTS], None),
        ([course(floor=0.0)._replace(train_loss=np.zeros(40))], 2e-3),
        ([course()._replace(time_s=np.arange(40.0))], None),
        ([course(epochs=40)._replace(train_loss=np.full(40, 1e9))], 2e-3),
    ],
    ids=["one epoch", "six", "never finite", "never finite, no target", "zero", "from time 0", "nine decades"],
)
def test_texts_of_courses_stay_inside_and_apart(drawn, target):
    assert_texts_fit(draw_courses(*drawn, target=target))


def test_where_no_loss_is_finite_the_figure_says_so():
    assert [text.get_text() for text in draw_courses(broken(SMALL, 0), target=None).axes[0].texts] == ["no finite loss"]


def panels(*machines):
    titles, series = zip(*machines, strict=True)
    return comparison.time_to_target(*series, titles=titles, title="A title")


def test_panels_have_one_scale_and_one_legend():
    fast = [one._replace(median=tuple(t / 8 for t in one.median), low=(NAN,) * 6, high=(NAN,) * 6) for one in (STRONG, WARMUP)]
    figure = panels(("slow", [STRONG, WARMUP]), ("fast", fast))
    slow_axes, fast_axes = (axes for axes in figure.axes if axes.get_title())
    assert slow_axes.get_ylim() == fast_axes.get_ylim()
    low, high = slow_axes.get_ylim()
    assert low <= 20 / 8
    assert high >= 640
    [legend] = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [STRONG.label, WARMUP.label, "ideal, $T_1/n$"]
    assert [axes.get_legend() for axes in figure.axes] == [None] * 4


def test_a_strategy_that_misses_on_one_machine_has_its_row_above_both():
    figure = panels(("slow", [STRONG, WARMUP]), ("fast", [STRONG, WARMUP._replace(reached=(5,) * 6)]))
    above = [axes for axes in figure.axes if not axes.get_title()]
    assert ["3/5" in [text.get_text() for text in axes.texts] for axes in above] == [True, False]
    assert {axes.get_ylim() for axes in above} == {(0.5, -0.5)}
