"""The results of a sweep, finished or not, as plain data: its runs, their times, and the source of the times.

A run counts when its optimisation ended by itself. Crashed processes are kept apart and never count as misses. A run that was
stopped by the sweep's time limit is censored. Where times are measured it is slower than the limit, so its time is infinite. In
virtual mode the limit is one of the simulation. A cell with such a run has no times there, because the seeds that are left are
the fast ones.
"""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from gmmae.scaling.cost import Cluster
from gmmae.sweep import step_times
from gmmae.sweep.grid import RunKey, SweepConfig, run_keys
from gmmae.sweep.report import efficiency
from gmmae.sweep.report.efficiency import Efficiency, TimeSummary
from gmmae.sweep.report.projection import EpochTime, Projection
from gmmae.sweep.runs import FAILED, TIMED_OUT, RunRecord, SweepDir
from gmmae.sweep.step_times import Timings
from gmmae.system import stop_reasons
from gmmae.system.errors import InputError
from gmmae.training.records import Epoch, Record, epoch_ends, read_history

OVERSUBSCRIBED = "oversubscribed: n virtual devices share this machine's cores, so this does not measure scaling"


class Run(NamedTuple):
    """A run whose optimisation ended by itself."""

    key: RunKey
    outcome: str  # the stop reason
    path: str  # the run below runs/ that computed it
    record: Record
    epoch: EpochTime | None  # of a mean epoch; None if no times are known
    time_s: float  # to the target; infinite if it was missed, NaN if it was reached and no times are known
    stages: tuple[EpochTime, ...] = ()  # of an epoch of each stage, where times are projected

    @property
    def reached(self) -> bool:
        """Whether the run reached the target."""
        return self.outcome == stop_reasons.TARGET_REACHED


class Clock(NamedTuple):
    """The source of the times: projected to a cluster, or measured."""

    kind: Literal["projected", "measured", "unknown"]
    short: str  # for titles: "projected to K80, 1 GbE"; may be empty
    note: str  # for captions, in sentences; may be empty
    cluster: str = ""  # that times are projected to

    def titled(self, title: str) -> str:
        """Returns a title with the source of the times.

        >>> Clock("measured", "", "").titled("Losses"), Clock("projected", "projected to X", "").titled("Losses")
        ('Losses', 'Losses (projected to X)')
        """
        return f"{title} ({self.short})" if self.short else title

    def captioned(self, text: str) -> str:
        """Returns a caption that states the source. The page has the assumptions of a projection in one place.

        >>> Clock("projected", "projected to X", "By many assumptions.").captioned("Losses.")
        'Losses. Projected to X, not measured there.'
        """
        projected = f"{self.short[:1].upper()}{self.short[1:]}, not measured there."
        return f"{text.strip()} {projected if self.kind == 'projected' else self.note}".strip()

    @property
    def notes(self) -> tuple[str, ...]:
        """The note of a table, or none."""
        return (self.note,) if self.note else ()


class Results(NamedTuple):
    """A sweep with times from one source."""

    config: SweepConfig
    folder: SweepDir
    runs: tuple[Run, ...]
    failed: tuple[RunRecord, ...]  # crashed processes, and those that the time limit stopped
    timings: tuple[Timings, ...]  # step times, from few devices to many
    clock: Clock

    @property
    def total(self) -> int:
        """The number of runs of the grid."""
        return len(run_keys(self.config))

    @property
    def counts(self) -> list[int]:
        """The grid's numbers of devices, in increasing order."""
        return sorted(self.config.devices)

    def group(self, scaling: str, devices: int) -> list[Run]:
        """Returns the runs of a strategy on a number of devices, one for each seed."""
        return [run for run in self.runs if run.key[:2] == (scaling, devices)]

    def stopped(self, scaling: str, devices: int) -> list[int]:
        """Returns the seeds of a strategy on a number of devices that the sweep's time limit stopped."""
        return [one.seed for one in self.failed if one.outcome == TIMED_OUT and one.key[:2] == (scaling, devices)]

    def groups(self) -> Iterator[tuple[str, int, list[Run]]]:
        """Yields each strategy and number of devices that has runs, or stopped ones, in the order of the tables."""
        for scaling in self.config.scaling:
            for n in self.counts:
                if (runs := self.group(scaling, n)) or self.stopped(scaling, n):
                    yield scaling, n, runs

    def times(self, scaling: str, devices: int) -> dict[int, float]:
        """Returns the seconds to the target by seed, infinite where it was missed. Censored ones are those of the module."""
        stopped = self.stopped(scaling, devices)
        if stopped and self.config.mode == "virtual":
            return {}
        return {run.key.seed: run.time_s for run in self.group(scaling, devices)} | dict.fromkeys(stopped, math.inf)

    def seconds(self, scaling: str, devices: int) -> TimeSummary | None:
        """Returns the median time to the target over seeds, or None without runs or times."""
        times = self.times(scaling, devices)
        return efficiency.summary(list(times.values())) if times and self.clock.kind != "unknown" else None

    def efficiency(self, scaling: str, devices: int) -> Efficiency | None:
        """Returns the paper's efficiency, or None without times or without common seeds with one device.

        It has no interval where both are the same runs, as those of strong scaling in virtual mode: they do not vary.
        """
        first, nth = self.times(scaling, 1), self.times(scaling, devices)
        if self.clock.kind == "unknown" or not first.keys() & nth.keys():
            return None
        found = efficiency.time_to_loss(first, nth, devices)
        one, several = ({run.path for run in self.group(scaling, n)} for n in (1, devices))
        return found._replace(interval=None) if one == several else found

    def history(self, run: Run) -> list[Epoch]:
        """Returns the epochs of a run, or none if the file is missing.

        Raises:
          InputError: the file cannot be read.
        """
        path = self.folder.run(run.path).history
        try:
            return epoch_ends(read_history(path))
        except FileNotFoundError:
            return []
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"{path} must be a run's history; got {error!r}: delete the run's folder and its records"
            ) from error

    def elapsed_s(self, run: Run, row: Epoch) -> float:
        """Returns the training and validation seconds until the end of an epoch, or NaN if no times are known."""
        if self.clock.kind == "measured":
            return row.train_s + row.eval_s
        if not run.stages:
            return math.nan
        counts = run.record.epochs_by_stage(row.epoch)
        return sum(count * stage.total_s for count, stage in zip(counts, run.stages, strict=True))


