"""A sweep: each cell of the grid in a subprocess of its own, what is finished left alone, what fails recorded and left behind.

Files are in `gmmae.cells`, the grid in `gmmae.grid`, processes in `gmmae.supervisor`. The record of a cell is written when its
process has ended; a cell without one is computed again by the next call, and resumes from its run's checkpoint.
"""

import fcntl
import json
import math
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from gmmae import schedules, stopping, throughput
from gmmae.cells import CRASHED, FAILED, TIMED_OUT, CellRecord, SweepDir, on_devices, read_toml
from gmmae.config import RESUMABLE, flatten, flatten_table, to_toml
from gmmae.data.batches import plan
from gmmae.errors import InputError
from gmmae.grid import Cell, SweepConfig, cells, paths, run_config
from gmmae.records import read_history, write_text
from gmmae.supervisor import Ended, Job, describe, last_lines, supervise
from gmmae.sweep_display import SweepDisplay, cell_text

PROGRAM = (sys.executable, "-m", "gmmae.cell")
"""What a cell's process runs; its arguments follow."""

CELLS_FAILED = 4
"""Exit code of a sweep with crashed or timed-out cells; diverged and collapsed ones are results, and no failure."""


def sweep(config: SweepConfig, root: Path, display: SweepDisplay, *, retry: bool = False) -> int:
    """Computes what is missing of a sweep.

    Args:
      config: the grid; it may have become larger since an earlier call on the same work directory.
      root: its work directory.
      display: where a person looks.
      retry: compute crashed and timed-out cells again.

    Returns:
      The exit code: 0, `CELLS_FAILED`, or 143 and 130 when interrupted.

    Raises:
      InputError: the work directory cannot be written, belongs to another sweep, or another process works on it.
    """
    folder = SweepDir(root)
    with _claimed(config, folder):
        if config.mode == "throughput":
            reason = _measure(config, folder, display, {n: _throughput_request(config, n) for n in sorted(config.devices)})
            return stopping.EXIT_CODES[reason] if reason else _failures(folder, config, display)
        reason = _train(config, folder, display, retry)
        records = list(folder.read_all(cells(config)))
        if reason is None and config.mode == "virtual" and (request := _projection_request(config, records)):
            reason = _measure(config, folder, display, {1: request})
        display.say(summary(records, len(cells(config))))
        if reason:
            display.say("the same command goes on where it stopped")
            return stopping.EXIT_CODES[reason]
        failed = any(record.outcome in FAILED for record in records)
        if failed:
            display.say("--retry computes crashed and timed-out cells again")
        return CELLS_FAILED if failed else _failures(folder, config, display)


def interrupted(code: int) -> bool:
    """Whether an exit code says that the sweep was stopped from outside."""
    return code in (stopping.EXIT_CODES[reason] for reason in stopping.INTERRUPTED)


def summary(records: Sequence[CellRecord], total: int) -> str:
    """How many cells ended how, and the failed ones by name."""
    counts = Counter(record.outcome for record in records)
    parts = [f"{count} {outcome}" for outcome, count in counts.most_common()]
    missing = total - len(records)
    lines = [f"{total} cells: " + ", ".join(parts + ([f"{missing} not computed"] if missing else []))]
    lines += [f"  {record.cell.name} {record.outcome}: {record.message}" for record in records if record.outcome in FAILED]
    return "\n".join(lines)


def _train(config: SweepConfig, folder: SweepDir, display: SweepDisplay, retry: bool) -> str | None:
    """Runs every path that some cell still needs; the reason why it was interrupted, if it was."""
    shared = {owner.name: members for owner, members in paths(config)}
    found = {record.cell: record for record in folder.read_all(cells(config))}
    kept = {cell: record for cell, record in found.items() if not (retry and record.outcome in FAILED)}
    pending = [owner for owner, members in paths(config) if any(member not in kept for member in members)]
    jobs = [_training_job(config, folder, owner) for owner in pending]
    display.start(config, {cell: cell_text(record) for cell, record in kept.items()}, len(jobs))

    def on_end(job: Job, ended: Ended) -> None:
        if ended.interrupted:
            display.ended(job.name, dict.fromkeys(shared[job.name], "interrupted"), ended.seconds)
            return
        written = [_cell_record(config, folder, cell, job, ended) for cell in shared[job.name]]
        for record in written:
            folder.write(record)
        display.ended(job.name, {record.cell: cell_text(record) for record in written}, ended.seconds)

    def on_tick(running: Sequence[tuple[Job, float]]) -> None:
        texts = {cell: _course_text(folder, job.name) for job, _ in running for cell in shared[job.name]}
        display.tick(texts)

    with display:
        return supervise(
            jobs,
            at_once=config.jobs,
            grace_s=config.grace_s,
            on_start=lambda job: display.started(job.name),
            on_end=on_end,
            on_tick=on_tick,
        )


