"""A run's decisions before its first epoch, and the state that it begins with.

An epoch goes through `loop`, `programs`, `step.train_steps` and the workload's losses.
"""

import math
import re
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
import optax
from jax.typing import ArrayLike
from jaxtyping import Array, Int, PyTree

from gmmae.config.schema import Config, OptimConfig, changed, flatten
from gmmae.multihost.environment import default_devices, require_prepared
from gmmae.scaling import schedules, strategies
from gmmae.scaling.batches import BatchPlan, plan_batches
from gmmae.system.errors import InputError
from gmmae.training import fingerprint, optimizers
from gmmae.training.parallel import Devices, choose
from gmmae.training.step import TrainState
from gmmae.workloads import contract, registry
from gmmae.workloads.interface import Params, Samples, Splits, Workload
from gmmae.workloads.sources import count, one_sample

T = TypeVar("T")

EVAL_DEVICE_BATCH = 64
"""Validation samples of one device at a time: bounds memory, and changes results by rounding only."""

CPU_SAMPLES = 16
"""The same on a CPU, whose caches are small, and the least in training, unless the workload says it."""

CPU_NUMBERS = 2**19
"""What a CPU's device keeps at once for gradients, or 16 times the parameters, which each part reads."""


class RunCache(dict[Hashable, Any]):
    """Data and compiled programs of earlier runs of this process.

    >>> cache = RunCache()
    >>> cache.once("key", lambda: 1), cache.once("key", lambda: 2)
    (1, 1)
    """

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """The value of this key, made at the first call."""
        if key not in self:
            self[key] = make()
        return self[key]


class TrainSetup(NamedTuple):
    """The decisions before the first epoch.

    Attributes:
      stage: the one that this setup, with its plans, schedule and optimizer, is for.
      strategy_plan: the batch as the strategy's number of devices share it, which may be simulated.
      train_plan, eval_plan: as the computing devices share it; for the exact reduction devices are shards.
    """

    config: Config
    workload: Workload
    data: Splits
    fingerprint: fingerprint.Fingerprint
    devices: Devices
    strategy: strategies.Resolved
    stage: strategies.Stage
    strategy_plan: BatchPlan
    train_plan: BatchPlan
    schedule: optax.Schedule
    optimizer: optax.GradientTransformationExtraArgs
    eval_plan: BatchPlan
    cache: RunCache

    def program_key(self, *own: Hashable) -> tuple[Hashable, ...]:
        """The key of a program in the cache, from its name and the values that it alone depends on."""
        config, parallel = self.config, self.config.parallel
        shared = config.precision, parallel.deterministic, parallel.fast_convolutions, self.devices
        return *own, *workload_key(config), *shared, *self.data.may_be_undefined

    @property
    def optimizer_key(self) -> OptimConfig:
        """For programs that take rates as arguments."""
        return replace(self.stage.optim, batch_size=1, learning_rate=1.0)


def workload_key(config: Config) -> tuple[Hashable, ...]:
    """The values that a run's workload and data depend on."""
    settings = () if config.settings is None else flatten(config.settings)
    return config.workload, *((key, repr(value)) for key, value in settings)


def workload_on(devices: Devices, config: Config) -> Workload:
    """Builds a run's workload, without the kernel of the loss where XLA has no Triton for the devices."""
    if not devices.triton and "model.fused" in dict(flatten(config)):
        config = changed(config, model__fused=False)
    return registry.build(config)


