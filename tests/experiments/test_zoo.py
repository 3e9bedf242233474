"""The zoo trains, and its results give the constants of a plan."""

import json

import numpy as np

from experiments.zoo import cases, judge, runs
from experiments.zoo.workloads import WORKLOADS
from gmmae.planner.step_ratios import CONSTANTS


def test_a_workload_trains():
    workload = WORKLOADS["wine_dense"]
    trainer = runs.Trainer(workload, workload.data())
    found = trainer.curves(workload.batch_size, lambda _: False)
    assert found.validation.shape[:2] == (runs.SEEDS, len(runs.RATE_FACTORS))
    assert np.median(found.validation[:, 0, -1]) < np.median(found.validation[:, 0, 0])


def test_the_constants_are_those_of_the_results():
    of = judge.cells(cases.load())
    found = {name: np.round(values, 4).tolist() for name, values in judge.fit(of)._asdict().items()}
    assert found == json.loads(cases.CASES.with_name("constants.json").read_text())
    assert found == {name: np.round(values, 4).tolist() for name, values in CONSTANTS._asdict().items()}
    assert judge.errors([judge.Judged(cell, judge.predicted(cell, CONSTANTS), 1.0, 0.0) for cell in of], scaled=False).text
