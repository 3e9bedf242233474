"""Failure probabilities agree with the results on the real nodules, and with their order."""

import math

import pytest

from gmmae.planner.stability import failure_probability, max_stable_factor

NODULES = {1.0: 1.0, 2.0: 1.0, 4.0: 0.95, 8.0: -3.6}, {2.0: 0.5, 4.0: 0.1}
"""Progress and active-unit fraction by factor. The linear rule reached the target on 2 devices, plateaued on 4, collapsed on
8.
"""


def test_the_real_nodules_stall_from_four_devices_on():
    of_linear = [failure_probability(k, False, *NODULES) for k in (1, 2, 4, 8, 16)]
    assert of_linear == sorted(of_linear)
    assert of_linear[1] < 0.2
    assert of_linear[2] > 0.7
    assert of_linear[3] > 0.9


def test_a_warmup_goes_further():
    assert failure_probability(4, True, *NODULES) < 0.4 < failure_probability(4, False, *NODULES)
    assert failure_probability(16, True, *NODULES) > 0.9


def test_where_nothing_fails_only_factors_beyond_the_trials_are_in_doubt():
    tried = {2.0**i: 1.0 for i in range(6)}, {2.0**i: 1.0 for i in range(1, 6)}
    assert failure_probability(4, False, *tried) < 0.05
    assert failure_probability(64, False, *tried) == pytest.approx(0.5, abs=0.02)


def test_a_loss_that_is_no_number_is_a_failure():
    assert max_stable_factor({2: 1.0, 4: math.nan}) == pytest.approx(2 * 2**0.5)
