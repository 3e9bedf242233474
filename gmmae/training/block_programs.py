"""Training and validation with samples from a source: an epoch in blocks of steps, whose samples are read beforehand.

The gradient is computed by the functions of a run with all samples on its devices, and has the same bits. An epoch of one block
has the usual program. Otherwise the number of steps in a block is a value at run time, so that XLA cannot unroll the loop.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from itertools import pairwise
from typing import Literal, NamedTuple

import jax
import numpy as np
from jaxtyping import Float, Int, Int32, PyTree

from gmmae.scaling.batches import BatchPlan
from gmmae.system.compilation_cache import repairing_cache
from gmmae.training import compilation
from gmmae.training.compilation import TrainSetup
from gmmae.training.epoch_parts import TrainPart, epoch_parts, padded
from gmmae.training.fetching import BlockRows, BlockStream, Fetcher, block_rows, block_steps, blocks
from gmmae.training.parallel import Devices
from gmmae.training.per_sample import validation_means
from gmmae.training.step import RowsOfSource, TrainState, make_evaluate_steps, make_train_epoch, make_train_steps
from gmmae.workloads.interface import Params, Samples
from gmmae.workloads.sources import CheckedSource


class BlockOfEpoch(NamedTuple):
    """A block of a training epoch."""

    epoch: int
    steps: range


class _Blocks(NamedTuple):
    """The blocks of a split.

    Attributes:
      source: of the samples.
      like: a sample in the types of the arrays on the devices.
      length: steps of the longest block.
      whole: whether a block is a whole epoch, or a whole validation.
    """

    source: CheckedSource
    like: Samples
    length: int
    whole: bool


def from_source(setup: TrainSetup, split: Literal["train", "validation"]) -> bool:
    """Returns whether the samples of a split come from a source."""
    return isinstance(getattr(setup.data, split), CheckedSource)


def _blocks(setup: TrainSetup, split: Literal["train", "validation"], plan: BatchPlan) -> _Blocks:
    source = getattr(setup.data, split)
    like = compilation.cast(setup.config, source.first)
    samples = plan.devices * plan.device_batch * len(setup.devices.own) // setup.devices.count
    step_bytes = samples * sum(leaf.nbytes for leaf in jax.tree.leaves(like))
    sources = sum(from_source(setup, name) for name in ("train", "validation"))
    length = block_steps(plan.steps, step_bytes, 1e6 * setup.config.parallel.prefetch_mb / sources)
    return _Blocks(source, like, length, length == plan.steps)


def _block_rows(setup: TrainSetup, plan: BatchPlan, indices: Int[np.ndarray, "devices steps *slots"], length: int) -> BlockRows:
    ranges = setup.devices.shard_ranges(plan.devices) if setup.config.parallel.deterministic else None
    return block_rows(indices, length, ranges)


def _of_own_devices(devices: Devices, rows: BlockRows) -> Int32[np.ndarray, "devices rows"]:
    return rows.samples[list(devices.own)]


@repairing_cache()
def train_part_program(setup: TrainSetup, state: TrainState, fetcher: Fetcher) -> TrainPart:
    """Compiles the program for the parts of epochs.

    Args:
      setup: from `compilation.prepare`; its training samples come from a source.
      state: a state on the devices, for its shapes.
      fetcher: reads the samples. The returned function can be used until it is closed.
    """
    devices, plan = setup.devices, setup.train_plan
    own = _blocks(setup, "train", plan)
    shard_ranges = devices.shard(devices.shard_ranges(plan.devices))
    of_epoch = [block for part in epoch_parts(setup) for block in blocks(part, own.length)]
    following_block = dict(pairwise(of_epoch))

    on_host = lru_cache(maxsize=2)(partial(compilation.epoch_places, setup))  # of this epoch and of the next one

    @lru_cache(maxsize=4)
    def rows(block: BlockOfEpoch) -> BlockRows:
        return _block_rows(setup, plan, on_host(block.epoch)[0][:, padded(block.steps, own.length)], own.length)

    def following(block: BlockOfEpoch) -> BlockOfEpoch | None:
        if (steps := following_block.get(block.steps)) is not None:
            return block._replace(steps=steps)
        return BlockOfEpoch(block.epoch + 1, of_epoch[0]) if block.epoch < setup.config.stop.max_epochs else None

    def arguments(block: BlockOfEpoch, samples: Samples) -> tuple[PyTree, ...]:
        places = padded(block.steps, own.length)
        values = compilation.epoch_values(setup, block.epoch)
        values = values._replace(learning_rates=values.learning_rates[places])
        indices, weights = (array[:, places] for array in on_host(block.epoch))
        replicated = devices.replicate((values, np.int32(len(block.steps))))
        sharded = devices.shard((RowsOfSource(rows(block).rows, indices), weights))
        return *replicated, devices.shard_own(samples), *sharded, shard_ranges

    def program(state: TrainState, values: PyTree, count: PyTree, samples: PyTree, *places: PyTree) -> PyTree:
        functions = compilation.step_functions(setup)
        if own.whole:
            return make_train_epoch(*functions)(state, samples, values, *places)
        return make_train_steps(*functions)(state, samples, values, count, *places)

    example = _zeros(own, rows(BlockOfEpoch(1, of_epoch[0])), devices)
    compiled = setup.cache.get(
        setup.program_key("train block", own.length, *setup.training_key),
        lambda: devices.compile(
            program, state, *arguments(BlockOfEpoch(1, of_epoch[0]), example),
            sharded=4, donate=(0,), deterministic=setup.config.parallel.deterministic,
        ),
    )  # fmt: skip
    stream = BlockStream(fetcher, own.source, own.like, lambda block: _of_own_devices(devices, rows(block)), following)

    def train(state: TrainState, epoch: int, steps: range) -> tuple[TrainState, np.ndarray]:
        losses: list[jax.Array] = []
        parts = blocks(steps, own.length)
        for part in parts:
            block = BlockOfEpoch(epoch, part)
            of_block = arguments(block, stream.get(block))
            # One program at a time: many that wait may dead-lock on several CPU devices.
            state, step_losses = compiled(jax.block_until_ready(state), *of_block)
            losses.append(step_losses)
        return jax.block_until_ready(state), _joined(losses, [len(part) for part in parts])

    return train


@repairing_cache()
def evaluate_program(setup: TrainSetup, params: Params, fetcher: Fetcher) -> Callable[[Params], dict[str, float]]:
    """Compiles `Programs.evaluate` for validation samples from a source. Args are those of `train_part_program`."""
    devices, plan = setup.devices, setup.eval_plan
    own = _blocks(setup, "validation", plan)
    shard_ranges = devices.shard(devices.shard_ranges(plan.devices))
    of_validation = blocks(range(plan.steps), own.length)
    indices, weights = compilation.shard_indices(setup, np.arange(plan.samples, dtype=np.int32), plan)

    @lru_cache(maxsize=4)
    def rows(steps: range) -> BlockRows:
        return _block_rows(setup, plan, indices[:, padded(steps, own.length)], own.length)

    def following(steps: range) -> range:
        return of_validation[(of_validation.index(steps) + 1) % len(of_validation)]

    def arguments(steps: range, samples: Samples) -> tuple[PyTree, ...]:
        sharded = devices.shard((rows(steps).rows, weights[:, padded(steps, own.length)]))
        return devices.replicate(np.int32(len(steps))), devices.shard_own(samples), *sharded, shard_ranges

    def program(params: Params, count: PyTree, samples: PyTree, *places: PyTree) -> PyTree:
        if own.whole:
            return compilation.evaluation_of(setup)(params, samples, *places)
        return make_evaluate_steps(*compilation.validation_functions(setup))(params, samples, count, *places)

    example = _zeros(own, rows(of_validation[0]), devices)
    compiled = setup.cache.get(
        setup.program_key("validation block", own.length, plan),
        lambda: devices.compile(
            program, params, *arguments(of_validation[0], example),
            sharded=4, deterministic=setup.config.parallel.deterministic,
        ),
    )  # fmt: skip
    stream = BlockStream(fetcher, own.source, own.like, lambda steps: _of_own_devices(devices, rows(steps)), following)

    def evaluate(params: Params) -> dict[str, float]:
        results: list[dict[str, jax.Array]] = []
        for steps in of_validation:
            of_block = arguments(steps, stream.get(steps))
            jax.block_until_ready(results)  # one program at a time, as in training
            results.append(compiled(params, *of_block))
        counts = [len(steps) for steps in of_validation]
        means = {name: _joined([result[name] for result in results], counts) for name in results[0]}
        return validation_means(means, plan)

    return evaluate


def _joined(of_blocks: Sequence[jax.Array], counts: Sequence[int]) -> Float[np.ndarray, " steps"]:
    """Returns a value of each step from those of the blocks, whose arrays may be longer."""
    return np.concatenate([np.asarray(values)[:count] for values, count in zip(of_blocks, counts, strict=True)])


def _zeros(own: _Blocks, rows: BlockRows, devices: Devices) -> Samples:
    """Returns samples for the shapes of a program."""
    shape = len(devices.own), rows.samples.shape[1]
    return jax.tree.map(lambda leaf: np.zeros((*shape, *leaf.shape), leaf.dtype), own.like)
