"""The GPUs of this host, one for each program that runs beside others, found without JAX and CUDA."""

import math
import os
import re
import subprocess
from collections.abc import Mapping, Sequence

VISIBLE = "CUDA_VISIBLE_DEVICES"
MEMORY = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_PREALLOCATE")
"""Variables with which a user sets how JAX takes a GPU's memory."""

SHARE = 0.75
"""The share of a GPU's memory for all programs on it, which JAX takes by default for one."""

PATIENCE_S = 30.0
"""For `nvidia-smi`, which takes seconds where the driver is not kept loaded."""


def places(at_once: int) -> list[dict[str, str]]:
    """Returns an environment for each GPU, in which one of several programs gets that GPU; none without GPUs.

    With more programs than GPUs, several share one. They divide the memory that one would take, unless the user has set how
    memory is taken.

    Args:
      at_once: the most programs that run at a time.
    """
    found = visible()
    sharers = math.ceil(at_once / len(found)) if found else 1
    divided = sharers > 1 and not any(name in os.environ for name in MEMORY)
    memory = {MEMORY[0]: f"{SHARE / sharers:.3f}"} if divided else {}
    return [{VISIBLE: name} | memory for name in found]


def visible() -> list[str]:
    """What the GPUs that a program started here would see are called in `CUDA_VISIBLE_DEVICES`."""
    given = os.environ.get(VISIBLE)
    if given is None:
        return _installed()
    names = [name.strip() for name in given.split(",")]
    sound = [bool(re.fullmatch(r"\d+|(GPU|MIG)-.+", name)) for name in names]
    return names[: sound.index(False)] if False in sound else names  # CUDA too stops at the first that is none


def least_used(places: Sequence[Mapping[str, str]], running: Sequence[Mapping[str, str]]) -> Mapping[str, str]:
    """The place that is part of the fewest environments of running programs; nothing where there are no places.

    >>> least_used([{"GPU": "0"}, {"GPU": "1"}], [{"GPU": "0", "HOME": "/"}])
    {'GPU': '1'}
    """
    return min(places, key=lambda place: sum(place.items() <= used.items() for used in running), default={})


def _installed() -> list[str]:
    """Returns the UUIDs of the GPUs. Their numbers differ between CUDA, which puts the fastest first, and nvidia-smi."""
    try:
        listed = subprocess.run(("nvidia-smi", "-L"), capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return re.findall(r"^GPU \d+: .*\(UUID: (GPU-[^)]+)\)", listed.stdout, re.MULTILINE) if listed.returncode == 0 else []
