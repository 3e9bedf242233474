"""NVIDIA's GPUs as the driver lists them: the extra that JAX needs for them, and one GPU for each program.

`make` runs this before anything is installed, by the standard library only. `python gmmae/system/nvidia.py test` prints the
extras "test" and the one for the GPU, and says where a GPU cannot be used.
"""

import itertools
import math
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from typing import NamedTuple

OLDEST = {"cuda13": (580, 7.5), "cuda12": (525, 5.2)}
"""The driver's major version and the GPU's compute capability for each extra, the best extra first."""

VISIBLE = "CUDA_VISIBLE_DEVICES"
MEMORY = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_PREALLOCATE")
"""By which a user sets how JAX takes a GPU's memory."""

MEMORY_SHARE = 0.75
"""What JAX takes by default."""


class Gpu(NamedTuple):
    """The first GPU of this host."""

    name: str
    driver: str
    capability: float

    @property
    def extra(self) -> str:
        """The extra to install, or "" where there is none for this driver or GPU.

        >>> [Gpu("", driver, capability).extra for driver, capability in (("580.65", 9.0), ("580.65", 7.0), ("470.1", 8.0))]
        ['cuda13', 'cuda12', '']
        """
        major = _major(self.driver)
        usable = (extra for extra, (driver, least) in OLDEST.items() if major >= driver and self.capability >= least)
        return next(usable, "")

    @property
    def remedy(self) -> str:
        """What JAX needs to use it."""
        if self.extra:
            return f"pip install -c constraints.txt -e '.[{self.extra}]'"
        driver, capability = OLDEST["cuda12"]
        if _major(self.driver) < driver:
            return f"update its driver, {self.driver}, to {driver} or later"
        return f"it takes a GPU of compute capability {capability} or later; this has {self.capability}"


def find() -> Gpu | None:
    """The first GPU that `nvidia-smi` lists, if any."""
    driver, name = next(iter(_query("driver_version", "name")), ("", ""))
    if not _major(driver):
        return None
    [capability] = next(iter(_query("compute_cap")), [""])  # old drivers do not know it
    return Gpu(name, driver, float(capability) if capability.replace(".", "", 1).isdigit() else 0.0)


def unused(platform: str, environ: Mapping[str, str]) -> str:
    """A line for a run on a CPU where nobody has ruled out the GPU; else ""."""
    ruled_out = environ.get("JAX_PLATFORMS") or environ.get(VISIBLE) in ("", "-1")
    gpu = None if platform != "cpu" or ruled_out else find()
    return f"the GPU of this host, {gpu.name}, is not used; to use it: {gpu.remedy}" if gpu else ""


def places(at_once: int) -> list[dict[str, str]]:
    """An environment for each GPU, in which a program gets that GPU.

    Where more programs run `at_once`, several divide the memory that one would take, unless the user has set it.
    """
    names = visible()
    sharers = math.ceil(at_once / len(names)) if names else 1
    divided = sharers > 1 and not any(name in os.environ for name in MEMORY)
    memory = {MEMORY[0]: f"{MEMORY_SHARE / sharers:.3f}"} if divided else {}
    return [{VISIBLE: name} | memory for name in names]


def visible() -> list[str]:
    """The GPUs that a program started here would see, by default as UUIDs: CUDA and nvidia-smi number them differently."""
    listed = os.environ.get(VISIBLE)
    if listed is None:
        return [uuid for [uuid] in _query("uuid") if uuid.startswith("GPU-")]
    named = re.compile(r"\s*(\d+|(GPU|MIG)-.+)").fullmatch
    return [name.strip() for name in itertools.takewhile(named, listed.split(","))]  # CUDA too stops at the first that is none


def _query(*fields: str) -> list[list[str]]:
    """The fields of each GPU. It takes seconds where no driver is loaded."""
    command = ("nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader")
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [line.split(", ", len(fields) - 1) for line in answer.splitlines()]
    return [row for row in rows if len(row) == len(fields)]  # others are "No devices were found"


def _major(driver: str) -> int:
    [head, *_] = driver.split(".")
    return int(head) if head.isdigit() else 0


if __name__ == "__main__":
    gpu = find()
    if gpu and not gpu.extra:
        print(f"warning: JAX cannot use the GPU of this host, {gpu.name}: {gpu.remedy}", file=sys.stderr)
    print(",".join([*sys.argv[1:], *([gpu.extra] if gpu and gpu.extra else [])]))
