"""Judges `gmmae plan --curves` by runs of PyTorch that it did not see.

    python -m experiments.curves_judge

The curves are those of `experiments/curves_pytorch.py`. A plan sees the curves of two batches, 32 and 128, of all seeds or of
one. The truth at a batch is the median over seeds of the steps to the target. The program writes runs/curves/errors.csv.
results/curves/errors.csv also has gmmae's own plan.
"""

import math
import statistics
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.options import Parser, guarded
from experiments.curves_pytorch import SEEDS, WORKLOADS, Workload, curve_file
from gmmae.config.schema import StopConfig
from gmmae.planner import curves
from gmmae.planner.curve_files import Columns, read_curves
from gmmae.planner.curves import Evidence
from gmmae.sweep.display import grid_table
from gmmae.system.files import csv_text, write_text

TRUTH = ("true", "lowest", "highest")
PREDICTED = ("curves", "low", "high", "error", "one seed", "error of one")
COLUMNS = ("workload", "batch", *TRUTH, *PREDICTED)
SMOOTH = 3
ERRORS = Path("runs/curves/errors.csv")


def evidence_of(name: str, batches: tuple[int, ...], seeds: tuple[int, ...]) -> Evidence:
    """Returns the evidence of some curves, as the command reads them."""
    read = read_curves([curve_file(name, b, seed) for b in batches for seed in seeds], Columns(loss="val_loss"))
    return curves.read_evidence(read, StopConfig(target=WORKLOADS[name].target), SMOOTH, None, np.random.default_rng(0))


def rows_of(name: str, workload: Workload) -> list[dict[str, Any]]:
    """Returns a row for each batch."""
    truth = evidence_of(name, workload.batches, SEEDS)
    every, one = evidence_of(name, workload.planned, SEEDS), evidence_of(name, workload.planned, SEEDS[:1])
    rows = []
    for batch in workload.batches:
        true = sorted(run.steps for run in truth.reached if run.curve.batch == batch)
        middle = statistics.median(true)
        steps, alone = (curves.interval(curves.draw_steps(evidence, batch)) for evidence in (every, one))
        numbers = (middle, true[0], true[-1], steps.median, steps.low, steps.high, _error(steps.median, middle))
        of_one = (alone.median, _error(alone.median, middle))
        rows.append(dict(zip(COLUMNS, (name, batch, *map(_text, (*numbers, *of_one))), strict=True)))
    return rows


def _error(predicted: float, true: float) -> float:
    return math.log(predicted / true)


def _text(value: float) -> str:
    return f"{value:.0f}" if abs(value) > 5 else f"{value:+.3f}"


def main() -> None:
    """Writes and prints the table."""
    Parser(__doc__).parse_args()
    rows = [row for name, workload in WORKLOADS.items() for row in rows_of(name, workload)]
    ERRORS.parent.mkdir(parents=True, exist_ok=True)
    write_text(ERRORS, csv_text(rows, COLUMNS))
    print(grid_table([COLUMNS, *(tuple(str(row[column]) for column in COLUMNS) for row in rows)]))


if __name__ == "__main__":
    guarded(main)
