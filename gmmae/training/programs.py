"""The compiled programs of a run, which never compile again.

A program takes a chunk: consecutive steps of an epoch, all of them or `stop.validate_every_steps`, and of a source no more than
`parallel.prefetch_mb` has room for. Unless a chunk is the whole, XLA does not know the number of steps and cannot unroll the
loop, so a step has the same bits in any chunk.
"""

import math
from collections.abc import Callable, Hashable, Sequence
from functools import cache, lru_cache, partial
from itertools import count
from typing import Any, Literal, ParamSpec, TypeVar

import jax
import numpy as np
import optax
from jaxtyping import Float, Int32, PyTree

from gmmae.models.convolutions import fast_convolutions
from gmmae.scaling.batches import BatchPlan, ShardedIndices, epoch_order, shard_samples
from gmmae.training.preparation import TrainSetup, blank_state, cast, outer_optimizer, precision_context, workload_key
from gmmae.training.step import Algorithm, EpochValues, Slots, TrainState, train_steps, validate_steps
from gmmae.workloads import registry
from gmmae.workloads.contract import UNDEFINED, losses, summable_values
from gmmae.workloads.interface import Params, Samples
from gmmae.workloads.sources import CheckedSource, Fetcher, rows_of, take_on_host

P = ParamSpec("P")
T = TypeVar("T")


