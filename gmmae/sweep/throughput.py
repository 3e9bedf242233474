"""Measures step times by batch. Compilation and warm-up steps do not count, and every timed block is awaited."""

import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Sequence

import jax
import numpy as np

from gmmae.config.schema import changed
from gmmae.sweep.grid import TimingConfig
from gmmae.sweep.step_times import TRAINING, VALIDATION, Timing, Timings, settings
from gmmae.system.errors import InputError
from gmmae.system.provenance import git_commit, versions
from gmmae.training import preparation, programs
from gmmae.training.preparation import RunCache, TrainSetup
from gmmae.training.step import TrainState
from gmmae.workloads.sources import CheckedSource, Fetcher


def measure(setup: TrainSetup, batches: Sequence[int], validation: Sequence[int], timing: TimingConfig) -> Timings:
    """Measures training steps and validation in alternating blocks, so that a slow moment affects all equally."""
    config = setup.config
    failed: dict[str, str] = {}
    blocks: dict[tuple[str, int], tuple[Callable[[], float], list[float]]] = {}
    with preparation.precision_context(config), Fetcher(config.parallel.fetch_threads) as fetcher:
        state = preparation.initial_state(setup)
        for what, counts, make in ((TRAINING, batches, _train_block), (VALIDATION, validation, _validation_block)):
            for count in counts:
                try:
                    blocks[what, count] = make(setup, state, count, timing, fetcher), []
                except (jax.errors.JaxRuntimeError, InputError) as error:  # out of memory, or fewer samples than devices
                    failed[f"{what} of {count}"] = " ".join(str(error).split())[:200]
        for _ in range(timing.blocks):
            for block, seconds in blocks.values():
                seconds.append(block())
    n = setup.devices.count
    rows: dict[str, list[Timing]] = {TRAINING: [], VALIDATION: []}
    for (what, count), (_, seconds) in blocks.items():
        low, median, high = np.quantile(seconds, (0.25, 0.5, 0.75)).tolist()
        rows[what].append(Timing(count, math.ceil(count / n), median, low, high))
    return Timings(
        devices=n,
        device_kind=setup.devices.kind,
        oversubscribed=setup.devices.oversubscribed,
        parameters=preparation.parameter_count(state.params),
        train=rows[TRAINING],
        validation=rows[VALIDATION],
        failed=failed,
        timing=settings(timing),
        versions=versions(),
        git_commit=git_commit(),
    )


def _train_block(
    setup: TrainSetup, start: TrainState, batch: int, timing: TimingConfig, fetcher: Fetcher
) -> Callable[[], float]:
    data, steps = setup.data, min(timing.steps, setup.train_plan.steps)
    block = setup.strategy_plan._replace(samples=steps * batch, batch=batch)

    def repeated(samples: np.ndarray | CheckedSource) -> np.ndarray | CheckedSource:
        if isinstance(samples, CheckedSource):
            return samples.resized(block.samples)
        return np.resize(samples, (max(len(samples), block.samples), *samples.shape[1:]))

    resized = dataclasses.replace(data, train=jax.tree.map(repeated, data.train))
    endless = changed(setup.config, stop__max_epochs=2**31 - 1, stop__validate_every_steps=None)
    sized = preparation.planned(setup, setup.stage, block)._replace(config=endless, data=resized, cache=RunCache())
    held = [setup.devices.replicate(start)]  # each block reuses the memory of the one before
    epochs = itertools.count(1)  # a source is read in the order of the epochs
    train = programs.training(sized, held[0], fetcher)

    def run() -> float:
        started = time.perf_counter()
        held[0], _ = train(held[0], next(epochs))
        return (time.perf_counter() - started) / steps

    for _ in range(max(1, math.ceil(timing.warmup_steps / steps))):
        run()
    return run


def _validation_block(
    setup: TrainSetup, start: TrainState, count: int, _: TimingConfig, fetcher: Fetcher
) -> Callable[[], float]:
    sized = setup._replace(
        eval_plan=preparation.validation_plan(setup.config, setup.devices.platform, count, setup.eval_plan.sharers)
    )
    params = setup.devices.replicate(start.params)
    evaluate = programs.validation(sized, params, fetcher)

    def run() -> float:
        started = time.perf_counter()
        evaluate(params)
        return time.perf_counter() - started

    run()
    return run
