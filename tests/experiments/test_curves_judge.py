"""The curves of PyTorch give the committed truth and predictions."""

from experiments import curves_judge, tables
from experiments.curves_pytorch import FOLDER, WORKLOADS


def test_the_results_are_those_of_the_curves():
    constants, rows = curves_judge.without_digits(), tables.read(FOLDER / "errors.csv")
    for name, workload in WORKLOADS.items():
        now = curves_judge.rows_of(name, workload, constants)
        assert [{key: str(value) for key, value in row.items()} for row in now] == [r for r in rows if r["workload"] == name]
