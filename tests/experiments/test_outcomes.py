"""Counting cells."""

import math

from experiments import outcomes


def test_misses_count_in_a_median():
    assert outcomes.middle([20.0, 30.0, math.inf]) == "30 (20–∞)"
    assert outcomes.middle([20.0, math.inf, math.inf]) == "– (20–∞)"


def test_cells_that_share_a_run_are_one():
    row = {"path": "strong-n1-seed0", "seed": "0"}
    assert outcomes.distinct([row | {"scaling": "strong"}, row | {"scaling": "weak"}, row | {"path": "weak-n2-seed0"}]) == [
        row | {"scaling": "weak"},
        row | {"path": "weak-n2-seed0"},
    ]
