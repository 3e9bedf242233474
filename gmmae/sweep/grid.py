"""A sweep's grid: arms × device counts × seeds, the configuration of each cell, and which cells share one optimisation path."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, get_args

from gmmae.base import arms
from gmmae.base.config import Arm, Config, ConfigError, flatten, require

Mode = Literal["virtual", "measured", "throughput"]
Executor = Literal["processes", "local", "slurm"]


def _require_distinct(key: str, values: tuple[Any, ...], least: int) -> None:
    sound = bool(values) and len(set(values)) == len(values) and all(value >= least for value in values)
    require(sound, key, f"one or more different numbers of at least {least}", values)


@dataclass(frozen=True)
class TimingConfig:
    """How step times are measured: in throughput mode, and in virtual mode for the projection."""

    device_batches: tuple[int, ...] = (1, 2, 4, 8, 16, 32)  # throughput: samples a device, weak scaling
    global_batches: tuple[int, ...] = (32,)  # throughput: samples a step of all devices together, strong scaling
    warmup_steps: int = 3  # steps before the first timed one, at least
    steps: int = 10  # steps in a timed block; one dispatch each block, awaited
    blocks: int = 7  # timed blocks; median and quartiles are over blocks

    def __post_init__(self) -> None:
        _require_distinct("timing.device_batches", self.device_batches, 1)
        _require_distinct("timing.global_batches", self.global_batches, 1)
        require(self.warmup_steps >= 0, "timing.warmup_steps", "at least 0", self.warmup_steps)
        require(self.steps >= 1, "timing.steps", "at least 1", self.steps)
        require(self.blocks >= 1, "timing.blocks", "at least 1", self.blocks)


@dataclass(frozen=True)
class SlurmConfig:
    """What Slurm is asked for, for each job of a sweep; what is empty or 0 is left to the cluster."""

    partition: str = ""  # where jobs run
    account: str = ""  # who is charged
    qos: str = ""  # quality of service
    time_min: int = 60  # of a job; a longer cell is requeued, and goes on from its checkpoint
    timeouts: int = 100  # times that a cell may reach time_min and go on
    devices_per_node: int = 0  # GPUs of a node; cells with more get several nodes; 0: one node, and no GPUs are asked for
    cpus_per_task: int = 0  # cores of a node's process
    mem_gb: int = 0  # memory of a node
    at_once: int = 0  # cells on the same number of devices that may run at the same time; 0: all
    setup: tuple[str, ...] = ()  # shell lines before a job's program, such as "module load cuda"
    extra: tuple[str, ...] = ()  # other options of sbatch: key=value, key, or "key=" to take away one that is set here

    def __post_init__(self) -> None:
        for key in ("partition", "account", "qos"):
            value = getattr(self, key)
            require(len(value.split()) <= 1 and value == value.strip(), f"slurm.{key}", "a name without spaces", value)
        for key, least in {
            "time_min": 1,
            "timeouts": 0,
            "devices_per_node": 0,
            "cpus_per_task": 0,
            "mem_gb": 0,
            "at_once": 0,
        }.items():
            require(getattr(self, key) >= least, f"slurm.{key}", f"at least {least}", getattr(self, key))
        require(all(line.strip() for line in self.setup), "slurm.setup", "lines that are not empty", self.setup)
        sound = all(re.fullmatch(r"[a-z][a-z_-]*(=.*)?", option) for option in self.extra)
        require(sound, "slurm.extra", "options of sbatch as key=value, without leading hyphens", self.extra)

    def nodes(self, devices: int) -> int:
        """The fewest nodes whose devices are enough, and that can share them evenly.

        >>> [SlurmConfig(devices_per_node=4).nodes(n) for n in (1, 4, 6, 8, 32)], SlurmConfig().nodes(8)
        ([1, 1, 2, 2, 8], 1)
        """
        most = self.devices_per_node or devices
        return next(n for n in range(1, devices + 1) if devices % n == 0 and devices // n <= most)


GRIDDED = ("arm", "seed", "parallel.devices", "parallel.virtual")
"""Keys of a run that the grid sets."""


@dataclass(frozen=True)
class SweepConfig:
    """What is compared, and how it is run."""

    mode: Mode = "virtual"  # virtual: one device computes the batch of n; measured: on n devices; throughput: step times only
    arms: tuple[Arm, ...] = ("strong", "weak", "linear-warmup", "linear")  # scaling strategies
    devices: tuple[int, ...] = (1, 2, 4, 8)  # device counts
    seeds: tuple[int, ...] = (0,)  # of initial parameters and order of samples
    executor: Executor = "processes"  # who runs the cells: this host's processes, the same through submitit, or Slurm's jobs
    jobs: int = 1  # processes, local: cells that run at the same time, on a GPU each; more than 1 in virtual mode only
    cell_time_limit_s: float = 0.0  # a cell that runs longer is ended and recorded as timed_out; 0: no limit
    keep_checkpoints: bool = False  # keep those of cells that have ended by themselves, to train them further
    grace_s: float = 30.0  # from SIGTERM to SIGKILL
    clusters: tuple[str, ...] = ("k80_1gbe",)  # virtual: TOML files, or names of those in configs/clusters, projected to
    timing: TimingConfig = field(default_factory=TimingConfig)
    slurm: SlurmConfig = field(default_factory=SlurmConfig)
    run: Config = field(default_factory=Config)

    def __post_init__(self) -> None:
        require(self.mode in get_args(Mode), "mode", f"one of {', '.join(get_args(Mode))}", self.mode)
        sound = bool(self.arms) and len(set(self.arms)) == len(self.arms) and set(self.arms) <= set(get_args(Arm))
        require(sound, "arms", f"one or more, all different, of {', '.join(get_args(Arm))}", self.arms)
        _require_distinct("devices", self.devices, 1)
        _require_distinct("seeds", self.seeds, 0)
        require(self.executor in get_args(Executor), "executor", f"one of {', '.join(get_args(Executor))}", self.executor)
        require(self.jobs >= 1, "jobs", "at least 1", self.jobs)
        if self.jobs > 1 and self.mode != "virtual":
            raise ConfigError(
                f"jobs must be 1 where times are measured, mode = {self.mode}; got {self.jobs}: use mode = virtual"
            )
        require(0 <= self.cell_time_limit_s < float("inf"), "cell_time_limit_s", "at least 0", self.cell_time_limit_s)
        require(0 <= self.grace_s < float("inf"), "grace_s", "at least 0", self.grace_s)
        require(bool(self.clusters), "clusters", "at least one", self.clusters)
        given, untouched = dict(flatten(self.run)), dict(flatten(Config()))
        for key in GRIDDED:
            if given[key] != untouched[key]:
                raise ConfigError(
                    f"run.{key} must be left to the sweep, which sets it for each cell; got {given[key]!r}: remove it"
                )

    def side_by_side(self, jobs: int) -> int:
        """How many of some jobs may run at the same time."""
        return self.jobs if self.executor != "slurm" else self.slurm.at_once or max(jobs, 1)


class Cell(NamedTuple):
    """One point of the grid."""

    arm: str
    devices: int
    seed: int

    @property
    def name(self) -> str:
        """As files and logs call it.

        >>> Cell("linear-warmup", 8, 0).name
        'linear-warmup-n8-seed0'
        """
        return f"{self.arm}-n{self.devices}-seed{self.seed}"


def cells(config: SweepConfig) -> list[Cell]:
    """The grid, seed by seed, each from few devices to many, so that a sweep that is cut short has whole seeds."""
    return [Cell(arm, n, seed) for seed in config.seeds for n in sorted(config.devices) for arm in config.arms]


def run_config(config: SweepConfig, cell: Cell) -> Config:
    """The configuration of a cell's run.

    Raises:
      ConfigError: a rule between its parts is broken.
    """
    count = {"virtual": cell.devices} if config.mode == "virtual" else {"devices": cell.devices}
    parallel = replace(config.run.parallel, **count)
    return replace(config.run, arm=cell.arm, seed=cell.seed, parallel=parallel)


def paths(config: SweepConfig, samples: int) -> Iterator[tuple[Cell, list[Cell]]]:
    """Each optimisation path that has to be computed, by its first cell, with all cells that share it.

    A path is decided by the seed, the global batch and the learning rates. In virtual mode strong cells of a seed therefore
    share one whatever their devices, on one device all arms do, and so do cells whose batch is clipped to the training set.
    In measured mode, where times count, each cell is its own.

    Args:
      config: the sweep.
      samples: in the training set; of no consequence where each cell is its own.
    """
    shared: dict[Any, list[Cell]] = {}
    for cell in cells(config):
        shared.setdefault(_path(config, cell, samples) if config.mode == "virtual" else cell, []).append(cell)
    for members in shared.values():
        yield members[0], members


def _path(config: SweepConfig, cell: Cell, samples: int) -> tuple[int, int, arms.Rates]:
    strategy = arms.follow(cell.arm, config.run.optim, cell.devices, samples)
    return cell.seed, strategy.global_batch, strategy.rates