def prepare(config: Config, devices: Devices | None = None, cache: RunCache | None = None) -> TrainSetup:
    """Loads the data, chooses the devices unless given, and resolves the scaling strategy."""
    parallel = config.parallel
    automatic, on_cpu = devices is None and jax.process_count() == 1, jax.default_backend() == "cpu"
    one_device = parallel.simulate_devices is not None and automatic and not on_cpu
    there = devices or choose((1 if one_device else None) if parallel.devices == "all" else parallel.devices)
    cache = RunCache() if cache is None else cache
    workload = cache.once(("workload", there.triton, *workload_key(config)), lambda: workload_on(there, config))
    data = cache.once(("data", *workload_key(config)), workload.load)
    samples, validation = count(data.train), count(data.validation)
    most = default_devices(config, samples) if automatic and on_cpu else None
    devices = choose(min(most, there.count)) if most else there
    strategy_devices = parallel.simulate_devices or devices.count
    strategy = strategies.resolve(config.scaling, config.optim, strategy_devices, samples)
    if strategy.stages[0].replicas > 1:
        if automatic and parallel.devices == "all":
            devices = choose(math.gcd(devices.count, strategy_devices))
        every, validated = config.optim.local_steps, config.stop.validate_every_steps
        if parallel.deterministic:
            raise InputError(
                "scaling must average each step's gradient with parallel.deterministic; got "
                f"{config.scaling}: use strong or weak"
            )
        if strategy_devices % devices.count:
            raise InputError(
                f"parallel.devices must divide parallel.simulate_devices = {strategy_devices} with {config.scaling}; got "
                f"{devices.count}: use 1"
            )
        if validated and validated % every:
            raise InputError(
                f"stop.validate_every_steps must be a multiple of optim.local_steps = {every} with {config.scaling}; got "
                f"{validated}: validate where a round ends"
            )
    if parallel.deterministic:
        if parallel.deterministic_shards % devices.count:
            raise InputError(
                f"parallel.devices must divide parallel.deterministic_shards = {parallel.deterministic_shards} with "
                f"parallel.deterministic; got {devices.count}: use a power of two of devices, or --parallel.no-deterministic"
            )
        if parallel.micro_batch_size:
            raise InputError(
                f"parallel.micro_batch_size must be none with parallel.deterministic; got {parallel.micro_batch_size}: a "
                "larger parallel.deterministic_shards bounds memory"
            )
        require_prepared(parallel, jax.local_device_count() if devices.platform == "cpu" else 0)
    sharers = parallel.deterministic_shards if parallel.deterministic else devices.count
    return TrainSetup(
        config=config,
        workload=workload,
        data=data,
        fingerprint=cache.once(("hashes", *workload_key(config)), lambda: fingerprint.of(config, data)),
        devices=devices,
        strategy=strategy,
        **_of_stage(
            strategy.stages[0],
            plan_batches(samples, strategy.stages[0].batch, strategy_devices),
            config,
            devices,
            workload,
            data,
            cache,
        ),
        eval_plan=validation_plan(config, devices.platform, validation, sharers),
        cache=cache,
    )


def at_once(config: Config, most: int) -> int:
    """What memory allows."""
    return min(most, config.parallel.micro_batch_size or most)


def validation_plan(config: Config, platform: str, samples: int, sharers: int) -> BatchPlan:
    """How validation samples are divided."""
    most = at_once(config, CPU_SAMPLES if platform == "cpu" else EVAL_DEVICE_BATCH)
    return BatchPlan(samples, min(samples, most * sharers), sharers)


def setups_by_stage(setup: TrainSetup) -> list[TrainSetup]:
    """A setup for each stage."""
    return [planned(setup, stage, setup.strategy_plan._replace(batch=stage.batch)) for stage in setup.strategy.stages]


def planned(setup: TrainSetup, stage: strategies.Stage, strategy_plan: BatchPlan) -> TrainSetup:
    """A stage's setup."""
    of_run = setup.config, setup.devices, setup.workload, setup.data, setup.cache
    return setup._replace(**_of_stage(stage, strategy_plan, *of_run))


def _of_stage(
    stage: strategies.Stage,
    strategy_plan: BatchPlan,
    config: Config,
    devices: Devices,
    workload: Workload,
    data: Splits,
    cache: RunCache,
) -> dict[str, Any]:
    if config.parallel.deterministic:
        train_plan = strategy_plan._replace(sharers=config.parallel.deterministic_shards)
    else:
        micro_batch, sharers = config.parallel.micro_batch_size or 0, max(stage.replicas, devices.count)
        if not micro_batch and devices.platform == "cpu":
            micro_batch = _samples_at_once(config, workload, data, cache, math.ceil(strategy_plan.batch / sharers))
        train_plan = plan_batches(strategy_plan.samples, strategy_plan.batch, sharers, micro_batch)
    return {
        "stage": stage,
        "strategy_plan": strategy_plan,
        "train_plan": train_plan,
        "schedule": schedules.learning_rate(stage, train_plan.steps),
        "optimizer": optimizers.make(stage.optim),
    }


