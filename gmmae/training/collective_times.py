"""Times all-reduces and empty steps inside compiled loops, as a run's steps are.

A timed program repeats one operation, and each turn needs the result of the turn before. So no turn can be left out. The number
of turns is an argument of the program. It is chosen so that a block of turns takes long beside its dispatch.
"""

import math
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float, Int

from gmmae.multihost.peers import ALONE, Group
from gmmae.scaling.link_fit import AllReduceTime
from gmmae.system.errors import InputError
from gmmae.training.parallel import Devices, pmean, repeat

MIN_BLOCK_S = 0.05
"""Minimum seconds of a block of turns. A dispatch takes less than a hundredth of it."""

MAX_GROWTH = 16
"""Maximum factor by which the turns of a block grow at a time, because the first turns are slow."""

FLOAT_BYTES = np.dtype(np.float32).itemsize


class Overhead(NamedTuple):
    """The seconds that a step takes without any computation."""

    devices: int
    dispatch_s: float  # of a compiled program without a turn, from the call to its end
    step_s: float  # of an empty turn inside a compiled loop


class CollectiveTimes(NamedTuple):
    """Timed all-reduces, and the overhead on each number of devices. They are those of process 0."""

    overheads: list[Overhead]
    all_reduces: list[AllReduceTime]


class _TimedLoop(NamedTuple):
    """A compiled loop."""

    block_s: Callable[[int], float]  # seconds of a block of turns; 0 where this process has no device of the loop
    turns: int  # turns of a block


def measure(devices: Sequence[Devices], sizes: Sequence[int], blocks: int, group: Group = ALONE) -> CollectiveTimes:
    """Times the mean over devices of vectors of float32 numbers, as gradients are averaged, and an empty step.

    Blocks of all programs alternate, so a slow moment affects all equally. A time is the median over blocks. An empty turn
    of the loop is taken from the time of an all-reduce.

    Args:
      devices: groups of devices to time. Process 0 has a device in each. One device has no all-reduce.
      sizes: bytes of the vector on each device, multiples of 4.
      blocks: timed blocks of each program.
      group: the processes. All of them call this function with the same arguments.

    Raises:
      InputError: an all-reduce has a wrong result, or takes no longer than an empty turn.
    """
    empty = [_empty_loop(of, group) for of in devices]
    several = [(place, of) for place, of in enumerate(devices) if of.count > 1]
    reducing = [(place, size, _all_reduce_loop(of, size, group)) for place, of in several for size in sizes]
    loops = [*empty, *(loop for *_, loop in reducing)]
    turns_s: list[list[float]] = [[] for _ in loops]
    dispatches_s: list[list[float]] = [[] for _ in empty]
    for _ in range(blocks):
        for loop, measured in zip(loops, turns_s, strict=True):
            measured.append(loop.block_s(loop.turns) / loop.turns)
        for loop, measured in zip(empty, dispatches_s, strict=True):
            measured.append(loop.block_s(0))
    medians = [float(np.median(measured)) for measured in turns_s]
    overheads = [
        Overhead(of.count, float(np.median(dispatch_s)), step_s)
        for of, dispatch_s, step_s in zip(devices, dispatches_s, medians, strict=False)
    ]
    all_reduces = [
        AllReduceTime(devices[place].count, size, median - overheads[place].step_s)
        for (place, size, _), median in zip(reducing, medians[len(empty) :], strict=True)
    ]
    if group.primary and (lost := next((of for of in all_reduces if of.seconds <= 0), None)):
        raise InputError(
            f"an all-reduce of {lost.size_bytes} bytes must take longer than an empty step of "
            f"{1e6 * overheads[0].step_s:.3g} µs; got {1e6 * lost.seconds:.3g} µs more: end other programs, or use larger sizes"
        )
    return CollectiveTimes(overheads, all_reduces)


def _empty_loop(devices: Devices, group: Group) -> _TimedLoop:
    """Returns a loop whose turns have one multiplication and one addition."""

    def turn(value: Float[Array, " 1"]) -> Float[Array, " 1"]:
        return 0.5 * value + 0.25

    return _timed(devices, turn, np.full((devices.count, 1), 1.0, np.float32), group)


def _all_reduce_loop(devices: Devices, size_bytes: int, group: Group) -> _TimedLoop:
    """Returns a loop whose turns average the devices' vectors."""

    def turn(value: Float[Array, " size"]) -> Float[Array, " size"]:
        return pmean(lambda own, _: own, value, value)

    rows = np.repeat(np.arange(devices.count, dtype=np.float32)[:, None], size_bytes // FLOAT_BYTES, axis=1)
    return _timed(devices, turn, rows, group, check=_require_mean)


def _timed(
    devices: Devices,
    turn: Callable[[Array], Array],
    rows: Float[np.ndarray, "devices size"],
    group: Group,
    check: Callable[[jax.Array, int], None] = lambda *_: None,
) -> _TimedLoop:
    """Compiles a loop where this process takes part in it, and finds the turns of a block with all processes.

    Args:
      devices: devices of the loop.
      turn: a function of a device's vector. After one or more turns the vector is the same on all devices.
      rows: the vectors before the first turn.
      group: the processes.
      check: raises an error if the vector after one turn, on a number of devices, is wrong.
    """
    takes_part = jax.process_index() in {device.process_index for device in devices.devices}
    block_s = _block_timer(devices, turn, rows, check) if takes_part else lambda turns: 0.0
    turns = 1
    while True:
        block_s(turns)  # the first call of a process may start threads or connections
        wanted = group.broadcast_from_root(_more_turns(turns, block_s(turns)))
        if wanted == turns:
            return _TimedLoop(block_s, turns)
        turns = wanted


def _block_timer(
    devices: Devices, turn: Callable[[Array], Array], rows: np.ndarray, check: Callable[[jax.Array, int], None]
) -> Callable[[int], float]:
    def loop(turns: Int[Array, ""], vector: Array) -> Array:
        return repeat(turn, vector, turns)

    def count_of(turns: int) -> jax.Array:
        return jax.block_until_ready(devices.replicate(np.int32(turns)))

    vectors = devices.shard(rows)
    compiled = devices.compile(loop, count_of(1), vectors, sharded=1)
    check(compiled(count_of(1), vectors), devices.count)

    return lambda turns: _seconds(compiled, count_of(turns), vectors)


def _seconds(compiled: jax.stages.Compiled, turns: jax.Array, vectors: jax.Array) -> float:
    began = time.perf_counter()
    jax.block_until_ready(compiled(turns, vectors))
    return time.perf_counter() - began


def _require_mean(result: jax.Array, count: int) -> None:
    values = np.asarray(result.addressable_data(0))
    if not (values == (count - 1) / 2).all():
        raise InputError(
            f"an all-reduce of 0 to {count - 1} must give their mean, {(count - 1) / 2:g}, on every device; got "
            f"{values.ravel()[0]:g}: look for a fault of the devices or their links"
        )


def _more_turns(turns: int, seconds: float) -> int:
    """Returns the turns of a block that takes long enough, or as many as now.

    >>> _more_turns(10, 2 * MIN_BLOCK_S), _more_turns(10, MIN_BLOCK_S / 4), _more_turns(10, 0.0)
    (10, 50, 160)
    """
    if seconds >= MIN_BLOCK_S:
        return turns
    growth = 1.25 * MIN_BLOCK_S / seconds if seconds else math.inf
    return math.ceil(turns * min(growth, MAX_GROWTH))
