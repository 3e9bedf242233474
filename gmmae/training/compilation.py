"""What a run computes: everything decided before the first epoch, and the compiled programs that follow from it."""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int, Int32

from gmmae.config.schema import LOSS, Config, ParallelConfig
from gmmae.multihost.environment import require_prepared
from gmmae.scaling import schedules, strategies
from gmmae.scaling.batches import Plan, epoch_order, plan, shards
from gmmae.system.compilation_cache import repairing_cache
from gmmae.system.errors import InputError
from gmmae.training.parallel import Devices, choose, exact_mean, pmean
from gmmae.training.step import Average, TrainState, adam, evaluate, take, train_epoch
from gmmae.workloads import registry
from gmmae.workloads.interface import Params, PerSample, Samples, Workload
from gmmae.workloads.registry import WorkloadError, count

T = TypeVar("T")

MOST_EPOCHS = 100
"""In one program on a GPU, where the configuration leaves it open: an epoch's share of the host's work is a hundredth then."""

EVAL_DEVICE_BATCH = 64
"""Validation samples of one device at a time: bounds memory, and changes no result beyond rounding."""


class Setup(NamedTuple):
    """What is decided before the first epoch.

    Attributes:
      devices: those that compute.
      strategy: the global batch and the learning rate that follow from the arm, the devices and the training samples.
      arm_plan: the batch as the arm's number of devices share it; where that number is virtual, `train_plan` is the same
        batch as the devices that compute it share it.
      train_plan, eval_plan: for `parallel.reduction = exact`, their devices are its shards.
      most_epochs: from `epochs_a_dispatch`.
    """

    config: Config
    workload: Workload
    devices: Devices
    strategy: strategies.Strategy
    arm_plan: Plan
    train_plan: Plan
    eval_plan: Plan
    schedule: optax.Schedule
    optimizer: optax.GradientTransformation
    most_epochs: int


class Programs(NamedTuple):
    """Compiled functions, the data set on the devices filled in. None of them ever compiles again.

    Attributes:
      train: `(state, epoch) -> (state, mean loss of each step)`; takes over the state's memory.
      evaluate: `params -> {name: mean over the validation samples}`, the loss and the workload's metrics.
      describe: `params -> {name: array}` for the shown validation samples; None where the workload shows nothing.
    """

    train: Callable[[TrainState, int], tuple[TrainState, Float[np.ndarray, " steps"]]]
    evaluate: Callable[[Params], dict[str, float]]
    describe: Callable[[Params], dict[str, np.ndarray]] | None


def prepare(config: Config, devices: Devices | None = None) -> Setup:
    """Loads the data, chooses the devices and follows the arm's rules.

    Args:
      config: of the run.
      devices: others than the configuration chooses.

    Raises:
      InputError: the configuration does not fit the machine or the data.
    """
    optim, parallel = config.optim, config.parallel
    one = parallel.virtual > 0 and jax.process_count() == 1 and jax.default_backend() != "cpu"
    devices = devices or choose(parallel.devices or int(one))
    wanted = parallel.virtual or devices.count
    workload = registry.build(config)
    samples, validation = count(workload.data.train), count(workload.data.validation)
    strategy = strategies.follow(config.arm, optim, wanted, samples)
    arm_plan = plan(samples, strategy.global_batch, wanted)
    if parallel.exact:
        _require_exact(parallel, devices)
        sharers, train_plan = parallel.shards, Plan(samples, arm_plan.batch, parallel.shards)
    else:
        micro_batch = parallel.micro_batch or (workload.cpu_samples if devices.platform == "cpu" else 0)
        sharers, train_plan = devices.count, plan(samples, arm_plan.batch, devices.count, micro_batch)
    eval_plan = Plan(validation, min(validation, EVAL_DEVICE_BATCH * sharers), sharers)
    schedule = schedules.learning_rate(strategy.rates, train_plan.steps)
    optimizer = adam(schedule, **strategy.path.adam._asdict(), clip_norm=optim.clip_norm)
    most_epochs = epochs_a_dispatch(config, devices.platform)
    return Setup(config, workload, devices, strategy, arm_plan, train_plan, eval_plan, schedule, optimizer, most_epochs)


