"""The map of strategies, against the table of the README's first figure."""

from itertools import pairwise
from statistics import median

import pytest

from experiments import headline, strategy_map


@pytest.fixture(scope="module")
def rows():
    return headline.rows()


def test_strong_scaling_is_the_fastest_without_overhead_and_not_with_overhead_only(rows):
    for n in strategy_map.DEVICES:
        assert strategy_map.fastest(rows, n, 1e-3) == "strong"
        assert strategy_map.fastest(rows, n, 1e3) != "strong"


@pytest.mark.parametrize("machine", headline.PANELS)
def test_the_map_agrees_with_the_first_figure_on_its_machines(rows, machine):
    """A growing batch is the fastest at the overhead of a machine where its median ratio to strong scaling is below 1."""
    ratios = headline.ratios()
    for n, overhead in zip(strategy_map.DEVICES, strategy_map.overheads(machine), strict=True):
        best = strategy_map.fastest(rows, n, overhead)
        others_win = any(median(ratios[scaling, n, machine]) < 1 for scaling in ("weak", "growing"))
        assert (best != "strong") == others_win


def test_overheads_grow_with_the_devices():
    for machine in headline.PANELS:
        assert all(a < b for a, b in pairwise(strategy_map.overheads(machine)))
