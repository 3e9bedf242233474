"""The scaling strategies: how the global batch and the learning rate follow the number of devices.

With n devices, base batch B, base learning rate η and k = global batch / B (sections IV and VI of the paper; warmup and step
decay after Goyal et al., arXiv:1706.02677):

| arm | global batch | learning rate |
|---|---|---|
| strong | B | η |
| weak | n B | η |
| linear | n B | k η |
| linear-warmup | n B | η → k η linearly, then k η |
| sqrt, sqrt-warmup | n B | √k η, likewise |
| best-batch | that `gmmae plan` finds to take the least time on n devices | η |
| tuned | n B | the best of a few, found by short runs (`gmmae plan --tune`): what a rule could give at most |

A global batch is never larger than the training set. Where it is clipped to that, k is smaller than n, and the learning rate
follows the batch that is really taken.

An arm is one entry of `ARMS`: the command line, sweeps, tables and figures know it from there. A file given as `--workload` may
add its own.

The square-root arms are none of the paper's, and they scale the rate alone. The rule that Malladi et al. derive for Adam
(arXiv:2205.10287) also turns each β into 1 - k (1 - β) and ε into ε / √k; with β1 = 0.9 it ends at k = 10, where β1 would be
zero, so it cannot be what an arm for 32 devices does.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

from gmmae.config.schema import Config, OptimConfig
from gmmae.system.errors import InputError


class Rates(NamedTuple):
    """The learning rate over a run: all that decides it, in epochs.

    Attributes:
      first: at the first step.
      peak: after the warmup.
      warmup_epochs: in which it goes linearly from `first` to `peak`; 0 where it is `peak` at once.
      decay_epochs: after each of which it is multiplied by `decay_factor`.
      ramp_epochs: in which a factor rises from 0 to 1; 0: none does.
      cosine_epochs: in which half a cosine multiplies it, from 1 to `COSINE_END`; 0: none does.
    """

    first: float
    peak: float
    warmup_epochs: int = 0
    decay_epochs: tuple[int, ...] = ()
    decay_factor: float = 1.0
    ramp_epochs: int = 0
    cosine_epochs: int = 0


class Adam(NamedTuple):
    """The rest of the optimiser."""

    beta1: float
    beta2: float
    epsilon: float


COSINE_END = 0.01
"""Of a rate, after its decay along a cosine."""


def base_batch(optim: OptimConfig, devices: int) -> int:
    """The batch of one device, shared by all."""
    return optim.base_batch


def batch_a_device(optim: OptimConfig, devices: int) -> int:
    """The batch of one device, for each."""
    return optim.base_batch * devices


def planned_batch(optim: OptimConfig, devices: int) -> int:
    """The batch that a plan has found for so many devices; from the next power of two below on it grows with their square root.

    By the rule of thumb of `gmmae.planner.prediction` that is how it grows where the all-reduce is cheap.

    >>> [planned_batch(OptimConfig(best_batches=(32, 50)), n) for n in (1, 2, 8)]
    [32, 50, 100]
    """
    listed = optim.best_batches
    if not listed:
        raise InputError("optim.best_batches must be given for the arm best-batch; got none: `gmmae plan` says them")
    place = min(devices.bit_length(), len(listed)) - 1
    return round(listed[place] * math.sqrt(devices / 2**place))


def tuned_factor(optim: OptimConfig, k: float) -> float:
    """The factor of the rate that short runs have found for k base batches: between the tried ones linear in logarithms.

    >>> [round(tuned_factor(OptimConfig(tuned_factors=(1.0, 1.0, 4.0)), k), 3) for k in (1, 2, 8**0.5, 4, 32)]
    [1.0, 1.0, 2.0, 4.0, 4.0]
    """
    listed = optim.tuned_factors
    if not listed:
        raise InputError("optim.tuned_factors must be given for the arm tuned; got none: `gmmae plan --tune` finds them")
    place = min(max(math.log2(k), 0.0), len(listed) - 1.0)
    low, share = math.floor(place), place - math.floor(place)
    return listed[low] ** (1 - share) * listed[math.ceil(place)] ** share


def unscaled(k: float) -> float:
    """A rate that does not follow the batch."""
    return 1.0


def linearly(k: float) -> float:
    """A rate in proportion to the batch."""
    return k


def as_configured(optim: OptimConfig, k: float) -> Adam:
    """Adam's constants, whatever the batch."""
    return Adam(optim.beta1, optim.beta2, optim.epsilon)


