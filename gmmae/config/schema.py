"""The configuration: frozen dataclasses, every field declared once with its meaning and unit.

The comment behind a field is its help text on the command line. Data and model are the workload's dataclass, `Config.settings`,
whose fields and sections stand beside those of `Config` in files and on the command line.
"""

import dataclasses
import json
import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Any, Literal

from gmmae.config.rules import (
    FINGERPRINTED,
    INLINE,
    MAY_CHANGE_ON_RESUME,
    PATH,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Rule,
    Section,
    Seed,
    Share,
    Text,
    at_least,
    checked_value,
    fields_of,
    marked,
    require,
)

Optimizer = Literal["adam", "sgd", "momentum", "nesterov", "adamw", "lamb", "lars"]
Precision = Literal["float32", "tf32", "float64"]
Mode = Literal["min", "max"]

LOSS = "loss"


Place = Annotated[Text | None, FINGERPRINTED, PATH]

Epochs = Annotated[tuple[PositiveInt, ...], Rule("increasing", lambda epochs: list(epochs) == sorted(set(epochs)))]
Numbers = tuple[NonNegativeInt, ...]
PowerOfTwo = Annotated[int, Rule("a power of two", lambda number: number > 0 and number.bit_count() == 1)]
Cache = Annotated[str, Rule("on, off, or a path with a / in it", lambda place: place in ("on", "off") or "/" in place)]


def _is_address(text: str) -> bool:
    host, _, port = text.rpartition(":")
    return text == "auto" or (host != "" and port.isascii() and port.isdigit() and 0 < int(port) < 2**16)


Address = Annotated[str, Rule("auto or host:port", _is_address)]


@dataclass(frozen=True)
class OptimConfig(Section, name="optim"):
    """The optimiser and the learning rate."""

    name: Optimizer = "adam"  # optimiser; sgd is without momentum
    learning_rate: PositiveFloat = 0.00105  # η for the base batch, which the strategy scales; the default is for adam
    batch_size: PositiveInt = 32  # base batch: of one device in weak scaling, of all devices in strong scaling
    scaling_warmup_epochs: NonNegativeInt = 5  # length of the warmup in the -warmup strategies
    decay_epochs: Epochs = ()  # epochs after which the learning rate is multiplied by decay_factor
    decay_factor: PositiveFloat = 0.1  # of the step decay
    warmup_epochs: NonNegativeInt = 0  # epochs over which the learning rate rises to its value, in every strategy
    cosine_epochs: PositiveInt | None = None  # epochs over which the learning rate falls to 1 % along half a cosine
    beta1: Share = 0.9  # β1 of adam, adamw and lamb
    beta2: Share = 0.999  # β2 of the same
    epsilon: PositiveFloat = 1e-8  # ε of the same
    momentum: Share = 0.9  # of momentum, nesterov and lars
    weight_decay: NonNegativeFloat | Literal["auto"] = "auto"  # auto: 0.01 for adamw and lamb, 0 for the others
    clip_norm: PositiveFloat | None = None  # largest global norm of the gradient, to which it is clipped
    batch_doubling_epochs: Epochs = ()  # for growing: the batch doubles after these
    local_steps: PositiveInt = 16  # local strategies: a device's own steps between two averages; an epoch ends with one
    outer_momentum: Share = 0.0  # local strategies: Nesterov's momentum of the averages, as in DiLoCo; 0: none
    best_batches: tuple[PositiveInt, ...] = ()  # for best-batch: the batches on 1, 2, 4, 8, … devices, from `gmmae plan`

    @property
    def weight_decay_rate(self) -> float:
        """AdamW and lamb add it to the step, the others to the gradient."""
        if self.weight_decay != "auto":
            return self.weight_decay
        return 0.01 if self.name in ("adamw", "lamb") else 0.0


