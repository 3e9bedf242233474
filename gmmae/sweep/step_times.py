"""The step times of a sweep and their file. `gmmae.sweep.throughput` measures them, with JAX."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gmmae.scaling.cost import StepTimes
from gmmae.sweep.grid import TimingConfig
from gmmae.system import json_files
from gmmae.system.files import write_text
from gmmae.system.json_files import checked

TRAINING, VALIDATION = "training", "validation"
"""The two kinds of measurements. A key of `Timings.failed` is "training of 32"."""


class Timing(NamedTuple):
    """Seconds of one training step, or of one pass over validation samples: quartiles over the blocks."""

    samples: int  # on all devices together
    device_batch: int  # on one device
    median_s: float  # median
    low_s: float  # first quartile
    high_s: float  # third quartile


class Timings(NamedTuple):
    """The measurements on a number of devices. Batches that failed are in `failed`, with the reason."""

    devices: int  # number of devices
    device_kind: str  # their name
    oversubscribed: bool  # whether several of them share the cores of one CPU
    parameters: int  # of the model
    train: list[Timing]  # training steps by batch
    validation: list[Timing]  # validation passes by number of samples
    failed: dict[str, str]  # reason by measurement
    timing: dict[str, int]  # the settings of the measurement
    versions: dict[str, str]  # of Python and the libraries
    git_commit: str | None  # commit of the code; None outside of a clone

    @property
    def tried(self) -> set[str]:
        """All measurements by the names in `failed`."""
        rows = {TRAINING: self.train, VALIDATION: self.validation}
        return {f"{what} of {row.samples}" for what in rows for row in rows[what]} | self.failed.keys()


MAX_SPREAD = 0.1
"""The largest `spread` that an idle machine is expected to have."""


def spread(rows: Sequence[Timing]) -> float:
    """The largest relative distance of a quartile from its median.

    >>> spread([Timing(8, 8, 1.0, 0.9, 1.05), Timing(16, 16, 2.0, 1.9, 2.5)])
    0.25
    """
    return max((max(row.high_s - row.median_s, row.median_s - row.low_s) / row.median_s for row in rows), default=0.0)


def settings(timing: TimingConfig) -> dict[str, int]:
    """The settings that affect the numbers."""
    return {"warmup_steps": timing.warmup_steps, "steps": timing.steps, "blocks": timing.blocks}


def table(rows: Sequence[Timing]) -> StepTimes:
    """The medians by samples."""
    rows = sorted(rows)
    return StepTimes(tuple(row.samples for row in rows), tuple(row.median_s for row in rows))


def write(path: Path, timings: Timings) -> None:
    """Writes the timings as JSON."""
    rows = {name: [row._asdict() for row in getattr(timings, name)] for name in ("train", "validation")}
    write_text(path, json.dumps(timings._asdict() | rows, indent=2) + "\n")


def read(path: Path) -> Timings | None:
    """Reads what `write` wrote, or None if there is no file."""
    try:
        return json_files.read(path, "be step times", "delete it, and the sweep measures them again", _timings)
    except FileNotFoundError:
        return None


def _timings(data: Mapping[str, Any]) -> Timings:
    rows = {name: [checked(Timing, row) for row in data[name]] for name in ("train", "validation")}
    return checked(Timings, {**data, **rows})
