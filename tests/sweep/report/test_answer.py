import math
from dataclasses import replace

import pytest

from gmmae.scaling.cost import Cluster
from gmmae.sweep.grid import RunKey
from gmmae.sweep.report import results
from gmmae.sweep.report.answer import answer
from tests import sweeps
from tests.sweeps import FLAT, GRID, PASSES, STEPS

TWO = replace(GRID, scaling=("strong", "weak"), devices=(1, 2))


def said(config, root, cluster: Cluster | None = FLAT):
    return answer(results.read(config, root, cluster))


@pytest.fixture
def timed(tmp_path):
    sweeps.add_step_times(tmp_path, 1, STEPS, PASSES)
    return tmp_path


def test_arms_that_tie_on_one_device_win_together_where_more_devices_do_not_pay(timed):
    # 100 s on one device, where all strategies are one; 218 s of strong scaling and 520 s of weak scaling on two.
    told = said(sweeps.small(timed), timed)
    labels = "Strong scaling, Weak scaling, Linear rule + warmup and Linear rule"
    assert told.startswith(f"**Fastest: {labels} on 1 device, 100 s to the target** (the median of 3 seeds")
    assert told.endswith("; projected to Flat, not measured there); no strategy was faster on more devices.")


def test_without_a_target_no_arm_is_the_fastest(timed):
    stop = replace(GRID.run.stop, target=0.0)
    config = replace(GRID, run=replace(GRID.run, stop=stop))
    told = answer(results.read(sweeps.small(timed), timed, FLAT)._replace(config=config))
    assert told.startswith("**No target was set** (`run.stop.target` is 0)")


def test_the_winner_stands_beside_the_next_arm_over_common_seeds(timed):
    for seed in TWO.seeds:
        sweeps.reach(TWO, timed, RunKey("strong", 1, seed), 40)
        sweeps.reach(TWO, timed, RunKey("strong", 2, seed), 10)
        sweeps.reach(TWO, timed, RunKey("weak", 2, seed), 20)
    told = said(TWO, timed)
    assert "**Fastest: Strong scaling on 2 devices, 218 s to the target, 1.83 times as fast as one device**" in told
    assert told.endswith(
        "; the next, Weak scaling on 2 devices with 260 s, was slower in 3 of 3 seeds, too few to be sure "
        "(sign test of these two alone, p = 0.25)."
    )


@pytest.mark.parametrize(
    ("slower", "ending"),
    [
        (1, "was slower in 1 of 1 seed, and one seed is an example, not a comparison."),
        (6, "was slower in 6 of 6 seeds, which is significant (sign test of these two alone, p = 0.031)."),
        (5, "was slower in 5 of 6 seeds, which is not significant (sign test of these two alone, p = 0.22)."),
    ],
)
def test_how_sure_it_is_follows_from_the_seeds(timed, slower, ending):
    config = replace(TWO, devices=(2,), seeds=tuple(range(1 if slower == 1 else 6)))
    for seed in config.seeds:
        sweeps.reach(config, timed, RunKey("strong", 2, seed), 10)  # 218 s
        sweeps.reach(config, timed, RunKey("weak", 2, seed), 20 if seed < slower else 10)  # 260 or 130 s
    assert said(config, timed).endswith(ending)


def test_a_winner_that_missed_in_one_seed_says_so(timed):
    for seed in TWO.seeds:
        sweeps.reach(TWO, timed, RunKey("weak", 2, seed), 40)
    sweeps.add(TWO, timed, RunKey("weak", 2, 2), "diverged", 1, math.nan)
    told = said(TWO, timed)
    assert told.startswith(
        "**Fastest: Weak scaling on 2 devices, 520 s to the target** (the median of 3 seeds, interval 520 to "
    )
    assert "of which 2 reached it; projected to Flat" in told
    assert told.endswith("; no other strategy is computed yet.")
    sweeps.add(TWO, timed, RunKey("strong", 1, 0), "max_epochs", 9, 0.01)
    assert said(TWO, timed).endswith("; no other strategy's median run reached it.")


def test_seeds_that_two_arms_do_not_share_are_no_comparison(timed):
    sweeps.reach(TWO, timed, RunKey("strong", 2, 0), 10)
    sweeps.reach(TWO, timed, RunKey("weak", 2, 1), 20)
    assert said(TWO, timed).endswith("the next, Weak scaling on 2 devices with 260 s, has no seed in common with it.")


def test_nothing_is_claimed_where_medians_missed_or_nothing_ran(timed):
    assert said(TWO, timed) == "No run is computed yet."
    sweeps.add(TWO, timed, RunKey("strong", 1, 0), "max_epochs", 9, 0.01)
    assert said(TWO, timed) == (
        "**No strategy's median run reached the target** validation loss of 0.0016384 on 1 device, "
        "and a miss counts as an infinite time."
    )
    assert said(TWO, timed, None).startswith(
        "**Which strategy is the fastest is unknown**, since times cannot be projected (no cluster"
    )


def test_measured_times_are_called_so_and_oversubscribed_ones_no_measure(tmp_path):
    config = replace(TWO, mode="measured", scaling=("strong",))
    sweeps.reach(config, tmp_path / "a", RunKey("strong", 2, 0), 10)
    assert said(config, tmp_path / "a", None) == (
        "**Fastest: Strong scaling on 2 devices, 25.0 s to the target** (one seed; measured); there is no other strategy."
    )
    sweeps.add(config, tmp_path / "b", RunKey("strong", 2, 0), "target_reached", 10, oversubscribed=True)
    assert "measured, but oversubscribed: n virtual devices share this machine's cores; no measure" in said(
        config, tmp_path / "b", None
    )
