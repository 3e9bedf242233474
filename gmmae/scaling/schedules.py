"""The learning rate by the optimiser's step."""

import math
from functools import cache

import optax

from gmmae.scaling.strategies import COSINE_END, Stage


@cache  # equal schedules are one function, which is compiled once
def learning_rate(stage: Stage, steps_per_epoch: int) -> optax.Schedule:
    """The learning rate by step, counted from 0, for `programs.epoch_learning_rates`. Epochs become steps here only.

    A strategy's warmup goes linearly from the base rate at step 0 to the stage's at step `scaling_warmup_epochs ·
    steps_per_epoch`. Each epoch in `optim.decay_epochs` multiplies it by `decay_factor` from its end on. Over the first
    `optim.warmup_epochs` a factor rises linearly to 1, and over the first `optim.cosine_epochs` another falls along half a
    cosine to `COSINE_END` (Loshchilov and Hutter, arXiv:1608.03983, without restarts).
    """
    optim, peak = stage.optim, stage.learning_rate
    warmup_steps = stage.scaling_warmup_epochs * steps_per_epoch
    warm = optax.constant_schedule(peak)
    if warmup_steps:
        warm = optax.linear_schedule(optim.learning_rate, peak, warmup_steps)
    factors: list[optax.Schedule] = []
    if optim.decay_epochs:
        decays = {epoch * steps_per_epoch: optim.decay_factor for epoch in optim.decay_epochs}
        factors.append(optax.piecewise_constant_schedule(1.0, decays))
    if ramp := optim.warmup_epochs * steps_per_epoch:
        factors.append(optax.linear_schedule(1 / ramp, 1.0, ramp - 1))
    if cosine := (optim.cosine_epochs or 0) * steps_per_epoch:
        factors.append(optax.cosine_decay_schedule(1.0, cosine, COSINE_END))
    if not factors:
        return warm
    return lambda step: math.prod((factor(step) for factor in factors), start=warm(step))