class Arm(NamedTuple):
    """A strategy.

    Attributes:
      label: what tables and figures call it.
      batch: the global batch by the base values and the number of devices.
      factor: of the learning rate, by k.
      warmup: whether the rate begins at η and goes to its peak in `optim.warmup_epochs`.
      adam: Adam's constants by the base values and k.
      chosen: the factor by the base values and k, where these have it; instead of `factor`.
    """

    label: str
    batch: Callable[[OptimConfig, int], int]
    factor: Callable[[float], float] = unscaled
    warmup: bool = False
    adam: Callable[[OptimConfig, float], Adam] = as_configured
    chosen: Callable[[OptimConfig, float], float] | None = None

    def grows(self, optim: OptimConfig) -> bool:
        """Whether the batch follows the number of devices."""
        return len({self.batch(optim, devices) for devices in (1, 2, 32)}) > 1

    def rates(self, optim: OptimConfig, k: float) -> Rates:
        """The learning rate for a batch of k times the base batch."""
        eta = optim.learning_rate
        peak = eta * (self.chosen(optim, k) if self.chosen else self.factor(k))
        warmup = optim.warmup_epochs if self.warmup and peak != eta else 0
        first = eta if warmup else peak
        return Rates(first, peak, warmup, optim.decay_epochs, optim.decay_factor, optim.ramp_epochs, optim.cosine_epochs)


ARMS: dict[str, Arm] = {
    "strong": Arm("Strong scaling", base_batch),
    "weak": Arm("Weak scaling", batch_a_device),
    "linear": Arm("Linear rule", batch_a_device, linearly),
    "linear-warmup": Arm("Linear rule + warmup", batch_a_device, linearly, warmup=True),
    "sqrt": Arm("Square-root rule", batch_a_device, math.sqrt),
    "sqrt-warmup": Arm("Square-root rule + warmup", batch_a_device, math.sqrt, warmup=True),
    "best-batch": Arm("Best batch", planned_batch),
    "tuned": Arm("Tuned rate", batch_a_device, chosen=tuned_factor),
}


class Path(NamedTuple):
    """All by which an arm decides what a run computes: runs of equal paths and equal seeds are one optimisation.

    Attributes:
      global_batch: at most the training samples.
      rates: the learning rate for it.
      adam: the rest of the optimiser for it.
    """

    global_batch: int
    rates: Rates
    adam: Adam


class Strategy(NamedTuple):
    """What an arm makes of a number of devices and of training samples.

    Attributes:
      wanted_batch: the global batch that the arm asks for.
      path: what is done for the one that is taken.
    """

    wanted_batch: int
    path: Path

    @property
    def global_batch(self) -> int:
        return self.path.global_batch

    @property
    def rates(self) -> Rates:
        return self.path.rates

    def batch_text(self) -> str:
        """
        >>> follow("weak", OptimConfig(), 32, 574).batch_text()
        '574 (clipped from 1024)'
        """
        clipped = f" (clipped from {self.wanted_batch})" if self.global_batch < self.wanted_batch else ""
        return f"{self.global_batch}{clipped}"


def rate_text(rates: Rates, base_rate: float) -> str:
    """A learning rate in words, with its factor on the base rate η.

    >>> rate_text(Rates(0.001, 0.004, 5, (30, 60), 0.1), 0.001)
    '0.001 → 0.004 = 4 η in 5 epochs, × 0.1 after epochs 30, 60'
    """
    factor = f" = {rates.peak / base_rate:.4g} η" if rates.peak != base_rate else ""
    text = f"{rates.peak:g}{factor}"
    if rates.warmup_epochs:
        text = f"{rates.first:g} → {text} in {rates.warmup_epochs} epochs"
    if rates.decay_epochs:
        text += f", × {rates.decay_factor:g} after epochs {', '.join(map(str, rates.decay_epochs))}"
    if rates.ramp_epochs:
        text += f", from 0 in {rates.ramp_epochs} epochs"
    if rates.cosine_epochs:
        text += f", × {COSINE_END:g} along a cosine of {rates.cosine_epochs} epochs"
    return text


def arm(name: str) -> Arm:
    """The arm of that name.

    Raises:
      InputError: there is none; the valid names are listed.
    """
    if name not in ARMS:
        raise InputError(f"arm must be one of {', '.join(ARMS)}; got {name!r}")
    return ARMS[name]


def follow(name: str, optim: OptimConfig, devices: int, samples: int) -> Strategy:
    """The batch, the learning rate and Adam's constants of an arm.

    Args:
      name: an arm of `ARMS`.
      optim: the base values.
      devices: that the arm reckons with.
      samples: in the training set.

    Raises:
      InputError: an unknown arm.

    >>> linear = follow("linear", OptimConfig(learning_rate=0.001, base_batch=32), 32, 574)
    >>> linear.wanted_batch, linear.global_batch
    (1024, 574)
    >>> round(linear.rates.peak, 9)  # 574 / 32 = 17.9375
    0.0179375
    """
    chosen = arm(name)
    wanted = chosen.batch(optim, devices)
    taken = min(wanted, samples)
    k = taken / optim.base_batch
    return Strategy(wanted, Path(taken, chosen.rates(optim, k), chosen.adam(optim, k)))


def require_known(config: Config) -> Config:
    """Returns the configuration, whose strategy is one of `ARMS`.

    Raises:
      InputError: its strategy is unknown.
    """
    arm(config.arm)
    return config


def devices_may_change(config: Config) -> bool:
    """Whether a run computes the same on another number of devices: neither its batch nor its learning rate follows them."""
    return config.parallel.virtual > 0 or not arm(config.arm).grows(config.optim)
