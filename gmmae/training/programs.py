"""The compiled programs of a run. They hold its data on the devices, and none of them ever compiles again.

A program takes chunks: consecutive steps of an epoch. A chunk is the whole epoch, or `stop.validate_every_steps` of its steps.
Where the samples come from a source and are read beforehand, it has as many steps as `parallel.prefetch_mb` has room for. The
number of steps is a value at run time where a chunk is not the whole, so that XLA cannot unroll the loop. A step then has the
same bits in any chunk.
"""

import math
from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache, partial
from itertools import count
from typing import Any, Literal, NamedTuple, ParamSpec, TypeVar

import jax
import numpy as np
from jaxtyping import Float, Int32, PyTree

from gmmae.models.convolutions import fast_convolutions
from gmmae.scaling import schedules
from gmmae.scaling.batches import BatchPlan, epoch_order, shard_samples
from gmmae.training.compilation import TrainSetup, cast, workload_key
from gmmae.training.fetching import BlockRows, BlockStream, Fetcher, block_rows, block_steps, blocks
from gmmae.training.per_sample import losses, summable_values, validation_means
from gmmae.training.step import Algorithm, EpochValues, Slots, TrainState, train_steps, validate_steps
from gmmae.workloads import registry
from gmmae.workloads.interface import Params, Samples
from gmmae.workloads.sources import CheckedSource, take_on_host

P = ParamSpec("P")
T = TypeVar("T")
Split = Literal["train", "validation"]
Places = tuple[np.ndarray, np.ndarray]
"""The indices and the weights of an epoch's slots, `devices × steps × slots`."""


class Chunk(NamedTuple):
    """Consecutive steps, counted from 0, of an epoch or of a validation."""

    epoch: int
    steps: range


class _Chunks:
    """The steps of a split in chunks, and what a program takes for each.

    Args:
      setup: of the run.
      split: of the data.
      plan: of its batches.
      parts: the parts of an epoch. A chunk lies within one of them.
      places: those of an epoch by its number.
      epochs: how many there are.
      fetcher: reads the samples of a source.

    Attributes:
      length: the steps of the longest chunk.
      from_source: whether the samples come from a source.
    """

    def __init__(
        self, setup: TrainSetup, split: Split, plan: BatchPlan, parts: Sequence[range], places: Callable[[int], Places],
        epochs: float, fetcher: Fetcher | None,
    ) -> None:  # fmt: skip
        self._setup, self._plan, self._epochs, self.places = setup, plan, epochs, places
        self.length, source = len(parts[0]), getattr(setup.data, split)
        self.from_source = isinstance(source, CheckedSource)
        if isinstance(source, CheckedSource):
            assert fetcher is not None, "the samples of a source must be read"
            self._like = cast(setup.config, source.first)
            sources = sum(isinstance(each, CheckedSource) for each in (setup.data.train, setup.data.validation))
            samples = plan.devices * plan.device_batch * len(setup.devices.own) // setup.devices.count
            step_bytes = samples * sum(leaf.nbytes for leaf in jax.tree.leaves(self._like))
            most = block_steps(plan.steps, step_bytes, 1e6 * setup.config.parallel.prefetch_mb / sources)
            self.length = min(self.length, most)
            self._rows = lru_cache(maxsize=4)(self._rows_of)
            own = list(setup.devices.own)
            self._stream = BlockStream(
                fetcher, source, self._like, lambda chunk: self._rows(chunk).samples[own], self._following
            )
        else:
            key = ("data on devices", split, setup.config.precision, setup.devices, *workload_key(setup.config))
            self._held = setup.cache.get(key, lambda: setup.devices.replicate(cast(setup.config, source)))
        self._of_epoch = [steps for part in parts for steps in blocks(part, self.length)]
        self._shard_ranges = setup.devices.shard_ranges(plan.devices)
        self._ranges_held = setup.devices.shard(self._shard_ranges)

    @property
    def first(self) -> Chunk:
        """The first chunk of the first epoch."""
        return Chunk(1, self._of_epoch[0])

    def within(self, epoch: int, steps: range) -> list[Chunk]:
        """Returns the chunks of some steps of an epoch."""
        return [Chunk(epoch, part) for part in blocks(steps, self.length)]

    def padded(self, chunk: Chunk) -> slice | Int32[np.ndarray, " length"]:
        """Returns the index of a chunk's steps. The last step fills it; the program does not get so far."""
        first, stop = chunk.steps.start, chunk.steps.stop
        if stop - first == self.length:
            return slice(first, stop)  # without a copy
        return np.minimum(np.arange(first, first + self.length, dtype=np.int32), stop - 1)

    def arguments(self, chunk: Chunk, *, example: bool = False) -> tuple[Any, Samples, Slots]:
        """Returns the number of steps, the samples and the slots of a chunk, on the devices.

        Args:
          chunk: of them.
          example: whether only shapes matter, so that a source need not be read.
        """
        devices = self._setup.devices
        steps = devices.replicate(np.int32(len(chunk.steps)))
        indices, weights = devices.shard(tuple(array[:, self.padded(chunk)] for array in self.places(chunk.epoch)))
        if not self.from_source:
            return steps, self._held, Slots(indices, indices, weights, self._ranges_held)
        of_chunk = self._rows(chunk)
        shape = len(devices.own), of_chunk.samples.shape[1]
        read = self._stream.get if not example else lambda _: jax.tree.map(partial(_zeros, shape), self._like)
        slots = Slots(devices.shard(of_chunk.rows), indices, weights, self._ranges_held)
        return steps, devices.shard_own(read(chunk)), slots

    def compile(
        self, key: tuple[Hashable, ...], function: Callable[..., PyTree], *args: PyTree, donate: tuple[int, ...] = ()
    ) -> jax.stages.Compiled:
        """Compiles `function(*args)`, whose last arguments are those of a chunk."""
        setup, whole = self._setup, self.length == self._plan.steps

        def program(*args: PyTree) -> PyTree:
            *before, steps, samples, slots = args
            return function(*before, self._plan.steps if whole else steps, samples, slots)

        program, exact, sharded = _fast(setup, program), setup.config.parallel.deterministic, 1 + self.from_source
        return setup.cache.get(
            setup.program_key(*key, self.length, self.from_source),
            lambda: setup.devices.compile(program, *args, sharded=sharded, donate=donate, deterministic=exact),
        )

    def _rows_of(self, chunk: Chunk) -> BlockRows:
        indices = self.places(chunk.epoch)[0][:, self.padded(chunk)]
        return block_rows(indices, self.length, self._shard_ranges if self._setup.config.parallel.deterministic else None)

    def _following(self, chunk: Chunk) -> Chunk | None:
        number = self._of_epoch.index(chunk.steps) + 1
        if number < len(self._of_epoch):
            return chunk._replace(steps=self._of_epoch[number])
        return Chunk(chunk.epoch + 1, self._of_epoch[0]) if chunk.epoch < self._epochs else None