def _training_job(config: SweepConfig, folder: SweepDir, owner: Cell) -> Job:
    workdir = folder.run(owner.name)
    workdir.root.mkdir(parents=True, exist_ok=True)
    wanted = workdir.root / "cell.toml"
    write_text(wanted, to_toml(run_config(config, owner)))
    return _job(config, folder, owner.name, ("train", str(wanted), str(workdir.root)), owner.devices)


def _job(config: SweepConfig, folder: SweepDir, name: str, arguments: tuple[str, ...], devices: int) -> Job:
    environment = {
        "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
        # Only CPUs heed it; a machine with accelerators has the devices that it has.
        "JAX_NUM_CPU_DEVICES": str(1 if config.mode == "virtual" else devices),
        # Cells differ in few programs: seeds share all of theirs.
        "JAX_COMPILATION_CACHE_DIR": os.environ.get("JAX_COMPILATION_CACHE_DIR", str(folder.compiled.absolute())),
    }
    return Job(name, (*PROGRAM, *arguments), folder.log(name), environment, config.cell_time_limit_s)


def _cell_record(config: SweepConfig, folder: SweepDir, cell: Cell, job: Job, ended: Ended) -> CellRecord:
    record = folder.run(job.name).read_record()
    outcome, message = (record.stop_reason if record else None) or CRASHED, ""
    if ended.timed_out or ended.returncode != stopping.EXIT_CODES.get(outcome) or outcome in stopping.INTERRUPTED:
        outcome = TIMED_OUT if ended.timed_out else CRASHED
        message = f"{describe(ended)}: {last_lines(job.log) or 'nothing said'} ({job.log})"
    shown = None if record is None else on_devices(record, cell)
    return CellRecord(cell.arm, cell.devices, cell.seed, config.mode, outcome, job.name, shown, message)


def _course_text(folder: SweepDir, name: str) -> str:
    try:
        last = read_history(folder.run(name).history)[-1]
    except (OSError, IndexError, ValueError, KeyError, TypeError):  # not there yet, or its last line half written
        return "starting"
    return f"epoch {last.epoch}: {last.val_loss:.4g}"


def _projection_request(config: SweepConfig, records: Sequence[CellRecord]) -> dict[str, list[int]] | None:
    """The batches of one device, and its shares of the validation volumes, that some cell's projection needs."""
    known = [record.record for record in records if record.record is not None]
    if not known:
        return None
    validation = {math.ceil(known[0].validation_samples / n) for n in config.devices}
    batches = {record.device_batch for record in known} | {config.run.optim.base_batch}
    return {"batches": sorted(batches), "validation": sorted(validation)}


def _throughput_request(config: SweepConfig, devices: int) -> dict[str, list[int]]:
    weak = {batch * devices for batch in config.timing.device_batches}
    strong = {batch for batch in config.timing.global_batches if batch >= devices}
    return {"batches": sorted(weak | strong), "validation": []}


def _measure(
    config: SweepConfig, folder: SweepDir, display: SweepDisplay, requests: dict[int, dict[str, list[int]]]
) -> str | None:
    """Measures the step times that are not there yet, one number of devices after the other."""
    jobs = [
        _timing_job(config, folder, devices, request)
        for devices, request in requests.items()
        if not _measured(folder.step_times(devices), request)
    ]
    return supervise(
        jobs,
        at_once=1,
        grace_s=config.grace_s,
        on_start=lambda job: display.say(f"{job.name}: measuring step times"),
        on_end=lambda job, ended: display.say(f"{job.name}: {describe(ended)}, {ended.seconds:.0f} s"),
    )


def _measured(path: Path, request: dict[str, list[int]]) -> bool:
    found = throughput.read(path)
    if found is None:
        return False
    tried = {row.samples for row in found.train} | {int(name.rpartition(" ")[2]) for name in found.failed}
    return set(request["batches"]) <= tried and set(request["validation"]) <= {row.samples for row in found.validation}


