"""Runs a sweep: the runs of the grid in subprocesses. Finished runs are left alone, and failures are recorded.

Files are in `gmmae.sweep.runs`, the grid in `gmmae.sweep.grid`, and processes in `gmmae.sweep.supervisor` or
`gmmae.sweep.cluster.slurm`. A run's record is written when the run has ended. A run without a record is computed by the
next call, and resumes from its checkpoint. When all runs of a group have records, its checkpoints are removed by default.
"""

import math
import shutil
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from gmmae.config.schema import StopConfig, defaults, flatten
from gmmae.config.toml import differences, flatten_table, read_table, to_toml
from gmmae.sweep import step_times
from gmmae.sweep.display import SweepDisplay, duration, outcome_table, outcome_text, progress_text
from gmmae.sweep.grid import RunKey, SweepConfig, left_out, run_groups, run_keys
from gmmae.sweep.jobs import Request, execute, timing_job, training_job
from gmmae.sweep.processes import Ended, Job, describe, error_line, exception_line, last_line
from gmmae.sweep.runs import CRASHED, FAILED, TIMED_OUT, RunRecord, SweepDir, on_devices, stage_plans
from gmmae.sweep.supervisor import Callbacks
from gmmae.system import stop_reasons
from gmmae.system.errors import InputError, StorageError
from gmmae.system.files import write_text
from gmmae.training import fingerprint
from gmmae.training.fingerprint import Fingerprint
from gmmae.training.records import Record, epoch_ends, read_history
from gmmae.training.run_logger import storage
from gmmae.training.stopping import finished
from gmmae.training.workdir import WorkDir, alone, writable

FIXED = ("mode", "run.stop.target", "run.stop.monitor", "run.stop.mode", "run.stop.collapse_epochs")
"""Keys that a sweep may not change, in addition to those of a run. They decide how its finished runs ended."""

RUNS_FAILED = 4
"""Exit code of a sweep with crashed or timed-out runs. Diverged and collapsed runs are results, not failures."""


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
    """Computes the missing runs and step times of a sweep.

    Args:
      config: the grid. The grid and the limits of its runs may be larger than in an earlier call on the same work directory.
      root: the work directory.
      display: shows the progress.
      samples: the size of the training set. It is used in virtual mode only.
      data: the fingerprint of its data, where they are loaded.
      retry: whether crashed and timed-out runs are computed again.
      reference_batches: batches of the clusters that times are projected to. Their steps are timed too.

    Returns:
      The exit code: 0, `RUNS_FAILED`, or 143, 130 and 129 when interrupted.

    Raises:
      InputError: the work directory cannot be written, belongs to another sweep, or is in use by another process.
      StorageError: the work directory cannot be written any more.
    """
    folder = SweepDir(root)
    grid = run_keys(config) if config.mode != "throughput" else []
    with _claimed(config, folder), storage(folder.root):
        if data:
            fingerprint.write(fingerprint.checked(folder.root, data), folder.root)
        write_text(folder.config, to_toml(config))  # a refused call leaves it as it was
        reason = _train(config, folder, display, samples, retry) if grid else None
        records = list(folder.read_all(grid))
        requests = _timing_requests(config, records, reference_batches)
        reason = reason or _measure(config, folder, display, requests)
        if grid:
            if records:
                display.say(outcome_table(config, records))
            display.say(summary(records, len(grid)))
        if reason:
            display.say("the same command continues the sweep")
            return stop_reasons.EXIT_CODES[reason]
        untimed = [folder.step_times(n).stem for n in _untimed(config, folder, requests)]
        for name in untimed:
            display.say(f"{name} failed: {last_line(folder.log(name)) or 'no output'} ({folder.log(name)})")
        failed = any(record.outcome in FAILED for record in records)
        if failed:
            display.say("--retry computes crashed and timed-out runs again")
        return RUNS_FAILED if failed or untimed else 0


def interrupted(code: int) -> bool:
    """Returns whether an exit code means that the sweep was interrupted."""
    return code in (stop_reasons.EXIT_CODES[reason] for reason in stop_reasons.INTERRUPTED)


def summary(records: Sequence[RunRecord], total: int) -> str:
    """Returns the number of runs by outcome, and a line for each failed one."""
    counts = Counter(record.outcome for record in records)
    parts = [f"{count} {outcome}" for outcome, count in counts.most_common()]
    missing = total - len(records)
    lines = [f"{total} run{'s' * (total > 1)}: " + ", ".join(parts + ([f"{missing} not computed"] if missing else []))]
    lines += [f"  {record.key.name} {record.outcome}: {record.message}" for record in records if record.outcome in FAILED]
    return "\n".join(lines)


