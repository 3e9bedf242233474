"""Judges `gmmae plan --curves` by runs of PyTorch that it did not see, beside gmmae's own plan of the same trainings.

    python -m experiments.curves_judge [--workdir runs/curves_judge]

The curves are those of `experiments/curves_pytorch.py`. A plan sees the curves of two batches, 32 and 128, of all seeds or of
one. The truth at a batch is the median over seeds of the steps to the target. gmmae's own plan runs the same trainings itself
(`experiments/curves_workload.py`). It predicts weak scaling from batch 32 on. The program writes results/curves/errors.csv.
"""

import json
import math
import statistics
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.options import Parser, guarded
from experiments.curves_pytorch import FOLDER, LEARNING_RATE, SEEDS, WORKLOADS, Workload, curve_file
from gmmae.cli.main import dispatch
from gmmae.config.schema import StopConfig
from gmmae.planner import curves
from gmmae.planner.curve_files import Columns, read_curves
from gmmae.planner.curves import Evidence
from gmmae.sweep.display import grid_table
from gmmae.system.files import csv_text, write_text

TRUTH = ("true", "lowest", "highest")
PREDICTED = ("curves", "low", "high", "error", "one seed", "error of one", "own", "error of own")
COLUMNS = ("workload", "batch", *TRUTH, *PREDICTED)
SMOOTH = 3


def evidence_of(name: str, batches: tuple[int, ...], seeds: tuple[int, ...]) -> Evidence:
    """Returns the evidence of some curves, as the command reads them."""
    read = read_curves([curve_file(name, b, seed) for b in batches for seed in seeds], Columns(loss="val_loss"))
    return curves.read_evidence(read, StopConfig(target=WORKLOADS[name].target), SMOOTH, None, np.random.default_rng(0))


def own_plan(name: str, workload: Workload, root: Path) -> dict[int, float]:
    """Returns the steps of weak scaling by batch, as gmmae's own plan predicts them."""
    options = ["--kind", name, "--stop.target", str(workload.target), "--optim.batch-size", str(workload.planned[0])]
    options += [
        "--optim.learning-rate",
        str(LEARNING_RATE),
        "--workdir",
        str(root / name),
        "--devices",
        "1",
        "2",
        "4",
        "8",
        "16",
    ]
    code = dispatch(["plan", "--workload", str(Path(__file__).parent / "curves_workload.py"), *options])
    if code:
        raise SystemExit(code)
    (forecast,) = json.loads((root / name / "plan.json").read_text())["clusters"].values()
    return {cell["batch"]: cell["steps"] for cell in forecast["cells"] if cell["scaling"] == "weak"}


def rows_of(name: str, workload: Workload, root: Path) -> list[dict[str, Any]]:
    """Returns a row for each batch."""
    truth = evidence_of(name, workload.batches, SEEDS)
    every, one = evidence_of(name, workload.planned, SEEDS), evidence_of(name, workload.planned, SEEDS[:1])
    own, rows = own_plan(name, workload, root), []
    for batch in workload.batches:
        true = sorted(run.steps for run in truth.reached if run.curve.batch == batch)
        middle = statistics.median(true)
        steps, alone = (curves.interval(curves.draw_steps(evidence, batch)) for evidence in (every, one))
        numbers = (middle, true[0], true[-1], steps.median, steps.low, steps.high, _error(steps.median, middle))
        of_one = (alone.median, _error(alone.median, middle))
        of_own = (own[batch], _error(own[batch], middle)) if batch in own else ("", "")
        rows.append(dict(zip(COLUMNS, (name, batch, *map(_text, (*numbers, *of_one, *of_own))), strict=True)))
    return rows


def _error(predicted: float, true: float) -> float:
    return math.log(predicted / true)


def _text(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.0f}" if abs(value) > 5 else f"{value:+.3f}"


def main() -> None:
    """Writes and prints the table."""
    parser = Parser(__doc__)
    parser.add_argument("--workdir", type=Path, default=Path("runs/curves_judge"), help="folder of gmmae's own plans")
    root = parser.parse_args().workdir
    rows = [row for name, workload in WORKLOADS.items() for row in rows_of(name, workload, root)]
    write_text(FOLDER / "errors.csv", csv_text(rows, COLUMNS))
    print(grid_table([COLUMNS, *(tuple(str(row[column]) for column in COLUMNS) for row in rows)]))


if __name__ == "__main__":
    guarded(main)
