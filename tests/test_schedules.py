import typing

import numpy as np
import pytest

from gmmae import config, schedules
from gmmae.data.sources import SOURCES
from gmmae.errors import InputError
from gmmae.losses import LOSSES
from gmmae.models.encoder import ACTIVATIONS
from gmmae.workload import WORKLOADS

# The arms of the paper and the square root, on 4 devices with base batch 32 and base rate 0.001: batch, and the rate at the
# first step, in the middle of a warmup of 5 epochs of 10 steps, at its last and first later step, and much later.
BY_HAND = {
    "strong": (32, [0.001] * 5),
    "weak": (128, [0.001] * 5),
    "linear": (128, [0.004] * 5),
    "linear-warmup": (128, [0.001, 0.0025, 0.00394, 0.004, 0.004]),  # 0.001 + 0.003 · 49/50 = 0.00394
    "sqrt": (128, [0.002] * 5),
    "sqrt-warmup": (128, [0.001, 0.0015, 0.00198, 0.002, 0.002]),
}
RTOL = 1e-6  # schedules are float32


def rates(*arguments, steps, **options):
    schedule = schedules.learning_rate(*arguments, **options)
    return [np.asarray(schedule(step)).item() for step in steps]


@pytest.mark.parametrize("name", schedules.ARMS)
def test_every_arms_batch_and_rate_against_numbers_worked_by_hand(name):
    batch, expected = BY_HAND[name]
    assert schedules.global_batch(name, 4, 32) == batch
    assert rates(name, 4, 0.001, 10, steps=[0, 25, 49, 50, 4000]) == pytest.approx(expected, rel=RTOL)
    assert schedules.peak_learning_rate(name, 4, 0.001) == pytest.approx(expected[-1])


@pytest.mark.parametrize("name", schedules.ARMS)
def test_every_arm_is_the_base_on_one_device(name):
    assert schedules.global_batch(name, 1, 32) == 32
    assert rates(name, 1, 0.00105, 18, steps=[0, 45, 90, 7200]) == pytest.approx([0.00105] * 4, rel=RTOL)


@pytest.mark.parametrize(
    ("warmup_epochs", "expected"),
    [
        (5, [1, 1.07, 8 - 0.07, 8, 8]),  # one step of 7 / 100
        (10, [1, 1.035, 4.5 - 0.035, 4.5, 8]),  # one step of 7 / 200; half-way after 100
        (0, [8, 8, 8, 8, 8]),
    ],
)
def test_warmup_ends_on_the_first_step_after_its_epochs(warmup_epochs, expected):
    steps = [0, 1, 99, 100, 200]
    found = rates("linear-warmup", 8, 1.0, 20, steps=steps, warmup_epochs=warmup_epochs)
    assert found == pytest.approx(expected, rel=RTOL)


def test_warmup_and_decay_are_counted_in_epochs_whatever_the_steps():
    for steps_per_epoch in (1, 3, 18):
        epochs = [0, 2, 4, 8, 9, 12]
        found = rates(
            "linear-warmup",
            2,
            1.0,
            steps_per_epoch,
            steps=[epoch * steps_per_epoch for epoch in epochs],
            warmup_epochs=4,
            decay_epochs=(8,),
            decay_factor=0.5,
        )
        assert found[:3] == pytest.approx([1, 1.5, 2], rel=RTOL)
        assert found[4:] == pytest.approx([1, 1], rel=RTOL)


@pytest.mark.parametrize("name", ["strong", "linear"])
def test_decay_multiplies_the_rate_from_the_end_of_each_epoch_on(name):
    peak = {"strong": 1, "linear": 4}[name]
    found = rates(name, 4, 1.0, 10, steps=[19, 20, 21, 49, 51], decay_epochs=(2, 5), decay_factor=0.1)
    assert [found[i] for i in (0, 2, 3, 4)] == pytest.approx([peak, 0.1 * peak, 0.1 * peak, 0.01 * peak], rel=RTOL)
    assert found[1] == pytest.approx(0.1 * peak, rel=RTOL), "the first step of the third epoch is already decayed"


@pytest.mark.parametrize(
    "call",
    [
        lambda: schedules.arm("fast"),
        lambda: schedules.global_batch("fast", 2, 32),
        lambda: schedules.peak_learning_rate("fast", 2, 0.1),
        lambda: schedules.learning_rate("fast", 2, 0.1, 10),
    ],
)
def test_an_unknown_arm_lists_the_valid_ones(call):
    with pytest.raises(InputError, match=r"arm must be one of strong, weak, linear, linear-warmup, .*; got 'fast'"):
        call()


@pytest.mark.parametrize(
    ("literal", "choices"),
    [
        (config.Arm, schedules.ARMS),
        (config.Loss, LOSSES),
        (config.Activation, ACTIVATIONS),
        (config.Config.__annotations__["workload"], WORKLOADS),
        (config.DataConfig.__annotations__["source"], SOURCES),
    ],
)
def test_the_configurations_names_are_those_of_the_dictionaries(literal, choices):
    assert typing.get_args(literal) == tuple(choices)
