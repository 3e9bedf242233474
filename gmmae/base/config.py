"""The configuration: frozen dataclasses, every field declared once with its meaning and unit.

The comment behind a field is its help text on the command line. Values are checked where they are declared, in
`__post_init__`; rules between sections are checked in `Config`. Reading files and command lines is `gmmae.commands.arguments`.
"""

import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from gmmae.base.errors import InputError

Arm = Literal["strong", "weak", "linear", "linear-warmup", "sqrt", "sqrt-warmup"]
Loss = Literal["msle", "mse", "mae"]
Covariance = Literal["partial", "paper"]
Rho = Literal["sigmoid", "tanh"]
Padding = Literal["VALID", "SAME"]
Precision = Literal["float32", "tf32", "float64"]
Reduction = Literal["pmean", "exact"]
Activation = Literal["relu", "leaky_relu", "elu", "gelu", "silu", "tanh"]


class ConfigError(InputError):
    """A configuration value that breaks its rule; the message names the key, the rule and the value."""


def require(holds: bool, key: str, rule: str, value: object) -> None:
    """Raises ConfigError unless the rule holds."""
    if not holds:
        raise ConfigError(f"{key} must be {rule}; got {value!r}")


def _require_choice(key: str, value: object, literal: Any) -> None:
    choices = get_args(literal)
    require(value in choices, key, "one of " + ", ".join(map(str, choices)), value)


def _finite(*values: float) -> bool:
    return all(math.isfinite(value) for value in values)


EDGE = re.compile(r"(?P<number>\d+\.?\d*|\.\d+)(?P<unit>x|mm)|whole")
"""What `data.edge` may say: a multiple of the diameter, millimetres, or the whole volume."""


@dataclass(frozen=True)
class DataConfig:
    source: Literal["synthetic", "luna16", "cubes"] = "synthetic"  # where the nodules come from
    root: str = ""  # luna16, cubes: the folder of the scans or volumes; cubes: or one .npz file
    csv: str = ""  # luna16, cubes: the CSV file, looked for in root; empty: annotations.csv (luna16), nodules.csv (cubes)
    ndim: Literal[1, 2, 3] = 3  # axes of a volume: 3, or its central slice (2) or central line (1)
    size: int = 16  # samples along each axis
    samples: int = 768  # synthetic: volumes made, training and validation together
    validation: int | float = 0.25  # validation volumes: a fraction between 0 and 1, or a count
    hu_window: tuple[float, float] = (-1000.0, 400.0)  # HU mapped to 0 and to 1; beyond is clipped
    seed: int = 0  # of the synthetic volumes and of the split into training and validation
    edge: str = "1.25x"  # luna16, cubes: a cube's edge: "1.25x" the diameter, "20mm", or "whole" (the volume's longest edge)
    fill: Literal["air", "replicate"] = "air"  # luna16, cubes: what lies outside the scan: -1000 HU, or its outermost voxels
    category_column: str = "category"  # luna16, cubes: the CSV's column of nodule categories, where there is one
    group_column: str = ""  # luna16, cubes: the column no split divides; empty: patient or group, otherwise the scan
    on_error: Literal["skip", "refuse"] = "skip"  # luna16, cubes: on a broken scan or row: leave it out and report it, or stop
    workers: int = 0  # luna16, cubes: processes that read scans; 0 takes one a core
    scan_time_limit_s: float = 300.0  # luna16, cubes: longest time to read a volume, then its process is killed; 0: no limit
    cache: str = ""  # luna16, cubes: folder of extracted cubes; empty: gmmae in the user's cache folder
    augment: bool = False  # training volumes are flipped and turned by 90 degrees at random

    def __post_init__(self) -> None:
        _require_choice("data.source", self.source, DataConfig.__annotations__["source"])
        _require_choice("data.fill", self.fill, DataConfig.__annotations__["fill"])
        _require_choice("data.on_error", self.on_error, DataConfig.__annotations__["on_error"])
        edge = EDGE.fullmatch(self.edge)
        sound_edge = edge is not None and (edge["number"] is None or float(edge["number"]) > 0)
        require(sound_edge, "data.edge", "a positive number followed by x or mm (1.25x, 20mm), or whole", self.edge)
        require(self.workers >= 0, "data.workers", "at least 0", self.workers)
        limit_s = self.scan_time_limit_s
        require(_finite(limit_s) and limit_s >= 0, "data.scan_time_limit_s", "at least 0", limit_s)
        require(self.ndim in (1, 2, 3), "data.ndim", "1, 2 or 3", self.ndim)
        require(self.size >= 4, "data.size", "at least 4", self.size)
        require(self.samples >= 2, "data.samples", "at least 2", self.samples)
        require(self.seed >= 0, "data.seed", "at least 0", self.seed)
        fraction = isinstance(self.validation, float)
        require(
            0 < self.validation < 1 if fraction else self.validation >= 1,
            "data.validation",
            "a count of at least 1 or a fraction between 0 and 1",
            self.validation,
        )
        low, high = self.hu_window
        require(_finite(low, high) and low < high, "data.hu_window", "two increasing HU values", self.hu_window)


