"""What a sweep's work directory holds, finished or not, as plain data: the runs, their times, and whose seconds these are.

A run counts when its optimisation ended by itself. Crashed and timed-out processes say nothing of the optimisation: they are
kept apart and never counted as misses.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from gmmae.scaling.cost import Cluster
from gmmae.sweep import throughput
from gmmae.sweep.grid import RunKey, SweepConfig, run_keys
from gmmae.sweep.report import efficiency
from gmmae.sweep.report.efficiency import PAPER_TABLE_I, PAPER_TABLE_II, Efficiency, Summary
from gmmae.sweep.report.projection import GRADIENT_BYTES, EpochTime, Projection
from gmmae.sweep.runs import FAILED, RunRecord, SweepDir
from gmmae.sweep.throughput import Timings
from gmmae.system import stop_reasons
from gmmae.system.errors import InputError
from gmmae.training.records import Epoch, Record, read_history

PAPER = {"strong": PAPER_TABLE_I, **PAPER_TABLE_II}

OVERSUBSCRIBED = "oversubscribed: n virtual devices share this machine's cores; no measure of scaling"

PROJECTED = "projected to "


class Run(NamedTuple):
    """A run whose optimisation ended by itself."""

    key: RunKey
    outcome: str  # the stop reason
    path: str  # the run below runs/ that computed it
    record: Record
    epoch: EpochTime | None  # of a mean epoch; None where no times are known
    time_s: float  # to the target; infinite where it was missed, NaN where it was reached and no times are known

    @property
    def reached(self) -> bool:
        return self.outcome == stop_reasons.TARGET_REACHED


class Clock(NamedTuple):
    """Whose seconds the times are."""

    kind: Literal["projected", "measured", "unknown"]
    short: str  # for titles: "projected to K80, 1 GbE"; may be empty
    note: str  # for captions, in sentences; may be empty

    def titled(self, title: str) -> str:
        """
        >>> Clock("measured", "", "").titled("Losses"), Clock("projected", "projected to X", "").titled("Losses")
        ('Losses', 'Losses (projected to X)')
        """
        return f"{title} ({self.short})" if self.short else title

    def captioned(self, text: str) -> str:
        """A caption says that times are projected; on what that rests is said once on the page.

        >>> Clock("projected", "projected to X", "By many assumptions.").captioned("Losses.")
        'Losses. Projected to X, not measured there.'
        """
        projected = f"{self.short[:1].upper()}{self.short[1:]}, not measured there."
        return f"{text.strip()} {projected if self.kind == 'projected' else self.note}".strip()

    @property
    def cluster(self) -> str:
        """Whose devices times are projected to; empty where they are not."""
        return self.short.removeprefix(PROJECTED) if self.kind == "projected" else ""

    @property
    def notes(self) -> tuple[str, ...]:
        """For tables: the note, or none."""
        return (self.note,) if self.note else ()


class Results(NamedTuple):
    """A sweep with times by one clock."""

    config: SweepConfig
    folder: SweepDir
    runs: tuple[Run, ...]
    failed: tuple[RunRecord, ...]  # crashed and timed-out processes
    timings: tuple[Timings, ...]  # step times, from few devices to many
    clock: Clock

    @property
    def total(self) -> int:
        """Runs of the grid."""
        return len(run_keys(self.config))

    @property
    def paper(self) -> Mapping[str, Mapping[int, float]]:
        """The paper's efficiencies by strategy and devices, where the sweep is of the paper's workload."""
        return PAPER if self.config.run.workload == "nodules" else {}

    @property
    def counts(self) -> list[int]:
        """The grid's numbers of devices, increasing."""
        return sorted(self.config.devices)

    def group(self, scaling: str, devices: int) -> list[Run]:
        """The runs of a strategy on a number of devices, a seed each."""
        return [run for run in self.runs if (run.key.scaling, run.key.devices) == (scaling, devices)]

    def times(self, scaling: str, devices: int) -> dict[int, float]:
        """Seconds to the target by seed; infinite where it was missed."""
        return {run.key.seed: run.time_s for run in self.group(scaling, devices)}

    def seconds(self, scaling: str, devices: int) -> Summary | None:
        """Median time to the target over seeds; None without runs or without times."""
        times = self.times(scaling, devices)
        return efficiency.summary(list(times.values())) if times and self.clock.kind != "unknown" else None

    def efficiency(self, scaling: str, devices: int) -> Efficiency | None:
        """The paper's efficiency; None where no seed has been run on both one and that many devices, or without times."""
        first, nth = self.times(scaling, 1), self.times(scaling, devices)
        if self.clock.kind == "unknown" or not first.keys() & nth.keys():
            return None
        return efficiency.time_to_loss(first, nth, devices)

    def history(self, run: Run) -> list[Epoch]:
        """The epochs of a run; none where the file is missing.

        Raises:
          InputError: it is there and cannot be read.
        """
        path = self.folder.run(run.path).history
        try:
            return read_history(path)
        except FileNotFoundError:
            return []
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"{path} must be a run's history; got {error!r}: delete the run's folder and its records"
            ) from error

    def elapsed_s(self, run: Run, row: Epoch) -> float:
        """Training and validation seconds from the beginning of a run to the end of an epoch; NaN where no times are known."""
        if self.clock.kind == "measured":
            return row.train_s + row.eval_s
        return math.nan if run.epoch is None else row.epoch * run.epoch.total_s


