"""Judges `gmmae plan --curves` by runs of PyTorch that it did not see.

    python -m experiments.curves_judge

The curves are those of `experiments/curves_pytorch.py`. A plan sees the curves of two batches, 32 and 128, of all seeds or of
one. The truth at a batch is the median over seeds of the steps to the target. The models train on digits, so the law's
constants are set on the workloads of the zoo that do not. The program writes runs/curves/errors.csv. results/curves/errors.csv
is a copy.
"""

import math
import statistics
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.options import Parser, guarded
from experiments.curves_pytorch import SEEDS, WORKLOADS, Workload, curve_file
from experiments.zoo import cases, judge
from gmmae.config.schema import StopConfig
from gmmae.planner import step_ratios
from gmmae.planner.curve_files import Columns, read_curves
from gmmae.planner.curves import Evidence, read_evidence
from gmmae.planner.step_ratios import INTERVAL_NORMAL, Constants
from gmmae.plotting.tables import text_table
from gmmae.system.files import csv_text, write_text

TRUTH = ("true", "lowest", "highest")
PREDICTED = ("curves", "low", "high", "error", "one seed", "error of one")
COLUMNS = ("workload", "batch", *TRUTH, *PREDICTED)
SMOOTH = 3
ERRORS = Path("runs/curves/errors.csv")


def evidence_of(name: str, batches: tuple[int, ...], seeds: tuple[int, ...]) -> Evidence:
    """Returns the evidence of some curves, as the command reads them."""
    read = read_curves([curve_file(name, b, seed) for b in batches for seed in seeds], Columns(loss="val_loss"))
    return read_evidence(read, StopConfig(target=WORKLOADS[name].target), SMOOTH)


def without_digits() -> Constants:
    """Returns the law's constants by the workloads of the zoo that are not digits."""
    return judge.fit([cell for cell in judge.cells(cases.load()) if "digits" not in cell.case.workload])


def rows_of(name: str, workload: Workload, constants: Constants) -> list[dict[str, Any]]:
    """Returns a row for each batch."""
    truth = evidence_of(name, workload.batches, SEEDS)
    every, one = evidence_of(name, workload.planned, SEEDS), evidence_of(name, workload.planned, SEEDS[:1])
    rows = []
    for batch in workload.batches:
        true = sorted(steps for curve, steps, _ in truth.reached if curve.batch == batch)
        middle = statistics.median(true)
        steps, alone = (step_ratios.steps_at(batch, 1.0, of.base_batch, of.steps, of.ratios, constants) for of in (every, one))
        half = math.exp(INTERVAL_NORMAL * step_ratios.deviation(batch / every.base_batch, 1.0, every.ratios, constants))
        numbers = (middle, true[0], true[-1], steps, steps / half, steps * half, math.log(steps / middle))
        values = (name, batch, *map(_text, (*numbers, alone, math.log(alone / middle))))
        rows.append(dict(zip(COLUMNS, values, strict=True)))
    return rows


def _text(value: float) -> str:
    return f"{value:.0f}" if abs(value) > 5 else f"{value:+.3f}"


def main() -> None:
    """Writes and prints the table."""
    Parser(__doc__).parse_args()
    constants = without_digits()
    rows = [row for name, workload in WORKLOADS.items() for row in rows_of(name, workload, constants)]
    ERRORS.parent.mkdir(parents=True, exist_ok=True)
    write_text(ERRORS, csv_text(rows, COLUMNS))
    print(text_table(COLUMNS, [[str(row[column]) for column in COLUMNS] for row in rows]))
    unseen = [row for row in rows if row["batch"] not in WORKLOADS[row["workload"]].planned]
    for column in ("error", "error of one"):
        errors = [abs(float(row[column])) for row in unseen]
        print(f"{column}, {len(errors)} unseen cells: median {np.median(errors):.3f}, worst {max(errors):.3f}")
    held = sum(float(row["low"]) <= float(row["true"]) <= float(row["high"]) for row in unseen)
    print(f"intervals that hold the median: {held} of {len(unseen)}")


if __name__ == "__main__":
    guarded(main)
