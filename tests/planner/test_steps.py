"""The law of steps against the batch: exact points give it back, noise widens it, and few points rest on the prior."""

import math

import numpy as np
import pytest

from gmmae.planner.steps import MAX_SIGMA, SEED_SIGMA, StepsLaw, fit, posterior, residual, seed_sigma
from gmmae.system.errors import InputError

TRUE = StepsLaw(np.array(227.0), np.array(20.2))
MEASURED = {8: 864.0, 16: 504.0, 32: 378.0, 64: 297.0, 128: 250.0, 256: 237.0, 512: 238.0, 574: 248.0}
"""Steps on the real nodules."""


def exact(*batches):
    return {batch: float(TRUE.at(batch)) for batch in batches}


def test_the_fit_of_exact_points_is_the_law():
    assert fit(exact(8, 32)) == pytest.approx((227.0, 20.2), rel=1e-3)
    assert residual(exact(8, 32, 128)) < 1e-4


def test_the_real_nodules_follow_it():
    smin, bn = fit(MEASURED)
    assert (smin, bn) == (pytest.approx(225, abs=5), pytest.approx(21.5, abs=2))
    assert residual(MEASURED) < 0.06
    from_two = fit({batch: MEASURED[batch] for batch in (8, 32)})
    at = StepsLaw(np.array(from_two[0]), np.array(from_two[1])).at
    errors = [abs(math.log(at(batch) / MEASURED[batch])) for batch in (64, 128, 256, 512)]
    assert max(errors) < 0.1


def test_steps_that_grow_with_the_batch_have_a_residual_that_says_so():
    assert residual({8: 100.0, 32: 200.0}) > 0.3


def test_draws_hold_the_truth_and_tighten_with_points():
    draws = [posterior(exact(*batches), 32, 4000, np.random.default_rng(0), 0.11) for batches in ((32,), (8, 32), (2, 8, 32))]
    widths = [float(np.std(np.log(found.at(512)))) for found in draws]
    assert widths[0] > widths[1] > widths[2]
    for found in draws:
        low, high = np.quantile(found.at(512), (0.1, 0.9))
        assert low < TRUE.at(512) < high


def test_one_point_leaves_bn_about_the_batch_size():
    found = posterior({32: 378.0}, 32, 4000, np.random.default_rng(0), 0.11)
    assert np.median(found.bn) == pytest.approx(32, rel=0.2)
    assert np.quantile(found.bn, 0.9) > 3 * 32


@pytest.mark.parametrize("points", [{}, {32: math.inf}, {32: 0.0}])
def test_points_must_be_numbers_of_steps(points):
    with pytest.raises(InputError, match="steps to the target must be positive and finite"):
        posterior(points, 32, 10, np.random.default_rng(0), 0.11)


def test_a_curve_that_jumps_on_a_gentle_slope_leaves_the_steps_open():
    run_steps, rng = np.arange(1, 41) * 18.0, np.random.default_rng(0)
    fall = -np.log(run_steps)
    noisy = [fall + scale * rng.normal(size=40) for scale in (0.0, 0.03, 0.1)]
    smooth, rough, rougher = (seed_sigma(run_steps.tolist(), costs.tolist()) for costs in noisy)
    assert smooth == pytest.approx(SEED_SIGMA)
    assert smooth < rough < rougher
    assert rough == pytest.approx(math.hypot(SEED_SIGMA, 2 * 0.03), rel=0.25)
    assert seed_sigma(run_steps[:2].tolist(), fall[:2].tolist()) == MAX_SIGMA
