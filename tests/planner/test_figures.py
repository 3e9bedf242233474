"""The figures of a plan show every strategy and cluster, hollow markers for doubt, and no overlapping texts."""

import math

import numpy as np
from matplotlib.colors import to_rgba

from gmmae.planner import figures
from gmmae.planner.figures import ClusterOverheads, TimeBand
from gmmae.plotting.comparison import STYLES
from tests.plotting.test_figures import assert_texts_fit

COUNTS = (1, 2, 4, 8)
TIMES = tuple(100.0 / n for n in COUNTS)


def band(label: str, doubtful=(False,) * 4) -> TimeBand:
    return TimeBand(label, COUNTS, TIMES, tuple(0.8 * t for t in TIMES), tuple(1.2 * t for t in TIMES), doubtful)


def test_an_arm_that_will_rather_fail_is_hollow():
    figure = figures.times([band("Strong scaling"), band("Linear rule", (False, False, True, True))], title="Times")
    assert_texts_fit(figure)
    points = [line for line in figure.axes[0].lines if line.get_linestyle() == "None"]
    hollow = [line for line in points if line.get_markerfacecolor() == "white"]
    assert len(points) == 8
    assert [to_rgba(str(line.get_markeredgecolor())) for line in hollow] == [to_rgba(STYLES[1][0])] * 2


def test_the_map_shows_each_best_arm_and_where_the_clusters_are():
    labels, ratios = ["Strong scaling", "Weak scaling", "Linear rule"], (0.01, 1.0, 100.0)
    best = [["Strong scaling"] * 4, ["Strong scaling", "Strong scaling", "Linear rule", "Linear rule"], ["Linear rule"] * 4]
    here = [ClusterOverheads("A cluster", COUNTS, (0.0, 0.02, 0.05, math.inf))]
    figure = figures.best_strategies(best, labels, COUNTS, ratios, here, title="The best strategy")
    assert_texts_fit(figure)
    axes = figure.axes[0]
    low, high = axes.get_ylim()
    line = np.asarray(axes.lines[0].get_ydata())
    assert ((line >= low) & (line <= high)).all()
    legend = axes.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["Strong scaling", "Linear rule", "A cluster"]
