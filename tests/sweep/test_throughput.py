import dataclasses
import itertools
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from gmmae.sweep import throughput
from gmmae.sweep.grid import TimingConfig
from gmmae.sweep.step_times import Timing, read, write
from gmmae.sweep.throughput import measure
from gmmae.training import preparation, programs
from tests.small import small

TIMING = TimingConfig(warmup_steps=1, steps=2, blocks=3)
CONFIG = small(parallel__devices=2, data__shape=9)


def test_every_batch_has_a_row_with_ordered_quartiles_and_one_below_the_devices_fails(tmp_path):
    """30 samples are more than the 22 of training. The file holds all of it."""
    timings = measure(preparation.prepare(CONFIG), [1, 30], [3], TIMING)
    for found, expected in ((timings.train, (30, 15)), (timings.validation, (3, 2))):
        assert [(row.samples, row.device_batch) for row in found] == [expected]
        assert all(0 < row.low_s <= row.median_s <= row.high_s for row in found)
    assert timings.failed == {
        "training of 1": "parallel.devices must be at most the samples in a step, 1; got 2: use fewer devices or a larger "
        "optim.batch_size"
    }
    state = preparation.initial_state(preparation.prepare(CONFIG))
    assert (timings.devices, timings.device_kind, timings.oversubscribed) == (2, "cpu", True)
    assert timings.parameters == sum(leaf.size for leaf in jax.tree.leaves(state.params))
    assert timings.versions["jax"] == jax.__version__
    path = tmp_path / "times.json"
    assert read(path) is None
    write(path, timings)
    assert read(path) == timings


@pytest.mark.slow
def test_no_compilation_is_timed_and_seconds_are_those_of_a_step(monkeypatch):
    """The clock shows 0, 1, 2, ...: a block of 2 steps takes 1, and so does a validation pass."""
    ticks, compilations, seen = itertools.count(), 0, []

    def count(event: str, *_: object, **__: object):
        nonlocal compilations
        compilations += event == "/jax/core/compile/backend_compile_duration"

    def clock():
        seen.append(compilations)
        return next(ticks)

    monkeypatch.setattr(throughput, "time", SimpleNamespace(perf_counter=clock))
    jax.monitoring.register_event_duration_secs_listener(count)
    try:
        found = measure(preparation.prepare(small(data__shape=9)), [8], [6], TIMING)
    finally:
        jax.monitoring.unregister_event_duration_listener(count)
    assert found.train == [Timing(8, 8, 0.5, 0.5, 0.5)]
    assert found.validation == [Timing(6, 6, 1.0, 1.0, 1.0)]
    assert seen[0] > 0, "the listener must have seen the compilation before the first block"
    assert seen[0::2] == seen[1::2]
    assert len(seen) == 2 * 2 * (1 + 3)  # begin and end of a training and a validation block, one warm and three timed


class Trained:
    """Replaces the compiled program. It counts its calls, and can run out of memory."""

    def __init__(self, too_large=()):
        self.calls: list[int] = []
        self.dtypes: set[np.dtype] = set()
        self.steps: set[tuple[int, int | None]] = set()
        self._too_large = too_large

    def __call__(self, setup, state, fetcher):
        batch = setup.train_plan.batch
        if batch in self._too_large:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory\nallocating " + "9" * 300)
        self.steps |= {(setup.train_plan.steps, setup.config.stop.validate_every_steps)}
        self.dtypes |= {leaf.dtype for leaf in jax.tree.leaves(state.params)}

        def train(state, epoch):
            self.calls.append(batch)
            return state, np.zeros(1)

        return train


@pytest.mark.parametrize(("warmup_steps", "blocks"), [(0, 1), (2, 1), (3, 2)])
def test_whole_blocks_before_the_first_timed_one_cover_the_warmup_steps(monkeypatch, warmup_steps, blocks):
    program = Trained()
    monkeypatch.setattr(programs, "training", program)
    timing = dataclasses.replace(TIMING, warmup_steps=warmup_steps)
    measure(preparation.prepare(small(stop__validate_every_steps=1, precision="float64")), [8], [], timing)
    assert program.calls == [8] * (blocks + 3)
    assert program.steps == {(2, None)}  # one dispatch does a block
    assert program.dtypes == {np.dtype("float64")}  # the run's precision


def test_batches_are_timed_in_turns_and_one_that_does_not_fit_does_not_stop_the_others(monkeypatch):
    program = Trained(too_large=(16,))
    monkeypatch.setattr(programs, "training", program)
    found = measure(preparation.prepare(small()), [4, 16, 8], [], TIMING)
    assert program.calls == [4, 8] + [4, 8] * 3
    assert [row.samples for row in found.train] == [4, 8]
    assert list(found.failed) == ["training of 16"]
    reason = found.failed["training of 16"]
    assert reason.startswith("RESOURCE_EXHAUSTED: Out of memory allocating 999")
    assert len(reason) == 200


def test_quartiles_over_blocks(monkeypatch):
    """Blocks of 2, 4, 6, 8 and 10 s and of 2 steps: steps of 1 to 5 s."""
    monkeypatch.setattr(programs, "training", Trained())
    ends = itertools.chain([0, 0], *([0, seconds] for seconds in (8, 2, 10, 4, 6)))
    monkeypatch.setattr(throughput, "time", SimpleNamespace(perf_counter=lambda: next(ends)))
    found = measure(preparation.prepare(small()), [8], [], dataclasses.replace(TIMING, blocks=5))
    assert found.train == [Timing(samples=8, device_batch=8, median_s=3.0, low_s=2.0, high_s=4.0)]