@dataclass(frozen=True)
class ModelConfig:
    filters: tuple[int, ...] = (32, 32, 32)  # filters of each convolution
    kernels: tuple[int, ...] = (7, 5, 3)  # kernel edge of each convolution, in voxels
    padding: Padding = "VALID"  # padding of the convolutions
    activation: Activation = "relu"  # after each convolution and the latent layer
    latent_dim: int = 128  # length of the latent vector
    components: int = 50  # normal distributions in the mixture (K)
    covariance: Covariance = "partial"  # partial: always positive definite; paper: Eq. 6 to the letter, may give NaN
    rho: Rho = "sigmoid"  # range of the correlations: sigmoid (0, 1), tanh (-1, 1)
    sigma_floor: float = 0.5  # smallest standard deviation, in voxels
    rho_limit: float = 0.99  # largest absolute correlation

    def __post_init__(self) -> None:
        require(bool(self.filters) and min(self.filters) >= 1, "model.filters", "one or more positive numbers", self.filters)
        require(
            len(self.kernels) == len(self.filters) and min(self.kernels) >= 1,
            "model.kernels",
            f"{len(self.filters)} positive numbers, one for each of model.filters",
            self.kernels,
        )
        _require_choice("model.padding", self.padding, Padding)
        _require_choice("model.activation", self.activation, Activation)
        _require_choice("model.covariance", self.covariance, Covariance)
        _require_choice("model.rho", self.rho, Rho)
        require(self.latent_dim >= 1, "model.latent_dim", "at least 1", self.latent_dim)
        require(self.components >= 1, "model.components", "at least 1", self.components)
        require(_finite(self.sigma_floor) and self.sigma_floor >= 0, "model.sigma_floor", "at least 0", self.sigma_floor)
        require(0 < self.rho_limit <= 1, "model.rho_limit", "above 0 and at most 1", self.rho_limit)


@dataclass(frozen=True)
class OptimConfig:
    learning_rate: float = 0.00105  # η of Adam for the base batch; the arm scales it
    base_batch: int = 32  # global batch of one device; the arm scales it
    warmup_epochs: int = 5  # length of the warmup in the -warmup arms, in epochs
    decay_epochs: tuple[int, ...] = ()  # epochs after which the learning rate is multiplied by decay_factor
    decay_factor: float = 0.1  # of the step decay
    beta1: float = 0.9  # Adam's β1
    beta2: float = 0.999  # Adam's β2
    epsilon: float = 1e-8  # Adam's ε
    clip_norm: float = 0.0  # clip the gradient to this global norm; 0 does not clip

    def __post_init__(self) -> None:
        require(_finite(self.learning_rate) and self.learning_rate > 0, "optim.learning_rate", "positive", self.learning_rate)
        require(self.base_batch >= 1, "optim.base_batch", "at least 1", self.base_batch)
        require(self.warmup_epochs >= 0, "optim.warmup_epochs", "at least 0", self.warmup_epochs)
        increasing = list(self.decay_epochs) == sorted(set(self.decay_epochs)) and all(e >= 1 for e in self.decay_epochs)
        require(increasing, "optim.decay_epochs", "increasing epochs from 1", self.decay_epochs)
        require(_finite(self.decay_factor) and self.decay_factor > 0, "optim.decay_factor", "positive", self.decay_factor)
        require(0 <= self.beta1 < 1, "optim.beta1", "at least 0 and below 1", self.beta1)
        require(0 <= self.beta2 < 1, "optim.beta2", "at least 0 and below 1", self.beta2)
        require(_finite(self.epsilon) and self.epsilon > 0, "optim.epsilon", "positive", self.epsilon)
        require(_finite(self.clip_norm) and self.clip_norm >= 0, "optim.clip_norm", "at least 0", self.clip_norm)


