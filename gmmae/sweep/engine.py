"""Runs a sweep: workers compute the runs of the grid that have no end yet, then step times are measured where they are needed.

`gmmae.sweep.workers` keeps workers running on this host, and `gmmae.sweep.slurm` on a cluster. JAX is in workers only.
"""

import json
import math
import shutil
import sys
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from gmmae.config.schema import defaults, flatten
from gmmae.config.toml import differences, flatten_table, read_table, to_toml
from gmmae.multihost.environment import default_cpu_devices
from gmmae.sweep import slurm, step_times, workers
from gmmae.sweep.display import SweepDisplay, duration, outcome_table, value_text
from gmmae.sweep.grid import RunKey, SweepConfig, left_out, run_keys
from gmmae.sweep.runs import FAILED, RunRecord, SweepDir, stage_plans
from gmmae.sweep.workers import Signals
from gmmae.system import stop_reasons
from gmmae.system.environment import CPU_DEVICES
from gmmae.system.errors import InputError
from gmmae.system.files import write_text
from gmmae.system.nvidia import places
from gmmae.training.fingerprint import Fingerprint
from gmmae.training.records import epoch_ends
from gmmae.training.stopping import until_stop
from gmmae.training.workdir import WorkDir, alone, os_errors_as_input_errors, storage

FIXED = (
    "mode",
    "run.stop.target",
    "run.stop.monitor",
    "run.stop.mode",
    "run.stop.collapse_epochs",
    "run.stop.validate_every_steps",
)
"""Keys that a sweep may not change besides those of a run, because they decide how its finished runs ended.

No key of `run.stop` may where a computed run would have ended earlier.
"""

RUNS_FAILED = 4
"""Exit code of a sweep with crashed or timed-out runs. Diverged and collapsed runs are results."""


def sweep(
    config: SweepConfig,
    root: Path,
    display: SweepDisplay,
    *,
    samples: int,
    data: Fingerprint | None = None,
    retry: bool = False,
    reference_batches: Collection[int] = (),
) -> int:
    """Computes the missing runs and step times of a sweep, whose grid and limits may have grown since an earlier call.

    `samples`, those of training, are used in virtual mode only. Steps of `reference_batches`, those of the clusters, are timed
    too.

    Returns:
      The exit code: 0, `RUNS_FAILED`, or 143, 130 and 129 when interrupted.

    Raises:
      InputError: the work directory cannot be written, belongs to another sweep, or is in use by another process.
      StorageError: it cannot be written any more.
    """
    folder = SweepDir(root)
    grid = run_keys(config) if config.mode != "throughput" else []
    with _claimed(config, folder, data), storage(folder.root), Signals() as signals:
        if data:
            folder.require_same(config.run, data)
        write_text(folder.config, to_toml(config))  # a refused call leaves it as it was
        if grid:
            _train(config, folder, display, samples, retry, signals)
        records = folder.read_all(config, samples)
        untimed = _measure(config, folder, display, records, reference_batches, signals)
        if records:
            display.say(outcome_table(config, records))
        failed = [record for record in records if record.outcome in FAILED]
        if grid:
            ended = dict(Counter(record.outcome for record in records).most_common())
            counts = ended | {"not computed": len(grid) - len(records)}
            states = ", ".join(f"{count} {outcome}" for outcome, count in counts.items() if count)
            lines = [f"  {record.key.name} {record.outcome}: {record.message}" for record in failed]
            display.say("\n".join([f"{len(grid)} run{'s' * (len(grid) > 1)}: {states}", *lines]))
        if signals.reason:
            display.say("the same command continues the sweep")
            return stop_reasons.EXIT_CODES[signals.reason]
        for log in untimed:
            display.say(f"{log.parent.name} failed: {workers.last_words(log, 1) or 'no output'} ({log})")
        if failed:
            display.say("--retry computes crashed and timed-out runs again")
        return RUNS_FAILED if failed or untimed or len(records) < len(grid) else 0


def interrupted(code: int) -> bool:
    """Whether an exit code means that the sweep was interrupted."""
    return code in map(stop_reasons.EXIT_CODES.get, stop_reasons.INTERRUPTED)


def _train(config: SweepConfig, folder: SweepDir, display: SweepDisplay, samples: int, retry: bool, signals: Signals) -> None:
    pending = _pending(config, folder, display, samples, retry)
    if not pending:
        return
    stop = config.run.stop
    seen: dict[str, list[int]] = {}

    def left() -> list[str]:
        """Shows what has happened, and returns the runs that have no end."""
        for name in list(pending):
            files = (folder.run(name).record, folder.failure(name))
            stamp = [path.stat().st_mtime_ns for path in files if path.exists()]
            if seen.get(name) != stamp and folder.ended(name, stop):
                records = folder.records(config, name, pending.pop(name))
                _tidy(config, folder, records)
                display.ended(records)
            seen[name] = stamp
        states = dict.fromkeys((name for name in pending if folder.attempt(name).exists()), "")
        for name in states if display.verbose else ():
            *_, row = None, *epoch_ends(folder.run(name).read_rows())
            states[name] = f"epoch {row.epoch}: {value_text(stop.monitor, row.value(stop.monitor))}" if row else "started"
        display.running(states)
        return list(pending)

    with display.bar:
        if config.executor == "slurm":
            slurm.compute(config, folder, left, display.say, signals)
            return
        # A process has a fixed number of CPU devices. Virtual runs are not timed, and may use idle cores.
        counts = [None] if config.mode == "virtual" else sorted({keys[0].devices for keys in pending.values()})
        gpus = places(config.jobs) if config.jobs > 1 else []
        for n in counts:
            names = [name for name, keys in pending.items() if n in (None, keys[0].devices)]
            write_text(folder.queue(n), "\n".join(names))
            cpu_devices = {CPU_DEVICES: str(n or default_cpu_devices(config.run, config.jobs))}
            workers.keep(
                folder,
                ("runs", str(folder.queue(n))),
                lambda names=names: [name for name in left() if name in names],
                display.say,
                signals,
                environments=[cpu_devices | (gpus[i % len(gpus)] if gpus else {}) for i in range(config.jobs)],
            )


