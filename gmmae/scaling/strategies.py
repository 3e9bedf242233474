"""The scaling strategies: rules for the global batch and the learning rate by the number of devices.

There are n devices, base batch B and base learning rate η, and k = global batch / B. The strategies are those of sections IV
and VI of the paper. Warmup and step decay are those of Goyal et al., arXiv:1706.02677.

| strategy | global batch | learning rate |
|---|---|---|
| strong | B | η |
| weak | n B | η |
| linear | n B | k η |
| linear-warmup | n B | η → k η linearly, then k η |
| sqrt, sqrt-warmup | n B | √k η, likewise |
| best-batch | the fastest on n devices by `gmmae plan` | η |
| tuned | n B | the best of a few in short runs (`gmmae plan --tune`): an upper bound for any rule |

A global batch is never larger than the training set. Where it is capped at that, k is smaller than n, and the learning rate
follows the batch that is taken.

A strategy is one entry of `STRATEGIES`. The command line, sweeps, tables and figures read that table. A file given as
`--workload` may add its own entries.

The square-root strategies are not in the paper, and they scale the learning rate alone. The rule of Malladi et al. for Adam
(arXiv:2205.10287) also turns each β into 1 - k (1 - β) and ε into ε / √k. With β1 = 0.9 it ends at k = 10, where β1 is zero, so
it has no value for 32 devices.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

from gmmae.config.schema import Config, OptimConfig
from gmmae.system.errors import InputError


class LearningRateSpec(NamedTuple):
    """The learning rate over a run, in epochs.

    Attributes:
      first: at the first step.
      peak: after the warmup.
      scaling_warmup_epochs: epochs of the linear way from `first` to `peak`; 0 begins at `peak`.
      decay_epochs: epochs after which it is multiplied by `decay_factor`.
      decay_factor: of the step decay.
      warmup_epochs: epochs over which a factor rises from 0 to 1; 0 has no such factor.
      cosine_epochs: epochs of a factor that falls along half a cosine from 1 to `COSINE_END`; 0 has no such factor.
    """

    first: float
    peak: float
    scaling_warmup_epochs: int = 0
    decay_epochs: tuple[int, ...] = ()
    decay_factor: float = 1.0
    warmup_epochs: int = 0
    cosine_epochs: int = 0


class Adam(NamedTuple):
    """Adam's constants."""

    beta1: float
    beta2: float
    epsilon: float


COSINE_END = 0.01
"""The factor of the learning rate after its decay along a cosine."""


def fixed_batch(optim: OptimConfig, devices: int) -> int:
    """Returns the base batch, which all devices share."""
    return optim.batch_size


def batch_a_device(optim: OptimConfig, devices: int) -> int:
    """Returns the base batch times the number of devices."""
    return optim.batch_size * devices


def planned_batch(optim: OptimConfig, devices: int) -> int:
    """Returns the batch that a plan has found for this number of devices.

    Between powers of two it grows with the square root of the devices. `gmmae.planner.prediction` says why.

    >>> [planned_batch(OptimConfig(best_batches=(32, 50)), n) for n in (1, 2, 8)]
    [32, 50, 100]
    """
    listed = optim.best_batches
    if not listed:
        raise InputError("optim.best_batches must be given for the strategy best-batch; got none: take those of `gmmae plan`")
    place = min(devices.bit_length(), len(listed)) - 1
    return round(listed[place] * math.sqrt(devices / 2**place))


def tuned_factor(optim: OptimConfig, k: float) -> float:
    """Returns the factor of the learning rate that short runs have found for k base batches.

    Between the tried batches it is linear in logarithms.

    >>> [round(tuned_factor(OptimConfig(tuned_factors=(1.0, 1.0, 4.0)), k), 3) for k in (1, 2, 8**0.5, 4, 32)]
    [1.0, 1.0, 2.0, 4.0, 4.0]
    """
    listed = optim.tuned_factors
    if not listed:
        raise InputError(
            "optim.tuned_factors must be given for the strategy tuned; got none: take those of `gmmae plan --tune`"
        )
    place = min(max(math.log2(k), 0.0), len(listed) - 1.0)
    low, share = math.floor(place), place - math.floor(place)
    return listed[low] ** (1 - share) * listed[math.ceil(place)] ** share


def unscaled(k: float) -> float:
    """Returns 1: the learning rate does not follow the batch."""
    return 1.0


def linearly(k: float) -> float:
    """Returns k: the learning rate is proportional to the batch."""
    return k


def as_configured(optim: OptimConfig, k: float) -> Adam:
    """Returns Adam's constants as configured, for any batch."""
    return Adam(optim.beta1, optim.beta2, optim.epsilon)


class ScalingStrategy(NamedTuple):
    """One scaling strategy.

    Attributes:
      label: its name in tables and figures.
      batch: the global batch by the base values and the number of devices.
      factor: of the learning rate, by k.
      warmup: whether the learning rate begins at η and goes to its peak in `optim.scaling_warmup_epochs`.
      adam: Adam's constants by the base values and k.
      tuned: the factor by the base values and k; it replaces `factor`.
    """

    label: str
    batch: Callable[[OptimConfig, int], int]
    factor: Callable[[float], float] = unscaled
    warmup: bool = False
    adam: Callable[[OptimConfig, float], Adam] = as_configured
    tuned: Callable[[OptimConfig, float], float] | None = None

    def grows(self, optim: OptimConfig) -> bool:
        """Returns whether the batch follows the number of devices."""
        return len({self.batch(optim, devices) for devices in (1, 2, 32)}) > 1

    def learning_rate(self, optim: OptimConfig, k: float) -> LearningRateSpec:
        """Returns the learning rate for a batch of k times the base batch."""
        eta = optim.learning_rate
        peak = eta * (self.tuned(optim, k) if self.tuned else self.factor(k))
        warmup = optim.scaling_warmup_epochs if self.warmup and peak != eta else 0
        first = eta if warmup else peak
        return LearningRateSpec(
            first, peak, warmup, optim.decay_epochs, optim.decay_factor, optim.warmup_epochs, optim.cosine_epochs or 0
        )