@dataclass(frozen=True)
class StopConfig:
    target_loss: float = 0.0016384  # stop when the validation loss is at or below this; 0 never stops
    max_epochs: int = 400  # stop after this many epochs
    time_limit_s: float = 0.0  # stop at the first epoch that ends after this many seconds of total_s; 0 never stops
    collapse_epochs: int = 0  # stop when the validation loss has not changed at all for this many epochs; 0 never stops
    patience_epochs: int = 0  # stop when the best validation loss has not improved in this many epochs; 0 never stops
    patience_gain: float = 0.01  # the smallest improvement that counts there, as a share of the loss

    def __post_init__(self) -> None:
        require(_finite(self.target_loss) and self.target_loss >= 0, "stop.target_loss", "at least 0", self.target_loss)
        require(self.max_epochs >= 1, "stop.max_epochs", "at least 1", self.max_epochs)
        require(_finite(self.time_limit_s) and self.time_limit_s >= 0, "stop.time_limit_s", "at least 0", self.time_limit_s)
        require(self.collapse_epochs >= 0, "stop.collapse_epochs", "at least 0", self.collapse_epochs)
        require(self.patience_epochs >= 0, "stop.patience_epochs", "at least 0", self.patience_epochs)
        require(0 <= self.patience_gain < 1, "stop.patience_gain", "at least 0 and below 1", self.patience_gain)


@dataclass(frozen=True)
class ParallelConfig:
    devices: int = 0  # devices to train on; 0: all of all processes, or, with virtual in one process, one GPU or all of a CPU
    virtual: int = 0  # devices that the arm reckons with though fewer compute their batch; 0: the devices themselves
    micro_batch: int = 0  # most samples whose gradient a device computes at once, to bound memory; 0: its whole share
    reduction: Reduction = "pmean"  # pmean: sums in any order; exact: the same bits on any number of devices
    shards: int = 32  # exact: fixed parts of a batch that the devices share; the most devices, a power of two
    epochs_per_dispatch: int = 1  # most epochs in one program, where the host has nothing to do in between; for GPUs

    def __post_init__(self) -> None:
        require(self.devices >= 0, "parallel.devices", "at least 0", self.devices)
        require(self.virtual >= 0, "parallel.virtual", "at least 0", self.virtual)
        require(self.micro_batch >= 0, "parallel.micro_batch", "at least 0", self.micro_batch)
        _require_choice("parallel.reduction", self.reduction, Reduction)
        require(self.epochs_per_dispatch >= 1, "parallel.epochs_per_dispatch", "at least 1", self.epochs_per_dispatch)
        require(self.shards.bit_count() == 1 and self.shards > 0, "parallel.shards", "a power of two", self.shards)

    @property
    def exact(self) -> bool:
        return self.reduction == "exact"


@dataclass(frozen=True)
class DistributedConfig:
    """Which processes train together. Nothing here enters a run's identity; most of it differs between its processes."""

    auto: bool = True  # join the other tasks where srun or mpirun started several; False: this process trains alone
    coordinator: str = ""  # by hand: host:port that process 0 listens on and all others reach; empty: as srun and mpirun say
    num_processes: int = 0  # by hand: processes that train together; 0: as srun and mpirun say
    process_id: int = -1  # by hand: of this process, from 0; -1: as srun and mpirun say
    local_devices: tuple[int, ...] = ()  # GPUs of this process by number; empty: all, or shared out among a host's processes
    start_timeout_s: float = 300.0  # longest wait for the other processes at the start
    heartbeat_timeout_s: float = 30.0  # a process that has not been heard of for so long is lost, and all others end

    def __post_init__(self) -> None:
        host, _, port = self.coordinator.rpartition(":")
        sound = bool(host) and port.isascii() and port.isdigit() and 0 < int(port) < 2**16
        require(not self.coordinator or sound, "distributed.coordinator", "host:port", self.coordinator)
        require(self.num_processes >= 0, "distributed.num_processes", "at least 0", self.num_processes)
        require(self.process_id >= -1, "distributed.process_id", "at least -1", self.process_id)
        require(all(i >= 0 for i in self.local_devices), "distributed.local_devices", "numbers from 0", self.local_devices)
        for key in ("start_timeout_s", "heartbeat_timeout_s"):
            value = getattr(self, key)
            require(_finite(value) and value >= 1, f"distributed.{key}", "at least 1", value)


@dataclass(frozen=True)
class CheckpointConfig:
    every_epochs: int = 10  # epochs between checkpoints; one is always written when the run ends
    keep: int = 2  # newest checkpoints kept

    def __post_init__(self) -> None:
        require(self.every_epochs >= 1, "checkpoint.every_epochs", "at least 1", self.every_epochs)
        require(self.keep >= 1, "checkpoint.keep", "at least 1", self.keep)