def read(config: SweepConfig, root: Path, cluster: Cluster | None) -> Results:
    """Reads a sweep's work directory.

    Args:
      config: of the sweep.
      root: the directory; any of its files may be missing.
      cluster: whose times virtual runs get; other modes do not need one.

    Raises:
      InputError: a file is there and cannot be read.
    """
    folder = SweepDir(root)
    records = list(folder.read_all(run_keys(config)))
    ended = [record for record in records if record.outcome not in FAILED and record.record is not None]
    failed = tuple(record for record in records if record.outcome in FAILED)
    counts = sorted(config.devices) if config.mode == "throughput" else [1] if config.mode == "virtual" else []
    timings = tuple(found for n in counts if (found := throughput.read(folder.step_times(n))) is not None)
    clock, epochs = _clock(config, ended, timings, cluster)
    runs = tuple(_run(record, epoch) for record, epoch in zip(ended, epochs, strict=True))
    return Results(config, folder, runs, failed, timings, clock)


def _clock(
    config: SweepConfig, ended: Sequence[RunRecord], timings: Sequence[Timings], cluster: Cluster | None
) -> tuple[Clock, list[EpochTime | None]]:
    records = [record.record for record in ended if record.record is not None]
    if config.mode != "virtual":
        shared = any(record.oversubscribed for record in records) or any(timing.oversubscribed for timing in timings)
        note = f"{OVERSUBSCRIBED[0].upper()}{OVERSUBSCRIBED[1:]}." if shared else ""
        return Clock("measured", OVERSUBSCRIBED if shared else "", note), [_measured_epoch(record) for record in records]
    if cluster is None or not timings:
        missing = "no cluster is given" if cluster is None else "step times have not been measured yet"
        return _no_clock(missing), [None] * len(records)
    projection = Projection(cluster, timings[0], GRADIENT_BYTES[config.run.dtype])
    try:
        epochs: list[EpochTime | None] = [projection.epoch(record) for record in records]
        return Clock("projected", f"{PROJECTED}{cluster.name}", projection.assumptions()), epochs
    except InputError as error:
        return _no_clock(f"{cluster.name}: {error}"), [None] * len(records)


def _no_clock(reason: str) -> Clock:
    return Clock("unknown", "", f"Times cannot be projected ({reason}): epochs are shown, and what needs times is left out.")


def _measured_epoch(record: Record) -> EpochTime | None:
    if not record.epochs or not {"train_s", "eval_s"} <= record.clocks.keys():
        return None
    return EpochTime(record.clocks["train_s"] / record.epochs, None, record.clocks["eval_s"] / record.epochs)


def _run(key: RunRecord, epoch: EpochTime | None) -> Run:
    assert key.record is not None
    time_s = math.inf
    if key.outcome == stop_reasons.TARGET_REACHED:
        measured = key.record.time_to_target_s if key.mode == "measured" else None
        projected = math.nan if epoch is None else key.record.epochs * epoch.total_s
        time_s = projected if measured is None else measured
    return Run(key.key, key.outcome, key.path, key.record, epoch, time_s)
