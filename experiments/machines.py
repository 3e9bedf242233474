"""Machines to which the study projects times, and the time of an epoch of a batch on them."""

import json
from functools import cache

from benchmarks.child import ROOT
from experiments import plan as plans
from experiments import tables
from experiments.policies import hypothetical_group
from gmmae.planner import prediction
from gmmae.planner.prediction import Measured
from gmmae.scaling import cost
from gmmae.scaling.cost import StepTimes, all_reduce_s, read_cluster

PAPER_PLAN = ROOT / "results" / "study" / "paper_plan.json"
H100_STEPS = ROOT / "results" / "bench" / "h100_steps.csv"

CLUSTERS = ("k80_1gbe", "h200_nvlink")
"""Clusters to which times are projected."""

H100 = "H100"


def h100_steps() -> StepTimes:
    """Returns the times of two steps on an H100 in TF32, of 4 and of 32 samples."""
    of = [row for row in tables.read(H100_STEPS) if (row["precision"], row["versions"]) == ("TF32", "jax 0.11.2")]
    return StepTimes(tuple(int(row["samples"]) for row in of), tuple(float(row["seconds"]) for row in of))


def h100_overhead(measured: Measured, devices: int) -> float:
    """Returns the overhead and the projected all-reduce relative to a base batch's samples, by two steps on an H100.

    Args:
      measured: measurements of the workload.
      devices: number of devices of the all-reduce.
    """
    a, b = cost.affine(h100_steps())
    reduce_s = all_reduce_s(read_cluster("h200_nvlink"), devices, measured.gradient_bytes)
    return (a + reduce_s) / (b * measured.optim.batch_size)


def longer_epoch(at: prediction.DeviceGroup, batch: int) -> float:
    """Returns the ratio of a batch's epoch time to that of the base batch."""
    return float(at.epoch_s(batch)) / float(at.epoch_s(at.measured.optim.batch_size))


def machines(measured: Measured, devices: int) -> dict[str, prediction.DeviceGroup]:
    """Returns clusters of `devices` devices, and H100s with their own overhead and no time for validation."""
    found = {name: prediction.device_group(measured, read_cluster(name), devices) for name in CLUSTERS}
    return found | {H100: hypothetical_group(measured, h100_overhead(measured, devices), devices)}


@cache
def paper_measurements() -> Measured:
    """Returns the step times of real nodules by which all times of the study are projected.

    A plan of 8922fdde measured them on an idle machine. It had no short runs yet.
    """
    return plans.restore(json.loads(PAPER_PLAN.read_text(encoding="utf-8")))
