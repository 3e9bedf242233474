"""What has to stand in the environment before JAX starts."""

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from gmmae.system.errors import InputError

THREADS = "PJRT_NPROC"
"""Of a CPU's operation, at least as many as devices; by default the cores it may use."""

CPU_DEVICES = "JAX_NUM_CPU_DEVICES"
"""By default one."""

CACHE_FOLDER = "JAX_COMPILATION_CACHE_DIR"
CACHE_MIN_S = "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"
"""For less, a program is not kept there."""


def update_jax() -> None:
    """Tells a JAX that is imported already, as by a user's workload, what stands in the environment now.

    XLA reads it for the first array, and never again.
    """
    if flags := os.environ.get("XLA_FLAGS"):  # XLA aborts the process that reads bad ones
        parse = [sys.executable, "-c", "from jaxlib import xla_client; xla_client.CompileOptions()"]
        child = subprocess.run(parse, capture_output=True, text=True, check=False)
        if child.returncode:
            raise InputError(f"XLA_FLAGS must be flags of XLA; got {flags!r} ({child.stderr.strip().rpartition('] ')[2]})")
    if "jax" not in sys.modules:
        return
    import jax

    for name, kind in ((CACHE_FOLDER, str), (CACHE_MIN_S, float), (CPU_DEVICES, int)):
        if name in os.environ:
            with suppress(RuntimeError):
                jax.config.update(name.lower(), kind(os.environ[name]))


def cores() -> int:
    """Cores that this process may use, by its affinity and a container's quota; threads of one core count once."""
    siblings = set()
    for cpu in os.sched_getaffinity(0):
        try:
            siblings.add(Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text())
        except OSError:
            siblings.add(str(cpu))
    with suppress(OSError, ValueError):  # no control groups of version 2, or no quota
        quota, period = map(int, Path("/sys/fs/cgroup/cpu.max").read_text().split())
        return max(1, min(len(siblings), quota // period))
    return len(siblings)
