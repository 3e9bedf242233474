"""Measurements and outcomes of the zoo.

    python -m experiments.zoo.cases --runs runs/zoo     # results/zoo/cases.csv and measured.csv

A case is a workload with a base learning rate, a target and a seed. `cases.csv` has the steps to the target. Batches and
learning rates are relative to those of the case.

`measured.csv` has the result of short runs beside the base run, by `gmmae.planner.step_ratios`. A row has the run's batch and
learning rate, and its largest cost in base runs. Then follow the steps of both runs to an equal loss, and the cost.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.child import ROOT
from benchmarks.options import Parser, guarded
from experiments import tables
from experiments.zoo.runs import RATE_FACTORS, SEEDS, read
from experiments.zoo.workloads import WORKLOADS
from gmmae.planner.step_ratios import LEVEL_SHARE, MetricCurve, remaining_fall, smooth, steps_at_equal_loss

CASES = ROOT / "results" / "zoo" / "cases.csv"
MEASURED = CASES.with_name("measured.csv")

Point = tuple[float, float]
"""Factor of the batch, factor of the learning rate."""

BASES = (0, 2, 4)
"""Places of the base learning rates in `RATE_FACTORS`."""
MIN_EPOCHS = 2.0
"""Smallest number of epochs of a base run."""
DESIGNS: dict[Point, tuple[float, ...]] = {
    (2.0, 1.0): (0.6, 0.75, 1.1), (4.0, 1.0): (0.8, 1.0), (8.0, 1.0): (1.0,), (4.0, 4.0): (0.5, 0.75), (8.0, 8.0): (0.8,),
    (16.0, 16.0): (0.8,), (1.0, 4.0): (0.5,),
}  # fmt: skip
"""Largest costs of the short runs that are compared, by batch and learning rate."""
LATE = 1.5
"""Steps over the median of weak scaling at the same batch, beyond which a run has missed the target."""
MIN_BASE_STEPS = 8


class Short(NamedTuple):
    """A short run beside the base run: steps of both to an equal loss, None where it did not come far, and its cost."""

    steps: float | None
    base_steps: float | None
    cost: float


class Case(NamedTuple):
    """A base run and what could be measured beside it.

    Attributes:
      remaining_fall: of the base run (`gmmae.planner.step_ratios`).
      full: steps to the target by batch and learning rate; infinite where it was not reached.
      measured: results of short runs, by batch, learning rate and largest cost.
    """

    workload: str
    base: int
    target: int
    seed: int
    samples: int
    batch: int
    remaining_fall: float
    full: dict[Point, float]
    measured: dict[tuple[Point, float], "Short"]

    @property
    def setting(self) -> tuple[str, int, int]:
        """The workload, base learning rate and target, without the seed."""
        return self.workload, self.base, self.target

    @property
    def steps(self) -> float:
        """The steps of the base run."""
        return self.full[1.0, 1.0]


def points() -> list[Point]:
    """Returns the batches and learning rates of all strategies and measurements."""
    powers = (0.0, 0.25, 0.5, 0.75, 1.0)
    strategies = {(k, k**power) for k in (0.25, 0.5, 2.0, 4.0, 8.0, 16.0) for power in powers if k > 1 or power == 0}
    return sorted(strategies | {(1.0, m) for m in (1.0, 2.0, 4.0, 8.0, 16.0)})


def cases_of(name: str, path: Path) -> Iterator[Case]:
    """Yields the cases of a workload whose base run takes enough steps.

    The first validation stands for the beginning too, as in a plan.
    """
    curves, targets, samples = read(path)
    smoothed = {factor: smooth(of.validation[..., [1, *range(1, len(of.steps))]]) for factor, of in curves.items()}
    for base in BASES:
        for target, level in enumerate(targets):
            for seed in range(SEEDS):
                own = MetricCurve(curves[1.0].steps, smoothed[1.0][seed, base])
                steps = own.reaches(level)
                if not max(MIN_BASE_STEPS, MIN_EPOCHS * samples / curves[1.0].batch) <= steps < math.inf:
                    continue
                full = {
                    (k, m): _at(curves[k].steps, smoothed[k][seed], base + math.log2(m), level)
                    for k, m in points()
                    if k in curves and math.ceil(base + math.log2(m)) < len(RATE_FACTORS)
                }
                measured = {
                    (point, most): _short(
                        own,
                        steps,
                        MetricCurve(curves[point[0]].steps, smoothed[point[0]][seed, base + round(math.log2(point[1]))]),
                        point[0],
                        most,
                    )
                    for point, costs in DESIGNS.items()
                    if point in full
                    for most in costs
                }
                yield Case(
                    name, base, target, seed, samples, curves[1.0].batch, remaining_fall(own, steps, level), full, measured
                )


def _short(base: MetricCurve, base_steps: float, run: MetricCurve, batch: float, most: float) -> Short:
    """Returns what a run with a largest cost would have told. It ends at the validation that reaches the level."""
    wanted = run.reaches(base.lowest_by(LEVEL_SHARE * base_steps))
    ends = np.flatnonzero((run.steps >= wanted) | (batch * run.steps >= most * base_steps))
    last = int(ends[0]) if len(ends) else len(run.steps) - 1
    found = steps_at_equal_loss(base, base_steps, MetricCurve(run.steps[: last + 1], run.costs[: last + 1]))
    return Short(*(found or (None, None)), batch * float(run.steps[last]) / base_steps)


def _at(steps: np.ndarray, losses: np.ndarray, place: float, level: float) -> float:
    """Returns the crossing at a learning rate, between two neighbours by logarithms where it lies between them."""
    low, share = math.floor(place), place - math.floor(place)
    values = [MetricCurve(steps, losses[i]).reaches(level) for i in (low, low + (share > 0))]
    if not all(0 < value < math.inf for value in values):
        return math.inf if math.inf in values else max(values[0], 0.5)
    return float(np.exp((1 - share) * math.log(values[0]) + share * math.log(values[1])))


def misses(cases: list[Case]) -> dict[tuple[tuple[str, int, int], Point], float]:
    """Returns the steps beyond which a run has missed the target, by setting and point."""
    weak: dict[tuple[tuple[str, int, int], float], list[float]] = defaultdict(list)
    for case in cases:
        for (k, m), steps in case.full.items():
            if m == 1:
                weak[case.setting, k].append(steps)
    limits = {key: LATE * float(np.median(of)) for key, of in weak.items()}
    return {(case.setting, point): limits[case.setting, point[0]] for case in cases for point in case.full}


KEY = ("workload", "base", "target", "seed")


def write(cases: list[Case]) -> None:
    """Writes the cases."""
    rows = [
        {
            **dict(zip(KEY, (*case.setting, case.seed), strict=True)), "samples": case.samples,
            "base_batch": case.batch, "remaining_fall": f"{case.remaining_fall:.4g}", "batch": f"{k:g}", "rate": f"{m:.4g}",
            "steps": f"{steps:.4g}",
        }
        for case in cases for (k, m), steps in case.full.items()
    ]  # fmt: skip
    tables.write(CASES, rows)
    rows = [
        {
            **dict(zip(KEY, (*case.setting, case.seed), strict=True)), "batch": f"{k:g}", "rate": f"{m:g}", "most": most,
            **{name: "" if value is None else f"{value:.4g}" for name, value in short._asdict().items()},
        }
        for case in cases for ((k, m), most), short in case.measured.items()
    ]  # fmt: skip
    tables.write(MEASURED, rows)


def load() -> list[Case]:
    """Reads the cases."""
    exact = {f"{m:.4g}": m for _, m in points()}
    short: dict[tuple[str, int, int, int], dict[tuple[Point, float], Short]] = defaultdict(dict)
    for row in tables.read(MEASURED):
        steps, base_steps = (float(row[name]) if row[name] else None for name in ("steps", "base_steps"))
        point = float(row["batch"]), float(row["rate"])
        short[key(row)][point, float(row["most"])] = Short(steps, base_steps, float(row["cost"]))
    grouped: dict[tuple[str, int, int, int], list[Mapping[str, str]]] = defaultdict(list)
    for row in tables.read(CASES):
        grouped[key(row)].append(row)
    found = []
    for of, rows in grouped.items():
        full = {(float(row["batch"]), exact[row["rate"]]): float(row["steps"]) for row in rows}
        samples, batch, flat = int(rows[0]["samples"]), int(rows[0]["base_batch"]), float(rows[0]["remaining_fall"])
        found.append(Case(*of, samples, batch, flat, full, short[of]))
    return found


def key(row: Mapping[str, str]) -> tuple[str, int, int, int]:
    """Returns the values of the columns `KEY` of a row."""
    return row["workload"], int(row["base"]), int(row["target"]), int(row["seed"])


def main() -> None:
    """Writes the table."""
    parser = Parser(__doc__)
    parser.add_argument("--runs", type=Path, required=True, metavar="FOLDER")
    folder = parser.parse_args().runs
    write([case for name in WORKLOADS if (folder / f"{name}.npz").exists() for case in cases_of(name, folder / f"{name}.npz")])


if __name__ == "__main__":
    guarded(main)
