"""The law of the steps from two short runs: its limits and its measurements."""

import math

import numpy as np
import pytest

from gmmae.planner import step_ratios
from gmmae.planner.step_ratios import CONSTANTS, FAILURE_AT_BASE_LEARNING_RATE, MetricCurve, Ratios, log_ratio


def curve(scale: float, until: float = 10.0):
    """A loss that falls by e in `scale` steps, to the power of `until`."""
    steps = np.linspace(0.0, until * scale, 400)
    return MetricCurve(steps, np.exp(-steps / scale))


@pytest.mark.parametrize("weak", [-0.6, -0.3, -0.05, 0.0])
def test_larger_batches_take_fewer_steps_and_never_much_fewer_than_the_batch_grows(weak):
    changes = np.diff([log_ratio(batch, 1.0, Ratios(weak, -0.5), CONSTANTS) for batch in (1, 2, 4, 8, 16, 32)])
    assert (changes <= 0.02).all()
    assert (changes >= -math.log(2) - 0.05).all()


@pytest.mark.parametrize(
    ("other", "steps"),
    [
        (curve(50.0), (150.0, 300.0)),
        (curve(50.0, until=1.0), (50.0, 100.0)),
        (curve(50.0, until=0.2), None),
        (curve(50.0)._replace(costs=np.full(400, np.inf)), None),
    ],
)
def test_steps_are_compared_at_equal_loss(other, steps):
    found = step_ratios.steps_at_equal_loss(curve(100.0), 400.0, other)
    assert found == (steps and pytest.approx(steps, rel=0.01))


@pytest.mark.parametrize("exponent", [-1.25, -0.9, -0.5, None, 0.5])
def test_failures_begin_at_those_of_the_base_rate_and_never_fall_with_the_rate(exponent):
    rates = (0.5, 1.0, 1.0001, 1.01, 2.0, 4.0, 8.0, 16.0)
    half, base, above, *others = (step_ratios.failure_probability(rate, Ratios(-0.5, exponent), CONSTANTS) for rate in rates)
    assert half == base == pytest.approx(FAILURE_AT_BASE_LEARNING_RATE)
    assert above == pytest.approx(base, rel=0.05)
    assert [base, above, *others] == sorted([base, above, *others])


def test_intervals_are_wider_for_flat_curves_few_steps_and_large_batches():
    base = Ratios(-0.3, -0.8, 200.0, 0.2)

    def deviation(batch, rate=1.0, **changes):
        return step_ratios.deviation(batch, rate, base._replace(**changes), CONSTANTS)

    usual = deviation(8.0)
    assert 0.2 < usual < 0.6
    assert min(deviation(8.0, remaining_fall=0.02), deviation(8.0, steps=30.0), deviation(16.0)) > 1.03 * usual
    assert deviation(0.25) > 1.3 * deviation(1.0)
    assert deviation(8.0, rate_exponent=None) == usual
    assert deviation(8.0, 8.0, rate_exponent=None) > 1.5 * usual
    assert step_ratios.ratio_deviation(8.0, 1.0, base) < 0.6 * usual
