"""What a run computes: everything decided before the first epoch, and the compiled programs that follow from it."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from jaxtyping import Float

from gmmae.base import arms
from gmmae.base.compiled import mended
from gmmae.base.config import Config, ParallelConfig
from gmmae.base.environment import require_prepared
from gmmae.base.errors import InputError
from gmmae.data.batches import Plan, epoch_order, plan, shards
from gmmae.data.volumes import Targets
from gmmae.training import schedules
from gmmae.training.parallel import Devices, choose, exact_mean, pmean
from gmmae.training.step import Average, Params, TrainState, adam, evaluate, take, train_epoch
from gmmae.training.writers import Details
from gmmae.workloads import augment
from gmmae.workloads.nodules import WORKLOADS, Workload

EVAL_DEVICE_BATCH = 64
"""Validation volumes of one device at a time: bounds memory, and changes no result beyond rounding."""


class Setup(NamedTuple):
    """What is decided before the first epoch.

    Attributes:
      devices: those that compute.
      strategy: the global batch and the learning rate that follow from the arm, the devices and the training samples.
      arm_plan: the batch as the arm's number of devices share it; where that number is virtual, `train_plan` is the same
        batch as the devices that compute it share it.
      train_plan, eval_plan: for `parallel.reduction = exact`, their devices are its shards.
    """

    config: Config
    workload: Workload
    devices: Devices
    strategy: arms.Strategy
    arm_plan: Plan
    train_plan: Plan
    eval_plan: Plan
    schedule: optax.Schedule
    optimizer: optax.GradientTransformation


class Programs(NamedTuple):
    """Compiled functions, the data set on the devices filled in. None of them ever compiles again.

    Attributes:
      train: `(state, epoch) -> (state, mean loss of each step)`; takes over the state's memory.
      evaluate: `params -> validation loss`.
      describe: `params -> Details` of the shown validation volumes.
    """

    train: Callable[[TrainState, int], tuple[TrainState, Float[np.ndarray, " steps"]]]
    evaluate: Callable[[Params], float]
    describe: Callable[[Params], Details]


def prepare(config: Config) -> Setup:
    """Loads the data, chooses the devices and follows the arm's rules.

    Raises:
      InputError: the configuration does not fit the machine or the data.
    """
    optim, parallel = config.optim, config.parallel
    one = parallel.virtual > 0 and jax.process_count() == 1 and jax.default_backend() != "cpu"
    devices = choose(parallel.devices or int(one))
    count = parallel.virtual or devices.count
    workload = WORKLOADS[config.workload](config)
    samples = len(workload.data.train.mass)
    strategy = arms.follow(config.arm, optim, count, samples)
    arm_plan = plan(samples, strategy.global_batch, count)
    if parallel.exact:
        _require_exact(parallel, devices)
        sharers, train_plan = parallel.shards, Plan(samples, arm_plan.batch, parallel.shards)
    else:
        sharers, train_plan = devices.count, plan(samples, arm_plan.batch, devices.count, parallel.micro_batch)
    validation = len(workload.data.validation.mass)
    eval_plan = Plan(validation, min(validation, EVAL_DEVICE_BATCH * sharers), sharers)
    schedule = schedules.learning_rate(strategy.rates, train_plan.steps)
    optimizer = adam(schedule, beta1=optim.beta1, beta2=optim.beta2, epsilon=optim.epsilon, clip_norm=optim.clip_norm)
    return Setup(config, workload, devices, strategy, arm_plan, train_plan, eval_plan, schedule, optimizer)


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


def arithmetic(config: Config) -> AbstractContextManager[object]:
    """The context in which a run's arrays are made and its programs compiled: JAX drops float64 outside of it."""
    return jax.enable_x64(config.precision == "float64")


@mended()
def initial_state(setup: Setup) -> TrainState:
    """The state before the first epoch, on the host; it depends on the configuration's seed and model only."""

    def init(key: jax.Array) -> TrainState:
        params = setup.workload.init(key)
        return TrainState(params, setup.optimizer.init(params))

    def cast(leaf: np.ndarray) -> np.ndarray:
        return leaf.astype(setup.config.dtype) if np.issubdtype(leaf.dtype, np.floating) else leaf

    # It runs once, so on a CPU it is compiled without optimisation: that takes a fifth of the time.
    options: dict[str, str | bool] | None = {"xla_backend_optimization_level": "0"} if jax.default_backend() == "cpu" else None
    with jax.enable_x64(False):  # a run in float64 starts from the same numbers
        key = jax.random.key(setup.config.seed)
        compiled = jax.jit(init).lower(key).compile(compiler_options=options)
        return jax.tree.map(cast, jax.device_get(compiled(key)))


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