@dataclass(frozen=True)
class StopConfig(Section, name="stop"):
    """When a run ends."""

    target: float | None = None  # stop when the validation metric reaches this
    monitor: str = LOSS  # the metric of the target and of the best epoch: loss, or a validation metric of the workload
    mode: Mode | Literal["auto"] = "auto"  # whether lower (min) or higher (max) values are better; auto: lower, for the loss
    validate_every_steps: PositiveInt | None = None  # steps between validations inside an epoch; none: only at its end
    max_epochs: PositiveInt = 400  # stop after this many epochs
    time_limit_s: PositiveFloat | None = None  # stop at the first epoch that ends after this total_s
    collapse_epochs: PositiveInt | None = None  # stop when the validation loss stays exactly the same for these epochs
    patience_epochs: PositiveInt | None = None  # stop once the best of so many epochs hardly improves on the best before them
    min_relative_improvement: Share = 0.01  # smallest improvement that patience_epochs counts, as a share of the metric

    def __post_init__(self) -> None:
        super().__post_init__()
        rule = f"min or max for stop.monitor = {self.monitor}"
        require(self.mode != "auto" or self.monitor == LOSS, "stop.mode", rule, self.mode)

    @property
    def target_loss(self) -> float | None:
        """The target, if it is of the validation loss."""
        return self.target if self.monitor == LOSS else None

    @property
    def better(self) -> Mode:
        """The mode; min where it is open."""
        return "min" if self.mode == "auto" else self.mode

    def cost(self, value: float) -> float:
        """A value of the metric, to be made small."""
        return -value if self.mode == "max" else value


@dataclass(frozen=True)
class ParallelConfig(Section, name="parallel"):
    """The devices and how they share a batch."""

    devices: PositiveInt | Literal["all"] = "all"  # devices to train on; all: every one, but one GPU with simulate_devices
    simulate_devices: PositiveInt | None = None  # compute the batch of this many devices on fewer
    micro_batch_size: PositiveInt | None = None  # most samples of a device at once; none: all, or what a CPU has room for
    deterministic: bool = False  # the same bits on any number of devices, for more time and memory
    deterministic_shards: PowerOfTwo = 32  # with deterministic: fixed parts of a batch, a power of two; at most as many devices
    fast_convolutions: Annotated[bool, MAY_CHANGE_ON_RESUME] = True  # faster forms of a workload's convolutions, on a CPU
    fetch_threads: Annotated[PositiveInt, MAY_CHANGE_ON_RESUME] = 16  # threads of a process that read a workload's source
    prefetch_mb: Annotated[PositiveFloat, MAY_CHANGE_ON_RESUME] = 256.0  # most memory of a process for samples from a source


@dataclass(frozen=True)
class DistributedConfig(Section, name="distributed"):
    """The processes that train together. They do not enter a run's identity, and most keys differ between processes."""

    auto: bool = True  # join the other tasks where srun or mpirun started several; off: this process trains alone
    coordinator: Address = "auto"  # host:port that process 0 listens on and all others reach; auto: from srun or mpirun
    num_processes: PositiveInt | Literal["auto"] = "auto"  # processes that train together; auto: from srun or mpirun
    process_id: NonNegativeInt | Literal["auto"] = "auto"  # of this process, from 0; auto: from srun or mpirun
    local_devices: Numbers | Literal["auto"] = "auto"  # GPUs of this process; auto: all, or its part of the host's
    start_timeout_s: Annotated[float, at_least(1)] = 300.0  # longest wait for the other processes at the start
    heartbeat_timeout_s: Annotated[float, at_least(1)] = 30.0  # a process that is silent for longer is lost, and all others end
    stall_timeout_s: PositiveFloat | None = 600.0  # kill a process whose epoch takes longer, and 10 times the longest so far


@dataclass(frozen=True)
class CheckpointConfig(Section, name="checkpoint"):
    """When checkpoints are written."""

    every_epochs: PositiveInt = 10  # epochs between checkpoints
    min_interval_s: NonNegativeFloat | Literal["auto"] = "auto"  # minimum seconds between two; auto: 0, and 5 in a sweep
    at_end: bool = True  # write one when the run has ended by itself; a sweep does with keep_checkpoints only
    keep: PositiveInt = 2  # newest checkpoints kept


@dataclass(frozen=True)
class LogConfig(Section, name="log"):
    """What a run writes for TensorBoard and for its figures."""

    tensorboard: bool = True  # write TensorBoard's events
    every_epochs: PositiveInt = 10  # epochs between TensorBoard's histograms and images
    figure_epochs: Numbers = (0, 4, 32, 256, 1024, 8192)  # epochs that the workload draws, besides the last
    figure_samples: PositiveInt = 4  # validation samples shown in figures and images


