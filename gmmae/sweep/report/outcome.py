"""The predictions of `gmmae plan`, compared with the outcome of a sweep."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gmmae.data.grouped import Estimate
from gmmae.plotting import tables
from gmmae.plotting.tables import literal
from gmmae.sweep.report.cells import Place, Results
from gmmae.system import json_files
from gmmae.system.errors import InputError


class Planned(NamedTuple):
    """What a sweep can judge of a plan's prediction. NaN stands for a missing number."""

    scaling: str
    devices: int
    batch: int
    learning_rate: float
    seconds: float
    seconds_low: float
    seconds_high: float
    probability_of_failure: float


def comparison(by_cluster: Sequence[Results], path: Path, name: str) -> str:
    """What a plan chose, and a table of its predictions for each cluster that both cover. Measured times cover all."""
    kind, stop = by_cluster[0].source.kind, by_cluster[0].config.run.stop
    what, change = "be a plan that `gmmae plan` has written", "plan again, or move it away"
    try:
        metric, target, plans = json_files.read(path, what, change, _plans)
    except FileNotFoundError as error:
        raise InputError(f"{path} must {what}; got {error.strerror}: give the path of another") from error
    if (metric, target) != (stop.monitor, stop.target):
        wanted = f"a plan for the sweep's target, {stop.monitor} {stop.target}"
        raise InputError(f"{path} must be {wanted}; got one for {metric} {target}: {change}")
    covered = [(of, results) for of in plans for results in by_cluster if kind == "measured" or results.source.cluster == of]
    if not covered:
        here = ", ".join(results.source.cluster or "no cluster" for results in by_cluster)
        return literal(f"The plan is for {', '.join(plans)}; times here are of {here}. The option --clusters names others.")
    texts, rows = [], []
    for cluster, results in covered:
        best, scaled_by_user, cells = plans[cluster]
        if scaled_by_user:
            texts.append(f"The plan's times for {cluster} are those of --scale-compute; the sweep's are not: no comparison.")
            continue
        times = {place: cell.time_s.value for place, cell in results.cells.items() if not math.isnan(cell.time_s.value)}
        ratio = Estimate(times.get(best, math.nan) / min(times.values(), default=1.0)).text(tables.ratio)
        texts.append(f"For {cluster} the plan chose {best[0]}, n = {best[1]}. Its time here over the fastest: {ratio}.")
        for place, time_s in times.items():
            cell = results.cells[place]
            planned = cells.get((*place, cell.batch))
            if planned is None or not math.isclose(cell.learning_rate, planned.learning_rate, rel_tol=1e-6):
                continue
            predicted = Estimate(planned.seconds, planned.seconds_low, planned.seconds_high)
            within = "yes" if predicted.low <= time_s <= predicted.high else "no"
            failure = Estimate(planned.probability_of_failure).text("{:.0%}".format)
            rows.append(
                (
                    cluster,
                    cell.scaling,
                    str(cell.devices),
                    predicted.text(tables.seconds),
                    cell.time_s.text(tables.seconds),
                    within if math.isfinite(predicted.low + predicted.high + time_s) else "–",
                    f"{cell.seeds - cell.reached} of {cell.seeds}",
                    failure,
                )
            )
        if not rows:
            raise InputError(
                f"{path} must be a plan for the sweep's batches and learning rates; got none of them: "
                "plan with the sweep's configuration, or move it away"
            )
    note = "Predicted intervals are for single runs that reach the target. In an outcome a miss counts as an infinite time."
    note += " Both times are projected by one model of the cluster, which this table does not test." * (kind == "projected")
    columns = ("cluster", "scaling", "devices", "predicted (s)", "outcome (s)", "within", "missed", "P(miss)")
    shown = [tables.table(columns, rows, f"{name}. Prediction and outcome ({kind})", [note])] if rows else []
    return "\n\n".join([*map(literal, texts), *shown])


def _plans(data: Mapping[str, Any]) -> tuple[str, float, dict[str, tuple[Place, bool, dict[tuple[str, int, str], Planned]]]]:
    """Metric and target; by cluster the choice, whether the user scaled times, and the cells."""
    plans = {}
    for cluster, forecast in data["clusters"].items():
        cells = {}
        for cell in forecast["cells"]:
            values = {name: math.nan if cell[name] is None else cell[name] for name in Planned._fields}
            planned = json_files.checked(Planned, values, any_number=Planned._fields)
            cells[planned.scaling, planned.devices, str(planned.batch)] = planned
        plans[cluster] = (forecast["best"]["scaling"], forecast["best"]["devices"]), forecast["scaled_by_user"], cells
    return data["metric"], float(data["target"]), plans