def read(config: SweepConfig, root: Path, cluster: Cluster | None) -> Results:
    """Reads a sweep's work directory.

    Args:
      config: the configuration of the sweep.
      root: the directory. Any of its files may be missing.
      cluster: the cluster that times of virtual runs are projected to. Other modes need none.

    Raises:
      InputError: a file cannot be read.
    """
    folder = SweepDir(root)
    records = folder.read_all(config)
    ended = [record for record in records if record.outcome not in FAILED and record.record is not None]
    failed = tuple(record for record in records if record.outcome in FAILED)
    counts = sorted(config.devices) if config.mode == "throughput" else [1] if config.mode == "virtual" else []
    timings = tuple(found for n in counts if (found := step_times.read(folder.step_times(n))) is not None)
    clock, stages = _clock(config, ended, timings, cluster)
    runs = tuple(_run(record, of_run) for record, of_run in zip(ended, stages, strict=True))
    return Results(config, folder, runs, failed, timings, clock)


def _clock(
    config: SweepConfig, ended: Sequence[RunRecord], timings: Sequence[Timings], cluster: Cluster | None
) -> tuple[Clock, list[tuple[EpochTime, ...]]]:
    records = [record.record for record in ended if record.record is not None]
    if config.mode != "virtual":
        shared = any(record.oversubscribed for record in records) or any(timing.oversubscribed for timing in timings)
        note = f"{OVERSUBSCRIBED[0].upper()}{OVERSUBSCRIBED[1:]}." if shared else ""
        return Clock("measured", OVERSUBSCRIBED if shared else "", note), [_measured_epoch(record) for record in records]
    reason = "no cluster is given" if cluster is None else "step times have not been measured yet"
    if cluster is not None and timings:
        projection = Projection(cluster, timings[0], config.run.precision)
        try:
            stages = [tuple(projection.stages(record)) for record in records]
            return Clock("projected", projection.short, projection.assumptions(), cluster.name), stages
        except InputError as error:
            reason = f"{cluster.name}: {error}"
    unknown = Clock("unknown", "", f"Times cannot be projected ({reason}). The report shows epochs only.")
    return unknown, [()] * len(records)


def _measured_epoch(record: Record) -> tuple[EpochTime, ...]:
    """Returns the mean epoch, or nothing where no times are known."""
    if not record.epochs or not {"train_s", "eval_s"} <= record.clocks.keys():
        return ()
    return (EpochTime(record.clocks["train_s"] / record.epochs, None, record.clocks["eval_s"] / record.epochs),)


def _run(key: RunRecord, stages: tuple[EpochTime, ...]) -> Run:
    assert key.record is not None
    epoch = EpochTime.mean(stages, key.record.epochs_by_stage(key.record.epochs)) if stages else None
    time_s = math.inf
    if key.outcome == stop_reasons.TARGET_REACHED:
        measured = key.record.time_to_target_s if key.mode == "measured" else None
        projected = math.nan if epoch is None else key.record.epochs * epoch.total_s
        time_s = projected if measured is None else measured
    return Run(key.key, key.outcome, key.path, key.record, epoch, time_s, stages)
