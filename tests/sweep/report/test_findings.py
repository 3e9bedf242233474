import math
from dataclasses import replace

import pytest

from gmmae.scaling.cost import Cluster
from gmmae.sweep.grid import RunKey
from gmmae.sweep.report import results
from gmmae.sweep.report.findings import cautions, headline
from tests import sweeps
from tests.sweeps import FLAT, GRID, PASSES, STEPS

TWO = replace(GRID, scaling=("strong", "weak"), devices=(1, 2))


def headline_of(config, root, cluster: Cluster | None = FLAT) -> str:
    return headline(results.read(config, root, cluster))


@pytest.fixture
def timed(tmp_path):
    sweeps.add_step_times(tmp_path, 1, STEPS, PASSES)
    return tmp_path


# Headline


def test_strategies_with_the_same_time_win_together(projected):
    # 100 s on one device, where all strategies are one; 218 s of strong scaling and 520 s of weak scaling on two.
    text = headline(projected)
    labels = "Strong scaling, Weak scaling, Linear rule + warmup and Linear rule"
    assert text.startswith(f"**Fastest: {labels} on 1 device, 100 s to the target** (median of 3 seeds")
    assert text.endswith("projected to Flat, with steps of cpu, not measured there).")


@pytest.mark.parametrize(
    ("seeds", "slower", "certainty"),
    [
        (3, 3, "(not significant: "),
        (6, 6, "(not significant: sign test, p = 0.094 by Holm's correction for 3 pairs"),  # 3 · 2 / 64, of three cells
        (8, 8, "(significant: sign test, p = 0.023 "),  # 3 · 2 / 256
        (6, 5, "(not significant: "),
    ],
)
def test_the_winner_stands_beside_the_next_strategy_over_common_seeds(timed, seeds, slower, certainty):
    config = replace(TWO, seeds=tuple(range(seeds)))
    for seed in config.seeds:
        sweeps.reach(config, timed, RunKey("strong", 1, seed), 40)
        sweeps.reach(config, timed, RunKey("strong", 2, seed), 10)  # 218 s
        sweeps.reach(config, timed, RunKey("weak", 2, seed), 20 if seed < slower else 10)  # 260 or 130 s
    text = headline_of(config, timed)
    assert "**Fastest: Strong scaling on 2 devices, 218 s to the target, 1.83 times as fast as one device**" in text
    assert f"Next: Weak scaling on 2 devices, 260 s, slower in {slower} of {seeds} seeds {certainty}" in text


def test_a_winner_that_missed_in_one_seed_says_so(timed):
    for seed in TWO.seeds:
        sweeps.reach(TWO, timed, RunKey("weak", 2, seed), 40)
    sweeps.add(TWO, timed, RunKey("weak", 2, 2), "diverged", 1, math.nan)
    text = headline_of(TWO, timed)
    assert "**Fastest: Weak scaling on 2 devices, 520 s to the target** (median of 3 seeds, interval 520 to " in text
    assert "reached by 2" in text
    assert "No other strategy" not in text  # none is computed yet
    sweeps.add(TWO, timed, RunKey("strong", 1, 0), "max_epochs", 9, 0.01)
    assert headline_of(TWO, timed).endswith("No other strategy's median run reached the target.")


def test_strategies_without_a_common_seed_are_not_compared(timed):
    sweeps.reach(TWO, timed, RunKey("strong", 2, 0), 10)
    sweeps.reach(TWO, timed, RunKey("weak", 2, 1), 20)
    assert headline_of(TWO, timed).endswith("Next: Weak scaling on 2 devices, 260 s, with no seed in common.")


def test_no_winner_without_a_target_a_result_or_a_time(timed):
    assert headline_of(TWO, timed) == "No run is computed yet."
    sweeps.add(TWO, timed, RunKey("strong", 1, 0), "max_epochs", 9, 0.01)
    assert headline_of(TWO, timed).startswith(
        "**No strategy's median run reached the target** validation loss of 0.0016384 on 1"
    )
    assert headline_of(TWO, timed, None).startswith(
        "**Which strategy is the fastest is unknown.** Times cannot be projected (no"
    )
    untargeted = replace(TWO, run=replace(TWO.run, stop=replace(TWO.run.stop, target=None)))
    assert headline(results.read(TWO, timed, FLAT)._replace(config=untargeted)).startswith("**No target was set**")


def test_measured_and_oversubscribed_times_are_called_so(tmp_path):
    config = replace(TWO, mode="measured", scaling=("strong",))
    sweeps.reach(config, tmp_path / "a", RunKey("strong", 2, 0), 10)
    assert headline_of(config, tmp_path / "a", None) == (
        "**Fastest: Strong scaling on 2 devices, 25.0 s to the target** (one seed; measured)."
    )
    sweeps.add(config, tmp_path / "b", RunKey("strong", 2, 0), "target_reached", 10, oversubscribed=True)
    assert "measured, but oversubscribed" in headline_of(config, tmp_path / "b", None)


# Sentences


def test_few_seeds_and_failed_processes_are_named(projected):
    caution, failed = cautions(projected)
    assert caution.startswith("**Caution**: 3 seeds are few. An interval needs 6 runs")
    assert "`linear-warmup-n4-seed1` crashed: ended by SIGKILL: out of memory" in failed


@pytest.mark.parametrize(("mode", "said"), [("virtual", "no median, ratio or p"), ("measured", "count as infinite times")])
def test_runs_that_the_time_limit_stopped_are_told_apart_from_crashed_ones(tmp_path, mode, said):
    config = replace(TWO, mode=mode)
    sweeps.reach(config, tmp_path, RunKey("strong", 1, 0), 10)
    sweeps.add(config, tmp_path, RunKey("weak", 2, 0), "timed_out")
    sweeps.add(config, tmp_path, RunKey("weak", 2, 1), "crashed")
    _, stopped, failed = cautions(results.read(config, tmp_path, FLAT))
    assert stopped.startswith("**Stopped by the time limit**")
    assert said in stopped
    assert "`weak-n2-seed0`" in stopped
    assert failed.startswith("**Failed processes**")
    assert "`weak-n2-seed1`" in failed


def test_projected_times_of_scattered_steps_are_doubted(projected):
    calm, *others = projected.timings
    busy = calm._replace(train=[row._replace(high_s=2.5 * row.median_s) for row in calm.train])
    few, scatter, failed = cautions(projected._replace(timings=(busy, *others)))
    assert scatter.startswith("**Caution**: the step times scatter, with quartiles up to 150 % from their medians.")
    assert [few, failed] == cautions(projected)


def test_one_seed_is_called_an_example(tmp_path):
    config = replace(TWO, mode="measured", seeds=(0,))
    sweeps.reach(config, tmp_path, RunKey("strong", 1, 0), 10)
    assert cautions(results.read(config, tmp_path, None)) == ["**Caution**: one seed is an example, not a comparison."]


def test_six_seeds_need_no_caution_and_no_run_needs_no_sentence(tmp_path):
    config = replace(TWO, devices=(2,), seeds=tuple(range(6)))
    found = results.read(config, tmp_path, FLAT)
    assert cautions(found) == []
    for seed in config.seeds:
        sweeps.reach(config, tmp_path, RunKey("strong", 2, seed), 10)
    assert not any("Caution" in text for text in cautions(results.read(config, tmp_path, FLAT)))
