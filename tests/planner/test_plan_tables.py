"""The best three strategies for each number of devices, all of them, and the models an hour."""

import pytest

from gmmae.planner import answer, plan_content, plan_tables
from gmmae.planner.plan_content import Plan
from gmmae.planner.prediction import Forecast, batch_rule
from tests.planner.test_outcome import prediction as cell
from tests.planner.test_page import found
from tests.planner.test_prediction import IDEAL


def forecast_of(*cells, best=None):
    return Forecast(IDEAL, [*cells], best or cells[0], {}, (), 1.0, False)


ALONE = cell("strong", 1, 32, 0.001, 360.0, expected_s=360.0)
STRONG = cell("strong", 4, 32, 0.001, 240.0, speedup=1.5, expected_s=240.0)
WEAK = cell("weak", 4, 128, 0.001, 100.0, speedup=3.6, expected_s=100.0)
UNTESTED = cell("linear", 4, 128, 0.004, 50.0, speedup=7.2, expected_s=50.0, tested=False)


@pytest.mark.parametrize(
    ("cells", "line"),
    [
        # 4 · 3600 / 360, 3600 / 240 and 3600 / 100.
        (
            (ALONE, STRONG, WEAK, UNTESTED),
            "40.0 models an hour with strong; one after another on all 4: 15.0 with strong, 36.0 with weak",
        ),
        # One device is not planned for; the speed-up of strong scaling has its time.
        ((STRONG,), "40.0 models an hour with strong; one after another on all 4: 15.0 with strong"),
        # The base batch has no sample for each device.
        ((WEAK,), "40.0 models an hour with strong; one after another on all 4: 36.0 with weak"),
        # The best strategy of one device is another one.
        (
            (ALONE, cell("best-batch", 1, 8, 0.001, 180.0, speedup=2.0, expected_s=180.0), STRONG),
            "40.0 models an hour with strong, 80.0 with best-batch; one after another on all 4: 15.0 with strong",
        ),
    ],
)
def test_models_an_hour_side_by_side_stand_beside_those_of_strong_scaling_and_the_best_strategy(cells, line):
    assert plan_tables.several_models(forecast_of(*cells), found().measured) == (f"4 seeds side by side: {line}",)


def test_more_models_than_side_by_side_have_the_mark_of_their_speed_up():
    fast = STRONG._replace(seconds=72.0, speedup=5.0)
    [line] = plan_tables.several_models(forecast_of(ALONE, fast), found().measured)
    assert line.endswith(f"40.0 models an hour with strong; one after another on all 4: 50.0{answer.BATCH_MARK} with strong")


def test_models_an_hour_are_in_the_json_by_strategy():
    hourly = plan_content.hourly_models(forecast_of(ALONE, STRONG, WEAK))
    assert hourly == {
        1: {"side_by_side": {"strong": 10.0}, "one_after_another": {"strong": 10.0}},
        4: {"side_by_side": {"strong": 40.0}, "one_after_another": {"strong": 15.0, "weak": 36.0}},
    }


# The best three


def best_rows(*cells, best=None):
    forecast = forecast_of(*cells, best=best)
    plan = Plan("mine", found(), batch_rule(found().measured), [forecast], "float32")
    return [(row[0], row[1]) for row in plan_tables.best_table(plan, forecast, 1).rows]


def test_at_most_three_strategies_stand_for_each_number_of_devices_by_expected_time():
    """The expected time has the failures, and the median has not."""
    risky = WEAK._replace(scaling="sqrt", batch=129, seconds=10.0, expected_s=300.0)
    worst = WEAK._replace(scaling="linear-warmup", batch=130, expected_s=400.0)
    rows = best_rows(ALONE, worst, STRONG, risky, WEAK, best=WEAK)
    assert rows == [("1", "strong"), ("4", "weak ←"), ("4", "strong"), ("4", "sqrt")]


def test_strategies_that_are_one_run_stand_once_and_the_choice_for_them():
    alike = WEAK._replace(scaling="best-batch")
    assert best_rows(WEAK, alike, STRONG, best=alike) == [("4", "best-batch ←"), ("4", "strong")]


def test_untested_strategies_are_shown_only_where_nothing_is_tested():
    assert best_rows(STRONG, UNTESTED) == [("4", "strong ←")]
    assert best_rows(UNTESTED) == [("4", "linear ←")]


def test_the_figure_shows_the_strategies_of_the_table_and_strong_scaling():
    worse = [STRONG._replace(scaling=name, batch=batch, expected_s=200.0) for name, batch in (("sqrt", 1), ("linear", 2))]
    shown = plan_tables.shown_strategies(forecast_of(WEAK, *worse, STRONG, UNTESTED._replace(scaling="sqrt-warmup")))
    assert shown == ["weak", "sqrt", "linear", "strong"]
