"""A plan as lines for a terminal, as `plan.json`, and as a page. All begin with three lines of answer for each cluster."""

import json
from collections.abc import Collection, Sequence
from pathlib import Path

from gmmae.planner import figures, prediction
from gmmae.planner.answer import label, times_of
from gmmae.planner.evidence import evidence
from gmmae.planner.measure import PlanMeasurements
from gmmae.planner.plan_content import Plan, plan_content, strict_json
from gmmae.planner.plan_tables import all_table, best_table, shown_strategies
from gmmae.planner.prediction import Forecast
from gmmae.plotting import canvas, document
from gmmae.plotting.document import Block, Bullets, Figure, Folded, Heading, Paragraph
from gmmae.plotting.tables import Table
from gmmae.scaling import strategies
from gmmae.scaling.cost import Cluster
from gmmae.sweep.display import grid_table
from gmmae.system.files import write_text
from gmmae.training.workdir import writable

JSON, HTML, MARKDOWN = "plan.json", "index.html", "README.md"


def write(
    root: Path,
    name: str,
    measurements: PlanMeasurements,
    clusters: Sequence[Cluster],
    devices: Collection[int],
    compute_scale: float | None = None,
    *,
    precision: str,
) -> list[str]:
    """Writes `plan.json` and the page; returns the lines of the answer, the best strategies and the evidence.

    Args:
      root: the plan's work directory.
      name: name of the configuration.
      measurements: the measurements.
      clusters: the clusters to predict for.
      devices: numbers of devices. Those without a training sample for each device are left out.
      compute_scale: seconds on a cluster's device for one second measured; None takes the factor of each cluster's file.
      precision: `precision` of the measured runs, which stands with every predicted time.

    Raises:
      InputError: the folder cannot be written, or a cluster's link between nodes is not known.
    """
    measured = measurements.measured
    names = planned_strategies()
    forecasts = [prediction.forecast(measured, cluster, names, devices, compute_scale) for cluster in clusters]
    if left_out := sorted(n for n in devices if n > measured.samples):
        note = f"{', '.join(map(str, left_out))} devices are left out: there are {measured.samples} training samples"
        measurements = measurements._replace(notes=[*measurements.notes, note])
    plan = Plan(name, measurements, prediction.batch_rule(measured), forecasts, precision)
    with writable(root):
        write_text(root / JSON, json.dumps(strict_json(plan_content(plan)), indent=1, allow_nan=False) + "\n")
        for earlier in (root / "figures").glob("times_*"):
            earlier.unlink()
        answer, details = _answer_blocks(plan, root / "figures"), _details(plan)
        write_text(root / MARKDOWN, document.markdown([*answer, *_after_a_heading(details)], root))
        write_text(root / HTML, document.html(f"Plan: {name}", [*answer, *details]))
    return [*_terminal_lines(plan), "", *(str(root / file) for file in (JSON, HTML))]


def planned_strategies() -> list[str]:
    """Returns the strategies of a plan.

    The law of the steps is for one batch and one optimiser. So strategies whose batch grows, or whose constants of the
    optimiser follow the batch, are left out.
    """
    known = strategies.STRATEGIES.items()
    return [name for name, of in known if not of.grows_in_a_run and of.optimizer is strategies.as_configured]


def _terminal_lines(plan: Plan) -> list[str]:
    """Returns three lines for each cluster, the best strategies, and the evidence."""
    answers = [plan.answer(forecast) for forecast in plan.forecasts]
    lines = [line for answer in answers for line in ("", *answer)][1:]
    for place, forecast in enumerate(plan.forecasts, start=1):
        lines += ["", *_table_lines(best_table(plan, forecast, place))]
    return [*lines, "", "Details", *evidence(plan)]


def _table_lines(table: Table) -> list[str]:
    return [table.title, grid_table([table.columns, *table.rows]), *table.notes]


def _answer_blocks(plan: Plan, folder: Path) -> list[Block]:
    """Returns the blocks that nobody has to open: the lines of the answer, and a table and a figure for each cluster."""
    blocks: list[Block] = [Heading(f"Plan: {plan.name}", 1)]
    for forecast in plan.forecasts:
        choice, *others = plan.answer(forecast)
        blocks.append(Bullets((f"**{choice}**", *others)))
    for place, forecast in enumerate(plan.forecasts, start=1):
        blocks += [Heading(forecast.cluster.name, 2)] if len(plan.forecasts) > 1 else []
        blocks += [_times(forecast, plan, folder / f"times_{place}"), best_table(plan, forecast, place)]
    return blocks


def _details(plan: Plan) -> list[Block]:
    """Returns the folded sections."""
    folds: list[Block] = []
    for place, forecast in enumerate(plan.forecasts, start=1):
        of = f", {forecast.cluster.name}" * (len(plan.forecasts) > 1)
        folds.append(Folded(f"All strategies{of}", (all_table(plan, forecast, place),)))
    return [
        *folds,
        Folded("Evidence", (Bullets(tuple(evidence(plan))),)),
    ]


def _after_a_heading(folds: Sequence[Block]) -> list[Block]:
    """Returns folded sections as open ones behind the heading "Details", for Markdown, which folds nothing."""
    blocks: list[Block] = [Heading("Details", 2)]
    for fold in folds:
        blocks += [Paragraph(f"**{fold.title}**"), *fold.blocks] if isinstance(fold, Folded) else [fold]
    return blocks


def _times(forecast: Forecast, plan: Plan, stem: Path) -> Figure:
    shown = shown_strategies(forecast)
    cells = {label(name): [cell for cell in forecast.cells if cell.scaling == name] for name in shown}
    labels = [label(name) for name in planned_strategies()]
    source = times_of(forecast, plan.source)
    figure = figures.times(cells, labels, title=f"Predicted time to the target: {source}", choice=forecast.best)
    caption = (
        f"Times of {source}. Strong and weak scaling, and the strategies of the table. Median, and the interval for 80 % of "
        "the runs that reach the target; training and validation, without compiling."
    )
    return Figure("Times", caption, *canvas.save_both(figure, stem))