def _pending(
    config: SweepConfig, folder: SweepDir, display: SweepDisplay, samples: int, retry: bool
) -> dict[str, list[RunKey]]:
    groups = folder.groups(config, samples)
    if retry:
        for name in groups:
            folder.failure(name).unlink(missing_ok=True)
    pending = {name: keys for name, keys in groups.items() if not folder.ended(name, config.run.stop)}
    ended = [record for name in groups.keys() - pending for record in folder.records(config, name, groups[name])]
    _tidy(config, folder, ended)
    for run in map(folder.run, pending):
        with suppress(InputError):  # its process will report the error
            if (record := run.read_record()) and record.epochs and not any(run.checkpoints.glob("*")):
                display.say(f"{run.root.name} starts again: its checkpoints were removed when it ended, see keep_checkpoints")
                shutil.rmtree(run.root)
    for line in left_out(config):
        display.say(line)
    at_once = slurm.at_once(config.slurm, len(pending)) if config.executor == "slurm" else config.jobs
    display.start(ended, pending, sum(map(len, groups.values())), at_once)
    return pending


def _tidy(config: SweepConfig, folder: SweepDir, ended: Iterable[RunRecord]) -> None:
    for record in ended:
        if not (config.keep_checkpoints or record.outcome in FAILED):
            shutil.rmtree(folder.run(record.path).checkpoints, ignore_errors=True)  # the next call removes the rest


def _measure(
    config: SweepConfig,
    folder: SweepDir,
    display: SweepDisplay,
    records: Sequence[RunRecord],
    reference_batches: Collection[int],
    signals: Signals,
) -> list[Path]:
    """Times the steps and the passes that are missing. Returns the logs of what failed."""
    timing, requests, failed = config.timing, dict[int, dict[str, list[int]]](), []
    known = [record.record for record in records if record.record is not None]
    if config.mode == "throughput":
        for n in sorted(config.devices):
            weak = {batch * n for batch in timing.device_batches}
            strong = {batch for batch in timing.global_batches if batch >= n}
            requests[n] = {step_times.TRAINING: sorted(weak | strong)}
    elif config.mode == "virtual" and known:
        validation = {math.ceil(known[0].validation_samples / n) for n in config.devices}
        trained = {plan.device_batch for record in known for plan in stage_plans(record)}
        batches = trained | {config.run.optim.batch_size, *reference_batches}
        requests[1] = {step_times.TRAINING: sorted(batches), step_times.VALIDATION: sorted(validation)}
    for n, request in requests.items():
        timings, name = step_times.read(folder.step_times(n)), folder.step_times(n).stem
        tried = timings.tried if timings and timings.timing == step_times.settings(timing) else set()
        if signals.reason or {f"{what} of {count}" for what in request for count in request[what]} <= tried:
            continue
        log, began = folder.log(name), time.monotonic()
        log.parent.mkdir(parents=True, exist_ok=True)
        display.say(f"{name}: measuring step times")
        arguments = ("times", str(n), json.dumps(request))
        if config.executor == "slurm":
            code = slurm.measure(config, folder, arguments, n, signals)
        else:
            code = workers.wait(folder, workers.start(folder, arguments, {CPU_DEVICES: str(n)}), signals)
        if not signals.reason:
            display.say(f"{name}: {workers.describe(code) if code else 'measured'}, {duration(time.monotonic() - began)}")
        failed += [log] if code else []
    return failed


@contextmanager
def _claimed(config: SweepConfig, folder: SweepDir, data: Fingerprint | None) -> Iterator[None]:
    if WorkDir(folder.root).record.exists() and not folder.config.exists():
        raise InputError(f"workdir must be new or hold a sweep; got {folder.root}, which holds a run: give another --workdir")
    with ExitStack() as held:
        with os_errors_as_input_errors(folder.root):
            folder.runs.mkdir(parents=True, exist_ok=True)
            held.enter_context(alone(folder.lock, "sweep"))
            if folder.config.exists():
                saved = dict(flatten(SweepConfig(run=defaults(config.run)))) | dict(flatten_table(read_table(folder.config)))
                current = dict(flatten(config))
                stop = {key: value for key, value in current.items() if key.startswith("run.stop.")}
                # A run that these rules end before its last row would be another one. With the same rules only columns count.
                most = sys.maxsize if differences(saved, stop) else 0
                histories = (WorkDir(path.parent).read_rows(most) for path in folder.runs.glob("*/history.csv"))
                stricter = any(until_stop(rows[:-1], config.run.stop)[1] for rows in [*histories])
                fixed = {key: current[key] for key in FIXED} | (stop if stricter else {})
                fixed["run.stop.mode"] = config.run.stop.better
                saved["run.stop.mode"] = saved["run.stop.mode"].replace("auto", "min")
                fixed |= {key: value for key, value in flatten(config, resumable=False) if key.startswith("run.")}
                if data and data.digests.get("workload file"):  # which is compared instead of its place
                    del fixed["run.workload"]
                if changes := differences(saved, fixed):
                    raise InputError(
                        f"workdir must hold a sweep of the same runs; got {folder.root} where {changes}: give another --workdir"
                    )
        yield
