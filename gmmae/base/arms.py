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

A global batch is never larger than the training set. Where it is clipped to that, k is smaller than n, and the learning rate
follows the batch that is really taken.

The last two are none of the paper's arms, and they scale the rate alone. The rule that Malladi et al. derive for Adam
(arXiv:2205.10287) also turns each β into 1 - k (1 - β) and ε into ε / √k; with β1 = 0.9 it ends at k = 10, where β1 would be
zero, so it cannot be what an arm for 32 devices does.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

from gmmae.base.config import OptimConfig
from gmmae.base.errors import InputError


class Rates(NamedTuple):
    """The learning rate over a run: all that decides it, in epochs, so equal ones are one optimisation.

    Attributes:
      first: at the first step.
      peak: after the warmup.
      warmup_epochs: in which it goes linearly from `first` to `peak`; 0 where it is `peak` at once.
      decay_epochs: after each of which it is multiplied by `decay_factor`.
    """

    first: float
    peak: float
    warmup_epochs: int = 0
    decay_epochs: tuple[int, ...] = ()
    decay_factor: float = 1.0


class Arm(NamedTuple):
    """A strategy.

    Attributes:
      grows: the global batch is the base batch times the devices, rather than the base batch.
      rates: from the base values and k, the growth of the batch.
    """

    grows: bool
    rates: Callable[[OptimConfig, float], Rates]


class Strategy(NamedTuple):
    """What an arm makes of a number of devices and of training samples.

    Attributes:
      wanted_batch: the global batch that the arm asks for.
      global_batch: the one that is taken, at most the training samples.
      rates: the learning rate for the latter.
    """

    wanted_batch: int
    global_batch: int
    rates: Rates

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
    return text


def _constant(_: float) -> float:
    return 1.0


def _linear(k: float) -> float:
    return k


def _at_once(factor: Callable[[float], float]) -> Callable[[OptimConfig, float], Rates]:
    def rates(optim: OptimConfig, k: float) -> Rates:
        peak = factor(k) * optim.learning_rate
        return Rates(peak, peak, 0, optim.decay_epochs, optim.decay_factor)

    return rates


def _after_warmup(factor: Callable[[float], float]) -> Callable[[OptimConfig, float], Rates]:
    def rates(optim: OptimConfig, k: float) -> Rates:
        at_once = _at_once(factor)(optim, k)
        if not optim.warmup_epochs or at_once.peak == optim.learning_rate:
            return at_once
        return at_once._replace(first=optim.learning_rate, warmup_epochs=optim.warmup_epochs)

    return rates


ARMS: dict[str, Arm] = {
    "strong": Arm(grows=False, rates=_at_once(_constant)),
    "weak": Arm(grows=True, rates=_at_once(_constant)),
    "linear": Arm(grows=True, rates=_at_once(_linear)),
    "linear-warmup": Arm(grows=True, rates=_after_warmup(_linear)),
    "sqrt": Arm(grows=True, rates=_at_once(math.sqrt)),
    "sqrt-warmup": Arm(grows=True, rates=_after_warmup(math.sqrt)),
}


def arm(name: str) -> Arm:
    """The arm of that name.

    Raises:
      InputError: there is none; the valid names are listed.
    """
    if name not in ARMS:
        raise InputError(f"arm must be one of {', '.join(ARMS)}; got {name!r}")
    return ARMS[name]


def wanted_batch(name: str, devices: int, base_batch: int) -> int:
    """Samples in one optimiser step as the arm asks for them, however large the training set is.

    >>> wanted_batch("strong", 8, 32), wanted_batch("linear", 8, 32)
    (32, 256)
    """
    return base_batch * (devices if arm(name).grows else 1)


def follow(name: str, optim: OptimConfig, devices: int, samples: int) -> Strategy:
    """The batch and the learning rate of an arm.

    Args:
      name: an arm of `ARMS`.
      optim: the base values.
      devices: that the arm reckons with.
      samples: in the training set.

    Raises:
      InputError: an unknown arm.

    >>> follow("linear", OptimConfig(learning_rate=0.001, base_batch=32), 32, 574)[:2]
    (1024, 574)
    >>> round(follow("linear", OptimConfig(learning_rate=0.001, base_batch=32), 32, 574).rates.peak, 9)  # 574 / 32 = 17.9375
    0.0179375
    """
    wanted = wanted_batch(name, devices, optim.base_batch)
    taken = min(wanted, samples)
    return Strategy(wanted, taken, arm(name).rates(optim, taken / optim.base_batch))
