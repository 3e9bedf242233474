"""Determines the step times that a sweep needs, and measures the missing ones."""

import math
from collections.abc import Collection, Sequence
from pathlib import Path

from gmmae.sweep import throughput
from gmmae.sweep.display import SweepDisplay
from gmmae.sweep.grid import SweepConfig, TimingConfig
from gmmae.sweep.jobs import Request, execute, timing_job
from gmmae.sweep.runs import RunRecord, SweepDir
from gmmae.sweep.supervisor import Callbacks, describe, last_lines


def requests(config: SweepConfig, records: Sequence[RunRecord], reference_batches: Collection[int]) -> dict[int, Request]:
    """Returns the measurements that a sweep needs, by number of devices.

    In virtual mode these are, on one device, the batches of one device in all runs, and its share of the validation volumes.
    In throughput mode they are the batches of weak and strong scaling. Measured mode needs none.

    Args:
      config: the sweep.
      records: the records of its runs so far.
      reference_batches: batches of the clusters that times are projected to.
    """
    if config.mode == "throughput":
        return {n: _throughput_request(config, n) for n in sorted(config.devices)}
    known = [record.record for record in records if record.record is not None]
    if config.mode == "measured" or not known:
        return {}
    validation = {math.ceil(known[0].validation_samples / n) for n in config.devices}
    batches = {record.device_batch for record in known} | {config.run.optim.batch_size, *reference_batches}
    return {1: {"batches": sorted(batches), "validation": sorted(validation)}}


def _throughput_request(config: SweepConfig, devices: int) -> Request:
    weak = {batch * devices for batch in config.timing.device_batches}
    strong = {batch for batch in config.timing.global_batches if batch >= devices}
    return {"batches": sorted(weak | strong), "validation": []}


def measure(config: SweepConfig, folder: SweepDir, display: SweepDisplay, needed: dict[int, Request]) -> str | None:
    """Measures the missing step times, one job at a time. Returns the reason of an interruption, or None."""
    return execute(
        config,
        folder,
        [timing_job(config, folder, n, needed[n]) for n in _missing(config, folder, needed)],
        Callbacks(
            on_start=lambda job: display.say(f"{job.name}: measuring step times"),
            on_end=lambda job, ended: display.say(f"{job.name}: {describe(ended)}, {ended.seconds:.0f} s"),
        ),
        at_once=1,
        timed=True,
    )


def failures(config: SweepConfig, folder: SweepDir, needed: dict[int, Request]) -> list[str]:
    """Returns a line for each number of devices whose step times could not be measured."""
    names = [folder.step_times(n).stem for n in _missing(config, folder, needed)]
    return [f"{name} failed: {last_lines(folder.log(name)) or 'no output'} ({folder.log(name)})" for name in names]


def _missing(config: SweepConfig, folder: SweepDir, needed: dict[int, Request]) -> list[int]:
    return [n for n, request in needed.items() if not _measured(folder.step_times(n), request, config.timing)]


def _measured(path: Path, request: Request, timing: TimingConfig) -> bool:
    timings = throughput.read(path)
    if timings is None or timings.timing != throughput.settings(timing):
        return False
    requested = {throughput.TRAINING: request["batches"], throughput.VALIDATION: request["validation"]}
    measured = {throughput.TRAINING: timings.train, throughput.VALIDATION: timings.validation}
    tried = {f"{what} of {row.samples}" for what, rows in measured.items() for row in rows} | set(timings.failed)
    return {f"{what} of {count}" for what, counts in requested.items() for count in counts} <= tried
