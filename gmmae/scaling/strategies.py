"""The scaling strategies: rules for the global batch and the learning rate by the number of devices.

There are n devices, base batch B, base learning rate η, and k = global batch / B. docs/strategies.md has the table and the
sources. A global batch is never larger than the training set: where it is capped, k is below n, and the learning rate follows
k. A file given as `--workload` may add its own entries to `STRATEGIES`.

The SDE rule (Malladi et al., arXiv:2205.10287) is that of Adam for equal stochastic differential equations. Beside √k η it
turns each β into 1 - k (1 - β) and ε into ε / √k, and ends where a β is zero, at k = 10 with β1 = 0.9.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from gmmae.config.schema import Config, OptimConfig
from gmmae.system.errors import InputError

COSINE_END = 0.01


class Stage(NamedTuple):
    """A part of a run with one batch. Runs of equal stages and equal seeds are one optimisation.

    `learning_rate` is that after the strategy's warmup, and `optim` has the optimiser's constants for this batch. With local
    steps there is a replica on each device, which takes steps of its own; otherwise one state is on all.
    """

    first_epoch: int
    batch: int
    learning_rate: float
    scaling_warmup_epochs: int
    optim: OptimConfig
    replicas: int = 1

    @property
    def local_steps(self) -> int:
        """The steps between two averages of the replicas; 0: the gradient is averaged at each step."""
        return self.optim.local_steps if self.replicas > 1 else 0


WITH_BETAS = ("adam", "adamw", "lamb")

WITH_MOMENTUM = ("momentum", "nesterov", "lars")


def base_batch(optim: OptimConfig, devices: int) -> int:
    """The base batch on any number of devices."""
    return optim.batch_size


def batch_a_device(optim: OptimConfig, devices: int) -> int:
    """The base batch times the number of devices."""
    return optim.batch_size * devices


def planned_batch(optim: OptimConfig, devices: int) -> int:
    """The batch that a plan has found for this number of devices, by its square root between powers of two.

    `gmmae.planner.prediction` says why.
    """
    listed = optim.best_batches
    if not listed:
        raise InputError("optim.best_batches must be given for the strategy best-batch; got none: take those of `gmmae plan`")
    place = min(devices.bit_length(), len(listed)) - 1
    return round(listed[place] * math.sqrt(devices / 2**place))


def as_configured(optim: OptimConfig, k: float) -> OptimConfig:
    """The optimiser's constants, which do not follow the batch."""
    return optim


def by_sde(optim: OptimConfig, k: float) -> OptimConfig:
    """Adam's constants for k times the base batch by the SDE rule.

    AdamW decays weights by learning rate × `weight_decay` a step. √k on both keeps the decay by a sample; the rule's
    source has none.

    >>> found = by_sde(OptimConfig(), 4)
    >>> round(found.beta1, 12), round(found.beta2, 12), found.epsilon
    (0.6, 0.996, 5e-09)
    >>> by_sde(OptimConfig(name="adamw", weight_decay=0.01), 4).weight_decay
    0.02
    """
    if optim.name not in ("adam", "adamw"):
        rule = "linear" if optim.name in ("sgd", "momentum", "nesterov") else "sqrt"
        raise InputError(f"optim.name must be adam or adamw for the strategy sde; got {optim.name}: set --scaling {rule}")
    if k == 1:
        return optim  # one device's run is that of every other strategy
    beta1, beta2 = (max(0.0, 1 - k * (1 - beta)) for beta in (optim.beta1, optim.beta2))
    decay = optim.weight_decay_rate * (math.sqrt(k) if optim.name == "adamw" else 1.0)
    return replace(optim, beta1=beta1, beta2=beta2, epsilon=optim.epsilon / math.sqrt(k), weight_decay=decay)


def optimizer_text(optim: OptimConfig) -> str:
    """An optimiser and its constants in words.

    >>> optimizer_text(OptimConfig()), optimizer_text(by_sde(OptimConfig(), 4))
    ('adam, β1 0.9, β2 0.999', 'adam, β1 0.6, β2 0.996')
    >>> optimizer_text(OptimConfig(name="lars", clip_norm=1.0))
    'lars, momentum 0.9, gradients clipped to norm 1'
    """
    parts = [optim.name]
    if optim.name in WITH_BETAS:
        parts += [f"β1 {optim.beta1:.4g}", f"β2 {optim.beta2:.6g}"]
    if optim.name in WITH_MOMENTUM:
        parts.append(f"momentum {optim.momentum:.4g}")
    parts += [f"weight decay {optim.weight_decay_rate:.4g}"] if optim.weight_decay_rate else []
    parts += [f"gradients clipped to norm {optim.clip_norm:g}"] if optim.clip_norm is not None else []
    return ", ".join(parts)


