"""Trains several runs at once in one program: runs of the same data, model and batch, with their own seeds and learning rates.

A small model leaves most of a device idle, and its steps take little longer for several runs. Each run has its own work
directory, stops at its own epoch, and equals the run alone to rounding.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import jax
import numpy as np

from gmmae.config.schema import Config
from gmmae.system.errors import InputError
from gmmae.system.interrupts import Interrupts
from gmmae.training import compilation, programs
from gmmae.training.block_programs import from_source
from gmmae.training.compilation import TrainSetup
from gmmae.training.fetching import Fetcher
from gmmae.training.loop import Run, opened
from gmmae.training.multi_epoch import MultiEpochResult, TrainTogether, compile_epochs, compile_together, stack_runs
from gmmae.training.records import Record
from gmmae.training.run_cache import RunCache
from gmmae.training.step import TrainState
from gmmae.training.terminal import Display
from gmmae.workloads.interface import Params

MAX_STEP_S = 0.005
"""Longest step of one run for which runs are timed together. A longer one keeps a device busy by itself."""

MIN_TRAINING_S = 60.0
"""Shortest training of all runs, to their largest number of epochs, for which they are timed together. A shorter one is over
before another program is compiled."""

BLOCK_S = 0.1
"""Shortest duration of a timed block."""

BLOCKS = 5


def run_together(runs: Sequence[tuple[Config, Path, Display]], cache: RunCache | None = None) -> list[Record]:
    """Trains several runs to their ends, or resumes them, as `loop.run` does with each.

    The seconds of an epoch are divided equally among the runs that train.

    Args:
      runs: the configuration, the work directory and the display of each. Their programs must be the same.
      cache: data and programs of earlier runs in this process.

    Returns:
      The records, in order.

    Raises:
      InputError: as `loop.run`, or the runs need different programs.
      StorageError: a work directory cannot be written any more.
    """
    cache = RunCache() if cache is None else cache
    with ExitStack() as held:
        starts = [held.enter_context(opened(*one, cache=cache)) for one in runs]
        with Interrupts() as interrupts:
            opened_runs = [start if isinstance(start, Record) else start() for start in starts]
            _Population([one for one in opened_runs if isinstance(one, Run)]).train(interrupts)
            return [one if isinstance(one, Record) else one.record for one in opened_runs]


def require_same_programs(setups: Sequence[TrainSetup]) -> None:
    """Refuses runs that cannot share a program.

    Raises:
      InputError: they differ in their model, data, batch or target, use the exact reduction, validate inside epochs, or read a
        source.
    """
    if any(setup.config.parallel.deterministic for setup in setups):
        raise InputError("runs that train together must have parallel.deterministic off; got it on: train them one by one")
    if any(setup.config.stop.validate_every_steps for setup in setups):
        raise InputError(
            "runs that train together must have stop.validate_every_steps = none; got a number: train them one by one"
        )
    if any(from_source(setup, split) for setup in setups for split in ("train", "validation")):
        raise InputError("runs that train together must have all samples on the devices; got a source: train them one by one")
    if len({(setup.training_key, setup.program_key(), _target(setup)) for setup in setups}) > 1:
        raise InputError("runs that train together must have the same model, data, batch and target; got different ones")


def _target(setup: TrainSetup) -> tuple[float | None, str, str]:
    stop = setup.config.stop
    return stop.target, stop.monitor, stop.mode


class _Population:
    """Runs that train together.

    The program has a place for each run. Those of ended runs are computed on, until another program is worth its compilation.
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        require_same_programs([run.setup for run in runs])
        self._active = list(runs)
        self._places: list[Run] = []
        self._compile_s = 0.0  # of the program for these places
        self._wasted_s = 0.0  # that it has spent on places of ended runs
        self._program: TrainTogether
        self._state: TrainState
        self._best: Params

    def train(self, interrupts: Interrupts) -> None:
        """Trains all runs to their ends or to an interrupt."""
        for run in list(self._active):
            self._continue(run, run.begin(together=True))
        while self._active:
            # Whether another program pays depends on how long the rest takes. This rule costs at most twice the best.
            if not self._places or self._wasted_s > self._compile_s:
                self._arrange()
            before = [run.clock.read() for run in self._active]
            results = self._advance()
            for run, clocks in zip(list(self._active), before, strict=True):
                run.add(results[self._places.index(run)], clocks)
                self._continue(run, run.after_epochs(interrupts.reason))

    def _continue(self, run: Run, reason: str | None) -> None:
        """Ends a run that has a reason to stop."""
        if reason is not None:
            run.end(reason)
            self._active.remove(run)

    def _arrange(self) -> None:
        """Gives each active run a place, and compiles the program for that many."""
        started = time.perf_counter()
        states, bests = zip(*(jax.device_get(run.current()) for run in self._active), strict=True)
        self._places = list(self._active)
        devices = self._places[0].setup.devices
        self._state, self._best = devices.replicate((stack_runs(states), stack_runs(bests)))
        self._program = compile_together([run.setup for run in self._places], self._state, self._places[0].metrics)
        for place, (run, state, best) in enumerate(zip(self._places, states, bests, strict=True)):
            run.state, run.best = state, best  # the devices hold those of all runs only
            run.current = partial(self._read, place)
        self._compile_s, self._wasted_s = time.perf_counter() - started, 0.0
        for run in self._active:
            run.clock.add("compile_s", self._compile_s / len(self._active))

    def _advance(self) -> list[MultiEpochResult]:
        """Trains all active runs for as many epochs as each of them has free."""
        count = min(len(run.next_epochs()) for run in self._active)
        epochs = [_first(run.next_epochs(), count) if run in self._active else range(0) for run in self._places]
        started = time.perf_counter()
        results = self._program(self._state, self._best, [run.best_cost for run in self._places], epochs)
        self._state, self._best = results[0].state, results[0].best
        seconds = time.perf_counter() - started
        self._wasted_s += seconds * (1 - len(self._active) / len(self._places))
        for run in self._active:
            run.clock.add("train_s", seconds / len(self._active))
        return results

    def _read(self, place: int) -> tuple[TrainState, Params]:
        """Returns the state and the best parameters at a place."""
        return jax.tree.map(lambda leaf: leaf[place], (self._state, self._best))


