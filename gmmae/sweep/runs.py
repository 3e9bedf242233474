"""A sweep's work directory: which files it has, and the record of each run."""

import json
import tomllib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from gmmae.config.schema import OptimConfig
from gmmae.scaling.batches import plan_batches
from gmmae.scaling.strategies import strategy
from gmmae.sweep.grid import RunKey
from gmmae.system import json_files
from gmmae.system.errors import InputError
from gmmae.system.files import write_text
from gmmae.system.json_files import checked
from gmmae.system.stop_reasons import EXIT_CODES
from gmmae.training.records import Record, from_plain, plain
from gmmae.training.workdir import WorkDir

CRASHED = "crashed"
TIMED_OUT = "timed_out"
FAILED = (CRASHED, TIMED_OUT)
"""Outcomes of a process rather than of the optimisation; `sweep --retry` computes them again."""
OUTCOMES = (*EXIT_CODES, *FAILED)


@dataclass(frozen=True)
class RunRecord:
    """How one run ended."""

    scaling: str
    devices: int
    seed: int
    mode: str
    outcome: str  # the run's stop reason, or one of FAILED
    path: str  # the run below runs/ that computed it; runs that follow the same optimisation path share one
    record: Record | None  # the run as it is on the run's number of devices; None where the process left none
    message: str = ""  # of a failed process: how it ended, and its last words

    @property
    def key(self) -> RunKey:
        return RunKey(self.scaling, self.devices, self.seed)


class SweepDir:
    """Paths below `root`."""

    def __init__(self, root: Path):
        self.root = root
        self.config = root / "sweep.toml"
        self.records = root / "records"
        self.tensorboard = root / "tb"
        self.report = root / "report"
        self.plan = root / "plan.json"  # of `gmmae plan`, where somebody has put it here
        self.lock = root / ".lock"
        self.jobs = root / "jobs"  # what submitit writes

    def step_times(self, devices: int) -> Path:
        """What one process measured on a number of devices."""
        return self.root / "step_times" / f"step-times-n{devices}.json"

    def run(self, name: str) -> WorkDir:
        """The work directory of a path."""
        return WorkDir(self.root / "runs" / name)

    def log(self, name: str) -> Path:
        """What the processes of a path wrote."""
        return self.root / "runs" / name / "log.txt"

    def record(self, key: RunKey) -> Path:
        return self.records / f"{key.name}.json"

    def write(self, record: RunRecord) -> None:
        """Writes a run's record, whole or not at all."""
        inner = None if record.record is None else plain(record.record)
        write_text(self.record(record.key), json.dumps(asdict(record) | {"record": inner}, indent=2, allow_nan=False) + "\n")

    def read(self, key: RunKey) -> RunRecord | None:
        """A run's record, or None where it has none.

        Raises:
          InputError: it is there and cannot be read, or is another run's.
        """
        try:
            return json_files.read(
                self.record(key), "be a run's record", "delete it, and the sweep writes it again", partial(_record, key)
            )
        except FileNotFoundError:
            return None

    def read_all(self, keys: list[RunKey]) -> Iterator[RunRecord]:
        """The records that are there."""
        return (record for key in keys if (record := self.read(key)) is not None)


def _record(key: RunKey, data: dict[str, Any]) -> RunRecord:
    """The record of a run.

    Raises:
      ValueError: it is another run's, has no outcome that a run has, or a value of another type.
      KeyError: it has no run.
    """
    inner = None if data["record"] is None else from_plain(data["record"])
    found = checked(RunRecord, data | {"record": inner})
    if found.key != key:
        raise ValueError(f"that of {found.key.name}")
    if found.outcome not in OUTCOMES or (inner is None and found.outcome not in FAILED):
        raise ValueError(f"outcome = {found.outcome!r}{'' if inner else ' without a run'}")
    return found


def on_devices(record: Record, key: RunKey, optim: OptimConfig) -> Record:
    """The record of a path as that of one of the runs that share it: the same losses, another division of the batch."""
    if (record.scaling, record.devices) == (key.scaling, key.devices):
        return record
    shared = plan_batches(record.train_samples, record.global_batch, key.devices)
    return replace(
        record,
        scaling=key.scaling,
        devices=key.devices,
        wanted_batch=strategy(key.scaling).batch(optim, key.devices),
        device_batch=shared.device_batch,
        padding=shared.padding,
    )


def read_toml(path: Path) -> dict[str, object]:
    """A sweep's saved configuration as a table.

    Raises:
      InputError: there is none, or it is not TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(
            f"{path.parent} must be the work directory of a sweep; got one without {path.name} ({error.strerror})"
        ) from error
    except ValueError as error:
        raise InputError(f"{path} must be TOML; got {error}: give another work directory") from error
