"""The learning rate by the optimiser's step."""

import math
from functools import cache

import jax
import numpy as np
import optax
from jaxtyping import Float

from gmmae.scaling.strategies import COSINE_END, LearningRateSpec


@cache  # equal schedules are one function, which is compiled once
def learning_rate(rates: LearningRateSpec, steps_per_epoch: int) -> optax.Schedule:
    """Returns the learning rate by step, counted from 0. Epochs become steps here and nowhere else.

    A warmup goes linearly from `first` at step 0 to `peak` at step `scaling_warmup_epochs · steps_per_epoch`. Each epoch in
    `decay_epochs` multiplies it by `decay_factor` from its end on. Over the first `warmup_epochs` a factor
    rises linearly to 1. Over the first `cosine_epochs` another falls along half a cosine from 1 to `COSINE_END` (Loshchilov and
    Hutter, arXiv:1608.03983, without restarts).

    Args:
      rates: of a strategy.
      steps_per_epoch: optimiser steps in an epoch, the last partial batch counted.

    >>> rate = learning_rate(LearningRateSpec(0.001, 0.004, scaling_warmup_epochs=5), steps_per_epoch=10)
    >>> [round(float(rate(step)), 6) for step in (0, 25, 50, 500)]
    [0.001, 0.0025, 0.004, 0.004]
    """
    warmup_steps = rates.scaling_warmup_epochs * steps_per_epoch
    constant = optax.constant_schedule(rates.peak)
    warm = optax.linear_schedule(rates.first, rates.peak, warmup_steps) if warmup_steps else constant
    factors = _factors(rates, steps_per_epoch)
    if not factors:
        return warm
    return lambda step: math.prod((factor(step) for factor in factors), start=warm(step))


def _factors(rates: LearningRateSpec, steps_per_epoch: int) -> list[optax.Schedule]:
    """Returns the factors of the strategy's learning rate."""
    factors: list[optax.Schedule] = []
    if rates.decay_epochs:
        decays = {epoch * steps_per_epoch: rates.decay_factor for epoch in rates.decay_epochs}
        factors.append(optax.piecewise_constant_schedule(1.0, decays))
    if ramp := rates.warmup_epochs * steps_per_epoch:
        factors.append(optax.linear_schedule(1 / ramp, 1.0, ramp - 1))
    if cosine := rates.cosine_epochs * steps_per_epoch:
        factors.append(optax.cosine_decay_schedule(1.0, cosine, COSINE_END))
    return factors


def epoch_learning_rates(schedule: optax.Schedule, epoch: int, steps: int) -> Float[np.ndarray, " steps"]:
    """Returns the learning rates of an epoch's steps.

    >>> epoch_learning_rates(learning_rate(LearningRateSpec(0.0, 1.0, scaling_warmup_epochs=2), 2), epoch=2, steps=2).tolist()
    [0.5, 0.75]
    """
    if _is_constant(schedule):
        return np.full(steps, schedule(0))
    counts = np.arange((epoch - 1) * steps, epoch * steps, dtype=np.int32)
    return np.asarray(jax.jit(schedule)(counts))


@cache
def _is_constant(schedule: optax.Schedule) -> bool:
    """Returns whether a schedule is a number for all steps, which needs no program."""
    return isinstance(schedule(0), float)
