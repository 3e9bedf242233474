"""Kind of the machine, and what its cores do besides a measurement."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CAPABILITIES = ("avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile", "amx_bf16", "sve", "asimd")
"""Names in /proc/cpuinfo of what decides on the kernels that a library takes."""
BUSY = 0.1
"""Number of cores of other work above which a comparison of times is no fair one."""


def processor() -> dict[str, Any]:
    """Returns the processor's name, family, model, capabilities, sockets, and threads of a core, as Linux knows them."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:  # not Linux
        return {}
    known = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in text.splitlines())}
    flags = known.get("flags", known.get("Features", "")).split()
    kept = {"name": "model name", "family": "cpu family", "model": "model", "stepping": "stepping", "cache": "cache size"}
    found: dict[str, Any] = {name: known[key] for name, key in kept.items() if key in known}
    siblings, cores = (int(known.get(key, 0)) for key in ("siblings", "cpu cores"))
    found["threads a core"] = siblings // cores if cores else 1
    return found | {"capabilities": [flag for flag in CAPABILITIES if flag in flags], "cpus": len(os.sched_getaffinity(0))}


def line(found: dict[str, Any]) -> str:
    """Returns what `processor` found in a line.

    >>> line({"name": "AMD EPYC", "family": "25", "model": "17", "capabilities": ["avx2"], "cpus": 2})
    'AMD EPYC, family 25, model 17, avx2, cpus 2'
    """
    words = (
        value if key == "name" else " ".join(value) if isinstance(value, list) else f"{key} {value}"
        for key, value in found.items()
    )
    return ", ".join(word for word in words if word)


def busy_s() -> float:
    """Returns the busy seconds of the cores, including those of a hypervisor's other guests."""
    user, nice, system, _idle, _waiting, interrupts, soft, stolen, *_ = map(int, Path("/proc/stat").read_text().split()[1:11])
    return (user + nice + system + interrupts + soft + stolen) / os.sysconf("SC_CLK_TCK")


class Others:
    """Number of cores that other work used during a measurement."""

    cores: float = 0.0


@contextmanager
def watched(own_s: Any) -> Iterator[Others]:
    """Measures the work of others in a block. `own_s` returns the seconds of our own processes so far."""
    found, began, busy, own = Others(), time.perf_counter(), busy_s(), own_s()
    yield found
    spent = time.perf_counter() - began
    found.cores = max(0.0, (busy_s() - busy - (own_s() - own)) / spent)
