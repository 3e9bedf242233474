"""The grid of a sweep: strategies × device counts × seeds, and which of its runs share one optimisation path."""

import re
from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from gmmae.config import toml
from gmmae.config.rules import (
    SEED,
    ConfigError,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Rule,
    Section,
    at_least,
    distinct,
    require,
)
from gmmae.config.schema import Config, changed, flatten
from gmmae.scaling import strategies
from gmmae.system.errors import InputError
from gmmae.workloads.configuration import default, read_config
from gmmae.workloads.registry import configuration

Strategies = Annotated[
    tuple[str, ...],
    Rule(
        f"one or more, all different, of {', '.join(strategies.STRATEGIES)}",
        lambda names: 0 < len(names) == len(strategies.STRATEGIES.keys() & set(names)),
    ),
]
Counts = Annotated[tuple[int, ...], distinct(at_least(1))]
Clusters = Annotated[tuple[str, ...], Rule("at least one", bool)]
Word = Annotated[str, Rule("a name without spaces", lambda word: word.split() == [word])]
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
    """How step times are measured, in throughput mode and for the projections of virtual mode."""

    device_batches: Counts = (1, 2, 4, 8, 16, 32)  # throughput: samples per device, weak scaling
    global_batches: Counts = (32,)  # throughput: samples per step of all devices together, strong scaling
    warmup_steps: NonNegativeInt = 3  # minimum number of steps before the first timed one
    steps: PositiveInt = 50  # steps in a timed block, at most an epoch's: a block is one dispatch, as an epoch is
    blocks: PositiveInt = 7  # timed blocks, whose median and quartiles are reported


