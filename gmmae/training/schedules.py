"""The learning rate as a function of the optimiser's step."""

import optax

from gmmae.base.arms import Rates


def learning_rate(rates: Rates, steps_per_epoch: int) -> optax.Schedule:
    """The learning rate by step, counted from 0. Epochs become steps here and nowhere else.

    A warmup goes linearly from `first` at step 0 to `peak` at step `warmup_epochs · steps_per_epoch`. Each epoch in
    `decay_epochs` multiplies the rate by `decay_factor` from its end on.

    Args:
      rates: of an arm.
      steps_per_epoch: optimiser steps in an epoch, the last partial batch counted.

    >>> rate = learning_rate(Rates(0.001, 0.004, warmup_epochs=5), steps_per_epoch=10)
    >>> [round(float(rate(step)), 6) for step in (0, 25, 50, 500)]
    [0.001, 0.0025, 0.004, 0.004]
    """
    warmup_steps = rates.warmup_epochs * steps_per_epoch
    constant = optax.constant_schedule(rates.peak)
    warm = optax.linear_schedule(rates.first, rates.peak, warmup_steps) if warmup_steps else constant
    if not rates.decay_epochs:
        return warm
    decays = {epoch * steps_per_epoch: rates.decay_factor for epoch in rates.decay_epochs}
    decay = optax.piecewise_constant_schedule(1.0, decays)
    return lambda step: warm(step) * decay(step)
