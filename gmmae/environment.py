"""What has to stand in the environment before JAX starts."""

import os

from gmmae.config import ParallelConfig
from gmmae.errors import InputError

THREADS = "PJRT_NPROC"
"""Threads that XLA divides one operation of a CPU among, at least as many as devices; by default the cores that it may use."""


def prepare(parallel: ParallelConfig) -> None:
    """Fixes the number of threads for `parallel.reduction = exact`.

    On a CPU, XLA divides long sums of a matrix product among the threads, so the bits depend on their number. Unless fixed, it
    follows the cores of the machine, a launcher's binding, and the number of devices.
    """
    if parallel.exact:
        os.environ[THREADS] = str(parallel.shards)


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
            f"got {os.environ.get(THREADS)!r}: set it, or call gmmae.environment.prepare first"
        )
