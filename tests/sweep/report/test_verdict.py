from dataclasses import replace

import pytest

from gmmae.plotting.document import Bullets, Paragraph
from gmmae.sweep.grid import RunKey
from gmmae.sweep.report import results
from gmmae.sweep.report.verdict import comparisons, verdict
from tests import sweeps
from tests.sweeps import FLAT, GRID, PASSES, STEPS


def said(found):
    """All sentences of the verdict by their bold beginning."""
    blocks = verdict(found)
    items = [item for block in blocks if isinstance(block, Bullets) for item in block.items]
    items += [block.text for block in blocks if isinstance(block, Paragraph)]
    return {item.partition("**")[2].partition("**")[0] or "": item for item in items}


@pytest.fixture
def projected(tmp_path):
    sweeps.small(tmp_path)
    sweeps.add_step_times(tmp_path, 1, STEPS, PASSES)
    return results.read(GRID, tmp_path, FLAT)


def test_each_arm_says_where_it_reached_the_target_and_how_it_missed(projected):
    told = said(projected)
    assert told["Strong scaling"].endswith(": 3 of 3 seeds reached the target on 1, 2 and 4 devices.")
    linear, warmup = told["Linear rule"], told["Linear rule + warmup"]
    assert "3 of 3 seeds reached the target on 1 device. 0 of 3 seeds on 2 and 4 devices. " in linear
    assert "Diverged 3× in epoch 1 on 4 devices." in linear
    assert " 1 of 3 seeds on 2 devices. 0 of 1 seed on 4 devices. " in warmup


def test_the_fastest_arm_is_that_of_the_least_median(projected):
    # On 2 devices 218 s of strong against 40 · 13 = 520 s of weak; on 4, 277 s against 80 · 8.5 = 680 s.
    told = said(projected)["Fastest"]
    assert "(projected to Flat): all strategies alike on 1 device; Strong scaling on 2 and 4 devices." in told


def test_strong_scaling_is_compared_seed_by_seed(projected):
    found = {(scaling, n): one for scaling, n, one in comparisons(projected)}
    assert found["weak", 2].ratio == pytest.approx(520 / 218)
    # 130 s of the one seed that reached it, against 218 s.
    assert (found["linear-warmup", 2].faster, found["linear-warmup", 2].slower) == (1, 2)
    assert found["linear-warmup", 4].pairs == 1
    told = said(projected)["Strong scaling against Linear rule + warmup"]
    assert "faster in 2 of 3 seeds on 2 devices, faster in 1 of 1 seed on 4 devices." in told
    assert "∞ on 2, ∞ on 4. Significant (sign test, p < 0.05): nowhere." in told


def test_six_seeds_that_agree_are_significant(tmp_path):
    config = replace(GRID, scaling=("strong", "weak"), devices=(2,), seeds=tuple(range(6)))
    sweeps.add_step_times(tmp_path, 1, STEPS, PASSES)
    for seed in config.seeds:
        sweeps.reach(config, tmp_path, RunKey("strong", 2, seed), 10)
        sweeps.reach(config, tmp_path, RunKey("weak", 2, seed), 20)
    told = said(results.read(config, tmp_path, FLAT))
    assert "Significant (sign test, p < 0.05): on 2 devices." in told["Strong scaling against Weak scaling"]  # p = 2 / 2^6
    assert "Caution" not in told


def test_the_paper_is_agreed_with_or_not_run_by_run(projected):
    # Beyond one device the sweep has 8 runs; the paper's warmup reached the target on 2 and 4 devices, ours on neither.
    told = said(projected)
    assert "6 of 8 pairs" in told["The paper"]
    assert "Linear rule + warmup on 2 (reached by 1 of 3 seeds; the paper's run did)" in told["The paper"]
    # Strong: 100 / (2 · 218) = 22.94 % and 100 / (4 · 277) = 9.03 %; the paper has 105.17 % and 86.81 %. Mean gap: 80.0.
    strong = told["Strong scaling against the paper"]
    assert "differs most on 2 devices, 22.94 % here and 105.17 % in the paper. " in strong
    assert strong.endswith("The mean difference is 80.0 percentage points.")
    assert "with the paper's target of 0.0016384" in told["The paper's runs"]


def test_another_target_than_the_papers_is_told(tmp_path):
    config = replace(GRID, run=replace(GRID.run, stop=replace(GRID.run.stop, target=0.002)))
    sweeps.small(tmp_path, config)
    told = said(results.read(config, tmp_path, None))["The paper's runs"]
    assert "with a target of 0.002 where the paper's is 0.0016384" in told


@pytest.mark.parametrize(
    ("oversubscribed", "ending"),
    [(False, "times measured."), (True, "times measured, oversubscribed: n virtual devices share")],
)
def test_measured_times_are_called_so(tmp_path, oversubscribed, ending):
    config = replace(GRID, mode="measured")
    for n in (1, 2):
        sweeps.add(config, tmp_path, RunKey("strong", n, 0), "target_reached", 10, oversubscribed=oversubscribed)
    assert ending in said(results.read(config, tmp_path, None))["The paper's runs"]


def test_few_seeds_are_cautioned_against(tmp_path, projected):
    assert said(projected)["Caution"].startswith("**Caution**: 3 seeds are few. A sign test needs 6 pairs")
    config = replace(GRID, seeds=(0,))
    sweeps.reach(config, tmp_path / "one", RunKey("strong", 1, 0), 10)
    told = said(results.read(config, tmp_path / "one", None))
    assert told["Caution"] == "**Caution**: one seed is an example, not a comparison."
    assert "Nothing computed on 2 and 4 devices." in told["Strong scaling"]
    assert told["Fastest"] == "**Fastest**: unknown, since there are no times on these devices."


def test_failed_processes_are_named(projected):
    assert "`linear-warmup-n4-seed1` crashed: ended by SIGKILL: out of memory" in said(projected)["Failed processes"]


def test_nothing_is_said_of_nothing(tmp_path):
    assert verdict(results.read(GRID, tmp_path, FLAT)) == [Paragraph("No run is computed yet.")]


def test_runs_whose_batch_is_clipped_are_named(tmp_path):
    """Of 512 samples 32 devices ask for 1024."""
    config = replace(GRID, scaling=("strong", "weak"), devices=(1, 32), seeds=(0,))
    for scaling in config.scaling:
        for n in config.devices:
            sweeps.reach(config, tmp_path, RunKey(scaling, n, 0), 20)
    told = said(results.read(config, tmp_path, FLAT))
    assert told["Clipped batches"].startswith("**Clipped batches**: Weak scaling on 32 devices. † Batch clipped to the 512 ")


def test_without_a_clipped_batch_nothing_is_said_of_it(projected):
    assert "Clipped batches" not in said(projected)