@dataclass(frozen=True)
class Config(Section):
    """The configuration of one run."""

    scaling: str = "strong"  # how batch and learning rate follow the devices: strong, weak, linear, … (docs/strategies.md)
    seed: Seed = 0  # of the initial parameters and of the order of the samples
    precision: Precision = "float32"  # of all numbers; tf32 for products of convolutions and dense layers; float64 for checks
    workload: Text = "nodules"  # data, model, loss: nodules, segmentation, a file (path/to/mine.py) or a module (one.two)
    init_from: Place = None  # fine-tuning: work directory of a run whose best parameters are this one's first
    compilation_cache: Annotated[Cache, MAY_CHANGE_ON_RESUME, PATH] = "on"  # on (in the user's cache folder), off, or a folder
    settings: Annotated[Any, INLINE] = None  # of the workload: its own dataclass
    optim: OptimConfig = field(default_factory=OptimConfig)
    stop: Annotated[StopConfig, MAY_CHANGE_ON_RESUME] = field(default_factory=StopConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    distributed: Annotated[DistributedConfig, MAY_CHANGE_ON_RESUME] = field(default_factory=DistributedConfig)
    checkpoint: Annotated[CheckpointConfig, MAY_CHANGE_ON_RESUME] = field(default_factory=CheckpointConfig)
    log: Annotated[LogConfig, MAY_CHANGE_ON_RESUME] = field(default_factory=LogConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        settings = {}
        for key, item, value in leaves(self):  # a workload's settings may be no Section
            unknown = partial(require, False, key, "text, a number, true, false, or a list of them, as in TOML")
            text = json.dumps(fitted := checked_value(key, value, item.type), default=unknown)
            if isinstance(fitted, tuple | list | dict):
                try:
                    tomllib.loads(f"list = {text}")
                except ValueError:
                    unknown(value)
            if repr(fitted) != repr(value):  # such as 3 as the default of a float, which a file gives back as 3.0
                settings[key] = fitted
        if settings:
            object.__setattr__(self, "settings", replaced(self.settings, settings))

    @property
    def matmul_precision(self) -> str:
        """As `jax.default_matmul_precision` calls it."""
        return "tensorfloat32" if self.precision == "tf32" else "highest"

    @property
    def dtype(self) -> str:
        """The type of parameters, data and sums."""
        return "float64" if self.precision == "float64" else "float32"

    @property
    def int_bytes(self) -> int:
        """Of the longest integers."""
        return 8 if self.precision == "float64" else 4


def defaults(config: Config) -> Config:
    """The defaults with the same kind of settings."""
    return Config(settings=type(config.settings)())


def changed(config: Config, **changes: object) -> Config:
    """A configuration with other values. `__` stands for the point of a key, and settings are named as in files.

    >>> changed(Config(), scaling="weak", stop__max_epochs=5).stop.max_epochs
    5
    """
    return replaced(config, {key.replace("__", "."): value for key, value in changes.items()})


def replaced(section: Any, values: Mapping[str, Any]) -> Any:  # noqa: ANN401 any dataclass
    """Changes values by key, all at once, because a rule may concern several."""
    changes = dict(values)
    for item in fields_of(type(section)):
        value = getattr(section, item.name)
        if dataclasses.is_dataclass(value) and item.name not in changes:
            inline, names = marked(item, INLINE), {inner.name for inner in fields_of(type(value))}
            below = [key for key in changes if key.partition(".")[0] in (names if inline else (item.name,))]
            if part := {key if inline else key.partition(".")[2]: changes.pop(key) for key in below}:
                changes[item.name] = replaced(value, part)
    return replace(section, **changes)


def absolute(config: Config) -> Config:
    """Its paths do not depend on the current folder."""

    def full(path: Any) -> Any:  # noqa: ANN401
        return tuple(map(full, path)) if isinstance(path, tuple | list) else os.path.abspath(os.path.expanduser(path))

    paths = {key: value for key, item, value in leaves(config) if value and marked(item, PATH)}
    return replaced(config, {key: full(path) for key, path in paths.items() if path not in ("auto", "on", "off")})


def leaves(
    config: Any,  # noqa: ANN401 any dataclass
    prefix: str = "",
    *,
    resumable: bool = True,
) -> Iterator[tuple[str, dataclasses.Field[Any], Any]]:
    """As `flatten`, with the field that declares a key before its value."""
    for item in fields_of(type(config)):
        value, inline = getattr(config, item.name), marked(item, INLINE)
        if not resumable and (marked(item, MAY_CHANGE_ON_RESUME) or marked(item, FINGERPRINTED)):
            continue
        if dataclasses.is_dataclass(value):
            yield from leaves(value, prefix if inline else f"{prefix}{item.name}.", resumable=resumable)
        elif not inline:
            yield prefix + item.name, item, value


def flatten(config: Any, *, resumable: bool = True) -> Iterator[tuple[str, Any]]:  # noqa: ANN401 any dataclass
    """All `section.field` keys of a configuration with their values, in the order of declaration.

    Unless `resumable`, without those that may change on resume, or that a fingerprint stands for.
    """
    return ((key, value) for key, _, value in leaves(config, resumable=resumable))
