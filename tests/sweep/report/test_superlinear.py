"""Projected speed-ups above n, in the report that `gmmae report` writes."""

from dataclasses import replace

import pytest

from gmmae.cli import main
from gmmae.config.toml import to_toml
from gmmae.sweep.grid import RunKey
from gmmae.sweep.report import results, superlinear
from gmmae.sweep.runs import SweepDir
from gmmae.system import guard
from tests import sweeps
from tests.sweeps import FLAT, GRID, STEPS

FREE = 'name = "Free"\ndevice = "a device"\ndevices_per_node = 8\nalpha_intra_s = 0.0\nbeta_intra_bytes_per_s = 1e30\n'
FREE += 'alpha_inter_s = 0.0\nbeta_inter_bytes_per_s = 1e30\nreference_step_s = 0.0\ncollective = "ring"\nsources = "none"\n'
"""A cluster whose all-reduce takes no time, so that only the steps' times count."""

PASSES = {64: 0.5, 128: 1.0, 256: 2.0}
FASTER = {8: 0.1, 16: 0.25, 32: 0.5}
"""Steps of 8 samples are 5 times as fast as those of 32, and steps of 16 twice as fast."""


def reported(tmp_path, steps, strategies=("strong", "weak")):
    """What `gmmae report` writes of a stored sweep whose steps were timed so on a CPU."""
    grid = replace(GRID, scaling=strategies)
    root = tmp_path / "sweep"
    sweeps.add_step_times(root, 1, steps, PASSES)
    for seed in grid.seeds:
        for n in grid.devices:
            for scaling in strategies:
                sweeps.reach(grid, root, RunKey(scaling, n, seed), 10 if scaling == "strong" else 10 * n)
    SweepDir(root).config.write_text(to_toml(grid), encoding="utf-8")
    (tmp_path / "free.toml").write_text(FREE, encoding="utf-8")
    assert guard.guarded(main.COMMANDS["report"], [str(root), "--clusters", str(tmp_path / "free.toml")], "gmmae report") == 0
    return (root / "report" / "report.md").read_text(encoding="utf-8"), root / "report"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    return reported(tmp_path_factory.mktemp("faster"), FASTER)


def test_the_headline_says_that_more_than_n_fold_is_an_artefact(page):
    headline = page[0].split("\n\n")[1]
    # 16 steps of .5 s and 2 s of validation on one device, 16 of .1 s and .5 s on four.
    assert headline.startswith(
        "**Fastest: Strong scaling on 4 devices, 21.0 s to the target, 4.76 times as fast as one device**"
    )
    assert "An epoch is projected to be 4.76 times as fast on 4 devices. More than 4-fold is an artefact" in headline


def test_the_tables_say_so_too(page):
    folder = page[1]
    for table in ("table_1", "table_7"):
        assert "Above 100 %" in (folder / "tables" / f"{table}.md").read_text(encoding="utf-8")
    assert "Above 100 %" not in (folder / "tables" / "table_2.md").read_text(encoding="utf-8")  # weak scaling has none


@pytest.mark.parametrize("steps", [STEPS, {8: 0.125, 16: 0.25, 32: 0.5}])
def test_at_most_n_fold_is_no_artefact(tmp_path, steps):
    text, _ = reported(tmp_path, steps)
    assert "**Fastest: Strong scaling on 4 devices" in text
    assert "artefact" not in text


def test_a_winner_with_more_epochs_is_still_told_where_its_epochs_are_too_short(tmp_path):
    """A projection may exceed n-fold by the epoch where the time to the target does not."""
    grid = replace(GRID, scaling=("strong",), seeds=(0,))
    sweeps.add_step_times(tmp_path, 1, FASTER, PASSES)
    for n, epochs in ((1, 10), (4, 12)):
        sweeps.reach(grid, tmp_path, RunKey("strong", n, 0), epochs)
    found = results.read(grid, tmp_path, replace(FLAT, beta_intra_bytes_per_s=1e30))
    efficiency = found.efficiency("strong", 4)
    assert efficiency is not None
    assert efficiency.percent < 100
    assert superlinear.artefacts(found, "strong") == [4]


def test_measured_times_are_no_projection(tmp_path):
    grid = replace(GRID, mode="measured", scaling=("strong",), seeds=(0,))
    for n, epochs in ((1, 10), (2, 2)):
        sweeps.reach(grid, tmp_path, RunKey("strong", n, 0), epochs)
    found = results.read(grid, tmp_path, None)
    assert superlinear.artefacts(found, "strong") == []
