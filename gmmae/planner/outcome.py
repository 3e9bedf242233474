"""The predictions of `gmmae plan`, compared with the outcome of a sweep."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gmmae.config.schema import StopConfig
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

INTERVAL_PERCENT = 80
"""Level of a plan's intervals, in percent."""
NUMBERS = ("seconds", "seconds_low", "seconds_high", "probability_of_failure", "learning_rate")


class PlannedTime(NamedTuple):
    """A plan's prediction for a strategy on a number of devices; NaN stands for a missing number."""

    scaling: str
    devices: int
    batch: int
    seconds: float  # of a run that reaches the target, as are the bounds
    seconds_low: float
    seconds_high: float
    probability_of_failure: float
    learning_rate: float
    tested: bool = True  # whether trials cover the learning rate

    def fits(self, run: Run) -> bool:
        """Returns whether the prediction is for the strategy, devices, batch and learning rate of a run."""
        rate = math.isclose(self.learning_rate, run.record.learning_rate, rel_tol=1e-6)
        return rate and (self.scaling, self.devices, self.batch) == (
            run.key.scaling,
            run.key.devices,
            run.record.global_batch,
        )


class ClusterPlan(NamedTuple):
    """The predictions of a plan for one cluster."""

    cells: tuple[PlannedTime, ...]
    best: tuple[str, int]  # the strategy and the number of devices that it recommends
    scaled: bool = False  # by a factor of the user, which the sweep does not know


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
        raise InputError(
            f"{path} must be a plan for the sweep's target, {stop.monitor} {stop.target:g}; got one for {metric} {target:g}: "
            "plan for the same target, or move it away"
        )
    return plans


def _plan(data: Mapping[str, Any]) -> tuple[float, str, dict[str, ClusterPlan]]:
    """Returns the target, its metric, and the predictions by cluster."""
    return float(data["target"]), data["metric"], {name: _forecast(planned) for name, planned in data["clusters"].items()}


def _forecast(data: Mapping[str, Any]) -> ClusterPlan:
    cells = (
        PlannedTime(
            cell["scaling"],
            int(cell["devices"]),
            int(cell["batch"]),
            *(_number(cell[name]) for name in NUMBERS),
            tested=bool(cell.get("tested", True)),
        )
        for cell in data["cells"]
    )
    return ClusterPlan(
        tuple(cells), (data["best"]["scaling"], int(data["best"]["devices"])), bool(data.get("scaled_by_user", False))
    )


def _number(value: float | None) -> float:
    """Returns a number of a plan. A plan has null for a number that is not finite."""
    return math.nan if value is None else float(value)


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


def _group(results: Results, planned: PlannedTime) -> list[Run]:
    return [run for run in results.group(planned.scaling, planned.devices) if planned.fits(run)]


def _choice(name: str, forecast: ClusterPlan, results: Results) -> str:
    """Returns the plan's recommendation, and how its time compares with the fastest."""
    scaling, devices = forecast.best
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


def _table(name: str, fitting: Sequence[tuple[PlannedTime, list[Run]]], results: Results, stem: str) -> Table:
    rows, inside, reached = [], 0, 0
    for planned, runs in fitting:
        median = efficiency.median([run.time_s for run in runs])
        known = math.isfinite(median) and math.isfinite(planned.seconds_low) and math.isfinite(planned.seconds_high)
        within = known and planned.seconds_low <= median <= planned.seconds_high
        inside, reached = inside + within, reached + known
        missed = f"{sum(not run.reached for run in runs)} of {len(runs)}"
        times = (_known(planned.seconds, tables.seconds), _interval(planned), tables.seconds(median))
        verdict = "yes" if within else "no" if known else "–"
        share = _known(planned.probability_of_failure, "{:.0%}".format) if planned.tested else "untested"
        rows.append((planned.scaling, str(planned.devices), *times, verdict, missed, share))
    columns = (
        "scaling",
        "devices",
        "predicted (s)",
        f"{INTERVAL_PERCENT} % interval (s)",
        "outcome (s)",
        "within",
        "missed",
        "P(miss)",
    )
    notes = [
        f"{inside} of {reached} median times that have an interval lie within it.",
        "The interval is for single runs that reach the target.",
        "Outcome: the median over seeds, a miss counted as infinite. P(miss): the predicted probability of one.",
        "The plan has trained the base batch itself. So for strong scaling and for one device it predicts the times only.",
    ]
    if results.clock.kind == "projected":
        notes.append(
            "Both times are projected by one model of the cluster, which this table does not test. Plan and sweep each use "
            "step times of their own device. If that was slower or busier, all its times are longer."
        )
    title = f"Prediction and outcome for {name} ({'projected' if results.clock.kind == 'projected' else 'measured here'})"
    return Table(stem, title, columns, tuple(rows), tuple(notes))


def _interval(planned: PlannedTime) -> str:
    known = math.isfinite(planned.seconds_low) and math.isfinite(planned.seconds_high)
    return tables.interval_text((planned.seconds_low, planned.seconds_high) if known else None, tables.seconds)


def _known(value: float, text: Callable[[float], str]) -> str:
    return "–" if math.isnan(value) else text(value)