def _first(epochs: range, count: int) -> range:
    return range(epochs.start, epochs.start + count)


def measure_speed(configs: Sequence[Config], cache: RunCache, *, always: bool = False) -> tuple[float, float | None, float]:
    """Measures whether runs train faster together. It takes about a second, and the compilation of the programs.

    Args:
      configs: of the runs.
      cache: data and programs of this process; it keeps what is compiled here.
      always: measures also where it cannot pay.

    Returns:
      The seconds of an epoch of each run, alone and together, and those of the compilation for training together. The second is
      None, and not measured, where it cannot pay: a step takes longer than `MAX_STEP_S`, or all training less than
      `MIN_TRAINING_S`. So it is where samples come from a source.

    Raises:
      InputError: the runs need different programs.
    """
    setups = [compilation.prepare(config, cache=cache) for config in configs]
    first = setups[0]
    reads = from_source(first, "train") or from_source(first, "validation")
    if not reads:
        require_same_programs(setups)
    with compilation.precision_context(first.config), Fetcher(first.config.parallel) as fetcher:
        start = compilation.initial_state(first)
        alone = _epochs_alone(first, start, fetcher)
        epochs = first.max_epochs_per_dispatch
        alone_s = _seconds(alone, 1) / epochs
        training_s = alone_s * sum(config.stop.max_epochs for config in configs)
        if reads:
            return alone_s, None, 0.0
        if not always and (alone_s / first.train_plan.steps > MAX_STEP_S or training_s < MIN_TRAINING_S):
            return alone_s, None, 0.0
        started = time.perf_counter()
        together = _epochs_together(setups, start)
        compile_s = time.perf_counter() - started
        _seconds(together, 1)  # the first call allocates
        repeats = max(1, round(BLOCK_S / (alone_s * epochs)))
        times = [(_seconds(alone, repeats), _seconds(together, repeats) / len(setups)) for _ in range(BLOCKS)]
    alone_s, together_s = (statistics.median(seconds) for seconds in zip(*times, strict=True))
    return alone_s / epochs, together_s / epochs, compile_s


def _seconds(call: Callable[[], object], repeats: int) -> float:
    """Returns the mean seconds of a call."""
    started = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - started) / repeats


def _epochs_alone(setup: TrainSetup, start: TrainState, fetcher: Fetcher) -> Callable[[], object]:
    """Returns a warm function that trains and validates one run as `loop.run` does."""
    state = setup.devices.replicate(start)
    evaluate = programs.validation(setup, state.params, fetcher)
    names = list(evaluate(state.params))
    if setup.max_epochs_per_dispatch > 1:
        train_epochs, epochs = compile_epochs(setup, state, names), range(1, 1 + setup.max_epochs_per_dispatch)
        held = [state, setup.devices.replicate(start.params)]

        def run() -> None:
            held[:] = train_epochs(held[0], held[1], -np.inf, epochs)[:2]
    else:
        train_epoch, held = programs.train_epoch(setup, state, fetcher), [state]

        def run() -> None:
            held[0], _ = train_epoch(held[0], 1)
            evaluate(held[0].params)

    run()
    return run


def _epochs_together(setups: Sequence[TrainSetup], start: TrainState) -> Callable[[], object]:
    """Returns a function that trains and validates all runs."""
    first, count = setups[0], len(setups)
    states, bests = stack_runs([start] * count), stack_runs([start.params] * count)
    *held, params = first.devices.replicate((states, bests, start.params))
    names = list(compilation.evaluate_program(first, params)(params))
    train, epochs = compile_together(setups, held[0], names), range(1, 1 + first.max_epochs_per_dispatch)

    def run() -> None:
        held[:] = train(held[0], held[1], [-np.inf] * count, [epochs] * count)[0][:2]

    return run
