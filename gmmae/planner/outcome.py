"""The predictions of `gmmae plan`, compared with the outcome of a sweep."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gmmae.config.schema import StopConfig
from gmmae.planner.prediction import INTERVAL_LEVEL, Prediction
from gmmae.plotting import tables
from gmmae.plotting.document import Block, Folded, Paragraph
from gmmae.plotting.tables import Table
from gmmae.scaling.cost import Cluster
from gmmae.scaling.strategies import STRATEGIES
from gmmae.sweep.grid import SweepConfig
from gmmae.sweep.report import efficiency, page
from gmmae.sweep.report.outcomes import devices_text, listed
from gmmae.sweep.report.results import Results, Run
from gmmae.system import json_files
from gmmae.system.errors import InputError

INTERVAL_PERCENT = round(100 * INTERVAL_LEVEL)


class ClusterPlan(NamedTuple):
    """The predictions of a plan for one cluster. NaN stands for a missing number."""

    cells: list[Prediction]
    best: Prediction  # the recommended one
    scaled: bool  # by a factor of the user, which the sweep does not know


def read_plan(path: Path, stop: StopConfig) -> dict[str, ClusterPlan]:
    """Reads the predictions of a `plan.json` by cluster.

    Raises:
      InputError: the file cannot be read, is not a plan, or is for another target.
    """
    what, change = "be a plan that `gmmae plan` has written", "plan again, or move it away"
    try:
        target, metric, plans = json_files.read(path, what, change, _plan)
    except FileNotFoundError as error:
        raise InputError(f"{path} must {what}; got {error.strerror}: give the path of another") from error
    if (metric, target) != (stop.monitor, stop.target):
        wanted = "none" if stop.target is None else f"{stop.target:g}"
        raise InputError(
            f"{path} must be a plan for the sweep's target, {stop.monitor} {wanted}; got one for {metric} "
            f"{target:g}: plan for the same target, or move it away"
        )
    return plans


def _plan(data: Mapping[str, Any]) -> tuple[float, str, dict[str, ClusterPlan]]:
    """Returns the target, its metric, and the predictions by cluster."""
    return float(data["target"]), data["metric"], {name: _forecast(planned) for name, planned in data["clusters"].items()}


def _forecast(data: Mapping[str, Any]) -> ClusterPlan:
    return ClusterPlan([_prediction(cell) for cell in data["cells"]], _prediction(data["best"]), data["scaled_by_user"])


def _prediction(data: Mapping[str, Any]) -> Prediction:
    """Returns a prediction of a plan, which has null for a number that is not finite."""
    values = {name: math.nan if value is None else value for name, value in data.items()}
    return json_files.checked(Prediction, values, any_number=Prediction._fields)


def write_report(config: SweepConfig, root: Path, clusters: Sequence[Cluster], plan: Path | None = None) -> list[Path]:
    """Writes the report of a sweep, with the predictions of a plan beside the outcome.

    Args:
      config: the sweep.
      root: the sweep's work directory.
      clusters: the clusters that times are projected to, as for `gmmae.sweep.report.page.write`.
      plan: path of a plan; by default the one in the sweep's folder, if there is one.

    Raises:
      InputError: as `gmmae.sweep.report.page.write`; or the plan cannot be read, or is for another sweep.
    """
    if plan is not None and config.mode == "throughput":
        raise InputError(f"--plan needs a sweep that trains to a target; got {root}, which has step times only: leave it out")

    def section(by_cluster: Sequence[Results]) -> list[Block]:
        own = by_cluster[0].folder.plan
        path = plan or (own if own.exists() else None)
        return [Folded("Prediction and outcome", tuple(comparison_blocks(by_cluster, path)))] if path else []

    return page.write(config, root, clusters, section)


def comparison_blocks(by_cluster: Sequence[Results], path: Path) -> list[Block]:
    """Returns a table for each cluster that both the plan and the sweep's projected times cover.

    If the sweep's times are measured, all clusters of the plan get a table.

    Args:
      by_cluster: the sweep's results, with times for each cluster.
      path: path of the plan.

    Raises:
      InputError: as `read`, or no prediction has a batch and learning rate of the sweep.
    """
    first = by_cluster[0]
    forecasts = read_plan(path, first.config.run.stop)
    projected = {results.clock.cluster: results for results in by_cluster}
    chosen = {name: first for name in forecasts} if first.clock.kind == "measured" else projected
    pairs = [(name, results) for name, results in chosen.items() if name in forecasts]
    if not pairs:
        here = listed(results.clock.cluster or "no cluster" for results in by_cluster)
        return [
            Paragraph(f"The plan is for {listed(forecasts)}; times here are of {here}. `gmmae report --clusters` names others.")
        ]
    blocks: list[Block] = []
    for place, (name, results) in enumerate(pairs):
        if forecasts[name].scaled:
            blocks.append(
                Paragraph(f"The plan's times for {name} are those of --scale-compute; the sweep's are not: no comparison.")
            )
            continue
        fitting = [(planned, runs) for planned in forecasts[name].cells if (runs := _group(results, planned))]
        fitting.sort(key=lambda pair: (results.config.scaling.index(pair[0].scaling), pair[0].devices))
        if first.runs and not fitting:
            raise InputError(
                f"{path} must be a plan for the sweep's batches and learning rates; got none of them: "
                "plan with the sweep's configuration, or move it away"
            )
        blocks += [Paragraph(_choice(name, forecasts[name], results)), _table(name, fitting, results, f"plan_{place + 1}")]
    return blocks


def _group(results: Results, planned: Prediction) -> list[Run]:
    """Returns the runs with the strategy, devices, batch and learning rate of a prediction; none where they have no times."""
    return [
        run
        for run in results.group(planned.scaling, planned.devices)
        if results.times(planned.scaling, planned.devices)
        and run.record.global_batch == planned.batch
        and math.isclose(run.record.learning_rate, planned.learning_rate, rel_tol=1e-6)
    ]


def _choice(name: str, forecast: ClusterPlan, results: Results) -> str:
    """Returns the plan's recommendation, and how its time compares with the fastest."""
    scaling, devices = forecast.best.scaling, forecast.best.devices
    label = STRATEGIES[scaling].label if scaling in STRATEGIES else scaling
    text = f"**For {name} the plan chose {label} on {devices_text([devices])}.**"
    chosen = results.seconds(scaling, devices)
    medians = [
        planned.median for scaling in results.config.scaling for n in results.counts if (planned := results.seconds(scaling, n))
    ]
    if chosen is None:
        return f"{text} The sweep has no such cell."
    if not math.isfinite(chosen.median):
        return f"{text} Its median run missed the target."
    ratio = chosen.median / min(medians)
    return f"{text} " + (
        "No cell was faster." if ratio == 1 else f"It took {tables.ratio(ratio)} times as long as the fastest cell."
    )