def _samples_at_once(config: Config, workload: Workload, data: Splits, cache: RunCache, share: int) -> int:
    if workload.cpu_samples or share <= CPU_SAMPLES:
        return workload.cpu_samples

    def kept(params: Params, samples: Samples) -> PyTree:
        keys = jax.random.split(jax.random.key(0), EVAL_DEVICE_BATCH)
        return jax.vjp(lambda params: contract.losses(workload, params, samples, keys), params)[1]

    def fitting() -> int:
        one = cast(config, one_sample(data.train))
        samples = jax.tree.map(lambda leaf: np.broadcast_to(leaf, (EVAL_DEVICE_BATCH, *leaf.shape)), one)
        with precision_context(config), suppress(Exception):  # the contract says why
            params = blank_state(config, workload).params
            jaxpr, shapes = jax.make_jaxpr(kept, return_shape=True)(params, samples)
            recurrent = re.search("num_carry=[1-9]", str(jaxpr))  # slow for few samples
            numbers = 1 if recurrent else 1 + parameter_count(shapes)
            return max(CPU_SAMPLES, max(CPU_NUMBERS, 16 * parameter_count(params)) * EVAL_DEVICE_BATCH // numbers)
        return CPU_SAMPLES

    least = cache.once(("samples at once", *workload_key(config)), fitting)
    return math.ceil(share / max(1, share // least))


@contextmanager
def precision_context(config: Config) -> Iterator[None]:
    """Sets how JAX computes, whatever its variables say, while a run's arrays and programs are made."""
    jax.config.update("jax_random_seed_offset", 0)  # JAX has no context for it
    with (
        jax.default_prng_impl("threefry2x32"),
        jax.threefry_partitionable(True),
        jax.enable_x64(config.precision == "float64"),
        jax.default_matmul_precision(config.matmul_precision),
        jax.numpy_dtype_promotion("standard"),
        jax.disable_jit(False),
    ):
        yield


def initial_state(setup: TrainSetup) -> TrainState:
    """The state before the first epoch, on the host, from the configuration's seed and model only."""
    config = setup.config

    # A compiled program is kept by its function's name, and a partial has none.
    def init(seed: Int[Array, ""] | np.uint32) -> TrainState:
        return _init(setup.workload, config, jax.random.key(seed))  # outside it would be programs of its own

    # Run once, it and the check are compiled without optimisation on a CPU, in a fifth of the time.
    key = setup.program_key("init", setup.optimizer_key, outer_optimizer(config) is None)
    options: dict[str, str | bool] | None = {"xla_backend_optimization_level": "0"} if jax.default_backend() == "cpu" else None
    with jax.enable_x64(False):  # a run in float64 starts from the same numbers
        seed = np.uint32(config.seed)
        compiled = setup.cache.once(key, lambda: jax.jit(init).lower(seed).compile(compiler_options=options))
        start = cast(config, jax.device_get(compiled(seed)))
    if config.workload not in registry.BUILT_IN:
        data = setup.data.train, setup.data.validation
        builds = (lambda: setup.workload, partial(workload_on, setup.devices, config))
        programs = (jax.jit(partial(contract.values, build()), compiler_options=options) for build in builds)
        most = max(2, min(config.optim.batch_size, at_once(config, contract.SAMPLES)))
        key = config.precision, workload_key(config)

        def check() -> None:
            with jax.enable_x64(config.precision == "float64"), jax.default_matmul_precision("highest"):
                contract.require_independence(programs, start.params, data, partial(cast, config), config.workload, key, most)

        setup.cache.once(("contract", key), check)
    return start


def blank_state(config: Config, workload: Workload) -> TrainState:
    """Zeros in the shape of a run's states, on the host, without devices or data."""
    with jax.enable_x64(False):
        shapes = jax.eval_shape(partial(_init, workload, config), jax.random.key(0))
    return cast(config, jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes))


def _init(workload: Workload, config: Config, key: Array) -> TrainState:
    params = workload.init(key)
    contract.require_parameters(params)
    outer = outer_optimizer(config)
    return TrainState(params, optimizers.make(config.optim).init(params), outer and outer.init(params))


def outer_optimizer(config: Config) -> optax.GradientTransformation | None:
    """The momentum of a local strategy's averages."""
    momentum = strategies.STRATEGIES[config.scaling].local and config.optim.outer_momentum
    return optax.trace(momentum, nesterov=True) if momentum else None


def parameter_count(params: Params) -> int:
    """The number of elements of all arrays."""
    return sum(leaf.size for leaf in jax.tree.leaves(params))


def cast(config: Config, arrays: T) -> T:
    """Arrays on the host in this machine's order of bytes, floating ones in the run's precision."""

    def leaf(array: ArrayLike) -> np.ndarray:
        array = np.asarray(array)
        if np.issubdtype(array.dtype, np.floating):
            return array.astype(config.dtype)
        return array.astype(array.dtype.newbyteorder("="), copy=False)

    return jax.tree.map(leaf, arrays)