def _train(config: SweepConfig, folder: SweepDir, display: SweepDisplay, samples: int, retry: bool) -> str | None:
    """Computes every group that has a run without a final record. Returns the reason of an interruption, or None."""
    groups = dict(run_groups(config, samples))
    records = {record.key: record for record in folder.read_all(run_keys(config))}
    final = {key: record for key, record in records.items() if _is_final(record, folder, config.run.stop, retry)}
    pending = [first for first, members in groups.items() if any(key not in final for key in members)]
    _remove_checkpoints(config, folder, final.values())
    for first in pending:
        if _cannot_resume(folder.run(first.name), config.run.stop):
            display.say(f"{first.name} starts again: its checkpoints were removed when it ended, see keep_checkpoints")
            shutil.rmtree(folder.run(first.name).root)
    jobs = [training_job(config, folder, first) for first in pending]
    for line in left_out(config):
        display.say(line)
    display.start(config, {key: outcome_text(record) for key, record in final.items()}, len(pending))
    with display:
        callbacks = _Training(config, folder, display, groups).callbacks()
        return execute(config, folder, jobs, callbacks, at_once=config.jobs, timed=config.mode != "virtual")


class _Training:
    """Records the ends of training jobs, and shows how they go on.

    Args:
      config: the sweep.
      folder: its work directory.
      display: shows the progress.
      groups: the points of the grid that each computed run stands for.
    """

    def __init__(
        self, config: SweepConfig, folder: SweepDir, display: SweepDisplay, groups: Mapping[RunKey, Sequence[RunKey]]
    ) -> None:
        self._config, self._folder, self._display = config, folder, display
        self._groups = {first.name: keys for first, keys in groups.items()}

    def callbacks(self) -> Callbacks:
        """Returns the functions for the executor."""
        return Callbacks(self._on_start, self._on_end, self._on_tick, self._on_retry)

    def _on_start(self, job: Job) -> None:
        self._display.started(job.name)

    def _on_end(self, job: Job, ended: Ended) -> None:
        keys = self._groups[job.name]
        if ended.interrupted:
            self._display.ended(job.name, dict.fromkeys(keys, "interrupted"), ended.seconds)
            return
        if ended.returncode == StorageError.exit_code and not ended.timed_out:
            raise StorageError(_how_its_storage_failed(job, self._folder))
        written = [_run_record(self._config, self._folder, key, job, ended) for key in keys]
        for record in written:
            self._folder.write(record)
        _remove_checkpoints(self._config, self._folder, written)
        self._display.ended(job.name, {record.key: outcome_text(record) for record in written}, ended.seconds)

    def _on_retry(self, job: Job, ended: Ended) -> None:
        self._display.say(f"{job.name} is tried again in a new process: {_how_it_failed(job, ended)}")

    def _on_tick(self, running: Sequence[tuple[Job, float]]) -> None:
        monitor = self._config.run.stop.monitor
        texts = {job.name: _progress_text(self._folder, job.name, monitor) for job, _ in running}
        self._display.tick({key: text for name, text in texts.items() for key in self._groups[name]})


def _is_final(record: RunRecord, folder: SweepDir, stop: StopConfig, retry: bool) -> bool:
    """Returns whether a record is final, so that its run is not computed again."""
    if record.outcome in FAILED or record.record is None:
        return not retry
    return _is_finished(record.record, folder.run(record.path), stop)


def _is_finished(record: Record, run: WorkDir, stop: StopConfig) -> bool:
    """Returns whether a run is finished under these rules. A plateaued run is checked again, as the patience may change."""
    return finished(record, stop, run.read_rows() if record.stop_reason == stop_reasons.STALLED else ())


def _remove_checkpoints(config: SweepConfig, folder: SweepDir, written: Iterable[RunRecord]) -> None:
    """Removes the checkpoints of finished runs, unless the configuration keeps them."""
    if config.keep_checkpoints:
        return
    for name in {record.path for record in written if record.outcome not in FAILED}:
        shutil.rmtree(folder.run(name).checkpoints, ignore_errors=True)  # the next call removes the rest


def _cannot_resume(run: WorkDir, stop: StopConfig) -> bool:
    """Returns whether an unfinished run has trained epochs but no checkpoint."""
    try:
        record = run.read_record()
    except InputError:  # its process will report the error
        return False
    if record is None or not record.epochs or _is_finished(record, run, stop):
        return False
    return not run.checkpoints.is_dir() or not any(run.checkpoints.iterdir())


def _run_record(config: SweepConfig, folder: SweepDir, key: RunKey, job: Job, ended: Ended) -> RunRecord:
    """Returns the record of a run.

    Args:
      config: the sweep.
      folder: its work directory.
      key: the run.
      job: has computed it, in the folder of its name below runs/.
      ended: how the job ended.
    """
    path = job.name
    try:
        record = folder.run(path).read_record()
        shown = None if record is None else on_devices(record, key, config.run.optim)
    except InputError as error:  # not a record, or fewer samples in the batch than devices
        return RunRecord(key.scaling, key.devices, key.seed, config.mode, CRASHED, path, None, str(error))
    outcome, message = (record.stop_reason if record else None) or CRASHED, ""
    if ended.timed_out or ended.returncode != stop_reasons.EXIT_CODES.get(outcome) or outcome in stop_reasons.INTERRUPTED:
        outcome = TIMED_OUT if ended.timed_out else CRASHED
        message = _how_it_failed(job, ended)
    return RunRecord(key.scaling, key.devices, key.seed, config.mode, outcome, path, shown, message)