def _table(name: str, fitting: Sequence[tuple[Prediction, list[Run]]], results: Results, stem: str) -> Table:
    rows, inside, reached = [], 0, 0
    for planned, runs in fitting:
        median = efficiency.median(results.times(planned.scaling, planned.devices).values())
        interval = (
            (planned.seconds_low, planned.seconds_high) if math.isfinite(planned.seconds_low + planned.seconds_high) else None
        )
        known = interval is not None and math.isfinite(median)
        within = known and planned.seconds_low <= median <= planned.seconds_high
        inside, reached = inside + within, reached + known
        rows.append(
            (
                planned.scaling,
                str(planned.devices),
                _known(planned.seconds, tables.seconds),
                tables.interval_text(interval, tables.seconds),
                tables.seconds(median),
                "yes" if within else "no" if known else "–",
                f"{sum(not run.reached for run in runs)} of {len(runs)}",
                _known(planned.probability_of_failure, "{:.0%}".format) if planned.tested else "untested",
            )
        )
    interval_column = f"{INTERVAL_PERCENT} % interval (s)"
    columns = ("scaling", "devices", "predicted (s)", interval_column, "outcome (s)", "within", "missed", "P(miss)")
    notes = [
        f"{inside} of {reached} median times that have an interval lie within it.",
        "The interval is for single runs that reach the target.",
        "Outcome: the median over seeds, a miss counted as infinite. P(miss): the predicted probability of one.",
        "The plan has trained the base batch itself, with one seed. Strong scaling and one device are predicted from that run.",
    ]
    kind = "measured here"
    if results.clock.kind == "projected":
        kind = "projected"
        notes.append(
            "Both times are projected by one model of the cluster, which this table does not test. Plan and sweep each use "
            "step times of their own device. If that was slower or busier, all its times are longer."
        )
    return Table(stem, f"Prediction and outcome for {name} ({kind})", columns, tuple(rows), tuple(notes))


def _known(value: float, text: Callable[[float], str]) -> str:
    return "–" if math.isnan(value) else text(value)
