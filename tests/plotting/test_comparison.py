import math

import numpy as np
import pytest
from matplotlib.legend import Legend

from gmmae.plotting import comparison
from gmmae.plotting.comparison import STYLES, Measured
from tests.plotting.test_figures import assert_texts_fit, drawn_texts

NAN, INF = math.nan, math.inf
COUNTS = (1, 2, 4, 8, 16, 32)


def series(label="Strong scaling", median=(640.0, 320.0, 160.0, 80.0, 40.0, 20.0), reached=(5,) * 6):
    low, high = (tuple(t * factor if math.isfinite(t) else NAN for t in median) for factor in (1 / 1.2, 1.2))
    return Measured(label, COUNTS[: len(median)], median, low, high, reached[: len(median)], (5,) * len(median))


STRONG = series()
WARMUP = series("Linear scaling rule + warmup", (640.0, 400.0, 200.0, INF, INF, INF), (5, 5, 3, 1, 0, 0))
NEVER = series("Linear scaling rule", (INF,) * 6, (0,) * 6)
SIX = [STRONG, WARMUP, NEVER] + [series(f"Another strategy {i}", (700.0 + i, INF, 300.0), (5, 2, 5)) for i in range(3)]


def compare(*all_series):
    return comparison.time_to_target(all_series, title="A title")


def labelled(axes, start):
    return [line for line in axes.lines if str(line.get_label()).startswith(start)]


def points(line):
    return np.array(line.get_data(), float)


def legends(figure):
    return [[text.get_text() for text in legend.get_texts()] for legend in figure.findobj(Legend)]


def test_medians_are_lines_with_intervals_beside_an_ideal_line():
    open_end = STRONG._replace(high=(*STRONG.high[:5], INF))
    figure = compare(open_end, WARMUP)
    axes = figure.axes[-1]
    for one, (colour, _), shift in ((open_end, STYLES[0], -0.05), (WARMUP, STYLES[1], 0.05)):
        [line] = labelled(axes, one.label)
        x = np.array(COUNTS) * 2**shift  # side by side
        np.testing.assert_allclose(points(line), np.stack([x, one.median]))
        bars = np.stack([x, one.low, np.minimum(one.high, axes.get_ylim()[1])], axis=1)
        pairs = [points(line) for line in axes.lines if line.get_color() == colour and points(line).size == 4]
        vertical = [(start, low, high) for (start, end), (low, high) in pairs if start == end]
        np.testing.assert_allclose(vertical, bars[np.isfinite(one.low)])
    [caret] = [line for line in axes.lines if line.get_marker() == 6]
    assert points(caret)[1] == axes.get_ylim()[1]
    [ideal] = labelled(axes, "ideal")
    np.testing.assert_allclose(points(ideal), [[1, 32], [640, 20]])
    figure.draw_without_rendering()
    shown = {text.get_text() for text in drawn_texts(figure)}
    assert {*map(str, COUNTS), "20", "50", "100", "200", "500"} <= shown


def test_a_strip_counts_the_runs_that_reached_the_target_if_not_all_did():
    strip = compare(STRONG, WARMUP).axes[0]
    texts = [((4, 0), "3/5"), ((8, 0), "1/5"), ((16, 0), "✕ 0/5"), ((32, 0), "✕ 0/5")]
    assert [(text.get_position(), text.get_text()) for text in strip.texts] == texts
    assert len(compare(STRONG).axes) == 1


def test_a_figure_without_a_median_says_so():
    assert [text.get_text() for text in compare(NEVER).axes[-1].texts] == ["no median run reached the target"]


def test_panels_have_one_scale_and_one_legend_and_a_row_where_one_machine_misses():
    fast = [one._replace(median=tuple(t / 8 for t in one.median), reached=(5,) * 6) for one in (STRONG, WARMUP)]
    figure = comparison.time_to_target([STRONG, WARMUP], fast, titles=("slow", "fast"), title="A title")
    above, below = figure.axes[:2], figure.axes[2:]
    assert below[0].get_ylim() == below[1].get_ylim()
    assert below[0].get_ylim()[0] <= 20 / 8
    assert [len(axes.texts) for axes in above] == [4, 0]
    assert legends(figure) == [[STRONG.label, WARMUP.label, "ideal, $T_1/n$"]]


def test_throughput_has_an_ideal_for_each_line_and_one_entry_for_all():
    none = (NAN, NAN)
    lines = [Measured("weak", (1, 4), (100.0, 360.0), none, none), Measured("strong", (1, 4), (200.0, 360.0), none, none)]
    figure = comparison.throughput([*lines, Measured("late", (2,), (150.0,), none[:1], none[:1])], title="A title")
    np.testing.assert_allclose([points(line)[1] for line in labelled(figure.axes[0], "ideal")], [[100, 400], [200, 800]])
    assert legends(figure) == [["weak", "strong", "late", "ideal, n × one device"]]


@pytest.mark.parametrize(
    "drawn",
    [
        SIX,
        [NEVER, NEVER._replace(label="Linear scaling rule + warmup")],
        [series(median=(INF,), reached=(2,))],
        [series(f"Strategy {i}") for i in range(9)],
    ],
    ids=["six", "never", "one count missed", "more than styles"],
)
def test_texts_stay_inside_and_apart(drawn):
    assert_texts_fit(compare(*drawn))
