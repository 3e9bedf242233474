"""The curves of PyTorch give the truth beside the committed predictions."""

import statistics

from experiments import curves_judge, tables
from experiments.curves_pytorch import FOLDER, SEEDS, WORKLOADS


def test_the_true_steps_are_those_of_the_results():
    for name, workload in WORKLOADS.items():
        rows = {int(row["batch"]): row for row in tables.read(FOLDER / "errors.csv") if row["workload"] == name}
        reached = curves_judge.evidence_of(name, workload.planned, SEEDS).reached
        for batch in workload.planned:
            true = statistics.median(run.steps for run in reached if run.curve.batch == batch)
            assert f"{true:.0f}" == rows[batch]["true"]
