"""What loss curves tell: the target, the steps to it, and the law's numbers."""

import math

import numpy as np
import pytest

from gmmae.config.schema import Mode, StopConfig
from gmmae.planner import step_ratios
from gmmae.planner.curve_files import Curve
from gmmae.planner.curves import read_evidence

STEPS, WEAK = 400.0, -0.25
"""Steps at batch 8, and the weak ratio."""


def steps_at(batch):
    return STEPS * math.exp(WEAK * step_ratios.shape(math.log2(batch / 8)))


def curve(batch, factor=1.0, validations=40):
    """A curve whose loss falls from 2 through 0.25 at the law's steps, times a factor."""
    steps = np.arange(1, validations + 21) * steps_at(batch) * factor / validations
    values = 2.0 * 0.125 ** (steps / (steps_at(batch) * factor))
    return Curve(f"{batch}_{factor}.csv", batch, tuple(steps.tolist()), tuple(values.tolist()))


def evidence(*of, target: float | None = 0.25, mode: Mode = "min", smooth=3, base_batch=None):
    read = of or tuple(curve(batch) for batch in (8, 32, 128))
    return read_evidence(read, StopConfig(target=target, mode=mode), smooth, base_batch)


@pytest.mark.parametrize(("base", "slope"), [(8, WEAK), (32, WEAK * step_ratios.RHO**2)])
def test_the_numbers_of_a_known_law_are_found(base, slope):
    found = evidence(base_batch=base)
    assert found.ratios.weak == pytest.approx(slope, rel=0.01)
    assert found.ratios.steps == pytest.approx(steps_at(base), rel=0.01)
    assert evidence(curve(8, 0.5), curve(8, 2.0), curve(32)).steps[8] == pytest.approx(STEPS, rel=0.01)
    assert found.warnings == []


def test_the_hardest_level_is_that_of_the_worst_curve_and_all_pass_it_by_a_margin():
    low, high = curve(8), curve(32)
    short = high._replace(steps=high.steps[:30], values=high.values[:30])
    found = evidence(low, short, target=None)
    assert 0.0099 < (found.target - short.values[-1]) / (short.values[0] - short.values[-1]) < 0.011
    assert f"{low.name} reaches 0.0" in found.warnings[0]


def test_a_single_outlier_below_the_target_does_not_count_as_reaching_it():
    values = list(curve(32).values)
    values[10] = 0.01
    spiked = curve(32)._replace(values=tuple(values))
    assert evidence(curve(8), spiked).steps[32] == pytest.approx(steps_at(32), rel=0.01)
    assert evidence(curve(8), spiked, smooth=1).steps[32] < 0.5 * steps_at(32)


def test_weak_evidence_is_warned_of():
    coarse = evidence(*(curve(batch, validations=3) for batch in (8, 32))).warnings
    assert "5 validations or more" in coarse[0]
    whole = curve(32)
    pairs = zip(whole.steps, whole.values, strict=True)
    steps, values = zip(*(pair for pair in pairs if not 0.5 < pair[0] / steps_at(32) < 1.2), strict=True)
    with_gap = whole._replace(steps=steps, values=values)
    assert "validate more often" in evidence(curve(8), with_gap, curve(128)).warnings[0]
    assert "a third batch would test it" in coarse[-1]
    grows, bent = evidence(curve(8), curve(32, 3.0)), evidence(curve(8), curve(32, 2.0), curve(128))
    falls = evidence(curve(8), curve(32, 0.3))  # a fifth of the steps for four times the batch: not at one learning rate
    assert all("do not trust" in of.warnings[0] for of in (grows, bent, falls))


@pytest.mark.parametrize("bn", [2, 20, 200, 2000])
def test_steps_that_follow_a_hyperbola_are_believed_and_predicted_where_curves_are(bn):
    """The law's shape is that of batches around Bn; below it the steps fall as the batch grows."""
    true = {batch: 600 * (1 + bn / batch) for batch in (8, 16, 32, 64, 128)}
    found = evidence(*(curve(batch, true[batch] / steps_at(batch)) for batch in (8, 32, 128)))
    assert not found.warnings
    law = found.steps, found.ratios, step_ratios.CONSTANTS
    steps = {batch: step_ratios.steps_at(batch, 1.0, 8, *law) for batch in true}
    assert steps == pytest.approx(true, rel=0.15)
