"""The files of a sweep's work directory, and what became of each run of its grid.

A folder below `runs/` computes one optimisation path. It is named after the point of the grid that it was first computed for,
and serves every point with the same path, also of a later grid.
"""

import json
import os
import socket
import sys
import time
from collections.abc import Hashable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from gmmae.config.schema import Config, OptimConfig, StopConfig
from gmmae.scaling.batches import BatchPlan, plan_batches
from gmmae.scaling.strategies import STRATEGIES, resolve, strategy
from gmmae.sweep.grid import RunKey, SweepConfig, path_of, run_keys
from gmmae.system import json_files, locks
from gmmae.system.errors import InputError
from gmmae.system.files import write_text
from gmmae.system.json_files import checked
from gmmae.system.stop_reasons import INTERRUPTED, STALLED
from gmmae.training import fingerprint
from gmmae.training.fingerprint import Fingerprint
from gmmae.training.records import Record
from gmmae.training.stopping import finished
from gmmae.training.workdir import WorkDir, begins_with, storage

CRASHED = "crashed"
TIMED_OUT = "timed_out"
FAILED = (CRASHED, TIMED_OUT)
"""Outcomes of a process, not of the optimisation."""

REPLACE = 10
"""The exit code of a worker that is to be replaced, because of its memory."""

MAX_DEATHS, NOTE_S = 2, 2.0
"""See `SweepDir.begin`, which waits so long for a note of how the last process ended."""


class RunRecord(NamedTuple):
    """The outcome of one run of the grid."""

    key: RunKey
    outcome: str  # the run's stop reason, or one of FAILED
    path: str  # the folder below runs/ that computed it
    record: Record | None  # on this number of devices; None where the process left none
    message: str = ""  # for a failed process: how it ended, and its last line


class Failure(NamedTuple):
    """Why a run has no result, `failed.json` in its folder."""

    outcome: str  # one of FAILED
    message: str


class Attempt(NamedTuple):
    """A process that computes a run, `attempt.json` until it ends well."""

    pid: int
    boot: str  # of the machine
    checkpoint: int  # epoch of the newest one at its start; 0: none
    deaths: int  # of earlier attempts from that checkpoint
    how: str = ""  # how the last of them ended
    timed_out: bool = False  # it was told to end at its time limit
    host: str = ""


class BusyError(Exception):
    """Another worker holds a run; it says which."""


