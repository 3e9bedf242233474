"""Threads and CPU devices of a run, decided before JAX starts."""

import math
import os
import sys
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from functools import cache

from gmmae.config.schema import Config, ParallelConfig
from gmmae.scaling.strategies import devices_may_change, strategy
from gmmae.system.environment import CACHE_FOLDER, CACHE_MIN_S, CPU_DEVICES, THREADS, cores
from gmmae.system.errors import InputError

MAX_CPU_DEVICES = 4
"""More have not been timed."""


@contextmanager
def restored() -> Iterator[None]:
    """Within it variables may be set for a JAX that has not started; a second run finds them as before."""
    names = (CACHE_FOLDER, CACHE_MIN_S, CPU_DEVICES, THREADS)
    before = {name: os.environ[name] for name in names if name in os.environ}
    try:
        yield
    finally:
        for name in names:
            os.environ.pop(name, None)
        os.environ.update(before)


@cache  # the first answer holds: later runs of a process find the devices that an earlier one has made
def devices_are_chosen() -> bool:
    """Whether the user has given JAX a CPU's number of devices."""
    told = "jax" in sys.modules and sys.modules["jax"].config.jax_num_cpu_devices > 0
    return told or CPU_DEVICES in os.environ or "host_platform_device_count" in os.environ.get("XLA_FLAGS", "")


def prepare(config: Config, alone: bool = True, environ: MutableMapping[str, str] = os.environ) -> None:
    """Fixes the threads for `parallel.deterministic`, and divides a CPU into one device for each core where that is free.

    XLA divides long sums of a matrix product among a CPU's threads, so the bits depend on their number, and that on cores,
    binding and devices. It uses a second core well as a second device only, so a run `alone` takes one for each, unless batch
    or learning rate follow the devices, or a number is configured.
    """
    parallel = config.parallel
    if parallel.deterministic:
        environ[THREADS] = str(parallel.deterministic_shards)
    if alone and (count := default_devices(config)):
        environ[CPU_DEVICES] = str(count)


def default_devices(config: Config, samples: int = MAX_CPU_DEVICES) -> int | None:
    """The CPU devices of a run that trains alone, or None where the user has chosen them; one where the batch follows them.

    Replicas of local steps are divided among them evenly.
    """
    if config.parallel.devices != "all" or devices_are_chosen():
        return None
    if not devices_may_change(config):
        return 1
    count = default_cpu_devices(config, samples=samples)
    return math.gcd(count, config.parallel.simulate_devices or 1) if strategy(config.scaling).local else count


def default_cpu_devices(config: Config, runs: int = 1, samples: int = MAX_CPU_DEVICES) -> int:
    """One CPU device for each core beside other runs, within bounds; a power of two for the exact reduction."""
    count = max(1, min(cores() // runs, MAX_CPU_DEVICES, config.optim.batch_size, samples))
    return 1 << min(count, config.parallel.deterministic_shards).bit_length() - 1 if config.parallel.deterministic else count


def require_prepared(parallel: ParallelConfig, cpu_devices: int) -> None:
    """Refuses threads, or CPU devices of this process, used or not, that do not fit the exact reduction."""
    shards = f"parallel.deterministic_shards = {parallel.deterministic_shards}"
    if cpu_devices > parallel.deterministic_shards:
        raise InputError(
            f"the exact reduction needs at most {shards} CPU devices in a process, used or not; got {cpu_devices}: lower "
            "JAX_NUM_CPU_DEVICES, or raise parallel.deterministic_shards"
        )
    if cpu_devices and os.environ.get(THREADS) != str(parallel.deterministic_shards):
        raise InputError(
            f"the exact reduction needs {THREADS} = {shards} in the environment before JAX starts; "
            f"got {os.environ.get(THREADS)!r}: set it, or call gmmae.multihost.environment.prepare first"
        )