def _timing_job(config: SweepConfig, folder: SweepDir, devices: int, request: dict[str, list[int]]) -> Job:
    name = folder.step_times(devices).stem
    work = folder.log(name).parent
    work.mkdir(parents=True, exist_ok=True)
    folder.step_times(devices).parent.mkdir(exist_ok=True)
    strong = SweepConfig(mode="measured", run=config.run)
    write_text(work / "cell.toml", to_toml(run_config(strong, Cell("strong", devices, config.seeds[0]))))
    write_text(work / "request.json", json.dumps(request | {"timing": asdict(config.timing)}))
    arguments = ("time", str(work / "cell.toml"), str(work / "request.json"), str(folder.step_times(devices)))
    return _job(config, folder, name, arguments, devices)


def _failures(folder: SweepDir, config: SweepConfig, display: SweepDisplay) -> int:
    """Says which step times are missing though they were asked for; the exit code."""
    counts = sorted(config.devices) if config.mode == "throughput" else [1] if config.mode == "virtual" else []
    missing = [folder.step_times(n) for n in counts if not folder.step_times(n).exists()]
    for path in missing:
        display.say(f"{path.stem} failed: {last_lines(folder.log(path.stem)) or 'nothing said'} ({folder.log(path.stem)})")
    return CELLS_FAILED if missing else 0


def dry_run(config: SweepConfig, samples: int) -> list[tuple[str, ...]]:
    """The grid with what follows from it: a row of texts for each cell, the first row the column names.

    Args:
      config: the sweep.
      samples: training volumes.

    Raises:
      InputError: a cell cannot be run.
    """
    rows: list[tuple[str, ...]] = [("cell", "batch", "a device", "padded", "learning rate", "steps/epoch", "same path as")]
    for owner, members in paths(config):
        for cell in members:
            rows.append(_row(config, cell, owner, samples))
    return rows


def _row(config: SweepConfig, cell: Cell, owner: Cell, samples: int) -> tuple[str, ...]:
    optim = config.run.optim
    share = plan(samples, schedules.global_batch(cell.arm, cell.devices, optim.base_batch), cell.devices)
    peak = schedules.peak_learning_rate(cell.arm, cell.devices, optim.learning_rate)
    warm = schedules.arm(cell.arm).warmup and optim.warmup_epochs
    rate = f"{optim.learning_rate:g} → {peak:g}" if warm else f"{peak:g}"
    numbers = (f"{share.batch}", f"{share.device_batch}", f"{share.padding}", rate, f"{share.steps}")
    return (cell.name, *numbers, "" if owner == cell else owner.name)


@contextmanager
def _claimed(config: SweepConfig, folder: SweepDir) -> Iterator[None]:
    """The work directory made or recognised, written to by no other process in the meantime."""
    try:
        folder.records.mkdir(parents=True, exist_ok=True)
        with folder.lock.open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise InputError(
                    f"workdir must be worked on by one sweep at a time; got {folder.root}, which another process "
                    "holds: wait for it, end it, or give another with --workdir"
                ) from None
            if folder.config.exists():
                _require_same_sweep(config, folder)
            write_text(folder.config, to_toml(config))
            yield
    except OSError as error:
        raise InputError(
            f"workdir must be a folder that can be written; got {folder.root} ({error.strerror or error}): "
            "give another with --workdir"
        ) from error


def _require_same_sweep(config: SweepConfig, folder: SweepDir) -> None:
    """The grid may grow; what a cell computes, and how, may not change."""
    saved = dict(flatten_table(read_toml(folder.config)))
    wanted = {key: value for key, value in flatten(config) if key == "mode" or key.startswith("run.")}
    differing = [
        f"{key} was {saved.get(key)!r}, now {value!r}"
        for key, value in json.loads(json.dumps(wanted)).items()
        if saved.get(key) != value and not key.removeprefix("run.").startswith(RESUMABLE)
    ]
    if differing:
        more = f"; and {len(differing) - 3} more" if len(differing) > 3 else ""
        raise InputError(
            f"workdir must hold a sweep of the same runs; got {folder.root} where {'; '.join(differing[:3])}{more}: "
            "give another --workdir"
        )