def end_of_sde(optim: OptimConfig) -> int:
    """The largest batch of the SDE rule, where the smaller β becomes zero.

    >>> end_of_sde(OptimConfig(batch_size=32, beta1=0.9))
    320
    """
    return math.floor(optim.batch_size / (1 - min(optim.beta1, optim.beta2)) + 1e-6)


def doubling_epochs(optim: OptimConfig) -> tuple[int, ...]:
    """After which the batch doubles."""
    if not optim.batch_doubling_epochs:
        raise InputError(
            "optim.batch_doubling_epochs must be given for the strategy growing; got none: give epochs, as "
            "--optim.batch-doubling-epochs 5 10 20"
        )
    return optim.batch_doubling_epochs


class ScalingStrategy(NamedTuple):
    """One scaling strategy.

    `batch` gives the largest one where it grows. `factor` is that of the learning rate by k, and with `local` by n. With
    `warmup` the rate goes from η to its peak in `optim.scaling_warmup_epochs`. `optimizer` gives the base values with the
    constants for k times the base batch. No batch is larger than `largest_batch`. `doubles_after` gives the epochs after which
    the batch doubles; None: it stays. With `local` each device takes `optim.local_steps` steps on its share, and then the
    devices average.
    """

    label: str
    batch: Callable[[OptimConfig, int], int]
    factor: Callable[[float], float] = lambda k: 1.0
    warmup: bool = False
    optimizer: Callable[[OptimConfig, float], OptimConfig] = as_configured
    largest_batch: Callable[[OptimConfig], float] = lambda optim: math.inf
    doubles_after: Callable[[OptimConfig], tuple[int, ...]] | None = None
    local: bool = False

    def stage(self, optim: OptimConfig, batch: int, first_epoch: int = 1, devices: int = 1) -> Stage:
        """The part of a run with a global batch."""
        k = batch / optim.batch_size
        rate = optim.learning_rate * self.factor(devices if self.local else k)
        warmup_epochs = optim.scaling_warmup_epochs if self.warmup and rate != optim.learning_rate else 0
        return Stage(first_epoch, batch, rate, warmup_epochs, self.optimizer(optim, k), devices if self.local else 1)


STRATEGIES: dict[str, ScalingStrategy] = {
    "strong": ScalingStrategy("Strong scaling", base_batch),
    "weak": ScalingStrategy("Weak scaling", batch_a_device),
    "linear": ScalingStrategy("Linear rule", batch_a_device, lambda k: k),
    "linear-warmup": ScalingStrategy("Linear rule + warmup", batch_a_device, lambda k: k, warmup=True),
    "sqrt": ScalingStrategy("Square-root rule", batch_a_device, math.sqrt),
    "sqrt-warmup": ScalingStrategy("Square-root rule + warmup", batch_a_device, math.sqrt, warmup=True),
    "sde": ScalingStrategy("SDE rule", batch_a_device, math.sqrt, optimizer=by_sde, largest_batch=end_of_sde),
    "sde-warmup": ScalingStrategy(
        "SDE rule + warmup", batch_a_device, math.sqrt, warmup=True, optimizer=by_sde, largest_batch=end_of_sde
    ),
    "growing": ScalingStrategy("Growing batch", batch_a_device, doubles_after=doubling_epochs),
    "local": ScalingStrategy("Local steps", base_batch, local=True),
    "local-sqrt": ScalingStrategy("Local steps, √n η", base_batch, math.sqrt, local=True),
    "local-weak": ScalingStrategy("Local steps, weak", batch_a_device, local=True),
    "best-batch": ScalingStrategy("Best batch", planned_batch),
}


