"""The scaling strategies: how the global batch and the learning rate follow the number of devices.

With k devices, base batch B and base learning rate η (section IV and VI of the paper; warmup and step decay after Goyal et
al., arXiv:1706.02677; the square root is what theory asks of Adam, e.g. arXiv:2205.10287, and none of the paper's arms):

| arm | global batch | learning rate |
|---|---|---|
| strong | B | η |
| weak | k B | η |
| linear | k B | k η |
| linear-warmup | k B | η → k η linearly, then k η |
| sqrt, sqrt-warmup | k B | √k η, likewise |
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import optax

from gmmae.errors import InputError


class Arm(NamedTuple):
    """A batch rule and a learning-rate rule, as factors on the base values for k devices."""

    batch_factor: Callable[[int], int]
    rate_factor: Callable[[int], float]
    warmup: bool


def _one(_: int) -> int:
    return 1


def _linear(devices: int) -> int:
    return devices


ARMS: dict[str, Arm] = {
    "strong": Arm(_one, _one, warmup=False),
    "weak": Arm(_linear, _one, warmup=False),
    "linear": Arm(_linear, _linear, warmup=False),
    "linear-warmup": Arm(_linear, _linear, warmup=True),
    "sqrt": Arm(_linear, math.sqrt, warmup=False),
    "sqrt-warmup": Arm(_linear, math.sqrt, warmup=True),
}


def arm(name: str) -> Arm:
    """The arm of that name.

    Raises:
      InputError: there is none; the valid names are listed.
    """
    if name not in ARMS:
        raise InputError(f"arm must be one of {', '.join(ARMS)}; got {name!r}")
    return ARMS[name]


def global_batch(name: str, devices: int, base_batch: int) -> int:
    """Samples in one optimiser step.

    >>> global_batch("strong", 8, 32), global_batch("linear", 8, 32)
    (32, 256)
    """
    return arm(name).batch_factor(devices) * base_batch


def peak_learning_rate(name: str, devices: int, base_rate: float) -> float:
    """The learning rate after any warmup and before any decay."""
    return base_rate * arm(name).rate_factor(devices)


def learning_rate(
    name: str,
    devices: int,
    base_rate: float,
    steps_per_epoch: int,
    *,
    warmup_epochs: int = 5,
    decay_epochs: Sequence[int] = (),
    decay_factor: float = 0.1,
) -> optax.Schedule:
    """The learning rate as a function of the optimiser's step, counted from 0. Epochs become steps here and nowhere else.

    A warmup goes linearly from `base_rate` at step 0 to the peak at step `warmup_epochs · steps_per_epoch`. Each epoch in
    `decay_epochs` multiplies the rate by `decay_factor` from its end on.

    Args:
      name: an arm of `ARMS`.
      devices: k.
      base_rate: η.
      steps_per_epoch: optimiser steps in an epoch, the last partial batch counted.

    Raises:
      InputError: an unknown arm.

    >>> rate = learning_rate("linear-warmup", 4, 0.001, steps_per_epoch=10)
    >>> [round(float(rate(step)), 6) for step in (0, 25, 50, 500)]
    [0.001, 0.0025, 0.004, 0.004]
    """
    peak = peak_learning_rate(name, devices, base_rate)
    warmup_steps = warmup_epochs * steps_per_epoch if arm(name).warmup else 0
    warm = optax.linear_schedule(base_rate, peak, warmup_steps) if warmup_steps else optax.constant_schedule(peak)
    if not decay_epochs:
        return warm
    decay = optax.piecewise_constant_schedule(1.0, {epoch * steps_per_epoch: decay_factor for epoch in decay_epochs})
    return lambda step: warm(step) * decay(step)
