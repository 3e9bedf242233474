"""NVIDIA's GPUs as the driver lists them, and the extra of this project that JAX needs to use them.

`make` runs this file before anything is installed, so it uses the standard library only. `python gmmae/system/nvidia.py test`
prints the extras to install: "test" and the one for the GPU. It says on standard error where a GPU cannot be used.
"""

import subprocess
import sys
from collections.abc import Mapping
from typing import NamedTuple

OLDEST_DRIVER = {"cuda13": 580, "cuda12": 525}
"""The driver's major version that each extra's CUDA needs, the best extra first."""

OLDEST_CAPABILITY = {"cuda13": 7.5, "cuda12": 5.2}
"""Likewise the GPU's compute capability: CUDA 13 has no code for GPUs before Turing."""


class Gpu(NamedTuple):
    """The first GPU of this host."""

    name: str
    driver: str
    capability: float

    @property
    def extra(self) -> str:
        """The extra to install, or "" where JAX has none for this driver or GPU.

        >>> [Gpu("", driver, capability).extra for driver, capability in (("580.65", 9.0), ("580.65", 7.0), ("470.1", 8.0))]
        ['cuda13', 'cuda12', '']
        """
        fitting = (
            extra
            for extra, oldest in OLDEST_DRIVER.items()
            if _major(self.driver) >= oldest and self.capability >= OLDEST_CAPABILITY[extra]
        )
        return next(fitting, "")

    @property
    def way_out(self) -> str:
        """What has to be done so that JAX can use it."""
        if self.extra:
            return f"pip install -c constraints.txt -e '.[{self.extra}]'"
        if _major(self.driver) < OLDEST_DRIVER["cuda12"]:
            return f"update its driver, {self.driver}, to {OLDEST_DRIVER['cuda12']} or later"
        return f"it takes a GPU of compute capability {OLDEST_CAPABILITY['cuda12']} or later; this has {self.capability}"


def find() -> Gpu | None:
    """The first GPU that `nvidia-smi` lists; None where it lists none, or is not there."""
    driver, name = _ask("driver_version,name") or ("", "")
    if not _major(driver):
        return None
    [capability, *_] = _ask("compute_cap") or ("",)  # old drivers do not know it
    return Gpu(name, driver, float(capability) if capability.replace(".", "", 1).isdigit() else 0.0)


def unused(platform: str, environ: Mapping[str, str]) -> str:
    """A line for a run whose devices are not GPUs though there is one that nobody has ruled out; else "".

    Args:
      platform: of the run's devices, as JAX calls it.
      environ: the process's environment.
    """
    ruled_out = environ.get("JAX_PLATFORMS") or environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    gpu = None if platform != "cpu" or ruled_out else find()
    return f"the GPU of this host, {gpu.name}, is not used; to use it: {gpu.way_out}" if gpu else ""


def _ask(fields: str) -> list[str] | None:
    """The first GPU's fields; None where `nvidia-smi` does not give them."""
    command = ("nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader")
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    [first, *_] = answer.splitlines() or [""]
    values, count = first.split(", ", fields.count(",")), fields.count(",") + 1
    return values if len(values) == count else None  # "No devices were found"


def _major(driver: str) -> int:
    [head, *_] = driver.split(".")
    return int(head) if head.isdigit() else 0


if __name__ == "__main__":
    found = find()
    if found and not found.extra:
        print(f"warning: JAX cannot use the GPU of this host, {found.name}: {found.way_out}", file=sys.stderr)
    print(",".join([*sys.argv[1:], *([found.extra] if found and found.extra else [])]))