@dataclass(frozen=True)
class LogConfig:
    tensorboard: bool = True  # write TensorBoard events under tb/
    detail_epochs: int = 10  # epochs between TensorBoard's histograms and images
    figure_epochs: tuple[int, ...] = (0, 4, 32, 256, 1024, 8192)  # epochs drawn in reconstructions.png, besides the last
    figure_nodules: int = 4  # validation nodules shown in figures and images

    def __post_init__(self) -> None:
        require(self.detail_epochs >= 1, "log.detail_epochs", "at least 1", self.detail_epochs)
        require(all(e >= 0 for e in self.figure_epochs), "log.figure_epochs", "epochs of at least 0", self.figure_epochs)
        require(self.figure_nodules >= 1, "log.figure_nodules", "at least 1", self.figure_nodules)


@dataclass(frozen=True)
class Config:
    arm: Arm = "strong"  # scaling strategy: how global batch and learning rate follow the number of devices
    seed: int = 0  # of the initial parameters and of the order of the samples
    loss: Loss = "msle"  # what the density is compared by
    precision: Precision = "float32"  # of all numbers; tf32 for products of convolutions and dense layers; float64 for checks
    workload: Literal["nodules"] = "nodules"  # model, data and loss, by name
    compilation_cache: str = "on"  # keep compiled programs for later starts: on (in the user's cache folder), off, or a folder
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    stop: StopConfig = field(default_factory=StopConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    distributed: DistributedConfig = field(default_factory=DistributedConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    log: LogConfig = field(default_factory=LogConfig)

    @property
    def any_devices(self) -> bool:
        """Whether batch and learning rate are the same on any number of devices."""
        return self.arm == "strong" or self.parallel.virtual > 0

    @property
    def dtype(self) -> str:
        """Of parameters, data and sums."""
        return "float64" if self.precision == "float64" else "float32"

    def __post_init__(self) -> None:
        _require_choice("arm", self.arm, Arm)
        require(self.seed >= 0, "seed", "at least 0", self.seed)
        _require_choice("loss", self.loss, Loss)
        _require_choice("precision", self.precision, Precision)
        _require_choice("workload", self.workload, Config.__annotations__["workload"])
        place = self.compilation_cache
        require(place in ("on", "off") or "/" in place, "compilation_cache", "on, off, or a path with a / in it", place)
        left = self.data.size - sum(kernel - 1 for kernel in self.model.kernels)
        if self.model.padding == "VALID" and left < 1:
            raise ConfigError(
                f"model.kernels must leave at least 1 voxel of data.size = {self.data.size} under VALID padding; got "
                f"{self.model.kernels}, which leaves {left}: use smaller kernels or model.padding = SAME"
            )


RESUMABLE = (
    "compilation_cache",
    "stop.",
    "parallel.epochs_per_dispatch",
    "distributed.",
    "checkpoint.",
    "log.",
    "data.workers",
    "data.scan_time_limit_s",
    "data.cache",
    "data.on_error",
)
"""Keys, or prefixes of keys, that may differ when a run is resumed: they do not change what an epoch computes."""


def flatten(config: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """All `section.field` keys of a configuration with their values, in the order of declaration.

    >>> dict(flatten(Config()))["optim.base_batch"]
    32
    """
    for item in dataclasses.fields(config):
        value = getattr(config, item.name)
        if dataclasses.is_dataclass(value):
            yield from flatten(value, f"{prefix}{item.name}.")
        else:
            yield prefix + item.name, value


def flatten_table(table: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """As `flatten`, of a table read from TOML.

    >>> dict(flatten_table({"seed": 1, "data": {"size": 8}}))
    {'seed': 1, 'data.size': 8}
    """
    for key, value in table.items():
        if isinstance(value, dict):
            yield from flatten_table(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def determining(config: Config) -> dict[str, Any]:
    """The keys that determine what a run computes: all but `RESUMABLE`.

    `parallel.devices` is one of them where global batch and learning rate follow it: not in the arm `strong`, and not where
    `parallel.virtual` takes its place. Such a run may go on with another number of devices.
    """
    resumable = RESUMABLE
    if config.any_devices:
        resumable += ("parallel.devices",)
    return {key: value for key, value in flatten(config) if not key.startswith(resumable)}


def run_id(config: Config) -> str:
    """Twelve hexadecimal digits of a SHA-256 of what determines the run; equal for a run and its resumption."""
    return hashlib.sha256(json.dumps(determining(config)).encode()).hexdigest()[:12]


def to_toml(config: Any) -> str:
    """The whole configuration as TOML text; reading it back gives an equal configuration."""
    lines: list[str] = []
    section = ""
    for key, value in sorted(flatten(config), key=lambda item: "." in item[0]):
        head, _, name = key.rpartition(".")
        if head != section:
            lines += ["", f"[{head}]"]
            section = head
        lines.append(f"{name} = {json.dumps(value, ensure_ascii=False)}")
    return "\n".join(lines) + "\n"
