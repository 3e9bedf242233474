"""Steps of the paper's model on an H100: two timed with earlier code, and one with later code."""

from experiments import tables
from experiments.outcomes import RESULTS
from gmmae.config.toml import find
from gmmae.planner.prediction import Measured
from gmmae.scaling import cost
from gmmae.scaling.cost import StepTimes, all_reduce_s, read_cluster

EARLIER = "cuDNN's convolutions and the loss's first kernel"
"""Code of the H100's two timed steps (`results/bench/h100_steps.csv`). Later code has one timed step, of 32 samples."""

FEW, FEW_US = 4, (75, 100, 150, 200, 250, 300)
"""Samples of a step that has no time with later code on an H100, and its assumed times in microseconds."""


def timed(code: str) -> StepTimes:
    """Returns the times of steps on an H100 with one version of the code: `EARLIER`, or any other for later code."""
    rows = tables.read(RESULTS / "bench" / "h100_steps.csv")
    of = [row for row in rows if (row["code"] == EARLIER) == (code == EARLIER)]
    return StepTimes(tuple(int(row["samples"]) for row in of), tuple(float(row["seconds"]) for row in of))


def later(few_us: float) -> StepTimes:
    """Returns the steps of later code on an H100, with an assumed time of the step of few samples."""
    [batch], [batch_s] = timed("later")
    return StepTimes((FEW, batch), (1e-6 * few_us, batch_s))


def overhead(measured: Measured, devices: int, steps: StepTimes | None = None) -> float:
    """Returns the overhead and the projected all-reduce relative to a base batch's samples, by two steps on an H100.

    Args:
      measured: measurements of the workload.
      devices: number of devices of the all-reduce.
      steps: times of the steps, by default those of the earlier code.
    """
    a, b = cost.affine(steps or timed(EARLIER))
    reduce_s = all_reduce_s(read_cluster(find("h200_nvlink", "clusters")), devices, measured.gradient_bytes)
    return (a + reduce_s) / (b * measured.optim.batch_size)
