"""Trials: the factor multiplies the learning rate, and inactive units are counted."""

import math

import numpy as np
import pytest

from gmmae.planner import trials
from gmmae.planner.trials import Trial
from gmmae.training import compilation, programs
from tests.small import small


@pytest.fixture(scope="module")
def attempt():
    return trials.learning_rate_trials(small(data__samples=28))


def test_a_trial_is_the_run_s_first_steps(attempt):
    trial = attempt(1.0)
    config = small()
    setup = compilation.prepare(config)
    with compilation.precision_context(config):
        state = setup.devices.replicate(compilation.initial_state(setup))
        train = programs.training(setup, state)
        losses = []
        for epoch in (1, 2, 3, 4):
            state, of_steps = train(state, epoch)
            losses += of_steps.tolist()
    np.testing.assert_allclose(trial.losses, losses, rtol=1e-5)
    assert len(trial.losses) >= trials.MIN_STEPS
    assert attempt(1.0) == trial


def test_a_rate_beyond_reason_fails(attempt):
    base, wild = attempt(1.0), attempt(1000.0)
    final = 0.5 * base.losses[-1]
    assert trials.progress(base, base, final) == 1.0
    assert not trials.progress(base, wild, final) > 0.5
    assert trials.active_unit_fraction(base, wild) < 0.2 < trials.active_unit_fraction(base, base)
    assert math.isnan(trials.progress(Trial([1.0, 0.5], []), Trial([1.0, math.nan], []), 0.1))
