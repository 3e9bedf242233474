"""Projected speed-ups above n."""

from dataclasses import replace

import pytest

from gmmae.sweep.grid import RunKey
from gmmae.sweep.report import findings, results, strategy_tables, superlinear
from tests import sweeps
from tests.sweeps import FLAT, GRID, PASSES, STEPS

FREE = replace(FLAT, beta_intra_bytes_per_s=1e30)
"""A cluster whose all-reduce takes no time, so that only the steps' times count."""

FASTER = {8: 0.1, 16: 0.25, 32: 0.5}
"""Steps of 8 samples are 5 times as fast as those of 32, and steps of 16 twice as fast."""


def read(root, steps, epochs):
    """A sweep of strong and weak scaling whose strong runs take some epochs, by number of devices."""
    grid = replace(GRID, scaling=("strong", "weak"), seeds=(0,))
    sweeps.add_step_times(root, 1, steps, PASSES)
    for n, count in epochs.items():
        sweeps.reach(grid, root, RunKey("strong", n, 0), count)
        sweeps.reach(grid, root, RunKey("weak", n, 0), 10 * n)
    return results.read(grid, root, FREE)


def notes(table):
    return " ".join(table.notes)


def test_headline_and_tables_say_that_more_than_n_fold_is_an_artefact(tmp_path):
    found = read(tmp_path, FASTER, {1: 10, 2: 10, 4: 10})
    headline = findings.headline(found)
    # 16 steps of .5 s and 2 s of validation on one device, 16 of .1 s and .5 s on four.
    assert headline.startswith(
        "**Fastest: Strong scaling on 4 devices, 21.0 s to the target, 4.76 times as fast as one device**"
    )
    assert "An epoch is projected to be 4.76 times as fast on 4 devices.** More than 4-fold is an artefact" in headline
    assert "Above 100 %" in notes(strategy_tables.strong_efficiency(found))
    assert "Above 100 %" in notes(strategy_tables.times_to_target(found))
    assert "Above 100 %" not in notes(strategy_tables.other_efficiencies(found))  # weak scaling has none


@pytest.mark.parametrize("steps", [STEPS, {8: 0.125, 16: 0.25, 32: 0.5}])
def test_at_most_n_fold_is_no_artefact(tmp_path, steps):
    headline = findings.headline(read(tmp_path, steps, {1: 10, 2: 10, 4: 10}))
    assert "**Fastest: Strong scaling on 4 devices" in headline
    assert "artefact" not in headline


def test_a_winner_with_more_epochs_is_still_told_where_its_epochs_are_too_short(tmp_path):
    """A projection may exceed n-fold by the epoch where the time to the target does not."""
    found = read(tmp_path, FASTER, {1: 10, 4: 12})
    efficiency = found.efficiency("strong", 4)
    assert efficiency is not None
    assert efficiency.percent < 100
    assert superlinear.artefacts(found, "strong") == [4]


def test_measured_times_are_no_projection(tmp_path):
    grid = replace(GRID, mode="measured", scaling=("strong",), seeds=(0,))
    for n, epochs in ((1, 10), (2, 2)):
        sweeps.reach(grid, tmp_path, RunKey("strong", n, 0), epochs)
    assert superlinear.artefacts(results.read(grid, tmp_path, None), "strong") == []
