"""The results of a sweep, finished or not: its runs, and what they come to on each number of devices.

A run counts when its optimisation ended by itself; a crashed process is no miss. A run that the sweep's time limit stopped is
censored: where times are measured it is slower than the limit, so its time is infinite. In virtual mode, where the limit is one
of the simulation, a cell with such a run has no times: the other seeds are the fast ones.
"""

import itertools
import math
import operator
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from gmmae.config.schema import Config
from gmmae.data.grouped import Estimate
from gmmae.scaling import cost
from gmmae.scaling.cost import Cluster
from gmmae.scaling.strategies import STRATEGIES
from gmmae.sweep import step_times
from gmmae.sweep.grid import RunKey, SweepConfig
from gmmae.sweep.report import statistics
from gmmae.sweep.runs import FAILED, TIMED_OUT, RunRecord, SweepDir, stage_plans
from gmmae.sweep.step_times import Timings
from gmmae.system import stop_reasons
from gmmae.system.errors import InputError
from gmmae.training.records import Epoch, Record, epoch_ends

OVERSUBSCRIBED = "oversubscribed: n virtual devices share this machine's cores, so this does not measure scaling"
CAPPED = "†"
Place = tuple[str, int]
"""A strategy and a number of devices."""


class Source(NamedTuple):
    """The source of the times."""

    kind: Literal["projected", "measured", "unknown"]
    short: str = ""  # for titles: "projected to K80, 1 GbE"
    note: str = ""  # in sentences: what a projection assumes, or why there are no times
    cluster: str = ""  # that times are projected to
    priced: Cluster | None = None  # the same; none: times are those of another device

    def titled(self, title: str) -> str:
        """A title with the source of the times."""
        return f"{title} ({self.short})" if self.short else title


class Run(NamedTuple):
    """A run whose optimisation ended by itself."""

    key: RunKey
    outcome: str  # the stop reason
    path: str  # the run below runs/ that computed it
    record: Record
    history: list[Epoch]  # empty where the file is missing
    elapsed_s: list[float]  # of training and validation until the end of each epoch; NaN where no times are known
    time_s: float  # to the target; infinite if it was missed, NaN where no times are known

    @property
    def reached(self) -> bool:
        """Whether the run reached the target."""
        return self.outcome == stop_reasons.TARGET_REACHED