@mended()
def train_program(setup: Setup, state: TrainState) -> Callable[[TrainState, int], tuple[TrainState, np.ndarray]]:
    """`Programs.train` alone."""
    volumes = data_set(setup, setup.workload.data.train)

    def samples(epoch: int) -> tuple[Any, ...]:
        order = epoch_order(setup.config.seed, epoch, setup.train_plan.samples)
        return setup.devices.replicate(np.int32(epoch)), *deal(setup, order, setup.train_plan)

    program, deterministic = partial(an_epoch, setup), setup.config.parallel.exact
    compiled = setup.devices.compile(program, state, volumes, *samples(1), sharded=3, donate=(0,), deterministic=deterministic)

    def train(state: TrainState, epoch: int) -> tuple[TrainState, np.ndarray]:
        state, losses = jax.block_until_ready(compiled(state, volumes, *samples(epoch)))
        return state, np.asarray(losses)

    return train


@mended()
def evaluate_program(setup: Setup, params: Params) -> Callable[[Params], float]:
    """`Programs.evaluate` alone."""
    volumes, samples = data_set(setup, setup.workload.data.validation), held_out(setup)
    program = partial(a_validation, setup)
    compiled = setup.devices.compile(program, params, volumes, *samples, sharded=3, deterministic=setup.config.parallel.exact)
    return lambda params: mean_over_steps(np.asarray(compiled(params, volumes, *samples)), setup.eval_plan)


def an_epoch(
    setup: Setup, state: TrainState, volumes: Any, epoch: Any, indices: Any, weights: Any, part: Any
) -> tuple[TrainState, Any]:
    """One device's part of an epoch: the new state and the mean loss of each step. The last three are from `deal`."""
    config = setup.config
    gather = partial(augment.gather, epoch=epoch, seed=config.seed) if config.data.augment else take
    step: dict[str, Any] = {"losses": setup.workload.losses, "optimizer": setup.optimizer}
    return train_epoch(state, volumes, indices, weights, gather=gather, average=_average(setup, setup.train_plan, part), **step)


def a_validation(setup: Setup, params: Params, volumes: Any, indices: Any, weights: Any, part: Any) -> Any:
    """One device's part of a validation: the mean loss of each step."""
    average = _average(setup, setup.eval_plan, part)
    return evaluate(params, volumes, indices, weights, losses=setup.workload.losses, average=average)


def data_set(setup: Setup, targets: Targets) -> Any:
    """All volumes, on every device."""
    return setup.devices.replicate(targets.density.astype(setup.config.dtype))


def held_out(setup: Setup) -> tuple[Any, Any, Any]:
    """What `deal` makes of all validation volumes."""
    return deal(setup, np.arange(setup.eval_plan.samples, dtype=np.int32), setup.eval_plan)


def deal(setup: Setup, order: np.ndarray, plan: Plan) -> tuple[Any, Any, Any]:
    """Indices, weights and part of each device, on the devices."""
    return setup.devices.shard((*hands(setup, order, plan), setup.devices.parts(plan.devices)))


def hands(setup: Setup, order: np.ndarray, plan: Plan) -> tuple[np.ndarray, np.ndarray]:
    """Indices and weights, on the host, one entry a device. Where shards are fixed, every device has all of them."""
    indices, weights = shards(order, plan)
    if not setup.config.parallel.exact:
        return indices, weights
    n = setup.devices.count
    indices, weights = (np.broadcast_to(x.swapaxes(0, 1), (n, plan.steps, *x.shape[::2])) for x in (indices, weights))
    return indices, weights


def _average(setup: Setup, plan: Plan, part: Any) -> Average:
    return partial(exact_mean, part=part) if setup.config.parallel.exact else partial(pmean, parts=plan.micro_batches)


@mended()
def _describe_program(setup: Setup, params: Params) -> Callable[[Params], Details]:
    shown = setup.workload.data.validation.density[: setup.config.log.figure_samples].astype(setup.config.dtype)
    compiled = jax.jit(setup.workload.describe).lower(jax.device_get(params), shown).compile()

    def describe(params: Params) -> Details:
        mixture, density = jax.device_get(compiled(jax.device_get(params), shown))
        covariances = mixture.scale_tril @ mixture.scale_tril.swapaxes(-1, -2)
        return Details(shown, density, np.exp(mixture.log_weights), mixture.means, covariances)

    return describe
