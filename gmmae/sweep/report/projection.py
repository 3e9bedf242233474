"""Projects the seconds of an epoch to the devices of a cluster, from step times measured on one device.

    epoch = steps · (scaled compute + all-reduce) + scaled validation of ⌈V / n⌉ samples

The scale and the all-reduce are those of `gmmae.scaling.cost`.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gmmae.scaling import cost
from gmmae.scaling.cost import Cluster, StepTimes
from gmmae.sweep import step_times
from gmmae.sweep.runs import stage_plans
from gmmae.sweep.step_times import Timing, Timings
from gmmae.system.errors import InputError
from gmmae.training.records import Record


class EpochTime(NamedTuple):
    """The seconds of an epoch by activity."""

    compute_s: float  # of all training steps; includes the all-reduce if measured
    all_reduce_s: float | None  # of all steps; None if it was measured together with the computation
    validation_s: float

    @property
    def total_s(self) -> float:
        """The sum of the known parts.

        >>> EpochTime(2.0, 1.0, 0.5).total_s, EpochTime(3.0, None, 0.5).total_s
        (3.5, 3.5)
        """
        return self.compute_s + (self.all_reduce_s or 0.0) + self.validation_s

    @classmethod
    def mean(cls, stages: Sequence["EpochTime"], counts: Sequence[int]) -> "EpochTime":
        """Returns the mean of the projected epochs of several stages.

        >>> EpochTime.mean([EpochTime(1.0, 2.0, 1.0), EpochTime(2.0, 1.0, 1.0)], [3, 1])
        EpochTime(compute_s=1.25, all_reduce_s=1.75, validation_s=1.0)
        """
        return stages[0] if len(stages) == 1 else cls(*np.average(np.array(stages, float), axis=0, weights=counts).tolist())


class Projection(NamedTuple):
    """A projection of one device's step times to a cluster."""

    cluster: Cluster
    timings: Timings  # measured on one device
    precision: str  # of the sweep's runs and of the timed steps, as `precision` of their configuration

    @property
    def parameter_bytes(self) -> int:
        """The bytes of a parameter."""
        return 8 if self.precision == "float64" else 4

    def stages(self, record: Record) -> list[EpochTime]:
        """Returns the projected epoch of each stage of a run, on its number of devices.

        Raises:
          InputError: a batch or a share of the validation set is outside the measured range.
        """
        train = step_table(self.timings.train)
        size_bytes = record.parameters * self.parameter_bytes
        all_reduce_s = cost.all_reduce_s(self.cluster, record.devices, size_bytes)
        plans = stage_plans(record)
        steps_s = [cost.projected_step_s(self.cluster, train, plan.device_batch, record.devices, size_bytes) for plan in plans]
        validation_s = cost.scale(self.cluster, train) * self._validation_s(record)
        return [
            EpochTime(plan.steps * (step_s - all_reduce_s), plan.steps * all_reduce_s, validation_s)
            for plan, step_s in zip(plans, steps_s, strict=True)
        ]

    def _validation_s(self, record: Record) -> float:
        try:
            return step_table(self.timings.validation).at(math.ceil(record.validation_samples / record.devices))
        except InputError as error:
            raise InputError(f"validation: {error}") from error

    @property
    def short(self) -> str:
        """The projection in a title. It names the device that took the steps where the cluster has another."""
        cluster, kind = self.cluster, self.timings.device_kind
        as_there = cluster.reference_step_s or cost.same_device(cluster.device, kind)
        return f"projected to {cluster.name}" + ("" if as_there else f", with steps of {kind}")

    def assumptions(self) -> str:
        """Returns the assumptions of the projection as one sentence."""
        cluster = self.cluster
        between = "an unknown link between nodes"
        if cluster.alpha_inter_s is not None and cluster.beta_inter_bytes_per_s is not None:
            between = f"{1e6 * cluster.alpha_inter_s:g} µs, {1e-9 * cluster.beta_inter_bytes_per_s:g} GB/s between nodes"
        scaled = f", scaled to {cluster.reference_step_s:g} s for a step of {cluster.reference_batch} samples"
        return (
            f"Projected to {cluster.name} ({cluster.devices_per_node} a node), not measured there: computation as measured on "
            f"{self.timings.device_kind} in {self.precision} "
            f"(quartiles within {100 * step_times.spread(self.timings.train):.1f} % of the medians)"
            f"{scaled if cluster.reference_step_s else ''}; all-reduce with "
            f"α = {1e6 * cluster.alpha_intra_s:g} µs, β = {1e-9 * cluster.beta_intra_bytes_per_s:g} GB/s inside a node and "
            f"{between}; no overlap of the two."
        )


def step_table(rows: Sequence[Timing]) -> StepTimes:
    """Returns the median seconds by number of samples."""
    ordered = sorted(rows)
    return StepTimes(tuple(row.samples for row in ordered), tuple(row.median_s for row in ordered))
