"""A sweep: each run of the grid in a subprocess of its own, what is finished left alone, what fails recorded and left behind.

Files are in `gmmae.sweep.runs`, the grid in `gmmae.sweep.grid`, processes in `gmmae.sweep.supervisor` or
`gmmae.sweep.cluster.jobs`. The record of a run is written when its process has ended; a run without one is computed again by
the next call, and resumes from its run's checkpoint. When the records of a path's runs are written, its checkpoints are
removed, unless they are to be kept.
"""

import shutil
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from gmmae.config.schema import StopConfig, defaults, flatten
from gmmae.config.toml import flatten_table, to_toml
from gmmae.scaling import strategies
from gmmae.sweep import step_times as sweep_timing
from gmmae.sweep.display import SweepDisplay, outcome_text, progress_text
from gmmae.sweep.grid import RunKey, SweepConfig, left_out, paths, run_keys
from gmmae.sweep.jobs import execute, training_job
from gmmae.sweep.runs import CRASHED, FAILED, TIMED_OUT, RunRecord, SweepDir, on_devices, read_toml
from gmmae.sweep.supervisor import Callbacks, Ended, Job, describe, last_lines
from gmmae.system import stop_reasons
from gmmae.system.errors import InputError
from gmmae.system.files import write_text
from gmmae.training.records import Record, read_history
from gmmae.training.stopping import finished
from gmmae.training.workdir import WorkDir, alone, differences, writable

FIXED = ("mode", "run.stop.target", "run.stop.monitor", "run.stop.mode", "run.stop.collapse_epochs")
"""Keys that a sweep may not change, beside those that no run may: they decide how its finished runs ended."""

RUNS_FAILED = 4
"""Exit code of a sweep with crashed or timed-out runs; diverged and collapsed ones are results, and no failure."""


def sweep(
    config: SweepConfig,
    root: Path,
    display: SweepDisplay,
    *,
    samples: int,
    retry: bool = False,
    reference_batches: Collection[int] = (),
) -> int:
    """Computes what is missing of a sweep.

    Args:
      config: the grid; it, and the limits of its runs, may have grown since an earlier call on the same work directory.
      root: its work directory.
      display: where a person looks.
      samples: in the training set; used in virtual mode only.
      retry: compute crashed and timed-out runs again.
      reference_batches: of the clusters that times are projected to; their steps are timed too.

    Returns:
      The exit code: 0, `CELLS_FAILED`, or 143, 130 and 129 when interrupted.

    Raises:
      InputError: the work directory cannot be written, belongs to another sweep, or another process works on it; or it holds
        a run with a batch or a learning rate that its strategy does not have now.
    """
    folder = SweepDir(root)
    grid = run_keys(config) if config.mode != "throughput" else []
    with _claimed(config, folder):
        reason = _train(config, folder, display, samples, retry) if grid else None
        records = list(folder.read_all(grid))
        wanted = sweep_timing.requests(config, records, reference_batches)
        reason = reason or sweep_timing.measure(config, folder, display, wanted)
        if grid:
            display.say(summary(records, len(grid)))
        if reason:
            display.say("the same command goes on where it stopped")
            return stop_reasons.EXIT_CODES[reason]
        untimed = sweep_timing.failures(config, folder, wanted)
        for line in untimed:
            display.say(line)
        failed = any(record.outcome in FAILED for record in records)
        if failed:
            display.say("--retry computes crashed and timed-out runs again")
        return RUNS_FAILED if failed or untimed else 0


def interrupted(code: int) -> bool:
    """Whether an exit code says that the sweep was stopped from outside."""
    return code in (stop_reasons.EXIT_CODES[reason] for reason in stop_reasons.INTERRUPTED)


def summary(records: Sequence[RunRecord], total: int) -> str:
    """How many runs ended how, and the failed ones by name."""
    counts = Counter(record.outcome for record in records)
    parts = [f"{count} {outcome}" for outcome, count in counts.most_common()]
    missing = total - len(records)
    lines = [f"{total} run{'s' * (total > 1)}: " + ", ".join(parts + ([f"{missing} not computed"] if missing else []))]
    lines += [f"  {record.key.name} {record.outcome}: {record.message}" for record in records if record.outcome in FAILED]
    return "\n".join(lines)


def _train(config: SweepConfig, folder: SweepDir, display: SweepDisplay, samples: int, retry: bool) -> str | None:
    """Runs every path that some run still needs; the reason why it was interrupted, if it was."""
    wanted = dict(paths(config, samples))
    shared = {owner.name: members for owner, members in wanted.items()}
    found = {record.key: record for record in folder.read_all(run_keys(config))}
    for record in found.values():
        _require_same_strategy(config, folder, record)
    kept = {key: record for key, record in found.items() if _stands(record, folder, config.run.stop, retry)}
    pending = [owner for owner, members in wanted.items() if any(member not in kept for member in members)]
    _remove_checkpoints(config, folder, kept.values())
    for owner in pending:
        if _cannot_go_on(folder.run(owner.name), config.run.stop):
            display.say(f"{owner.name} begins again: its checkpoints were removed when it had ended, see keep_checkpoints")
            shutil.rmtree(folder.run(owner.name).root)
    jobs = [training_job(config, folder, owner) for owner in pending]
    for line in left_out(config):
        display.say(line)
    display.start(config, {key: outcome_text(record) for key, record in kept.items()}, len(jobs))

    def on_end(job: Job, ended: Ended) -> None:
        if ended.interrupted:
            display.ended(job.name, dict.fromkeys(shared[job.name], "interrupted"), ended.seconds)
            return
        written = [_run_record(config, folder, key, job, ended) for key in shared[job.name]]
        for record in written:
            folder.write(record)
        _remove_checkpoints(config, folder, written)
        display.ended(job.name, {record.key: outcome_text(record) for record in written}, ended.seconds)

    def on_tick(running: Sequence[tuple[Job, float]]) -> None:
        texts = {
            key: _progress_text(folder, job.name, config.run.stop.monitor) for job, _ in running for key in shared[job.name]
        }
        display.tick(texts)

    with display:
        callbacks = Callbacks(lambda job: display.started(job.name), on_end, on_tick)
        return execute(config, folder, jobs, callbacks, at_once=config.jobs, timed=config.mode != "virtual")


