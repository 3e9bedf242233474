"""What loss curves tell: the target, the steps to it, the law, and times on a machine."""

import math

import numpy as np
import pytest

from gmmae.config.schema import Mode, StopConfig
from gmmae.planner import curves
from gmmae.planner.curve_files import Curve
from gmmae.planner.curves import Machine
from gmmae.planner.steps import fit
from gmmae.scaling.cost import Cluster, StepTimes

SMIN, BN = 100.0, 20.0
IDEAL = Cluster("Ideal", "a device", 64, 0.0, 1e15, 0.0, 1e15)
SLOW = Cluster("Slow", "a device", 1, 1.0, 1e9, 1.0, 1e9)
TIMES = StepTimes((8, 32, 128), (0.008, 0.032, 0.128))
"""Step times without overhead."""


def curve(batch, seed=0, factor=1.0, validations=40):
    """A curve whose loss falls from 2 through 0.25 at Smin (1 + Bn / B) steps, times a factor."""
    steps = np.arange(1, validations + 21) * SMIN * (1 + BN / batch) * factor / validations
    values = 2.0 * 0.125 ** (steps / (SMIN * (1 + BN / batch) * factor))
    return Curve(f"{batch}_{seed}.csv", batch, tuple(steps.tolist()), tuple(values.tolist()))


def evidence(*of, target: float | None = 0.25, mode: Mode = "min", smooth=3, base_batch=None):
    read = of or tuple(curve(batch) for batch in (8, 32, 128))
    return curves.read_evidence(read, StopConfig(target=target, mode=mode), smooth, base_batch, np.random.default_rng(0))


def test_the_two_numbers_of_a_known_law_are_found_within_a_percent():
    found = evidence()
    assert fit(found.points) == (pytest.approx(SMIN, rel=0.01), pytest.approx(BN, rel=0.01))
    assert curves.interval(found.law.smin).median == pytest.approx(SMIN, rel=0.01)
    assert curves.interval(found.law.bn).median == pytest.approx(BN, rel=0.02)
    assert found.residual < 0.001


def test_the_hardest_level_is_that_of_the_worst_curve_and_all_pass_it_by_a_margin():
    low, high = curve(8), curve(32)
    short = high._replace(steps=high.steps[:30], values=high.values[:30])
    found = evidence(low, short, target=None)
    of_fall = (found.target - short.values[-1]) / (short.values[0] - short.values[-1])
    assert 0.0099 < of_fall < 0.011
    assert [math.isfinite(run.steps) for run in found.reached] == [True, True]


def test_a_maximised_metric_has_the_steps_of_its_mirror_image():
    mirrored = [one._replace(values=tuple(1 - value for value in one.values)) for one in map(curve, (8, 32))]
    assert evidence(*mirrored, target=0.75, mode="max").points == pytest.approx(evidence(curve(8), curve(32)).points)


def test_a_single_outlier_below_the_target_does_not_count_as_reaching_it():
    smooth = curve(32)
    values = list(smooth.values)
    values[10] = 0.01
    spiked = smooth._replace(values=tuple(values))
    assert evidence(curve(8), spiked).points[32] == pytest.approx(evidence(curve(8), smooth).points[32])
    assert evidence(curve(8), spiked, smooth=1).points[32] < 0.5 * evidence(curve(8), smooth).points[32]


def test_seeds_that_differ_widen_the_intervals_and_equal_ones_narrow_them():
    def width(*factors):
        of = [curve(batch, seed, factor) for batch in (8, 128) for seed, factor in enumerate(factors)]
        bn = curves.interval(evidence(*of).law.bn)
        return math.log(bn.high / bn.low)

    assert width(1.0, 1.0, 1.0) < width(1.0) < width(0.7, 1.0, 1.4)


def test_a_curve_with_few_validations_has_wide_intervals():
    coarse = [curve(batch, validations=3) for batch in (8, 128)]
    assert evidence(*coarse).seed_sigma > 3 * evidence(curve(8), curve(128)).seed_sigma


def test_without_overhead_dividing_wins_and_with_a_slow_link_growing():
    found = evidence(base_batch=32)
    assert curves.growing_wins(found, Machine(TIMES, IDEAL, 4e6), 8) == 0
    assert curves.growing_wins(found, Machine(TIMES, SLOW, 4e6), 8) == 1


def test_the_share_for_growing_is_that_of_the_rule_of_thumb():
    found, machine = evidence(base_batch=32), Machine(StepTimes((8, 128), (0.04, 0.16)))
    by_rule = float((machine.overhead(32, 8) > 32 / found.law.bn).mean())
    assert 0 <= by_rule <= 1
    assert curves.growing_wins(found, machine, 8) == pytest.approx(by_rule)


def test_a_time_is_steps_times_the_measured_step_plus_the_all_reduce():
    found = evidence(base_batch=32)
    cells = curves.predict(found, Machine(TIMES, SLOW, 4e6), (1, 4), None, ("strong", "weak", "best-batch"))
    strong, weak = (next(cell for cell in cells if (cell.scaling, cell.devices) == (name, 4)) for name in ("strong", "weak"))
    reduce_s = Machine(TIMES, SLOW, 4e6).all_reduce_s(4)
    assert strong.seconds
    assert weak.seconds
    assert strong.seconds.median == pytest.approx(found.points[32] * (0.008 + reduce_s), rel=0.02)
    assert weak.seconds.median == pytest.approx(found.points[128] * (0.032 + reduce_s), rel=0.02)
    assert (strong.batch, weak.batch) == (32, 128)


def test_the_best_batch_is_that_of_the_formula():
    found, machine = evidence(base_batch=32), Machine(StepTimes((1, 512), (0.011, 0.522)), IDEAL)
    best = curves.best_batch(found, machine, 4, None)
    assert best == pytest.approx(math.sqrt(4 * BN * 0.01 / 0.001), rel=0.15)


@pytest.mark.parametrize("whole", [math.ceil, math.floor])
def test_steps_are_rounded_to_epochs_as_the_curves_count_them(whole):
    def by_epochs(batch):
        steps = tuple(float(epoch * whole(1000 / batch)) for epoch in range(1, 60))
        return Curve(str(batch), batch, steps, tuple(2.0 * 0.125 ** (step / SMIN / (1 + BN / batch)) for step in steps))

    found = evidence(by_epochs(24), by_epochs(48))
    assert curves.epoch_steps(found, 1000, 96) == whole(1000 / 96)
    assert curves.epoch_steps(evidence(), 1000, 96) is None
    (cell,) = curves.predict(found, Machine(None), (1,), 1000, ("strong",))
    assert cell.steps.median % whole(1000 / 24) == 0
    assert cell.epochs
    assert cell.epochs.median == pytest.approx(cell.steps.median * 24 / 1000)


def test_a_batch_is_at_most_the_samples_and_far_batches_are_marked():
    cells = curves.predict(evidence(), Machine(None), (1, 8, 64), 300, ("strong", "weak"))
    weak = {cell.devices: cell for cell in cells if cell.scaling == "weak"}
    assert {n: cell.batch for n, cell in weak.items()} == {1: 8, 8: 64, 64: 300}
    assert {n: cell.extrapolated for n, cell in weak.items()} == {1: False, 8: False, 64: True}
    assert not any(cell.scaling == "strong" and cell.devices == 64 for cell in cells)