Train = Callable[..., tuple[TrainState, Float[np.ndarray, " steps"]]]
"""`(state, epoch, steps=the whole epoch) -> (state, mean loss of each step)`; takes over the state's memory."""
Validate = Callable[[Params], dict[str, float]]
"""`params -> {name: mean over the validation samples}`: the loss and the workload's metrics."""


def epoch_parts(setup: TrainSetup) -> list[range]:
    """Returns the steps of each part of an epoch, from 0. There is one part if no validation is due before the epoch's end."""
    steps = setup.train_plan.steps
    return blocks(range(steps), min(setup.config.stop.validate_every_steps or steps, steps))


def training(setup: TrainSetup, state: TrainState, fetcher: Fetcher | None = None) -> Train:
    """Compiles the training of some or all steps of an epoch.

    Args:
      setup: from `compilation.prepare`.
      state: a state on the devices, for its shapes.
      fetcher: reads the samples of a source, until it is closed.
    """
    compiled, arguments, chunks = compile_training(setup, state, fetcher)
    epoch_of = range(setup.train_plan.steps)

    def train(state: TrainState, epoch: int, steps: range = epoch_of) -> tuple[TrainState, np.ndarray]:
        step_losses: list[jax.Array] = []
        of_steps = chunks.within(epoch, steps)
        for chunk in of_steps:
            of_chunk = arguments(chunk)
            # One program at a time: many that wait may dead-lock on several CPU devices.
            state, of_step = compiled(jax.block_until_ready(state), *of_chunk)
            step_losses.append(of_step)
            if chunk.steps.stop == len(epoch_of):
                chunks.places(epoch + 1)  # while the devices compute
        return jax.block_until_ready(state), _joined(step_losses, of_steps)

    return train


def compile_training(
    setup: TrainSetup, state: TrainState, fetcher: Fetcher | None = None, *, donate: bool = True
) -> tuple[jax.stages.Compiled, Callable[[Chunk], tuple[Any, ...]], "_Chunks"]:
    """Returns the program of a chunk of training, the arguments after the state for each chunk, and the chunks.

    Args:
      setup: from `compilation.prepare`.
      state: a state on the devices, for its shapes.
      fetcher: reads the samples of a source.
      donate: whether the program takes over the state's memory.
    """
    config, plan = setup.config, setup.train_plan

    @lru_cache(maxsize=2)  # of the epoch that is trained, and of the next one
    def places(epoch: int) -> Places:
        return shard_indices(setup, epoch_order(config.seed, epoch, plan.samples), plan)

    chunks = _Chunks(setup, "train", plan, epoch_parts(setup), places, config.stop.max_epochs, fetcher)

    def arguments(chunk: Chunk, *, example: bool = False) -> tuple[Any, ...]:
        values = epoch_values(setup, chunk.epoch)
        values = values._replace(learning_rates=values.learning_rates[chunks.padded(chunk)])
        return setup.devices.replicate(values), *chunks.arguments(chunk, example=example)

    of_run = _fast(setup, partial(losses, setup.workload)), setup.optimizer, plan.micro_batches, config.parallel.deterministic
    function = partial(train_steps, algorithm=Algorithm(*of_run))
    key = "train", donate, plan, setup.stage.optim
    compiled = chunks.compile(key, function, state, *arguments(chunks.first, example=True), donate=(0,) * donate)
    return compiled, arguments, chunks


