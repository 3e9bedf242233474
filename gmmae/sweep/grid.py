"""A sweep's grid: strategies × device counts × seeds, the configuration of each run, and which runs share one optimisation path."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple

from gmmae.config.rules import (
    SEED,
    ConfigError,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveInt,
    Rule,
    Section,
    at_least,
    distinct,
    require,
)
from gmmae.config.schema import Config, changed, flatten
from gmmae.scaling import strategies
from gmmae.workloads.registry import configuration

Mode = Literal["virtual", "measured", "throughput"]
Executor = Literal["processes", "slurm"]


def _known_arms(names: tuple[str, ...]) -> bool:
    return bool(names) and len(set(names)) == len(names) and set(names) <= strategies.STRATEGIES.keys()


Counts = Annotated[tuple[int, ...], distinct(at_least(1))]
Clusters = Annotated[tuple[str, ...], Rule("at least one", bool)]
Word = Annotated[str, Rule("a name without spaces", lambda word: len(word.split()) <= 1 and word == word.strip())]
Lines = Annotated[tuple[str, ...], Rule("lines that are not empty", lambda lines: all(line.strip() for line in lines))]
Options = Annotated[
    tuple[str, ...],
    Rule(
        "options of sbatch as key=value, without leading hyphens",
        lambda options: all(re.fullmatch(r"[a-z][a-z_-]*(=.*)?", option) for option in options),
    ),
]


@dataclass(frozen=True)
class TimingConfig(Section, name="timing"):
    """How step times are measured: in throughput mode, and in virtual mode for the projection."""

    device_batches: Counts = (1, 2, 4, 8, 16, 32)  # throughput: samples a device, weak scaling
    global_batches: Counts = (32,)  # throughput: samples a step of all devices together, strong scaling
    warmup_steps: NonNegativeInt = 3  # steps before the first timed one, at least
    steps: PositiveInt = 10  # steps in a timed block; one dispatch each block, awaited
    blocks: PositiveInt = 7  # timed blocks; median and quartiles are over blocks


@dataclass(frozen=True)
class SlurmConfig(Section, name="slurm"):
    """What Slurm is asked for, for each job of a sweep; what is empty or 0 is left to the cluster."""

    partition: Word = ""  # where jobs run
    account: Word = ""  # who is charged
    qos: Word = ""  # quality of service
    timeout_min: PositiveInt = 60  # of a job; a longer run is requeued, and goes on from its checkpoint
    timeouts: NonNegativeInt = 100  # times that a run may reach timeout_min and go on
    devices_per_node: NonNegativeInt = 0  # GPUs of a node; runs with more get several nodes; 0: one node without GPUs
    cpus_per_task: NonNegativeInt = 0  # cores of a node's process
    mem_gb: NonNegativeInt = 0  # memory of a node
    array_parallelism: NonNegativeInt = 0  # runs on the same number of devices that may run at the same time; 0: all
    setup: Lines = ()  # shell lines before a job's program, such as "module load cuda"
    additional_parameters: Options = ()  # other options of sbatch: key=value, key, or "key=" to take away one that is set here

    def nodes(self, devices: int) -> int:
        """The fewest nodes whose devices are enough, and that can share them evenly.

        >>> [SlurmConfig(devices_per_node=4).nodes(n) for n in (1, 4, 6, 8, 32)], SlurmConfig().nodes(8)
        ([1, 1, 2, 2, 8], 1)
        """
        most = self.devices_per_node or devices
        return next(n for n in range(1, devices + 1) if devices % n == 0 and devices // n <= most)


GRIDDED = ("scaling", "seed", "parallel.devices", "parallel.simulate_devices")
"""Keys of a run that the grid sets."""


@dataclass(frozen=True)
class SweepConfig(Section):
    """What is compared, and how it is run."""

    mode: Mode = "virtual"  # virtual: one device computes the batch of n; measured: on n devices; throughput: step times only
    scaling: tuple[str, ...] = ("strong", "weak", "linear-warmup", "linear")  # scaling strategies
    devices: Counts = (1, 2, 4, 8)  # device counts
    seeds: Annotated[tuple[int, ...], distinct(SEED)] = (0,)  # of initial parameters and order of samples
    executor: Executor = "processes"  # what runs the jobs: processes of this host, or Slurm
    jobs: PositiveInt = 1  # processes: runs at the same time, on a GPU each; more than 1 in virtual mode only
    cell_time_limit_s: NonNegativeFloat = 0.0  # a run that runs longer is ended and recorded as timed_out; 0: no limit
    keep_checkpoints: bool = False  # keep those of runs that have ended by themselves, to train them further
    grace_s: NonNegativeFloat = 30.0  # from SIGTERM to SIGKILL
    clusters: Clusters = ("k80_1gbe",)  # virtual: TOML files, or names of those in configs/clusters, projected to
    timing: TimingConfig = field(default_factory=TimingConfig)
    slurm: SlurmConfig = field(default_factory=SlurmConfig)
    run: Config = field(default_factory=configuration)

    def __post_init__(self) -> None:
        require(
            _known_arms(self.scaling),
            "scaling",
            f"one or more, all different, of {', '.join(strategies.STRATEGIES)}",
            self.scaling,
        )
        super().__post_init__()
        for name in self.scaling:
            most = max(_batch(self, name, n) for n in self.devices)
            possible = min(self.devices) <= most or self.mode == "throughput"
            require(possible, "devices", f"at most the samples in a step of the strategy {name}, {most}", self.devices)
        if self.jobs > 1 and self.mode != "virtual":
            raise ConfigError(
                f"jobs must be 1 where times are measured, mode = {self.mode}; got {self.jobs}: use mode = virtual"
            )
        given, untouched = dict(flatten(self.run)), dict(flatten(Config()))
        for key in GRIDDED:
            if given[key] != untouched[key]:
                raise ConfigError(
                    f"run.{key} must be left to the sweep, which sets it for each run; got {given[key]!r}: remove it"
                )

    def side_by_side(self, jobs: int) -> int:
        """How many of some jobs may run at the same time."""
        return self.jobs if self.executor != "slurm" else self.slurm.array_parallelism or max(jobs, 1)


class RunKey(NamedTuple):
    """One point of the grid."""

    scaling: str
    devices: int
    seed: int

    @property
    def name(self) -> str:
        """As files and logs call it.

        >>> RunKey("linear-warmup", 8, 0).name
        'linear-warmup-n8-seed0'
        """
        return f"{self.scaling}-n{self.devices}-seed{self.seed}"


def run_keys(config: SweepConfig) -> list[RunKey]:
    """The grid, seed by seed, each from few devices to many, so that a sweep that is cut short has whole seeds.

    A strategy has no runs on more devices than it has samples in a step: `left_out`.
    """
    grid = [RunKey(scaling, n, seed) for seed in config.seeds for n in sorted(config.devices) for scaling in config.scaling]
    return [key for key in grid if key.devices <= _batch(config, key.scaling, key.devices)]


def left_out(config: SweepConfig) -> list[str]:
    """A line for each strategy and number of devices that has no run.

    >>> config = SweepConfig(scaling=("strong", "weak"), devices=(8, 40))
    >>> left_out(config)
    ['strong on 40 devices: left out, a step of it has 32 samples']
    >>> [key.name for key in run_keys(config)]
    ['strong-n8-seed0', 'weak-n8-seed0', 'weak-n40-seed0']
    """
    asked = [(scaling, n, _batch(config, scaling, n)) for scaling in config.scaling for n in sorted(config.devices)]
    return [f"{scaling} on {n} devices: left out, a step of it has {batch} samples" for scaling, n, batch in asked if batch < n]


def _batch(config: SweepConfig, scaling: str, devices: int) -> int:
    return strategies.strategy(scaling).batch(config.run.optim, devices)


def run_config(config: SweepConfig, key: RunKey) -> Config:
    """The configuration of a run's run.

    Raises:
      ConfigError: a rule between its parts is broken.
    """
    count = "parallel__simulate_devices" if config.mode == "virtual" else "parallel__devices"
    return changed(config.run, scaling=key.scaling, seed=key.seed, **{count: key.devices})


def paths(config: SweepConfig, samples: int) -> Iterator[tuple[RunKey, list[RunKey]]]:
    """Each optimisation path that has to be computed, by its first run, with all runs that share it.

    A path is decided by the seed and by `strategies.Path`: the global batch, the learning rates and Adam's constants. In virtual mode
    strong runs of a seed therefore share one whatever their devices, on one device all strategies do, and so do runs whose batch is
    clipped to the training set.
    In measured mode, where times count, each run is its own.

    Args:
      config: the sweep.
      samples: in the training set; of no consequence where each run is its own.
    """
    shared: dict[Any, list[RunKey]] = {}
    for key in run_keys(config):
        key: Any = key
        if config.mode == "virtual":
            key = key.seed, strategies.resolve(key.scaling, config.run.optim, key.devices, samples).optimization
        shared.setdefault(key, []).append(key)
    for members in shared.values():
        yield members[0], members