class Cell(NamedTuple):
    """A strategy on a number of devices. What is not known, or not compared, is NaN."""

    scaling: str
    devices: int
    batch: str  # global, of the run whose batch grew the most
    learning_rate: float
    seeds: int  # runs, with those that the sweep's time limit stopped
    reached: int  # of them, the target
    epochs: Estimate  # to the target: median and range
    time_s: Estimate  # to the target
    efficiency: Estimate  # the paper's, in percent (section VII); NaN where the median run on one device or on n missed
    compared: int  # here and below: with strong scaling on as many devices, see `statistics.Pairs`
    slower: int
    ratio: Estimate
    p: float
    p_holm: float  # corrected for the number of cells
    runs: list[Run]  # without the stopped ones
    times: dict[int, float]  # `Run.time_s` by seed, also of stopped ones

    @property
    def mark(self) -> str:
        """Marks a global batch that is capped to the training set, or to the end of the strategy's rule."""
        return CAPPED if any(run.record.clipped for run in self.runs) else ""

    @property
    def label(self) -> str:
        """The strategy in words, with the mark."""
        return STRATEGIES[self.scaling].label + self.mark

    @property
    def median_run(self) -> Run | None:
        """The run of the median time among those with a history, or the slower of the two middle ones."""
        runs = sorted((run for run in self.runs if run.history), key=lambda run: run.time_s)
        return runs[len(runs) // 2] if runs else None


class Results(NamedTuple):
    """A sweep with times from one source."""

    config: SweepConfig
    folder: SweepDir
    runs: list[Run]
    failed: list[RunRecord]  # crashed processes, and those that the time limit stopped
    timings: list[Timings]  # from few devices to many
    source: Source
    cells: dict[Place, Cell]

    def spent(self, cell: Cell) -> dict[str, str]:
        """The median time on all devices, and what it costs, by columns."""
        return cost.spent_texts(self.source.priced, cell.devices * cell.time_s.value)


def read(config: SweepConfig, root: Path, clusters: Sequence[Cluster]) -> list[Results]:
    """Reads a sweep's work directory, of which any file may be missing.

    Virtual runs have results for each cluster, those with unknown times last.
    """
    folder = SweepDir(root)
    records = folder.read_all(config)
    failed = [record for record in records if record.outcome in FAILED]
    ended = [(record, record.record) for record in records if record.outcome not in FAILED and record.record is not None]
    timed_on = {"throughput": sorted(config.devices), "virtual": [1], "measured": []}[config.mode]
    timings = [found for n in timed_on if (found := step_times.read(folder.step_times(n)))]
    histories = {path: epoch_ends(folder.run(path).read_rows()) for path in {record.path for record, _ in ended}}
    everything = []
    for cluster in clusters if config.mode == "virtual" and clusters else [None]:
        source, stages = _source(config, [record for _, record in ended], timings, cluster)
        runs = []
        for (about, record), stages_s in zip(ended, stages, strict=True):
            history = histories[about.path]
            elapsed_s, time_s = [row.train_s + row.eval_s for row in history], record.time_to_target_s or math.nan
            if source.kind != "measured":
                *elapsed_s, time_s = (
                    sum(map(operator.mul, record.epochs_by_stage(epoch), stages_s))
                    for epoch in (*(row.epoch for row in history), record.epochs)
                )
            if about.outcome != stop_reasons.TARGET_REACHED and source.kind != "unknown":
                time_s = _missed(config, about.outcome)
            runs.append(Run(about.key, about.outcome, about.path, record, history, elapsed_s, time_s))
        everything.append(Results(config, folder, runs, failed, timings, source, _cells(config, runs, failed)))
    return sorted(everything, key=lambda found: found.source.kind == "unknown")


def _source(
    config: SweepConfig, records: Sequence[Record], timings: Sequence[Timings], cluster: Cluster | None
) -> tuple[Source, list[list[float]]]:
    """Also gives the seconds of an epoch in each stage of each run, NaN where none are projected."""
    unknown = [[math.nan] * len(record.stages) for record in records]
    if config.mode != "virtual":
        shared = any(record.oversubscribed for record in (*records, *timings))
        return Source("measured", OVERSUBSCRIBED if shared else ""), unknown
    reason = "no cluster is given" if cluster is None else "step times have not been measured yet"
    if cluster is not None and timings:
        try:
            stages = [_epoch_seconds(cluster, timings[0], config.run, record) for record in records]
            return Source("projected", *_projection(cluster, timings[0], config.run.precision)), stages
        except InputError as error:
            reason = f"{cluster.name}: {error}"
    return Source("unknown", note=f"Times cannot be projected ({reason}). The report shows epochs only."), unknown


def _epoch_seconds(cluster: Cluster, timings: Timings, config: Config, record: Record) -> list[float]:
    """Of each stage; refuses a batch outside the measured range.

    epoch = steps · (scaled compute + all-reduce) + scaled validations of ⌈V / n⌉ samples
    """
    spacing = config.stop.validate_every_steps
    train, passes = map(step_times.table, (timings.train, timings.validation))
    try:
        passes_s = passes.at(math.ceil(record.validation_samples / record.devices))
    except InputError as error:
        raise InputError(f"validation: {error}") from error
    reduced_bytes = (record.reduced_numbers or record.parameters) * (8 if config.precision == "float64" else 4)
    scale, reduce_s = cost.scale(cluster, train), cost.all_reduce_s(cluster, record.devices, reduced_bytes)
    return [
        scale * (plan.steps * train.at(plan.device_batch) + math.ceil(plan.steps / (spacing or plan.steps)) * passes_s)
        + math.ceil(plan.steps / (record.local_steps or 1)) * reduce_s
        for plan in stage_plans(record)
    ]


def _projection(cluster: Cluster, timings: Timings, precision: str) -> tuple[str, str, str, Cluster | None]:
    as_there = cluster.reference_step_s or cost.same_device(cluster.device, timings.device_kind)
    title = f"projected to {cluster.name}" + ("" if as_there else f", with steps of {timings.device_kind}")
    between = "an unknown link between nodes"
    if cluster.alpha_inter_s is not None and cluster.beta_inter_bytes_per_s is not None:
        between = f"{1e6 * cluster.alpha_inter_s:g} µs, {1e-9 * cluster.beta_inter_bytes_per_s:g} GB/s between nodes"
    scaled = f", scaled to {cluster.reference_step_s:g} s for a step of {cluster.reference_batch} samples"
    note = (
        f"Projected to {cluster.name} ({cluster.devices_per_node} a node), not measured there: computation as measured on "
        f"{timings.device_kind} in {precision} (quartiles within {100 * step_times.spread(timings.train):.1f} % of the medians)"
        f"{scaled if cluster.reference_step_s else ''}; all-reduce with "
        f"α = {1e6 * cluster.alpha_intra_s:g} µs, β = {1e-9 * cluster.beta_intra_bytes_per_s:g} GB/s inside a node and "
        f"{between}; no overlap of the two. Every step of an epoch counts as a full one, including the last."
    )
    return title, note, cluster.name, cluster if as_there else None


def _cells(config: SweepConfig, runs: Sequence[Run], failed: Sequence[RunRecord]) -> dict[Place, Cell]:
    members, times, epochs = defaultdict(list), defaultdict(dict), defaultdict(list)
    for run in runs:
        place = run.key[:2]
        members[place].append(run)
        times[place][run.key.seed] = run.time_s
        epochs[place].append(run.record.epochs if run.reached else _missed(config, run.outcome))
    for record in failed:
        if record.outcome == TIMED_OUT:
            place, missed = record.key[:2], _missed(config, record.outcome)
            times[place][record.key.seed] = missed
            epochs[place].append(missed)
    cells = {}
    for place in itertools.product(config.scaling, sorted(config.devices)):
        if place not in epochs:
            continue
        scaling, n = place
        here, one = members[place], (scaling, 1)
        shared = {run.path for run in here} == {run.path for run in members[one]}
        grown = max((run.record for run in here), key=lambda record: len(record.stages), default=None)
        cells[place] = Cell(
            *place,
            grown.batch_text if grown else "",
            grown.learning_rate if grown else math.nan,
            len(epochs[place]),
            sum(run.reached for run in here),
            Estimate(*(float(statistic(epochs[place])) for statistic in (np.median, np.min, np.max))),
            statistics.estimate(list(times[place].values())),
            _efficiency(times[one], times[place], n, shared),
            *statistics.paired(times["strong", n] if scaling != "strong" and n > 1 else {}, times[place]),
            math.nan,
            here,
            times[place],
        )
    corrected = statistics.holm([cell.p for cell in cells.values()])
    return {place: cell._replace(p_holm=p) for (place, cell), p in zip(cells.items(), corrected, strict=True)}


def _missed(config: SweepConfig, outcome: str) -> float:
    return math.nan if config.mode == "virtual" and outcome in (TIMED_OUT, stop_reasons.TIME_LIMIT) else math.inf


def _efficiency(first: Mapping[int, float], nth: Mapping[int, float], devices: int, shared: bool) -> Estimate:
    """100 · median(T1) / (n · median(Tn)) over common seeds, and the interval of the seeds' own efficiencies.

    There is none where both are the same runs, as those of strong scaling in virtual mode: seeds do not vary.
    """
    t1, tn = (statistics.estimate([times[seed] for seed in first if seed in nth]).value for times in (first, nth))
    if not (math.isfinite(t1) and math.isfinite(tn)):
        return Estimate()
    ratio = Estimate() if shared else statistics.paired(nth, first).ratio
    return Estimate(100 * t1 / (devices * tn), 100 * ratio.low / devices, 100 * ratio.high / devices)