class SweepDir:
    """The paths below a sweep's `root`, and its runs."""

    def __init__(self, root: Path):
        self.root = root
        self.config = root / "sweep.toml"
        self.runs = root / "runs"
        self.tensorboard = root / "tb"
        self.report = root / "report"
        self.plan = root / "plan.json"  # the output of `gmmae plan`, if it was put here
        self.lock = root / ".lock"
        self.jobs = root / "jobs"  # files of submitit
        self.workers_log = root / "workers.txt"  # what workers print before their first run

    def require_same(self, config: Config, now: Fingerprint) -> None:
        """Refuses data and workloads that have changed since the sweep, or its first process on a cluster, has loaded them."""
        now = now._replace(digests=now.digests | begins_with(config))
        with storage(self.root):
            fingerprint.write(fingerprint.checked(self.root, now), self.root)

    def step_times(self, devices: int) -> Path:
        """Their file, by number of devices."""
        return self.root / "step_times" / f"step-times-n{devices}.json"

    def run(self, name: str) -> WorkDir:
        """The work directory of a computed run."""
        return WorkDir(self.runs / name)

    def log(self, name: str) -> Path:
        """The output of a run, or of a measurement of step times."""
        return self.runs / name / "log.txt"

    @contextmanager
    def turn(self, name: str) -> Iterator[None]:
        """Holds the lock of a run, or raises a `BusyError`."""
        with ExitStack() as held:
            with storage(self.root):
                self.run(name).root.mkdir(parents=True, exist_ok=True)
                held.enter_context(locks.held(self.run(name).root / ".turn", _refuse, look=False))
            yield

    def queue(self, devices: int | None) -> Path:
        """The file of the runs that a call's workers compute, on a number of devices or on any."""
        return self.runs / ("queue.txt" if devices is None else f"queue-n{devices}.txt")

    def attempt(self, name: str) -> Path:
        """The file of a run's `Attempt`."""
        return self.runs / name / "attempt.json"

    def failure(self, name: str) -> Path:
        """The file of a run's `Failure`."""
        return self.runs / name / "failed.json"

    def write(self, path: Path, content: Failure | Attempt) -> None:
        """Writes a failure or an attempt."""
        with storage(self.root):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_text(path, json.dumps(content._asdict(), indent=1) + "\n")

    def read_attempt(self, name: str) -> Attempt | None:
        """The attempt of a run, or None where there is none that can be read."""
        with suppress(OSError, ValueError, TypeError):
            return checked(Attempt, json.loads(self.attempt(name).read_text(encoding="utf-8")))
        return None

    def attempts_of(self, pid: int) -> list[tuple[str, Attempt]]:
        """The run that a process of this machine computes, or did when it died, if any."""
        found = ((path.parent.name, self.read_attempt(path.parent.name)) for path in self.runs.glob("*/attempt.json"))
        return [(name, of) for name, of in found if of and (of.pid, of.boot) == (pid, locks.this_boot())]

    def groups(self, config: SweepConfig, samples: int) -> dict[str, list[RunKey]]:
        """The runs to compute, by the name of their folder, with the points of the grid that each stands for."""
        names: dict[Hashable, str] = {}
        known = [key for path in self.runs.glob("*-n*-seed*") if (key := RunKey.named(path.name)) and key.scaling in STRATEGIES]
        known.sort(key=lambda key: not self.run(key.name).record.exists())  # one that was computed goes before a mere name
        for key in known:
            names.setdefault(path_of(config, key, samples), key.name)
        groups: dict[str, list[RunKey]] = {}
        for key in run_keys(config):
            groups.setdefault(names.setdefault(path_of(config, key, samples), key.name), []).append(key)
        return groups

    def ended(self, name: str, stop: StopConfig | None = None) -> tuple[str, str, Record | None] | None:
        """How a computed run ended: outcome, message and training record; None where it is still to be computed.

        The rules in `stop` may have changed since; None takes the end as it is.
        """
        run = self.run(name)
        try:
            failure = json_files.read(
                self.failure(name), "say how a run failed", "delete it, and the sweep goes on", partial(checked, Failure)
            )
        except FileNotFoundError:
            failure = None
        try:
            record = run.read_record()
        except InputError:
            if failure or stop:  # who computes the run says it
                return failure and (failure.outcome, failure.message, None)
            raise
        if failure:
            return failure.outcome, failure.message, record
        if record is None or record.stop_reason is None or record.stop_reason in INTERRUPTED:
            return None
        if stop and not finished(record, stop, run.read_rows if record.stop_reason == STALLED else list):
            return None
        return record.stop_reason, "", record

    def read_all(self, config: SweepConfig, samples: int | None = None) -> list[RunRecord]:
        """The outcomes of the grid's runs that have ended by its rules, in order. `samples` are by default those of any run."""
        if config.mode == "throughput":
            return []
        for path in self.runs.glob("*/record.json") if samples is None else ():
            with suppress(InputError):
                if record := WorkDir(path.parent).read_record():
                    samples = record.train_samples
                    break
        by_key: dict[RunKey, RunRecord] = {}
        for name, keys in self.groups(config, samples or sys.maxsize).items():
            records = self.records(config, name, keys)
            if self.ended(name, config.run.stop):
                by_key |= {record.key: record for record in records}
        return [by_key[key] for key in run_keys(config) if key in by_key]

    def records(self, config: SweepConfig, name: str, keys: Sequence[RunKey]) -> list[RunRecord]:
        """The outcomes of the points of the grid that a run stands for; none if it has not ended."""
        end = self.ended(name)
        if end is None:
            return []
        outcome, message, record = end
        if record:
            stage = resolve(keys[0].scaling, config.run.optim, keys[0].devices, record.train_samples).stages[0]
            wanted, got = (keys[0].seed, *stage[1:3]), (record.seed, record.global_batch, record.learning_rate)
            if wanted != got:
                raise InputError(
                    "seed, batch and learning rate of {} must be {}, {} and {:g}; got {}, {} and {:g}: move the run of another "
                    "sweep away, and this one's is computed".format(self.run(name).record, *wanted, *got)
                )
        found: list[RunRecord] = []
        for key in keys:
            try:
                shown = on_devices(record, key, config.run.optim) if record else None
                found.append(RunRecord(key, outcome, name, shown, message))
            except InputError as error:  # fewer samples in the batch than devices
                found.append(RunRecord(key, CRASHED, name, None, str(error)))
        return found

    def begin(self, name: str) -> bool:
        """Notes that this process begins a run, or that the run is left out, and returns False.

        That is where it was killed at its time limit, or has died `MAX_DEATHS` times without a newer checkpoint in between.
        Deaths count while the machine is up; on another host, if a process saw them.
        """
        checkpoints = self.run(name).checkpoints
        newest = max((int(path.name) for path in checkpoints.glob("*") if path.name.isdigit()), default=0)
        now = Attempt(os.getpid(), locks.this_boot(), newest, 0, host=socket.gethostname())
        until, failure = time.monotonic() + NOTE_S, None
        while (before := self.read_attempt(name)) and before.boot == now.boot and not before.how and time.monotonic() < until:
            time.sleep(NOTE_S / 20)
        if before and before.timed_out:
            failure = Failure(TIMED_OUT, before.how or "it did not end at its time limit")
        elif before and (before.boot == now.boot or (before.how and before.host != now.host)):
            now = now._replace(deaths=before.deaths + 1 if before.checkpoint == newest else 1)
            if now.deaths >= MAX_DEATHS:
                failure = Failure(CRASHED, before.how or "its process ended twice")
        if failure:
            self.write(self.failure(name), failure)
            self.attempt(name).unlink(missing_ok=True)
        else:
            self.write(self.attempt(name), now)
        return not failure


def _refuse(holder: str) -> None:
    raise BusyError(holder)


def stage_plans(record: Record) -> list[BatchPlan]:
    """The batch of each stage of a run, as its devices share it."""
    return [plan_batches(record.train_samples, batch, record.devices) for _, batch in record.stages]


def on_devices(record: Record, key: RunKey, optim: OptimConfig) -> Record:
    """A computed record as that of a run in its group: the same losses, with the batch divided differently."""
    shared = stage_plans(replace(record, devices=key.devices))[0]
    return replace(
        record,
        scaling=key.scaling,
        devices=key.devices,
        wanted_batch=strategy(key.scaling).batch(optim, key.devices),
        device_batch=shared.device_batch,
        padding=shared.padding,
    )