def _how_it_failed(job: Job, ended: Ended) -> str:
    line = exception_line(job.log) if ended.returncode == 1 else last_line(job.log)
    return f"{describe(ended)}: {line or 'no output'} ({job.log})"


def _how_its_storage_failed(job: Job, folder: SweepDir) -> str:
    if said := error_line(job.log):
        return f"{said} ({job.log})"
    return (  # the log has no room either
        f"{folder.root} must have space for what {job.name} writes; a write failed: make room, and give the same command again"
    )


def _progress_text(folder: SweepDir, name: str, metric: str) -> str:
    try:
        last = epoch_ends(read_history(folder.run(name).history))[-1]
    except (OSError, IndexError, ValueError, KeyError, TypeError):  # missing, or its last line is incomplete
        return "starting"
    return progress_text(last, metric)


def _timing_requests(
    config: SweepConfig, records: Sequence[RunRecord], reference_batches: Collection[int]
) -> dict[int, Request]:
    """Returns the step times that a sweep needs, by number of devices.

    In virtual mode these are, on one device, the batches of one device in all runs, and its share of the validation volumes.
    In throughput mode they are the batches of weak and strong scaling. Measured mode needs none.
    """
    timing = config.timing
    if config.mode == "throughput":
        weak = {n: {batch * n for batch in timing.device_batches} for n in sorted(config.devices)}
        strong = {n: {batch for batch in timing.global_batches if batch >= n} for n in weak}
        return {n: {"batches": sorted(weak[n] | strong[n]), "validation": []} for n in weak}
    known = [record.record for record in records if record.record is not None]
    if config.mode == "measured" or not known:
        return {}
    validation = {math.ceil(known[0].validation_samples / n) for n in config.devices}
    trained = {plan.device_batch for record in known for plan in stage_plans(record)}
    batches = trained | {config.run.optim.batch_size, *reference_batches}
    return {1: {"batches": sorted(batches), "validation": sorted(validation)}}


def _measure(config: SweepConfig, folder: SweepDir, display: SweepDisplay, requests: dict[int, Request]) -> str | None:
    """Measures the missing step times, one job at a time. Returns the reason of an interruption, or None."""
    jobs = [timing_job(config, folder, n, requests[n]) for n in _untimed(config, folder, requests)]
    callbacks = Callbacks(
        on_start=lambda job: display.say(f"{job.name}: measuring step times"),
        on_end=lambda job, ended: display.say(
            f"{job.name}: {describe(ended) if ended.returncode else 'measured'}, {duration(ended.seconds)}"
        ),
    )
    return execute(config, folder, jobs, callbacks, at_once=1, timed=True)


def _untimed(config: SweepConfig, folder: SweepDir, requests: dict[int, Request]) -> list[int]:
    """Returns the numbers of devices whose step times are not measured yet. A batch that failed is not tried again."""

    def measured(n: int, request: Request) -> bool:
        timings = step_times.read(folder.step_times(n))
        if timings is None or timings.timing != step_times.settings(config.timing):
            return False
        rows = {step_times.TRAINING: timings.train, step_times.VALIDATION: timings.validation}
        tried = {f"{what} of {row.samples}" for what in rows for row in rows[what]} | set(timings.failed)
        counts = {step_times.TRAINING: request["batches"], step_times.VALIDATION: request["validation"]}
        return {f"{what} of {count}" for what in counts for count in counts[what]} <= tried

    return [n for n, request in requests.items() if not measured(n, request)]


@contextmanager
def _claimed(config: SweepConfig, folder: SweepDir) -> Iterator[None]:
    """Creates or checks the work directory, and locks it meanwhile."""
    if WorkDir(folder.root).record.exists() and not folder.config.exists():
        raise InputError(f"workdir must be new or hold a sweep; got {folder.root}, which holds a run: give another --workdir")
    with ExitStack() as held:
        with writable(folder.root):
            folder.records.mkdir(parents=True, exist_ok=True)
            held.enter_context(alone(folder.lock, "sweep"))
            if folder.config.exists():
                _require_same_sweep(config, folder)
        yield


def _require_same_sweep(config: SweepConfig, folder: SweepDir) -> None:
    """Refuses another sweep's work directory. The grid may grow, but the configuration of its runs may not change."""
    saved = dict(flatten(SweepConfig(run=defaults(config.run)))) | dict(flatten_table(read_table(folder.config)))
    current = dict(flatten(config))
    fixed = {key: current[key] for key in FIXED} | {"run.stop.mode": config.run.stop.better}
    saved["run.stop.mode"] = saved["run.stop.mode"].replace("auto", "min")
    fixed |= {key: value for key, value in flatten(config, resumable=False) if key.startswith("run.")}
    if changes := differences(saved, fixed):
        raise InputError(
            f"workdir must hold a sweep of the same runs; got {folder.root} where {changes}: give another --workdir"
        )
