"""Projects the seconds of an epoch to the devices of a cluster, from step times measured on one device.

    epoch = steps · (scaled compute + all-reduce) + scaled validation of ⌈V / n⌉ samples

The scale and the all-reduce are those of `gmmae.scaling.cost`.
"""

import math
from collections.abc import Sequence

from gmmae.scaling import cost
from gmmae.scaling.cost import Cluster, StepTimes
from gmmae.sweep import step_times
from gmmae.sweep.runs import stage_plans
from gmmae.sweep.step_times import Timing, Timings
from gmmae.system.errors import InputError
from gmmae.training.records import Record


def epoch_seconds(cluster: Cluster, timings: Timings, precision: str, record: Record) -> list[float]:
    """Returns the projected seconds of an epoch in each stage of a run, on its number of devices.

    Args:
      cluster: of the devices.
      timings: measured on one device.
      precision: of the sweep's runs and of the timed steps.
      record: of the run.

    Raises:
      InputError: a batch or a share of the validation set is outside the measured range.
    """
    train = step_table(timings.train)
    try:
        passes_s = step_table(timings.validation).at(math.ceil(record.validation_samples / record.devices))
    except InputError as error:
        raise InputError(f"validation: {error}") from error
    gradient_bytes = record.parameters * (8 if precision == "float64" else 4)
    return [
        plan.steps * cost.projected_step_s(cluster, train, plan.device_batch, record.devices, gradient_bytes)
        + cost.scale(cluster, train) * passes_s
        for plan in stage_plans(record)
    ]


def texts(cluster: Cluster, timings: Timings, precision: str) -> tuple[str, str]:
    """Returns the projection in a title, and its assumptions as one sentence.

    The title names the device that took the steps where the cluster has another.
    """
    as_there = cluster.reference_step_s or cost.same_device(cluster.device, timings.device_kind)
    title = f"projected to {cluster.name}" + ("" if as_there else f", with steps of {timings.device_kind}")
    between = "an unknown link between nodes"
    if cluster.alpha_inter_s is not None and cluster.beta_inter_bytes_per_s is not None:
        between = f"{1e6 * cluster.alpha_inter_s:g} µs, {1e-9 * cluster.beta_inter_bytes_per_s:g} GB/s between nodes"
    scaled = f", scaled to {cluster.reference_step_s:g} s for a step of {cluster.reference_batch} samples"
    return title, (
        f"Projected to {cluster.name} ({cluster.devices_per_node} a node), not measured there: computation as measured on "
        f"{timings.device_kind} in {precision} (quartiles within {100 * step_times.spread(timings.train):.1f} % of the medians)"
        f"{scaled if cluster.reference_step_s else ''}; all-reduce with "
        f"α = {1e6 * cluster.alpha_intra_s:g} µs, β = {1e-9 * cluster.beta_intra_bytes_per_s:g} GB/s inside a node and "
        f"{between}; no overlap of the two. Every step of an epoch counts as a full one, including the last."
    )


def step_table(rows: Sequence[Timing]) -> StepTimes:
    """Returns the median seconds by number of samples."""
    ordered = sorted(rows)
    return StepTimes(tuple(row.samples for row in ordered), tuple(row.median_s for row in ordered))