def epochs_a_dispatch(config: Config, platform: str) -> int:
    """The most epochs that one program computes without the host.

    Where the configuration leaves it open, one on a CPU, whose epochs are long beside what the host does for one; on a GPU as
    many as the host has nothing to do in: checkpoints and TensorBoard's pictures come every few epochs, and some rules look at
    each. How many of them a dispatch takes is for the clock to say; this one program computes all, so no bit depends on it.
    """
    if asked := config.parallel.epochs_per_dispatch:
        return asked
    if platform == "cpu" or config.stop.looks_at_each_epoch:
        return 1
    return min(MOST_EPOCHS, config.stop.max_epochs, config.checkpoint.every_epochs, config.log.detail_epochs)


def _require_exact(parallel: ParallelConfig, devices: Devices) -> None:
    if parallel.shards % devices.count:
        raise InputError(
            f"parallel.devices must divide parallel.shards, {parallel.shards}, where parallel.reduction is exact; got "
            f"{devices.count}: use a power of two of devices, or parallel.reduction = pmean"
        )
    if parallel.micro_batch:
        raise InputError(
            f"parallel.micro_batch must be 0 where parallel.reduction is exact; got {parallel.micro_batch}: a larger "
            "parallel.shards bounds memory"
        )
    require_prepared(parallel, jax.local_device_count() if devices.platform == "cpu" else 0)


@contextmanager
def arithmetic(config: Config) -> Iterator[None]:
    """The context in which a run's arrays are made and its programs compiled: JAX drops float64 outside of it.

    Products in float32 that do not say otherwise are computed at full precision, and not in TF32 as by default on a GPU.
    """
    with (
        jax.enable_x64(config.precision == "float64"),
        jax.default_matmul_precision(config.matmul_precision),
    ):
        yield


@repairing_cache()
def initial_state(setup: Setup) -> TrainState:
    """The state before the first epoch, on the host; it depends on the configuration's seed and model only."""

    def init(key: Array) -> TrainState:  # a compiled program is kept by its function's name, and a partial has none
        return _init(setup.workload, setup.optimizer, key)

    # It runs once, so on a CPU it is compiled without optimisation: that takes a fifth of the time.
    options: dict[str, str | bool] | None = {"xla_backend_optimization_level": "0"} if jax.default_backend() == "cpu" else None
    with jax.enable_x64(False):  # a run in float64 starts from the same numbers
        key = jax.random.key(setup.config.seed)
        compiled = jax.jit(init).lower(key).compile(compiler_options=options)
        return cast(setup.config, jax.device_get(compiled(key)))


def blank_state(config: Config, workload: Workload) -> TrainState:
    """Zeros in the shape of a run's states, on the host; neither the run's devices nor its data are needed."""
    init = partial(_init, workload, adam(lambda _: 0.0, clip_norm=config.optim.clip_norm))
    with jax.enable_x64(False):
        shapes = jax.eval_shape(init, jax.random.key(0))
    return cast(config, jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes))


def _init(workload: Workload, optimizer: optax.GradientTransformation, key: Array) -> TrainState:
    params = workload.init(key)
    return TrainState(params, optimizer.init(params))


def parameter_count(params: Params) -> int:
    """Numbers in all parameter arrays."""
    return sum(leaf.size for leaf in jax.tree.leaves(params))


def build(setup: Setup, state: TrainState) -> Programs:
    """Puts the data set on the devices and compiles the programs.

    Args:
      setup: from `prepare`.
      state: a state on the devices, for its shapes.
    """
    train = train_program(setup, state)
    return Programs(train, evaluate_program(setup, state.params), _describe_program(setup, state.params))


def mean_over_steps(losses: Float[np.ndarray, " steps"], plan: Plan) -> float:
    """The mean over all samples of an epoch from the means of its steps, in float64."""
    return float(losses.astype(np.float64) @ plan.counts / plan.samples)