def validation(setup: TrainSetup, params: Params, fetcher: Fetcher | None = None) -> Validate:
    """Compiles a validation. Args are those of `training`, of parameters."""
    compiled, chunks = compile_validation(setup, params, fetcher)
    steps, numbers = range(setup.eval_plan.steps), count(1)
    held = None if chunks.from_source else [chunks.arguments(chunk) for chunk in chunks.within(1, steps)]

    def validate(params: Params) -> dict[str, float]:
        results: list[dict[str, jax.Array]] = []
        of_steps = chunks.within(next(numbers), steps)
        for of_chunk in held or map(chunks.arguments, of_steps):
            jax.block_until_ready(results)  # one program at a time, as in training
            results.append(compiled(params, *of_chunk))
        means = {name: _joined([result[name] for result in results], of_steps) for name in results[0]}
        return validation_means(means, setup.eval_plan)

    return validate


def compile_validation(
    setup: TrainSetup, params: Params, fetcher: Fetcher | None = None
) -> tuple[jax.stages.Compiled, "_Chunks"]:
    """Returns the program of a chunk of a validation, and the chunks. Args are those of `validation`."""
    plan = setup.eval_plan
    places = shard_indices(setup, np.arange(plan.samples, dtype=np.int32), plan)
    chunks = _Chunks(setup, "validation", plan, [range(plan.steps)], lambda _: places, math.inf, fetcher)
    values = partial(summable_values, setup.workload, setup.data.may_be_undefined)
    function = partial(validate_steps, values=values, exact=setup.config.parallel.deterministic)
    return chunks.compile(("validation", plan), function, params, *chunks.arguments(chunks.first, example=True)), chunks


def _fast(setup: TrainSetup, function: Callable[P, T]) -> Callable[P, T]:
    """Returns a function with fast convolutions, if wanted, on a CPU. Those of our own workloads are fast already."""
    wanted = setup.config.parallel.fast_convolutions and setup.config.workload not in registry.BUILT_IN
    return fast_convolutions(function) if wanted and setup.devices.platform == "cpu" else function


def _zeros(shape: tuple[int, ...], sample: np.ndarray) -> np.ndarray:
    return np.zeros((*shape, *sample.shape), sample.dtype)


def _joined(of_chunks: Sequence[jax.Array], chunks: Sequence[Chunk]) -> Float[np.ndarray, " steps"]:
    """Returns a value of each step from those of the chunks, whose arrays may be longer."""
    return np.concatenate([np.asarray(values)[: len(chunk.steps)] for values, chunk in zip(of_chunks, chunks, strict=True)])


def description(setup: TrainSetup, params: Params) -> Callable[[Params], dict[str, np.ndarray]] | None:
    """Compiles `params -> {name: array}` for the shown validation samples; None where the workload shows nothing."""
    describe = setup.workload.describe
    if describe is None:
        return None
    shown_samples = min(setup.config.log.figure_samples, setup.eval_plan.samples)
    shown = cast(setup.config, take_on_host(setup.data.validation, np.arange(shown_samples)))
    compiled = setup.cache.get(
        setup.program_key("describe", shown_samples),
        lambda: jax.jit(describe).lower(jax.device_get(params), shown).compile(),
    )
    return lambda params: jax.device_get(compiled(jax.device_get(params), shown))


def epoch_values(setup: TrainSetup, epoch: int) -> EpochValues:
    """Returns the values of an epoch, as NumPy arrays."""
    rates = schedules.epoch_learning_rates(setup.schedule, epoch, setup.train_plan.steps).astype(setup.config.dtype)
    return EpochValues(np.uint32(setup.config.seed), np.int32(epoch), rates)  # pyright: ignore[reportArgumentType]


def shard_indices(setup: TrainSetup, order: Int32[np.ndarray, " samples"], plan: BatchPlan) -> Places:
    """Returns the indices and the weights of an epoch's samples on the host, one entry for each device.

    With the exact reduction every device has those of all shards.
    """
    indices, weights = shard_samples(order, plan, setup.config.dtype)
    if not setup.config.parallel.deterministic:
        return indices, weights
    n = setup.devices.count
    indices, weights = (np.broadcast_to(x.swapaxes(0, 1), (n, plan.steps, *x.shape[::2])) for x in (indices, weights))
    return indices, weights
