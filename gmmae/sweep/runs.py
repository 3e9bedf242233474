"""The files of a sweep's work directory, and the record of each run."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from gmmae.config.schema import OptimConfig
from gmmae.scaling.batches import BatchPlan, plan_batches
from gmmae.scaling.strategies import strategy
from gmmae.sweep.grid import RunKey
from gmmae.system import json_files
from gmmae.system.files import write_text
from gmmae.system.json_files import checked
from gmmae.system.stop_reasons import EXIT_CODES
from gmmae.training.records import Record, from_plain, plain
from gmmae.training.workdir import WorkDir

CRASHED = "crashed"
TIMED_OUT = "timed_out"
FAILED = (CRASHED, TIMED_OUT)
"""Outcomes of a process, not of the optimisation. `sweep --retry` computes such runs again."""
OUTCOMES = (*EXIT_CODES, *FAILED)


@dataclass(frozen=True)
class RunRecord:
    """The outcome of one run of the grid."""

    scaling: str
    devices: int
    seed: int
    mode: str
    outcome: str  # the run's stop reason, or one of FAILED
    path: str  # the folder below runs/ that computed it; runs with the same optimisation path share one
    record: Record | None  # the training record on this number of devices; None where the process left none
    message: str = ""  # for a failed process: how it ended, and its last line

    @property
    def key(self) -> RunKey:
        """The point of the grid."""
        return RunKey(self.scaling, self.devices, self.seed)


class SweepDir:
    """The paths below a sweep's `root`, and its records."""

    def __init__(self, root: Path):
        self.root = root
        self.config = root / "sweep.toml"
        self.records = root / "records"
        self.tensorboard = root / "tb"
        self.report = root / "report"
        self.plan = root / "plan.json"  # the output of `gmmae plan`, if it was put here
        self.lock = root / ".lock"
        self.jobs = root / "jobs"  # files of submitit

    def step_times(self, devices: int) -> Path:
        """Returns the path of the measured step times on a number of devices."""
        return self.root / "step_times" / f"step-times-n{devices}.json"

    def run(self, name: str) -> WorkDir:
        """Returns the work directory of a computed run."""
        return WorkDir(self.root / "runs" / name)

    def log(self, name: str) -> Path:
        """Returns the path of a job's output."""
        return self.root / "runs" / name / "log.txt"

    def record(self, key: RunKey) -> Path:
        """Returns the path of a run's record."""
        return self.records / f"{key.name}.json"

    def write(self, record: RunRecord) -> None:
        """Writes a run's record atomically."""
        inner = None if record.record is None else plain(record.record)
        write_text(self.record(record.key), json.dumps(asdict(record) | {"record": inner}, indent=2, allow_nan=False) + "\n")

    def read(self, key: RunKey) -> RunRecord | None:
        """Returns a run's record, or None if it has none.

        Raises:
          InputError: the record cannot be read, or belongs to another run.
        """
        try:
            return json_files.read(
                self.record(key), "be a run's record", "delete it, and the sweep writes it again", partial(_record, key)
            )
        except FileNotFoundError:
            return None

    def read_all(self, keys: Iterable[RunKey]) -> Iterator[RunRecord]:
        """Yields the existing records of some runs."""
        return (record for key in keys if (record := self.read(key)) is not None)


def _record(key: RunKey, data: Mapping[str, Any]) -> RunRecord:
    """Returns the record of a run.

    Raises:
      ValueError: it belongs to another run, its outcome is unknown, or a value has the wrong type.
      KeyError: it has no training record.
    """
    inner = None if data["record"] is None else from_plain(data["record"])
    found = checked(RunRecord, {**data, "record": inner})
    if found.key != key:
        raise ValueError(f"that of {found.key.name}")
    if found.outcome not in OUTCOMES or (inner is None and found.outcome not in FAILED):
        raise ValueError(f"outcome = {found.outcome!r}{'' if inner else ' without a run'}")
    return found


def stage_plans(record: Record) -> list[BatchPlan]:
    """Returns the batch of each stage of a run, as its devices share it. Most runs have one stage."""
    return [plan_batches(record.train_samples, batch, record.devices) for _, batch in record.stages]


def on_devices(record: Record, key: RunKey, optim: OptimConfig) -> Record:
    """Returns a computed record as that of a run in its group: the same losses, with the batch divided differently."""
    shared = stage_plans(replace(record, devices=key.devices))[0]
    return replace(
        record,
        scaling=key.scaling,
        devices=key.devices,
        wanted_batch=strategy(key.scaling).batch(optim, key.devices),
        device_batch=shared.device_batch,
        padding=shared.padding,
    )