def validation_means(steps: Mapping[str, Float[np.ndarray, " steps"]], plan: Plan) -> dict[str, float]:
    """The mean of each value of a validation, by name; of a metric that may be undefined, over the samples that define it."""
    means = {name: mean_over_steps(values, plan) for name, values in steps.items()}
    for name in [name for name in means if undefined_share(name) in means]:
        defined = plan.samples - round(means.pop(undefined_share(name)) * plan.samples)
        if defined < plan.samples:
            means[name] *= plan.samples / defined if defined else math.nan
    return means


def undefined_share(name: str) -> str:
    """The name under which a validation gives the share of samples for which a metric is undefined."""
    return f"{name}, undefined"


@repairing_cache()
def train_program(setup: Setup, state: TrainState) -> Callable[[TrainState, int], tuple[TrainState, np.ndarray]]:
    """`Programs.train` alone."""
    samples = data_set(setup, setup.workload.data.train)
    compiled = compile_epoch(setup, state, samples)

    def train(state: TrainState, epoch: int) -> tuple[TrainState, np.ndarray]:
        state, losses = jax.block_until_ready(compiled(state, samples, *deal_epoch(setup, epoch)))
        return state, np.asarray(losses)

    return train


def compile_epoch(setup: Setup, state: TrainState, samples: Samples) -> jax.stages.Compiled:
    """The program of `(state, training samples, *deal_epoch(setup, epoch))`; it takes over the state's memory."""
    program, deterministic = partial(epoch_of_device, setup), setup.config.parallel.exact
    given = deal_epoch(setup, 1)
    return setup.devices.compile(program, state, samples, *given, sharded=3, donate=(0,), deterministic=deterministic)


@repairing_cache()
def evaluate_program(setup: Setup, params: Params) -> Callable[[Params], dict[str, float]]:
    """`Programs.evaluate` alone."""
    samples, dealt = data_set(setup, setup.workload.data.validation), deal_validation(setup)
    compiled = compile_validation(setup, params, samples, *dealt)

    def evaluate(params: Params) -> dict[str, float]:
        return validation_means(jax.device_get(compiled(params, samples, *dealt)), setup.eval_plan)

    return evaluate


def compile_validation(setup: Setup, params: Params, samples: Samples, *dealt: Array) -> jax.stages.Compiled:
    """The program of `(parameters, validation samples, *deal_validation(setup))`."""
    program = partial(validation_of_device, setup)
    return setup.devices.compile(program, params, samples, *dealt, sharded=3, deterministic=setup.config.parallel.exact)


Dealt = Int[Array, "steps *device_batch"]
Weights = Float[Array, "steps *device_batch"]
Part = Int[Array, "2"]
Order = Int32[np.ndarray, " samples"]


def epoch_of_device(
    setup: Setup, state: TrainState, samples: Samples, epoch: Int[Array, ""], indices: Dealt, weights: Weights, part: Part
) -> tuple[TrainState, Float[Array, " steps"]]:
    """One device's part of an epoch: the new state and the mean loss of each step. The last three are from `deal`."""
    of_epoch = jax.random.fold_in(jax.random.key(setup.config.seed), epoch)

    def keys(index: Int[Array, " device_batch"]) -> Array:
        return jax.vmap(lambda sample: jax.random.fold_in(of_epoch, sample))(index)

    return train_epoch(
        state,
        samples,
        indices,
        weights,
        losses=partial(losses, setup.workload),
        keys=keys,
        optimizer=setup.optimizer,
        average=_average(setup, setup.train_plan, part),
    )


def validation_of_device(
    setup: Setup, params: Params, samples: Samples, indices: Dealt, weights: Weights, part: Part
) -> dict[str, Float[Array, " steps"]]:
    """One device's part of a validation: the means of each step by name, the loss first."""
    average = _average(setup, setup.eval_plan, part)
    return evaluate(params, samples, indices, weights, values=partial(_summable, setup.workload), average=average)


def losses(workload: Workload, params: Params, samples: Samples, keys: Array | None) -> Array:
    """One loss a sample, as `Workload.losses` is to give them."""
    found = workload.losses(params, samples, keys)
    _require_one_a_sample("losses", found, samples)
    return found