class _Chunks:
    """The steps of a split in chunks, each within one of `parts`, and a program's arguments for each.

    Attributes:
      of_epoch: the steps of each chunk of an epoch, from 0.
    """

    def __init__(
        self, setup: TrainSetup, split: Literal["train", "validation"], plan: BatchPlan, parts: Sequence[range],
        places: Callable[[int], ShardedIndices], epochs: float, fetcher: Fetcher | None,
    ) -> None:  # fmt: skip
        devices, source = setup.devices, getattr(setup.data, split)
        self._setup, self._plan, self._epochs, self.places = setup, plan, epochs, places
        self._length, self.from_source = len(parts[0]), isinstance(source, CheckedSource)
        self._local_steps = setup.stage.local_steps if split == "train" else 0
        if self.from_source:
            like, slots = cast(setup.config, source.first), plan.sharers * plan.device_batch // devices.count
            step_bytes = len(devices.own) * slots * sum(leaf.nbytes for leaf in jax.tree.leaves(like))
            # Each of two sources has three chunks in memory: one is computed, one complete or copied to the devices, one read.
            most = int(1e6 * setup.config.parallel.prefetch_mb / (2 * 3 * step_bytes))
            if most < self._length:
                every = min(self._local_steps or 1, self._length)
                self._length = max(every, most // every * every)
            rows = len(devices.own), self._length * slots
            # To compile for before anything is read.
            self._held = jax.tree.map(lambda leaf: np.broadcast_to(leaf, (*rows, *leaf.shape)), like)

            @lru_cache(maxsize=2)  # of the chunk that is computed, and of the next one
            def begin(epoch: int, steps: range) -> tuple[Int32[np.ndarray, "shards steps slots"], Callable[[], Samples]]:
                assert fetcher is not None, "the samples of a source must be read"
                samples, rows = rows_of(places(epoch).indices[:, self.filled(steps)], devices.count)
                return rows, fetcher.begin(source, like, samples[list(devices.own)])

            self._begin = begin
        else:
            key = ("data on devices", split, setup.config.precision, devices, *workload_key(setup.config))
            self._held = setup.cache.once(key, lambda: devices.replicate(cast(setup.config, source)))
        self.of_epoch = [
            range(first, min(first + self._length, part.stop)) for part in parts for first in part[:: self._length]
        ]
        shards = plan.sharers // devices.count
        self._shard_ranges = devices.shard(np.array([(i * shards, shards) for i in range(devices.count)], np.int32))

    def filled(self, steps: range) -> Int32[np.ndarray, " length"]:
        """The steps of a chunk in which the last one fills up a shorter one, unused."""
        return np.minimum(np.arange(steps.start, steps.start + self._length), steps[-1])

    def arguments(self, epoch: int, steps: range, *values: PyTree, read: bool = True) -> tuple[Any, ...]:
        """The values, number of steps, samples and slots of a chunk, on the devices; without `read` only their forms."""
        devices, samples, rows = self._setup.devices, self._held, None
        if self.from_source:
            if read:
                rows, wait = self._begin(epoch, steps)
                more, following = divmod(self.of_epoch.index(steps) + 1, len(self.of_epoch))
                if epoch + more <= self._epochs:
                    self._begin(epoch + more, self.of_epoch[following])
                samples = wait()
            samples = devices.shard(samples, own=True)
        filled, of_epoch = self.filled(steps), self.places(epoch)
        slots = of_epoch.indices[:, filled], of_epoch.weights[:, filled], rows
        if self._setup.config.parallel.deterministic:  # every device has the slots of all shards
            slots = jax.tree.map(lambda array: array.swapaxes(0, 1), slots)
            slots = jax.tree.map(lambda array: np.broadcast_to(array, (devices.count, *array.shape)), slots)
        elif self._local_steps:
            slots = jax.tree.map(lambda array: array.reshape(devices.count, -1, *array.shape[1:]), slots)
        indices, weights, rows = devices.shard(slots)
        slots = Slots(indices if rows is None else rows, indices, weights, self._shard_ranges)
        return *devices.replicate((*values, np.int32(len(steps)))), samples, slots

    def compile(
        self, key: tuple[Hashable, ...], function: Callable[..., PyTree], *args: PyTree, donate: tuple[int, ...] = ()
    ) -> jax.stages.Compiled:
        """Compiles `function(*args)`, whose last arguments are those of a chunk."""
        setup, whole = self._setup, self._length == self._plan.steps

        def program(*args: PyTree) -> PyTree:
            *before, steps, samples, slots = args
            return function(*before, self._plan.steps if whole else steps, samples, slots)

        return setup.cache.once(
            setup.program_key(*key, self._length, self.from_source),
            lambda: setup.devices.compile(
                _fast(setup, program),
                *args,
                sharded=1 + self.from_source,
                donate=donate,
                deterministic=setup.config.parallel.deterministic,
            ),
        )


@lru_cache(maxsize=2)  # chunks of an epoch and its row ask for the same
def epoch_learning_rates(schedule: optax.Schedule, epoch: int, steps: int) -> Float[np.ndarray, " steps"]:
    """The learning rates of an epoch's steps.

    >>> epoch_learning_rates(optax.linear_schedule(1.0, 5.0, 4), epoch=2, steps=2).tolist()
    [3.0, 4.0]
    """
    if _is_constant(schedule):  # a number for all steps needs no program
        return np.full(steps, schedule(0))
    counts = np.arange((epoch - 1) * steps, epoch * steps, dtype=np.int32)
    return jax.device_get(jax.jit(schedule)(jax.device_put(counts)))


@cache
def _is_constant(schedule: optax.Schedule) -> bool:
    return not jax.make_jaxpr(schedule)(0).eqns  # to call it would compile each of its operations


def epoch_parts(setup: TrainSetup) -> list[range]:
    """The steps, from 0, of each part of an epoch that ends with a validation."""
    steps = range(setup.train_plan.steps)
    part = setup.config.stop.validate_every_steps or len(steps)
    return [steps[first : first + part] for first in steps[::part]]


def training(
    setup: TrainSetup, state: TrainState, fetcher: Fetcher | None = None
) -> Callable[..., tuple[TrainState, Float[np.ndarray, " steps"]]]:
    """Compiles the training of steps of an epoch, for a state of these shapes.

    It is `(state, epoch, steps=whole epoch) -> (state, mean loss of each step)`, and takes over the state's memory.
    """
    compiled, arguments, chunks = compile_training(setup, state, fetcher)
    whole = range(setup.train_plan.steps)

    def train(state: TrainState, epoch: int, steps: range = whole) -> tuple[TrainState, np.ndarray]:
        step_losses, of_steps = [], []
        for chunk in chunks.of_epoch:
            if chunk.start not in steps:
                continue
            of_steps.append(chunk)
            of_chunk = arguments(epoch, chunk)
            # One program at a time: many that wait may dead-lock on several CPU devices.
            state, of_step = compiled(jax.block_until_ready(state), *of_chunk)
            step_losses.append(of_step)
        if steps.stop == whole.stop:
            chunks.places(epoch + 1)  # while the devices compute
        return jax.block_until_ready(state), _joined(step_losses, of_steps)

    return train


def compile_training(
    setup: TrainSetup, state: TrainState, fetcher: Fetcher | None = None, *, donate: bool = True
) -> tuple[jax.stages.Compiled, Callable[..., tuple[Any, ...]], "_Chunks"]:
    """The program of a chunk of training, the arguments after the state by epoch and chunk, and the chunks."""
    config, plan, dtype = setup.config, setup.train_plan, setup.config.dtype

    @lru_cache(maxsize=2)  # of the epoch that is trained, and of the next one
    def places(epoch: int) -> ShardedIndices:
        return shard_samples(epoch_order(config.seed, epoch, plan.samples), plan, dtype)

    chunks = _Chunks(setup, "train", plan, epoch_parts(setup), places, config.stop.max_epochs, fetcher)

    def arguments(epoch: int, steps: range, *, read: bool = True) -> tuple[Any, ...]:
        rates = epoch_learning_rates(setup.schedule, epoch, plan.steps).astype(dtype)[chunks.filled(steps)]
        values = EpochValues(np.uint32(config.seed), np.int32(epoch), rates)  # pyright: ignore[reportArgumentType]
        return chunks.arguments(epoch, steps, values, read=read)

    algorithm = Algorithm(
        _fast(setup, partial(losses, setup.workload)),
        setup.optimizer,
        plan.micro_batches,
        config.parallel.deterministic,
        setup.stage.local_steps,
        outer_optimizer(config),
    )
    key = "train", donate, plan, setup.optimizer_key, setup.stage.local_steps, state.outer is None
    function, example = partial(train_steps, algorithm=algorithm), arguments(1, chunks.of_epoch[0], read=False)
    return chunks.compile(key, function, state, *example, donate=(0,) * donate), arguments, chunks


def needed_bytes(setup: TrainSetup) -> int:
    """Memory of a device for the training, with its data and state, as XLA counts it."""
    with precision_context(setup.config):
        program, *_ = compile_training(setup, setup.devices.replicate(blank_state(setup.config, setup.workload)))
        used: Any = program.memory_analysis()
    return used.argument_size_in_bytes + used.output_size_in_bytes - used.alias_size_in_bytes + used.temp_size_in_bytes


def validation(setup: TrainSetup, params: Params, fetcher: Fetcher | None = None) -> Callable[[Params], dict[str, float]]:
    """Compiles `params -> {name: mean over the validation samples}`, of loss and metrics, for parameters of these shapes."""
    compiled, chunks = compile_validation(setup, params, fetcher)
    plan, numbers, of_steps = setup.eval_plan, count(1), chunks.of_epoch
    held = None if chunks.from_source else {steps: chunks.arguments(1, steps) for steps in of_steps}

    def validate(params: Params) -> dict[str, float]:
        results, number = [], next(numbers)
        for steps in of_steps:
            of_chunk = held[steps] if held else chunks.arguments(number, steps)
            jax.block_until_ready(results)  # one program at a time, as in training
            results.append(compiled(params, *of_chunk))
        means = {}
        for name in results[0]:
            means[name] = plan.mean(_joined([result[name] for result in results], of_steps))
        for name in setup.data.may_be_undefined:  # its mean is over the samples that define it
            defined = plan.samples - round(means.pop(name + UNDEFINED) * plan.samples)
            means[name] *= plan.samples / defined if defined else math.nan
        return means

    return validate


def compile_validation(
    setup: TrainSetup, params: Params, fetcher: Fetcher | None = None
) -> tuple[jax.stages.Compiled, "_Chunks"]:
    """The program of a chunk of a validation, and the chunks."""
    plan = setup.eval_plan
    places = shard_samples(np.arange(plan.samples, dtype=np.int32), plan, setup.config.dtype)
    chunks = _Chunks(setup, "validation", plan, [range(plan.steps)], lambda _: places, math.inf, fetcher)
    per_sample = partial(summable_values, setup.workload, setup.data.may_be_undefined)
    function = partial(validate_steps, per_sample=per_sample, exact=setup.config.parallel.deterministic)
    return chunks.compile(("validation", plan), function, params, *chunks.arguments(1, chunks.of_epoch[0], read=False)), chunks


def _fast(setup: TrainSetup, function: Callable[P, T]) -> Callable[P, T]:
    """Convolutions of our own workloads are fast already."""
    wanted = setup.config.parallel.fast_convolutions and setup.config.workload not in registry.BUILT_IN
    return fast_convolutions(function) if wanted and setup.devices.platform == "cpu" else function


def _joined(of_chunks: Sequence[jax.Array], chunks: Sequence[range]) -> Float[np.ndarray, " steps"]:
    """The arrays of chunks may be longer than the chunks."""
    return np.concatenate([values[: len(chunk)] for values, chunk in zip(jax.device_get(of_chunks), chunks, strict=True)])


def description(setup: TrainSetup, params: Params) -> Callable[[Params], dict[str, np.ndarray]] | None:
    """Compiles `params -> {name: array}` for the shown validation samples, if the workload shows any."""
    describe = setup.workload.describe
    if describe is None:
        return None
    shown_samples = min(setup.config.log.figure_samples, setup.eval_plan.samples)
    shown = cast(setup.config, take_on_host(setup.data.validation, np.arange(shown_samples)))
    compiled = setup.cache.once(
        setup.program_key("describe", shown_samples),
        lambda: jax.jit(describe).lower(jax.device_get(params), shown).compile(),
    )
    return lambda params: jax.device_get(compiled(jax.device_get(params), shown))
