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
| sde, sde-warmup | n B | √k η, likewise; Adam's constants follow k too |
| growing | from B to n B in doublings | η |
| best-batch | the fastest on n devices by `gmmae plan` | η |

`growing` is the batch-size warmup of Merrill et al., arXiv:2505.23971. Its batch changes between epochs, and the number of
devices does not.

A global batch is never larger than the training set. Where it is capped at that, k is smaller than n, and the learning rate
follows the batch that is taken.

A strategy is one entry of `STRATEGIES`. The command line, sweeps, tables and figures read that table. A file given as
`--workload` may add its own entries.

The square-root strategies are not in the paper, and they scale the learning rate alone. The SDE rule (Malladi et al.,
arXiv:2205.10287) is that of Adam for equal stochastic differential equations. It also turns each β into 1 - k (1 - β) and ε
into ε / √k. It ends where a β is zero: at k = 10 with β1 = 0.9. Its batch grows no further.
"""

import math
from collections.abc import Callable, Hashable
from typing import NamedTuple

from gmmae.config.schema import Config, OptimConfig
from gmmae.scaling.growth import Stage, doublings, no_growth
from gmmae.system.errors import InputError

COSINE_END = 0.01
"""The factor of the learning rate after its decay along a cosine."""


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


class OptimizerConstants(NamedTuple):
    """An optimiser and its constants for a batch. The fields are those of `OptimConfig`.

    Constants that an optimiser does not have are 0, so equal optimisers are equal tuples.
    """

    name: str = "adam"
    beta1: float = 0.0
    beta2: float = 0.0
    epsilon: float = 0.0
    momentum: float = 0.0
    weight_decay: float = 0.0


WITH_BETAS = ("adam", "adamw", "lamb")
"""Optimisers with two moments."""

WITH_MOMENTUM = ("momentum", "nesterov", "lars")
"""Optimisers with a momentum."""


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


def unscaled(k: float) -> float:
    """Returns 1: the learning rate does not follow the batch."""
    return 1.0


def linearly(k: float) -> float:
    """Returns k: the learning rate is proportional to the batch."""
    return k


def constants(optim: OptimConfig, batch: float) -> OptimizerConstants:
    """Returns the optimiser's constants as configured, for every batch.

    >>> constants(OptimConfig(), 32)
    OptimizerConstants(name='adam', beta1=0.9, beta2=0.999, epsilon=1e-08, momentum=0.0, weight_decay=0.0)
    """
    found = OptimizerConstants(optim.name, weight_decay=optim.weight_decay_rate)
    if optim.name in WITH_BETAS:
        return found._replace(beta1=optim.beta1, beta2=optim.beta2, epsilon=optim.epsilon)
    if optim.name in WITH_MOMENTUM:
        return found._replace(momentum=optim.momentum)
    return found


def constants_by_sde(optim: OptimConfig, batch: float) -> OptimizerConstants:
    """Returns Adam's constants for a batch by the SDE rule.

    The decay of AdamW's weights by a step is learning rate × `weight_decay`. It is multiplied by √k, so that with the learning
    rate's √k the decay by a sample stays the same. The rule's source has no weight decay.

    Raises:
      InputError: another optimiser.

    >>> found = constants_by_sde(OptimConfig(batch_size=32), 128)
    >>> [round(number, 12) for number in found[1:4]]
    [0.6, 0.996, 5e-09]
    """
    if optim.name not in ("adam", "adamw"):
        rule = "linear" if optim.name in ("sgd", "momentum", "nesterov") else "sqrt"
        raise InputError(f"optim.name must be adam or adamw for the strategy sde; got {optim.name}: set --scaling {rule}")
    base, k = constants(optim, optim.batch_size), batch / optim.batch_size
    beta1, beta2 = (max(0.0, 1 - k * (1 - beta)) for beta in (base.beta1, base.beta2))
    decay = base.weight_decay * (math.sqrt(k) if optim.name == "adamw" else 1.0)
    return base._replace(beta1=beta1, beta2=beta2, epsilon=base.epsilon / math.sqrt(k), weight_decay=decay)


def constants_text(of: OptimizerConstants, clip_norm: float | None = None) -> str:
    """Returns an optimiser and its constants in words.

    >>> constants_text(constants(OptimConfig(), 32)), constants_text(constants_by_sde(OptimConfig(), 128))
    ('adam, β1 0.9, β2 0.999', 'adam, β1 0.6, β2 0.996')
    >>> constants_text(constants(OptimConfig(name="lars"), 32), clip_norm=1.0)
    'lars, momentum 0.9, gradients clipped to norm 1'
    """
    parts = [of.name]
    if of.name in WITH_BETAS:
        parts += [f"β1 {of.beta1:.4g}", f"β2 {of.beta2:.6g}"]
    if of.name in WITH_MOMENTUM:
        parts.append(f"momentum {of.momentum:.4g}")
    parts += [f"weight decay {of.weight_decay:.4g}"] if of.weight_decay else []
    parts += [f"gradients clipped to norm {clip_norm:g}"] if clip_norm is not None else []
    return ", ".join(parts)


def end_of_sde(optim: OptimConfig) -> int:
    """Returns the largest batch of the SDE rule, where the smaller β becomes zero.

    >>> end_of_sde(OptimConfig(batch_size=32, beta1=0.9))
    320
    """
    base = constants(optim, optim.batch_size)
    return math.floor(optim.batch_size / (1 - min(base.beta1, base.beta2)) + 1e-6)


def no_end(optim: OptimConfig) -> float:
    """Returns infinity: the strategy has a value for every batch."""
    return math.inf


class ScalingStrategy(NamedTuple):
    """One scaling strategy.

    Attributes:
      label: its name in tables and figures.
      batch: the global batch by the base values and the number of devices; the largest one where it grows.
      factor: of the learning rate, by k.
      warmup: whether the learning rate begins at η and goes to its peak in `optim.scaling_warmup_epochs`.
      optimizer: the optimiser's constants by the base values and the global batch.
      largest_batch: for which the strategy has a value; it asks for no larger one.
      growth: the stages after the first one, by the base values and the largest batch.
    """

    label: str
    batch: Callable[[OptimConfig, int], int]
    factor: Callable[[float], float] = unscaled
    warmup: bool = False
    optimizer: Callable[[OptimConfig, float], OptimizerConstants] = constants
    largest_batch: Callable[[OptimConfig], float] = no_end
    growth: Callable[[OptimConfig, int], list[Stage]] = no_growth

    def grows(self, optim: OptimConfig) -> bool:
        """Returns whether the batch follows the number of devices."""
        return len({self.batch(optim, devices) for devices in (1, 2, 32)}) > 1

    @property
    def grows_in_a_run(self) -> bool:
        """Whether the batch changes between the epochs of a run."""
        return self.growth is not no_growth

    def first_batch(self, optim: OptimConfig, devices: int) -> int:
        """Returns the global batch of the first epoch on a number of devices, for a large training set."""
        return optim.batch_size if self.grows_in_a_run else self.batch(optim, devices)

    def learning_rate(self, optim: OptimConfig, k: float) -> LearningRateSpec:
        """Returns the learning rate for a batch of k times the base batch."""
        eta = optim.learning_rate
        peak = eta * self.factor(k)
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
    "sde": ScalingStrategy("SDE rule", batch_a_device, math.sqrt, optimizer=constants_by_sde, largest_batch=end_of_sde),
    "sde-warmup": ScalingStrategy(
        "SDE rule + warmup", batch_a_device, math.sqrt, warmup=True, optimizer=constants_by_sde, largest_batch=end_of_sde
    ),
    "growing": ScalingStrategy("Growing batch", batch_a_device, growth=doublings),
    "best-batch": ScalingStrategy("Best batch", planned_batch),
}


class OptimizationSetup(NamedTuple):
    """A strategy's decisions. Runs of equal setups and equal seeds are one optimisation.

    Attributes:
      global_batch: at most the training samples.
      learning_rate: for this batch.
      optimizer: its constants for this batch.
    """

    global_batch: int
    learning_rate: LearningRateSpec
    optimizer: OptimizerConstants


class ResolvedStrategy(NamedTuple):
    """A strategy for a number of devices and of training samples.

    Attributes:
      wanted_batch: the largest global batch that the strategy asks for.
      stages: the decisions for each global batch of a run, in order. Most strategies have one.
      first_epochs: of the stages after the first one.
      rule_ends: whether the strategy has no value for a larger batch. Otherwise the training samples are the largest one.
    """

    wanted_batch: int
    stages: tuple[OptimizationSetup, ...]
    first_epochs: tuple[int, ...] = ()
    rule_ends: bool = False

    @property
    def optimization(self) -> OptimizationSetup:
        """The decisions for the first epoch."""
        return self.stages[0]

    @property
    def path(self) -> Hashable:
        """All that decides on the optimisation, besides the seed."""
        return self.stages, self.first_epochs

    @property
    def global_batch(self) -> int:
        """The global batch of the first epoch, at most the training samples."""
        return self.optimization.global_batch

    @property
    def largest_batch(self) -> int:
        """The global batch of the last stage."""
        return self.stages[-1].global_batch

    @property
    def learning_rate(self) -> LearningRateSpec:
        """The learning rate of the first stage."""
        return self.optimization.learning_rate

    def batch_text(self) -> str:
        """Returns the batch in words.

        >>> resolve("weak", OptimConfig(), 32, 574).batch_text()
        '574 (capped from 1024)'
        >>> resolve("growing", OptimConfig(batch_doubling_epochs=(5, 9)), 4, 574).batch_text()
        '32 → 64 → 128'
        >>> resolve("sde", OptimConfig(), 32, 574).batch_text()
        '320 (capped from 1024, where the rule ends)'
        """
        batches = " → ".join(str(stage.global_batch) for stage in self.stages)
        end = ", where the rule ends" * self.rule_ends
        capped = f" (capped from {self.wanted_batch}{end})" if self.largest_batch < self.wanted_batch else ""
        return f"{batches}{capped}"

    def growth_text(self) -> str:
        """Returns when the batch grows, in words; nothing where it does not.

        >>> resolve("growing", OptimConfig(batch_doubling_epochs=(5, 9)), 4, 574).growth_text()
        'after epochs 5, 9'
        """
        if len(self.stages) == 1:
            return ""
        return f"after epoch{'s' * (len(self.first_epochs) > 1)} {', '.join(str(epoch - 1) for epoch in self.first_epochs)}"


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
    """Returns the batch, the learning rate and the optimiser's constants of a strategy.

    Args:
      name: a key of `STRATEGIES`.
      optim: the base values.
      devices: that the strategy counts with.
      samples: in the training set.

    Raises:
      InputError: an unknown strategy, or one that is not for this optimiser.

    >>> linear = resolve("linear", OptimConfig(learning_rate=0.001, batch_size=32), 32, 574)
    >>> linear.wanted_batch, linear.global_batch
    (1024, 574)
    >>> round(linear.learning_rate.peak, 9)  # 574 / 32 = 17.9375
    0.0179375
    """
    chosen = strategy(name)
    wanted = chosen.batch(optim, devices)
    end = chosen.largest_batch(optim)
    largest = int(min(wanted, samples, end))
    growth = chosen.growth(optim, largest)
    batches = [min(optim.batch_size, samples), *(stage.batch for stage in growth)] if chosen.grows_in_a_run else [largest]
    stages = tuple(
        OptimizationSetup(batch, chosen.learning_rate(optim, batch / optim.batch_size), chosen.optimizer(optim, batch))
        for batch in batches
    )
    first_epochs = tuple(stage.first_epoch for stage in growth)
    return ResolvedStrategy(wanted, stages, first_epochs, rule_ends=end < min(wanted, samples))


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
