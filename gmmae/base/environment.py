"""What has to stand in the environment before JAX starts."""

import os
import sys
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from pathlib import Path

from gmmae.base.config import Config, ParallelConfig
from gmmae.base.errors import InputError

THREADS = "PJRT_NPROC"
"""Threads that XLA divides one operation of a CPU among, at least as many as devices; by default the cores that it may use."""

CPU_DEVICES = "JAX_NUM_CPU_DEVICES"
"""Devices that a CPU is divided into; by default one. Where there is a GPU nobody uses them."""

PLACE = "JAX_COMPILATION_CACHE_DIR"
LEAST_S = "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"
"""JAX's variables for the folder of compiled programs, and for how long one must take to compile to be kept there."""

MOST_CPU_DEVICES = 4
"""That a run takes without being asked; more have not been timed."""


def prepare(config: Config, alone: bool = True, environ: MutableMapping[str, str] = os.environ) -> None:
    """Fixes the threads for `parallel.reduction = exact`, and divides a CPU into a device a core where that is free to choose.

    On a CPU, XLA divides long sums of a matrix product among the threads, so the bits depend on their number. Unless fixed, it
    follows the cores of the machine, a launcher's binding, and the number of devices.

    XLA uses a second core badly within one operation, and well as a second device. So a process that trains alone takes a
    device a core where neither batch nor learning rate follow their number and nobody has said how many.

    Args:
      config: of the run.
      alone: whether no other process trains with this one.
      environ: the process's environment.
    """
    parallel = config.parallel
    if parallel.exact:
        environ[THREADS] = str(parallel.shards)
    chosen = parallel.devices or CPU_DEVICES in environ or "host_platform_device_count" in environ.get("XLA_FLAGS", "")
    if alone and not chosen and config.any_devices:
        environ[CPU_DEVICES] = str(device_a_core(config))


def tell_jax(environ: Mapping[str, str] = os.environ) -> None:
    """Tells a JAX that is imported already, as by a user's workload or program, what stands in the environment now.

    JAX reads its variables when it is imported; what XLA reads, it reads when the first array is made. Where that has happened,
    the devices are those that there are.
    """
    if "jax" not in sys.modules:
        return
    import jax

    for name in (PLACE, LEAST_S, CPU_DEVICES):
        if name in environ:
            with suppress(RuntimeError):
                jax.config.update(name.lower(), _number(environ[name]))


def _number(text: str) -> int | float | str:
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text


def device_a_core(config: Config, runs: int = 1) -> int:
    """The CPU devices of a run, where so many run side by side: a device a core, within bounds.

    The exact reduction needs a power of two.
    """
    count = max(1, min(cores() // runs, MOST_CPU_DEVICES, config.optim.base_batch))
    return 1 << min(count, config.parallel.shards).bit_length() - 1 if config.parallel.exact else count


def cores() -> int:
    """Cores that this process may run on; threads of one core count once, where the system tells."""
    if not hasattr(os, "sched_getaffinity"):  # macOS
        return os.cpu_count() or 1
    return len({_siblings(cpu) for cpu in os.sched_getaffinity(0)})


def _siblings(cpu: int) -> str:
    """The threads of a processor's core, as Linux writes them; the processor itself where it does not."""
    try:
        return Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text()
    except OSError:
        return str(cpu)


def require_prepared(parallel: ParallelConfig, cpu_devices: int) -> None:
    """Refuses what `prepare` could not make right.

    Args:
      parallel: of the run.
      cpu_devices: CPU devices of this process, used or not.

    Raises:
      InputError: the number of threads is another one.
    """
    if cpu_devices > parallel.shards:
        raise InputError(
            f"the exact reduction needs at most parallel.shards = {parallel.shards} CPU devices in a process, used or not; got "
            f"{cpu_devices}: lower JAX_NUM_CPU_DEVICES, or raise parallel.shards"
        )
    if cpu_devices and os.environ.get(THREADS) != str(parallel.shards):
        raise InputError(
            f"the exact reduction needs {THREADS} = parallel.shards = {parallel.shards} in the environment before JAX starts; "
            f"got {os.environ.get(THREADS)!r}: set it, or call gmmae.base.environment.prepare first"
        )
