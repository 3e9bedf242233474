"""The law of the steps from two short runs: its limits, its measurements, and the constants that were set on the zoo."""

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest

from gmmae.planner import step_ratios
from gmmae.planner.step_ratios import BASE_RATE_FAILURE, CONSTANTS, MetricCurve, Ratios, log_ratio

ROOT = Path(__file__).parent.parent.parent


def curve(scale: float, until: float = 10.0) -> MetricCurve:
    """A loss that falls by e in `scale` steps, to the power of `until`."""
    steps = np.linspace(0.0, until * scale, 400)
    return MetricCurve(steps, np.exp(-steps / scale))


@pytest.mark.parametrize("weak", [-0.6, -0.3, -0.05, 0.0])
def test_larger_batches_take_fewer_steps_and_never_much_fewer_than_the_batch_grows(weak):
    of = [log_ratio(batch, 1.0, Ratios(weak, -0.5), CONSTANTS) for batch in (1, 2, 4, 8, 16, 32)]
    assert all(after <= before + 0.02 for before, after in itertools.pairwise(of))
    assert all(-math.log(2) - 0.05 <= after - before for before, after in itertools.pairwise(of))


def test_steps_are_compared_at_equal_loss():
    base, steps = curve(100.0), 400.0
    assert step_ratios.steps_at_equal_loss(base, steps, curve(50.0)) == pytest.approx((150.0, 300.0), rel=0.01)
    stopped = step_ratios.steps_at_equal_loss(base, steps, curve(50.0, until=1.0))
    assert stopped == pytest.approx((50.0, 100.0), rel=0.01)
    assert step_ratios.steps_at_equal_loss(base, steps, curve(50.0, until=0.2)) is None
    assert step_ratios.steps_at_equal_loss(base, steps, MetricCurve(base.steps, np.full(400, np.inf))) is None


@pytest.mark.parametrize("exponent", [-1.25, -0.9, -0.5, None, 0.5])
def test_failures_begin_at_those_of_the_base_rate_and_never_fall_with_the_rate(exponent):
    rates = (0.5, 1.0, 1.0001, 1.01, 2.0, 4.0, 8.0, 16.0)
    of = [step_ratios.failure_probability(rate, Ratios(-0.5, exponent), CONSTANTS) for rate in rates]
    assert of[0] == of[1] == pytest.approx(BASE_RATE_FAILURE)
    assert of[2] == pytest.approx(of[1], rel=0.05)
    assert of == sorted(of)


def test_intervals_are_wider_for_flat_curves_few_steps_and_large_batches():
    base = Ratios(-0.3, -0.8, 200.0, 0.2)
    others = [(8.0, base._replace(flatness=0.02)), (8.0, base._replace(steps=30.0)), (16.0, base)]
    of_base = step_ratios.deviation(8.0, 1.0, base, CONSTANTS)
    assert 0.2 < of_base < 0.6
    assert all(step_ratios.deviation(batch, 1.0, of, CONSTANTS) > 1.03 * of_base for batch, of in others)
    assert step_ratios.deviation(0.25, 1.0, base, CONSTANTS) > 1.3 * step_ratios.deviation(1.0, 1.0, base, CONSTANTS)
    unknown = base._replace(rate_exponent=None)
    assert step_ratios.deviation(8.0, 1.0, unknown, CONSTANTS) == of_base
    assert step_ratios.deviation(8.0, 8.0, unknown, CONSTANTS) > 1.5 * of_base
    assert step_ratios.ratio_deviation(8.0, 1.0, base) < 0.6 * of_base


def test_the_constants_are_those_of_the_zoo():
    fitted = json.loads((ROOT / "results" / "zoo" / "constants.json").read_text())
    assert json.loads(json.dumps(CONSTANTS._asdict())) == fitted
