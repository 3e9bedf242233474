"""The step times of a sweep: what a measurement gives, and its file. `gmmae.sweep.throughput` measures them, with JAX."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from gmmae.sweep.grid import TimingConfig
from gmmae.system import json_files
from gmmae.system.files import write_text
from gmmae.system.json_files import checked

TRAINING, VALIDATION = "training", "validation"
"""The two kinds of measurements. The keys of `Timings.failed` are such as "training of 32"."""


class Timing(NamedTuple):
    """Seconds of one training step, or of one pass over validation samples: quartiles over the blocks."""

    samples: int  # on all devices together
    device_batch: int
    median_s: float
    low_s: float  # first quartile
    high_s: float  # third quartile


class Timings(NamedTuple):
    """The measurements on a number of devices. Batches that failed are in `failed`, with the reason."""

    devices: int
    device_kind: str
    oversubscribed: bool
    parameters: int
    train: list[Timing]
    validation: list[Timing]
    failed: dict[str, str]
    timing: dict[str, int]  # the settings of the measurement
    versions: dict[str, str]
    git_commit: str | None


def settings(timing: TimingConfig) -> dict[str, int]:
    """Returns the settings that affect the numbers."""
    return {"warmup_steps": timing.warmup_steps, "steps": timing.steps, "blocks": timing.blocks}


def merged(earlier: Timings | None, later: Timings) -> Timings:
    """Returns both measurements as one. The later one takes precedence."""
    if earlier is None:
        return later
    train = {row.samples: row for row in (*earlier.train, *later.train)}
    validation = {row.samples: row for row in (*earlier.validation, *later.validation)}
    failed = earlier.failed | later.failed
    return later._replace(train=sorted(train.values()), validation=sorted(validation.values()), failed=failed)


def write(path: Path, timings: Timings) -> None:
    """Writes the timings as JSON, atomically."""
    rows = {name: [row._asdict() for row in getattr(timings, name)] for name in ("train", "validation")}
    write_text(path, json.dumps(timings._asdict() | rows, indent=2) + "\n")


def read(path: Path) -> Timings | None:
    """Returns the timings that `write` wrote, or None if there are none.

    Raises:
      InputError: the file cannot be read.
    """
    try:
        return json_files.read(path, "be step times", "delete it, and the sweep measures them again", _timings)
    except FileNotFoundError:
        return None


def _timings(data: Mapping[str, Any]) -> Timings:
    rows = {name: [checked(Timing, row) for row in data[name]] for name in ("train", "validation")}
    return checked(Timings, {**data, **rows})