class Resolved(NamedTuple):
    """A strategy for a number of devices and of training samples.

    The strategy asks for `wanted_batch`. Where the last of the `stages` has less, its rule ends there if `rule_ends`; otherwise
    there are no more training samples.
    """

    wanted_batch: int
    stages: tuple[Stage, ...]
    rule_ends: bool = False

    def batch_text(self) -> str:
        """The batch in words.

        >>> resolve("weak", OptimConfig(), 32, 574).batch_text()
        '574 (capped from 1024)'
        >>> resolve("growing", OptimConfig(batch_doubling_epochs=(5, 9)), 4, 574).batch_text()
        '32 → 64 → 128'
        >>> resolve("sde", OptimConfig(), 32, 574).batch_text()
        '320 (capped from 1024, where the rule ends)'
        """
        batches = " → ".join(str(stage.batch) for stage in self.stages)
        end = ", where the rule ends" * self.rule_ends
        capped = f" (capped from {self.wanted_batch}{end})" if self.stages[-1].batch < self.wanted_batch else ""
        return f"{batches}{capped}"


def learning_rate_text(stage: Stage) -> str:
    """With the factor on the base rate η.

    >>> optim = OptimConfig(learning_rate=0.001, decay_epochs=(30, 60))
    >>> learning_rate_text(STRATEGIES["linear-warmup"].stage(optim, 128))
    '0.001 → 0.004 = 4 η in 5 epochs, × 0.1 after epochs 30, 60'
    """
    optim, rate = stage.optim, stage.learning_rate
    text = f"{rate:g}" + (f" = {rate / optim.learning_rate:.4g} η" if rate != optim.learning_rate else "")
    if stage.scaling_warmup_epochs:
        text = f"{optim.learning_rate:g} → {text} in {stage.scaling_warmup_epochs} epochs"
    if optim.decay_epochs:
        text += f", × {optim.decay_factor:g} after epochs {', '.join(map(str, optim.decay_epochs))}"
    if optim.warmup_epochs:
        text += f", from 0 in {optim.warmup_epochs} epochs"
    if optim.cosine_epochs:
        text += f", × {COSINE_END:g} along a cosine of {optim.cosine_epochs} epochs"
    return text


def strategy(name: str) -> ScalingStrategy:
    """The strategy of that name; raises InputError."""
    if name not in STRATEGIES:
        raise InputError(f"scaling must be one of {', '.join(STRATEGIES)}; got {name!r}")
    return STRATEGIES[name]


def resolve(name: str, optim: OptimConfig, devices: int, samples: int) -> Resolved:
    """Batch, learning rate and constants of a strategy.

    Raises:
      InputError: it is unknown, or not for this optimiser.

    >>> growing = resolve("growing", OptimConfig(batch_size=32, batch_doubling_epochs=(5, 10, 20)), 3, 574)
    >>> [stage[:2] for stage in growing.stages]
    [(1, 32), (6, 64), (11, 96)]
    """
    chosen = strategy(name)
    wanted = chosen.batch(optim, devices)
    end = chosen.largest_batch(optim)
    largest = int(min(wanted, samples, end))
    first = min(optim.batch_size, samples) if chosen.doubles_after else largest
    stages = [chosen.stage(optim, first, devices=devices)]
    for epoch in sorted(chosen.doubles_after(optim)) if chosen.doubles_after else ():
        if stages[-1].batch < largest:
            stages.append(chosen.stage(optim, min(2 * stages[-1].batch, largest), epoch + 1, devices))
    constants = [optim, *(stage.optim for stage in stages)]
    if len({(each.name, each.learning_rate, each.weight_decay_rate > 0, each.clip_norm is None) for each in constants}) > 1:
        raise InputError(
            f"the strategy {name!r} must keep optim.name and optim.learning_rate, and decay and clip where the run does; "
            f"got {optimizer_text(constants[-1])} for {optimizer_text(optim)}: set these in the configuration"
        )
    return Resolved(wanted, tuple(stages), rule_ends=end < min(wanted, samples))


def require_known(config: Config) -> Config:
    """Refuses an unknown strategy."""
    strategy(config.scaling)
    return config


def devices_may_change(config: Config) -> bool:
    """Whether neither batch, learning rate nor replicas follow the devices, so that any number computes the same."""
    chosen = strategy(config.scaling)
    return config.parallel.simulate_devices is not None or (
        len({chosen.batch(config.optim, devices) for devices in (1, 2, 32)}) == 1 and not chosen.local
    )
