"""The figures of a plan show every strategy and cluster, hollow markers for doubt, and no overlapping texts."""

import math

import numpy as np
from matplotlib.colors import to_rgba

from gmmae.planner import figures
from gmmae.plotting.comparison import STYLES
from tests.planner.test_outcome import prediction
from tests.plotting.test_figures import assert_texts_fit

COUNTS = (1, 2, 4, 8)


def test_a_strategy_that_will_rather_fail_is_hollow():
    strong = [prediction("strong", n, 32, 0.001, 100.0 / n) for n in COUNTS]
    linear = [cell._replace(probability_of_failure=0.9 if cell.devices > 2 else 0.1) for cell in strong]
    cells, choice = {"Strong scaling": strong, "Linear rule": linear}, strong[1]
    figure = figures.times(cells, ("Strong scaling", "Linear rule"), title="Times", choice=choice)
    assert_texts_fit(figure)
    marks = [line for line in figure.axes[0].lines if line.get_linestyle() == "None"]
    points = [line for line in marks if line.get_markersize() < 10]
    [ring] = [line for line in marks if line not in points]
    assert ring.get_ydata() == [choice.seconds]
    hollow = [line for line in points if line.get_markerfacecolor() == "white"]
    assert len(points) == 8
    assert [to_rgba(str(line.get_markeredgecolor())) for line in hollow] == [to_rgba(STYLES[1][0])] * 2


def test_a_strategy_keeps_its_colour_where_others_are_left_out():
    cells = [prediction("weak", n, 32, 0.001, 100.0 / n) for n in COUNTS]
    figure = figures.times({"Weak scaling": cells}, ("Strong scaling", "Weak scaling"), title="Times")
    assert {to_rgba(str(line.get_color())) for line in figure.axes[0].lines if line.get_linestyle() == "-"} == {
        to_rgba(STYLES[1][0])
    }


def test_the_map_shows_each_best_strategy_and_where_the_clusters_are():
    labels, ratios = ["Strong scaling", "Weak scaling", "Linear rule"], (0.01, 1.0, 100.0)
    best = [["Strong scaling"] * 4, ["Strong scaling", "Strong scaling", "Linear rule", "Linear rule"], ["Linear rule"] * 4]
    overheads = {"A cluster": (0.0, 0.02, 0.05, math.inf)}
    figure = figures.best_strategies(best, labels, COUNTS, ratios, overheads, title="The best strategy")
    assert_texts_fit(figure)
    axes = figure.axes[0]
    low, high = axes.get_ylim()
    line = np.asarray(axes.lines[0].get_ydata())
    assert ((line >= low) & (line <= high)).all()
    legend = axes.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["Strong scaling", "Linear rule", "A cluster"]
