"""The figure of a plan shows every strategy, hollow markers for doubt, and no overlapping texts."""

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