STRATEGIES: dict[str, ScalingStrategy] = {
    "strong": ScalingStrategy("Strong scaling", fixed_batch),
    "weak": ScalingStrategy("Weak scaling", batch_a_device),
    "linear": ScalingStrategy("Linear rule", batch_a_device, linearly),
    "linear-warmup": ScalingStrategy("Linear rule + warmup", batch_a_device, linearly, warmup=True),
    "sqrt": ScalingStrategy("Square-root rule", batch_a_device, math.sqrt),
    "sqrt-warmup": ScalingStrategy("Square-root rule + warmup", batch_a_device, math.sqrt, warmup=True),
    "best-batch": ScalingStrategy("Best batch", planned_batch),
    "tuned": ScalingStrategy("Tuned rate", batch_a_device, tuned=tuned_factor),
}


class OptimizationSetup(NamedTuple):
    """A strategy's decisions. Runs of equal setups and equal seeds are one optimisation.

    Attributes:
      global_batch: at most the training samples.
      learning_rate: for this batch.
      adam: its constants for this batch.
    """

    global_batch: int
    learning_rate: LearningRateSpec
    adam: Adam


class ResolvedStrategy(NamedTuple):
    """A strategy for a number of devices and of training samples.

    Attributes:
      wanted_batch: the global batch that the strategy asks for.
      optimization: for the batch that is taken.
    """

    wanted_batch: int
    optimization: OptimizationSetup

    @property
    def global_batch(self) -> int:
        """The global batch, at most the training samples."""
        return self.optimization.global_batch

    @property
    def learning_rate(self) -> LearningRateSpec:
        """The learning rate for the global batch."""
        return self.optimization.learning_rate

    def batch_text(self) -> str:
        """Returns the batch in words.

        >>> resolve("weak", OptimConfig(), 32, 574).batch_text()
        '574 (capped from 1024)'
        """
        capped = f" (capped from {self.wanted_batch})" if self.global_batch < self.wanted_batch else ""
        return f"{self.global_batch}{capped}"


def learning_rate_text(rates: LearningRateSpec, base_rate: float) -> str:
    """Returns a learning rate in words, with its factor on the base rate η.

    >>> learning_rate_text(LearningRateSpec(0.001, 0.004, 5, (30, 60), 0.1), 0.001)
    '0.001 → 0.004 = 4 η in 5 epochs, × 0.1 after epochs 30, 60'
    """
    factor = f" = {rates.peak / base_rate:.4g} η" if rates.peak != base_rate else ""
    text = f"{rates.peak:g}{factor}"
    if rates.scaling_warmup_epochs:
        text = f"{rates.first:g} → {text} in {rates.scaling_warmup_epochs} epochs"
    if rates.decay_epochs:
        text += f", × {rates.decay_factor:g} after epochs {', '.join(map(str, rates.decay_epochs))}"
    if rates.warmup_epochs:
        text += f", from 0 in {rates.warmup_epochs} epochs"
    if rates.cosine_epochs:
        text += f", × {COSINE_END:g} along a cosine of {rates.cosine_epochs} epochs"
    return text


def strategy(name: str) -> ScalingStrategy:
    """Returns the strategy of that name.

    Raises:
      InputError: there is none; the valid names are listed.
    """
    if name not in STRATEGIES:
        raise InputError(f"scaling must be one of {', '.join(STRATEGIES)}; got {name!r}")
    return STRATEGIES[name]


def resolve(name: str, optim: OptimConfig, devices: int, samples: int) -> ResolvedStrategy:
    """Returns the batch, the learning rate and Adam's constants of a strategy.

    Args:
      name: a key of `STRATEGIES`.
      optim: the base values.
      devices: that the strategy counts with.
      samples: in the training set.

    Raises:
      InputError: an unknown strategy.

    >>> linear = resolve("linear", OptimConfig(learning_rate=0.001, batch_size=32), 32, 574)
    >>> linear.wanted_batch, linear.global_batch
    (1024, 574)
    >>> round(linear.learning_rate.peak, 9)  # 574 / 32 = 17.9375
    0.0179375
    """
    chosen = strategy(name)
    wanted = chosen.batch(optim, devices)
    batch = min(wanted, samples)
    k = batch / optim.batch_size
    return ResolvedStrategy(wanted, OptimizationSetup(batch, chosen.learning_rate(optim, k), chosen.adam(optim, k)))


def require_known(config: Config) -> Config:
    """Returns the configuration, whose strategy is one of `STRATEGIES`.

    Raises:
      InputError: its strategy is unknown.
    """
    strategy(config.scaling)
    return config


def devices_may_change(config: Config) -> bool:
    """Returns whether a run computes the same on another number of devices.

    It does where neither its batch nor its learning rate follows the devices.
    """
    return config.parallel.simulate_devices is not None or not strategy(config.scaling).grows(config.optim)