def values(workload: Workload, params: Params, samples: Samples) -> PerSample:
    """One loss a sample, and one value for each metric, by name; what a validation takes the means of."""
    found = losses(workload, params, samples, None)
    metrics = workload.metrics(params, samples)
    for name, of_metric in metrics.items():
        _require_one_a_sample(f"metrics, {name!r}", of_metric, samples)
    if LOSS in metrics:
        raise WorkloadError(f"metrics of a workload must have other names than {LOSS!r}; got {', '.join(metrics)}: rename it")
    return {LOSS: found, **{name: jnp.asarray(of_metric, found.dtype) for name, of_metric in metrics.items()}}


def _summable(workload: Workload, params: Params, samples: Samples) -> PerSample:
    """As `values`, but an undefined metric is 0, and beside it stands 1 for each sample that it is undefined for."""
    found = dict(values(workload, params, samples))
    for name in workload.may_be_undefined:
        undefined = jnp.isnan(found[name])
        found[undefined_share(name)] = undefined.astype(found[name].dtype)
        found[name] = jnp.where(undefined, 0, found[name])
    return found


def _require_one_a_sample(what: str, values: Array, samples: Samples) -> None:
    shape, wanted = np.shape(values), (count(samples),)
    if shape != wanted:
        raise WorkloadError(f"{what} of a workload must be one number a sample, of shape {wanted} here; got shape {shape}")


def cast(config: Config, arrays: T) -> T:
    """Arrays on the host, the floating ones in the run's precision."""

    def leaf(array: ArrayLike) -> np.ndarray:
        array = np.asarray(array)
        return array.astype(config.dtype) if np.issubdtype(array.dtype, np.floating) else array

    return jax.tree.map(leaf, arrays)


def data_set(setup: Setup, samples: Samples) -> Samples:
    """All samples, on every device."""
    return setup.devices.replicate(cast(setup.config, samples))


def deal_epoch(setup: Setup, epoch: int) -> tuple[Array, ...]:
    """The number of an epoch, and what `deal` makes of its training samples."""
    order = epoch_order(setup.config.seed, epoch, setup.train_plan.samples)
    return setup.devices.replicate(np.int32(epoch)), *deal(setup, order, setup.train_plan)


def deal_validation(setup: Setup) -> tuple[Array, Array, Array]:
    """What `deal` makes of all validation samples."""
    return deal(setup, np.arange(setup.eval_plan.samples, dtype=np.int32), setup.eval_plan)


def deal(setup: Setup, order: Order, plan: Plan) -> tuple[Array, Array, Array]:
    """Indices, weights and part of each device, on the devices."""
    return setup.devices.shard((*dealt_on_host(setup, order, plan), setup.devices.parts(plan.devices)))


def dealt_on_host(setup: Setup, order: Order, plan: Plan) -> tuple[np.ndarray, np.ndarray]:
    """Indices and weights, on the host, one entry a device. Where shards are fixed, every device has all of them."""
    indices, weights = shards(order, plan)
    if not setup.config.parallel.exact:
        return indices, weights
    n = setup.devices.count
    indices, weights = (np.broadcast_to(x.swapaxes(0, 1), (n, plan.steps, *x.shape[::2])) for x in (indices, weights))
    return indices, weights


def _average(setup: Setup, plan: Plan, part: Part) -> Average:
    return partial(exact_mean, part=part) if setup.config.parallel.exact else partial(pmean, parts=plan.micro_batches)


@repairing_cache()
def _describe_program(setup: Setup, params: Params) -> Callable[[Params], dict[str, np.ndarray]] | None:
    if setup.workload.describe is None:
        return None
    count = min(setup.config.log.figure_samples, setup.eval_plan.samples)
    shown = take(cast(setup.config, setup.workload.data.validation), np.arange(count))
    compiled = jax.jit(setup.workload.describe).lower(jax.device_get(params), shown).compile()
    return lambda params: jax.device_get(compiled(jax.device_get(params), shown))
