"""The tables of a plan: the best three strategies for each number of devices, and all of them."""

from gmmae.planner.answer import interval_text, time_text, times_of
from gmmae.planner.plan_content import Plan
from gmmae.planner.prediction import MAX_TIME_RATIO, Forecast, Prediction
from gmmae.plotting.tables import Table

CHOICE_MARK = " ←"
"""The mark of the recommended strategy."""

BEST = 3
"""Strategies in the short table for each number of devices."""

BEST_COLUMNS = ("n", "scaling", "time", "80 %", "fails", "expected", "speed-up", "batch", "rate")
"""Columns of the short table. What a narrow screen shows without scrolling comes first."""

COLUMNS = ("scaling", "n", "batch", "rate", "time", "80 %", "fails", "expected", "speed-up", "efficiency")


def best_table(plan: Plan, forecast: Forecast, place: int) -> Table:
    """Returns the table of the best strategies for each number of devices, by expected time.

    Strategies with the same batch and learning rate are one run, so the first one stands for all.
    """
    measured = plan.measurements.measured
    counts = dict.fromkeys(cell.devices for cell in forecast.cells)
    shown = [cell for n in counts for cell in _best_cells(forecast, n)]
    rows = tuple(_best_row(cell, forecast) for cell in shown)
    percent = 100 * (MAX_TIME_RATIO - 1)
    notes = (
        f"{CHOICE_MARK.strip()} The choice: the fewest devices within {percent:.0f} % of the least expected time. Expected "
        "times include runs that fail and start again with strong scaling. A run fails if it diverges, or if it has not "
        f"reached the target after {measured.max_epochs} epochs (stop.max_epochs).",
    )
    title = f"The best {BEST} for each number of devices: {times_of(forecast, plan.source)}"
    return Table(f"best_{place}", title, BEST_COLUMNS, rows, notes)


def shown_strategies(forecast: Forecast) -> list[str]:
    """Returns the strategies in the table of the best, and strong and weak scaling, in the order of the predictions."""
    best = {cell.scaling for n in {cell.devices for cell in forecast.cells} for cell in _best_cells(forecast, n)}
    return [name for name in dict.fromkeys(cell.scaling for cell in forecast.cells) if name in best | {"strong", "weak"}]


def _best_cells(forecast: Forecast, devices: int) -> list[Prediction]:
    """Returns the predictions of least expected time. Untested ones are left out where there are tested ones."""
    cells = [cell for cell in forecast.cells if cell.devices == devices]
    ordered = sorted(
        [cell for cell in cells if cell.tested] or cells, key=lambda cell: (cell.expected_s, cell != forecast.best)
    )
    distinct = {(cell.batch, cell.learning_rate, cell.expected_s): cell for cell in reversed(ordered)}
    return sorted(distinct.values(), key=ordered.index)[:BEST]


def _best_row(cell: Prediction, forecast: Forecast) -> tuple[str, ...]:
    scaling, devices, batch, rate, *times, _ = _row(cell)
    return devices, scaling + CHOICE_MARK * (cell == forecast.best), *times, batch, rate


def all_table(plan: Plan, forecast: Forecast, place: int) -> Table:
    """Returns the table of all predictions for a cluster."""
    rows = tuple(_row(cell) for cell in forecast.cells)
    title = f"All strategies: {times_of(forecast, plan.source)}"
    return Table(f"plan_{place}", title, COLUMNS, rows)


def _row(cell: Prediction) -> tuple[str, ...]:
    return (
        cell.scaling,
        str(cell.devices),
        str(cell.batch),
        f"{cell.learning_rate:.3g}",
        time_text(cell.seconds),
        interval_text(cell.seconds_low, cell.seconds_high),
        f"{100 * cell.probability_of_failure:.0f} %" if cell.tested else "untested",
        time_text(cell.expected_s),
        f"{cell.speedup:.2f}",
        f"{100 * cell.efficiency:.0f} %",
    )
