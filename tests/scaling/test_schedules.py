from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from gmmae.config.schema import OptimConfig
from gmmae.scaling.schedules import learning_rate
from gmmae.scaling.strategies import Stage

RTOL = 1e-6  # schedules are float32


def at(first: float, peak: float, steps_per_epoch: int, steps: Iterable[int], warmup: int = 0, **optim: Any):
    """The learning rates of a strategy whose own warmup goes from one rate to the other."""
    schedule = learning_rate(Stage(1, 32, peak, warmup, OptimConfig(learning_rate=first, **optim)), steps_per_epoch)
    return [np.asarray(schedule(step)).item() for step in steps]


def test_warmup_ends_on_the_first_step_after_its_epochs():
    assert at(1.0, 8.0, 20, [0, 1, 99, 100, 200], 5) == pytest.approx([1, 1.07, 8 - 0.07, 8, 8], rel=RTOL)  # steps of 7 / 100


@pytest.mark.parametrize("steps_per_epoch", [1, 3, 18])
def test_warmup_and_decay_are_counted_in_epochs_whatever_the_steps(steps_per_epoch):
    epochs = [0, 2, 4, 8, 9, 12]
    found = at(1.0, 2.0, steps_per_epoch, [i * steps_per_epoch for i in epochs], 4, decay_epochs=(8,), decay_factor=0.5)
    assert found[:3] == pytest.approx([1, 1.5, 2], rel=RTOL)
    assert found[4:] == pytest.approx([1, 1], rel=RTOL)


def test_decay_multiplies_the_rate_from_the_end_of_each_epoch_on():
    found = at(4.0, 4.0, 10, [19, 20, 21, 49, 51], decay_epochs=(2, 5), decay_factor=0.1)
    assert found == pytest.approx([4, 0.4, 0.4, 0.4, 0.04], rel=RTOL)  # the first step of the third epoch is already decayed


def test_a_ramp_rises_from_the_first_step_to_the_whole_rate_and_a_cosine_falls_to_a_hundredth():
    steps, ramps = np.array([0, 9, 19, 50, 100, 500]), np.array([0.05, 0.5, 1, 1, 1, 1])
    cosines = 0.01 + 0.99 * (1 + np.cos(np.pi * np.minimum(steps, 100) / 100)) / 2
    assert at(2.0, 2.0, 10, steps, warmup_epochs=2, cosine_epochs=10) == pytest.approx(2 * ramps * cosines, rel=1e-5)