def _stands(record: RunRecord, folder: SweepDir, stop: StopConfig, retry: bool) -> bool:
    """Whether a run need not be computed again."""
    if record.outcome in FAILED or record.record is None:
        return not retry
    return _over(record.record, folder.run(record.path), stop)


def _over(record: Record, run: WorkDir, stop: StopConfig) -> bool:
    """Whether a run has nothing left to do under these rules; one that stalled is judged again, as its patience may change."""
    return finished(record, stop, run.read_rows() if record.stop_reason == stop_reasons.STALLED else None)


def _require_same_strategy(config: SweepConfig, folder: SweepDir, found: RunRecord) -> None:
    """Earlier versions let the learning rate of a clipped batch follow the devices: such runs must not stand beside others."""
    run = found.record
    if run is None:
        return
    strategy = strategies.resolve(found.scaling, config.run.optim, found.devices, run.train_samples)
    if (run.global_batch, run.learning_rate) != (strategy.global_batch, strategy.learning_rate.peak):
        raise InputError(
            f"{folder.record(found.key)} must have its strategy's batch and learning rate, {strategy.global_batch} and "
            f"{strategy.learning_rate.peak:g}; got {run.global_batch} and {run.learning_rate:g}, by another version's rule: delete it "
            f"and {folder.run(found.path).root}, or give another --workdir"
        )


def _remove_checkpoints(config: SweepConfig, folder: SweepDir, written: Iterable[RunRecord]) -> None:
    """Of the runs that have ended by themselves, and whose runs' records say so."""
    if config.keep_checkpoints:
        return
    for name in {record.path for record in written if record.outcome not in FAILED}:
        shutil.rmtree(folder.run(name).checkpoints, ignore_errors=True)  # what stays is the next call's to remove


def _cannot_go_on(run: WorkDir, stop: StopConfig) -> bool:
    """Whether a run has epochs behind it, is to be trained further, and has no checkpoint to do so from."""
    try:
        record = run.read_record()
    except InputError:  # its process will say what is wrong with it
        return False
    if record is None or not record.epochs or _over(record, run, stop):
        return False
    return not run.checkpoints.is_dir() or not any(run.checkpoints.iterdir())


def _run_record(config: SweepConfig, folder: SweepDir, key: RunKey, job: Job, ended: Ended) -> RunRecord:
    try:
        record = folder.run(job.name).read_record()
        shown = None if record is None else on_devices(record, key, config.run.optim)
    except InputError as error:  # not a record, or a batch with fewer samples than the run has devices
        return RunRecord(key.scaling, key.devices, key.seed, config.mode, CRASHED, job.name, None, str(error))
    outcome, message = (record.stop_reason if record else None) or CRASHED, ""
    if ended.timed_out or ended.returncode != stop_reasons.EXIT_CODES.get(outcome) or outcome in stop_reasons.INTERRUPTED:
        outcome = TIMED_OUT if ended.timed_out else CRASHED
        message = f"{describe(ended)}: {last_lines(job.log) or 'nothing said'} ({job.log})"
    return RunRecord(key.scaling, key.devices, key.seed, config.mode, outcome, job.name, shown, message)


def _progress_text(folder: SweepDir, name: str, metric: str) -> str:
    try:
        last = read_history(folder.run(name).history)[-1]
    except (OSError, IndexError, ValueError, KeyError, TypeError):  # not there yet, or its last line half written
        return "starting"
    return progress_text(last, metric)


@contextmanager
def _claimed(config: SweepConfig, folder: SweepDir) -> Iterator[None]:
    """The work directory made or recognised, written to by no other process in the meantime."""
    with ExitStack() as held:
        with writable(folder.root):
            folder.records.mkdir(parents=True, exist_ok=True)
            held.enter_context(alone(folder.lock, "sweep"))
            if folder.config.exists():
                _require_same_sweep(config, folder)
            write_text(folder.config, to_toml(config))
        yield


def _require_same_sweep(config: SweepConfig, folder: SweepDir) -> None:
    """The grid may grow; what a run computes, and how, may not change."""
    saved = dict(flatten(SweepConfig(run=defaults(config.run)))) | dict(flatten_table(read_toml(folder.config)))
    given = dict(flatten(config))
    wanted = {key: given[key] for key in FIXED}
    wanted |= {key: value for key, value in flatten(config, resumable=False) if key.startswith("run.")}
    if changes := differences(saved, wanted):
        raise InputError(
            f"workdir must hold a sweep of the same runs; got {folder.root} where {changes}: give another --workdir"
        )