@dataclass(frozen=True)
class SlurmConfig(Section, name="slurm"):
    """Slurm's options for each job of a sweep. The cluster decides on options that are none."""

    partition: Word | None = None  # partition of the jobs
    account: Word | None = None  # account that is charged
    qos: Word | None = None  # quality of service
    timeout_min: PositiveInt = 60  # time limit of a job; a longer job is requeued and resumes from its run's checkpoint
    timeouts: NonNegativeInt = 100  # maximum number of times that a job is requeued at timeout_min
    devices_per_node: PositiveInt | None = None  # GPUs per node; runs with more get several nodes; none: one node without GPUs
    cpus_per_task: PositiveInt | None = None  # cores per node
    mem_gb: PositiveInt | None = None  # memory per node
    array_parallelism: PositiveInt | Literal["all"] = "all"  # maximum number of concurrent jobs on the same number of devices
    setup: Lines = ()  # shell lines before the program, such as "module load cuda"
    additional_parameters: Options = ()  # other options of sbatch: key=value, key, or "key=" to remove one

    def nodes(self, devices: int) -> int:
        """The smallest number of nodes that have enough devices and share them evenly.

        >>> [SlurmConfig(devices_per_node=4).nodes(n) for n in (1, 4, 5, 6, 8, 9)], SlurmConfig().nodes(8)
        ([1, 1, 5, 2, 2, 3], 1)
        """
        most = self.devices_per_node or devices
        return next(n for n in range(1, devices + 1) if devices % n == 0 and devices // n <= most)


MIN_CHECKPOINT_INTERVAL_S = 5.0
"""Between two checkpoints, which would take longer than the epochs of a small model."""

GRID_KEYS = ("scaling", "seed", "parallel.devices", "parallel.simulate_devices")
"""Those of a run that the grid sets."""


@dataclass(frozen=True)
class SweepConfig(Section):
    """The configuration of a sweep: the grid, and how its runs are executed."""

    # virtual: one device computes the batch of n; measured: on n devices; throughput: step times only
    mode: Literal["virtual", "measured", "throughput"] = "virtual"
    scaling: Strategies = ("strong", "weak", "linear-warmup", "linear")  # scaling strategies
    devices: Counts = (1, 2, 4, 8)  # device counts
    seeds: Annotated[tuple[int, ...], distinct(SEED)] = (0,)  # seeds of initial parameters and sample order
    executor: Literal["processes", "slurm"] = "processes"  # what runs the jobs: processes of this host, or Slurm
    jobs: PositiveInt = 1  # processes: runs at the same time, on a GPU each; more than 1 in virtual mode only
    run_time_limit_s: PositiveFloat | None = None  # a run that takes longer is ended and recorded as timed_out
    keep_checkpoints: bool = False  # keep the checkpoints of finished runs, to train them further
    clusters: Clusters = ("h200_nvlink",)  # virtual: clusters to project times to, TOML files or names in configs/clusters
    timing: TimingConfig = field(default_factory=TimingConfig)
    slurm: SlurmConfig = field(default_factory=SlurmConfig)
    run: Config = field(default_factory=configuration)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.scaling:
            largest = max(_batch(self, name, n) for n in self.devices)
            possible = min(self.devices) <= largest or self.mode == "throughput"
            require(possible, "devices", f"at most the samples in a step of the strategy {name}, {largest}", self.devices)
        if self.jobs > 1 and self.mode != "virtual":
            raise ConfigError(
                f"jobs must be 1 where times are measured, mode = {self.mode}; got {self.jobs}: use mode = virtual"
            )
        values, untouched = dict(flatten(self.run)), dict(flatten(Config()))
        for key in GRID_KEYS:
            if values[key] != untouched[key]:
                raise ConfigError(
                    f"run.{key} must be left to the sweep, which sets it for each run; got {values[key]!r}: remove it"
                )


class RunKey(NamedTuple):
    """One point of the grid."""

    scaling: str
    devices: int
    seed: int

    @property
    def name(self) -> str:
        """The run's name in files and logs."""
        return f"{self.scaling}-n{self.devices}-seed{self.seed}"

    @staticmethod
    def named(name: str) -> "RunKey | None":
        """The point of the grid with a name, or None for another text."""
        found = re.fullmatch(r"(.+)-n(\d+)-seed(\d+)", name)
        return found and RunKey(found[1], int(found[2]), int(found[3]))


def run_keys(config: SweepConfig) -> list[RunKey]:
    """The grid without what is `left_out`, seed by seed, so that an interrupted sweep has complete seeds."""
    grid = [RunKey(scaling, n, seed) for seed in config.seeds for n in sorted(config.devices) for scaling in config.scaling]
    return [key for key in grid if key.devices <= _batch(config, key.scaling, key.devices)]


def left_out(config: SweepConfig) -> list[str]:
    """A line for each strategy and number of devices with fewer samples in a step than devices."""
    steps = [(scaling, n, _batch(config, scaling, n)) for scaling in config.scaling for n in sorted(config.devices)]
    return [f"{scaling} on {n} devices: left out, a step of it has {batch} samples" for scaling, n, batch in steps if batch < n]


def _batch(config: SweepConfig, scaling: str, devices: int) -> int:
    """Of the first epoch, for a large training set."""
    chosen, optim = strategies.strategy(scaling), config.run.optim
    return optim.batch_size if chosen.doubles_after else chosen.batch(optim, devices)


def run_config(config: SweepConfig, key: RunKey) -> Config:
    """The configuration of a run."""
    count = "parallel__simulate_devices" if config.mode == "virtual" else "parallel__devices"
    interval_s = config.run.checkpoint.min_interval_s
    return changed(
        config.run,
        scaling=key.scaling,
        seed=key.seed,
        checkpoint__min_interval_s=MIN_CHECKPOINT_INTERVAL_S if interval_s == "auto" else interval_s,
        checkpoint__at_end=config.run.checkpoint.at_end and config.keep_checkpoints,
        **{count: key.devices},
    )


def path_of(config: SweepConfig, key: RunKey, samples: int) -> Hashable:
    """What decides on the optimisation path of a run. Runs with the same one are computed once.

    In virtual mode it is the seed and the strategy's stages, so the strong runs of a seed share one, as do all strategies on
    one device, and runs whose batch is capped to the training set.
    """
    if config.mode != "virtual":
        return key
    return key.seed, strategies.resolve(key.scaling, config.run.optim, key.devices, samples).stages


def dry_run(config: SweepConfig, samples: int) -> list[tuple[str, ...]]:
    """The grid before anything is run: the column names, and a row for each run."""
    from gmmae.scaling.batches import plan_batches  # it imports NumPy, which reading a configuration does not need

    rows: list[tuple[str, ...]] = [("run", "batch", "a device", "padded", "learning rate", "steps/epoch", "same path as")]
    first: dict[Hashable, str] = {}
    for key in run_keys(config):
        strategy = strategies.resolve(key.scaling, config.run.optim, key.devices, samples)
        plan = plan_batches(samples, strategy.stages[0].batch, key.devices)
        same = first.setdefault(path_of(config, key, samples), key.name)
        rows.append(
            (
                key.name,
                strategy.batch_text(),
                str(plan.device_batch),
                str(plan.padding),
                strategies.learning_rate_text(strategy.stages[0]),
                str(plan.steps),
                "" if same == key.name else same,
            )
        )
    return rows


def read_sweep(path: Path, workload: str | None = None) -> SweepConfig:
    """Reads a TOML file, whose key `base` names the configuration that its `run` begins with.

    The sweep's own workload takes precedence, and must have the same settings.
    """
    table = toml.read_table(path)
    base, run_table = table.pop("base", None), table.get("run")
    run_table = run_table if isinstance(run_table, dict) else {}
    place = f"{path}: base"
    try:
        run = default(run_table, workload) if workload or "workload" in run_table or not base else None
        if base:
            run = read_config(toml.find(str(base)), run and run.workload)
        assert run is not None
        place = path
        sweep = toml.updated(SweepConfig(run=run), dict(toml.flatten_table(table)))
        return replace(sweep, run=strategies.require_known(sweep.run))
    except InputError as error:
        raise InputError(f"{place}: {error}") from error
