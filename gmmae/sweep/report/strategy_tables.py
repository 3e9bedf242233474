"""The tables of a report of trained runs: efficiencies, outcomes, clusters and times."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict

from gmmae.plotting import tables
from gmmae.plotting.tables import Table
from gmmae.sweep.grid import run_keys
from gmmae.sweep.report import efficiency, outcomes
from gmmae.sweep.report.efficiency import Efficiency, Interval
from gmmae.sweep.report.outcomes import epochs_text, intervals_explained, misses, reached
from gmmae.sweep.report.results import Results, Run
from gmmae.system.files import csv_text

MISSING = "–"
EFFICIENCY_NOTE = (
    "Efficiency: T1 / (n Tn) · 100 %, with the median time T to the target over seeds. A miss counts as infinite. "
    "NaN: the median run missed the target. –: not computed."
)
SHARED_NOTE = (
    "The strong runs of a seed are one optimisation path, computed once for all numbers of devices. By construction they take "
    "the same epochs, so their efficiencies do not vary between seeds."
)


RUNS_COLUMNS = {
    "scaling": "the scaling strategy",
    "devices": "number of devices",
    "seed": "random seed",
    "mode": "mode of the sweep",
    "outcome": "why the run ended, or how its process failed",
    "epochs": "epochs of the run",
    "wanted_batch": "global batch that the strategy asks for",
    "global_batch": "global batch at the start of the run",
    "growth": "first epoch and global batch of each later stage: `6:64 11:128`",
    "device_batch": "samples of one device in a step",
    "learning_rate": "learning rate after any warmup, before any decay",
    "final_train_loss": "training loss of the last epoch",
    "final_val_loss": "validation loss after the last epoch",
    "best_val_loss": "validation loss after the best epoch",
    "best_epoch": "the best epoch by the monitored metric",
    "best_NAME": "a metric of the workload after that epoch, one column each",
    "target_step": "step at which the metric crosses the target, linear between two validations",
    "time_to_target_s": "seconds of training and validation to the target",
    "projected": "whether that time is projected to a cluster",
    "path": "the optimisation path; runs that share it were computed once",
    "steps": "training steps of the run",
    "train_s": "seconds of training on the machine that computed the run",
    "eval_s": "seconds of validation there",
    "machine": "that machine",
    "git_commit": "commit of the code",
}
"""The columns of `report/runs.csv` with their meanings."""


def strong_efficiency(results: Results) -> Table | None:
    """Returns Table I, or None if no strong run has times."""
    rows = []
    for n in results.counts:
        runs, found = results.group("strong", n), results.efficiency("strong", n)
        ours = (*_percents(found), f"{found.reached} of {found.runs}") if found else (MISSING,) * 3
        rows.append((_devices(runs, n), *ours))
    columns = ("devices", "efficiency (%)", "interval (%)", "reached")
    title = results.clock.titled("Table I. Efficiency of strong scaling")
    notes = (intervals_explained(results), *_shared(results), *_notes(results, ["strong"]))
    return Table("table_1", title, columns, tuple(rows), notes) if any(row[1] != MISSING for row in rows) else None


def other_efficiencies(results: Results) -> Table | None:
    """Returns Table II, or None if no strategy but strong scaling has times."""
    strategies = [scaling for scaling in results.config.scaling if scaling != "strong"]
    columns = ["devices", *(f"{scaling} (%)" for scaling in strategies)]
    rows, known = [], False
    for n in results.counts:
        row = [str(n)]
        for scaling in strategies:
            found, runs = results.efficiency(scaling, n), results.group(scaling, n)
            known |= found is not None
            mark = outcomes.capped_mark(runs)
            row.append(f"{tables.percent(found.percent)}{mark} ({found.reached}/{found.runs})" if found else MISSING)
        rows.append(tuple(row))
    title = results.clock.titled("Table II. Efficiency of the other strategies")
    notes = ("In parentheses: seeds that reached the target.", *_notes(results, strategies))
    return Table("table_2", title, tuple(columns), tuple(rows), notes) if known else None


def endings(results: Results) -> Table:
    """Returns Table III, how the runs ended."""
    rows = []
    for scaling, n, runs in results.groups():
        # A run may reach the target before its batch grows.
        record = max((run.record for run in runs), key=lambda record: len(record.stages), default=None)
        batch = (record.batch_text, f"{record.learning_rate:g}") if record else (MISSING, MISSING)
        stopped, several = len(results.stopped(scaling, n)), len(runs) + len(results.stopped(scaling, n))
        why, unknown = f"{stopped} of {several} stopped by the time limit", stopped > 0 and results.config.mode == "virtual"
        epochs = why if unknown else epochs_text(runs, stopped)
        how = "; ".join([*misses(runs), *[why] * (stopped > 0 and not unknown)]) or MISSING
        rows.append((scaling, _devices(runs, n), *batch, reached(runs, stopped), epochs, how))
    columns = ("scaling", "devices", "batch", "learning rate", "reached", "epochs", "misses")
    notes = [
        "Epochs to the target: median and range over seeds. A miss counts as infinite. Crashed processes do not count.",
        outcomes.EXPLANATION.format(metric=results.config.run.stop.monitor),
        *_shared(results),
        *outcomes.capped_notes(results.runs),
    ]
    return Table("table_3", "Table III. How the runs ended", columns, tuple(rows), tuple(notes))


def clusters(by_cluster: Sequence[Results]) -> Table | None:
    """Returns Table IV, strong scaling projected to each cluster, or None with fewer than two clusters with times."""
    known = [results for results in by_cluster if results.clock.kind == "projected"]
    if len(known) < 2 or not any(run.key.scaling == "strong" for run in known[0].runs):
        return None
    rows = []
    for n in known[0].counts:
        row = [_devices(known[0].group("strong", n), n)]
        for results in known:
            time, found = results.seconds("strong", n), results.efficiency("strong", n)
            row += [tables.seconds(time.median) if time else MISSING, tables.percent(found.percent) if found else MISSING]
        rows.append(tuple(row))
    columns = ["devices"]
    for results in known:
        columns += [f"{results.clock.cluster}: time (s)", "efficiency (%)"]
    title = "Table IV. Time to the target and efficiency of strong scaling on other clusters, projected"
    notes = (*(results.clock.note for results in known), *_capped(known[0], ["strong"]))
    return Table("table_4", title, tuple(columns), tuple(rows), notes)


def epoch_times(results: Results) -> Table | None:
    """Returns Table V, the parts of an epoch's time for strong and weak scaling, or None without times."""
    rows = []
    for scaling, n in ((scaling, n) for scaling in ("strong", "weak") for n in results.counts):
        known = [(run, run.epoch) for run in results.group(scaling, n) if run.epoch is not None]
        if not known:
            continue
        run, epoch = known[0]
        parts = (epoch.compute_s, epoch.all_reduce_s, epoch.validation_s, epoch.total_s)
        texts = (MISSING if part is None else tables.seconds(part) for part in parts)
        steps = (str(run.record.steps_per_epoch), str(run.record.device_batch))
        rows.append((scaling, _devices([run], n), *steps, *texts))
    columns = ("scaling", "devices", "steps", "device batch", "compute (s)", "all-reduce (s)", "validation (s)", "epoch (s)")
    notes = ("Compute: all training steps of an epoch; where measured, with the all-reduce in it. Of the first seed.",)
    title = results.clock.titled("Table V. What an epoch's time is spent on")
    notes += (*results.clock.notes, *_capped(results, ["strong", "weak"]))
    return Table("table_5", title, columns, tuple(rows), notes) if rows else None


def step_times(results: Results) -> Table | None:
    """Returns Table VI, the measured step times behind the projections, or None without them."""
    if not results.timings:
        return None
    timings = results.timings[0]
    rows = tuple(
        (what, str(row.samples), *(f"{1e3 * value:.4g}" for value in (row.median_s, row.low_s, row.high_s)))
        for what, measured in (("training step", timings.train), ("validation pass", timings.validation))
        for row in sorted(measured)
    )
    columns = ("what", "samples", "median (ms)", "first quartile (ms)", "third quartile (ms)")
    title = f"Table VI. Times measured on one device ({timings.device_kind})"
    return Table("table_6", title, columns, rows, tuple(f"{what}: {why}" for what, why in timings.failed.items()))


def times_to_target(results: Results) -> Table | None:
    """Returns Table VII, the median times of Fig. 2, or None without times."""
    rows = []
    for scaling, n, runs in results.groups():
        summary, efficient = results.seconds(scaling, n), results.efficiency(scaling, n)
        if summary:
            times = (tables.seconds(summary.median), _interval(summary.interval, tables.seconds))
            percents = _percents(efficient) if efficient else (MISSING, MISSING)
            rows.append((scaling, _devices(runs, n), f"{summary.reached} of {summary.runs}", *times, *percents))
    columns = ("scaling", "devices", "reached", "time (s)", "interval (s)", "efficiency (%)", "interval (%)")
    title = results.clock.titled("Table VII. Time to the target")
    notes = (intervals_explained(results), *_shared(results), *_notes(results, results.config.scaling))
    return Table("table_7", title, columns, tuple(rows), notes) if rows else None


def paired(results: Results) -> Table | None:
    """Returns Table VIII, strong scaling compared with the others by seed, or None without common seeds."""
    rows, compared = [], []
    for scaling, n, runs in results.groups():
        base, other = results.times("strong", n), results.times(scaling, n)
        if scaling == "strong" or n == 1 or results.clock.kind == "unknown" or not base.keys() & other.keys():
            continue
        pairs = efficiency.paired(base, other)
        counts = map(str, (pairs.pairs, pairs.slower, pairs.faster, pairs.ties, pairs.misses))
        ratios = (tables.ratio(pairs.ratio), _interval(pairs.interval, tables.ratio))
        compared.append(pairs.p_value)
        rows.append((scaling, _devices(runs, n), *counts, *ratios))
    corrected = iter(efficiency.holm([p for p in compared if p is not None]))
    both = [(MISSING, MISSING) if p is None else (f"{p:.3g}", f"{next(corrected):.3g}") for p in compared]
    rows = [row + p_values for row, p_values in zip(rows, both, strict=True)]
    outcomes_of = ("strong faster", "other faster", "ties", "both missed")
    columns = ("against", "devices", "seeds", *outcomes_of, "ratio", "interval", "p", "p (Holm)")
    notes = (
        "Ratio: the other's time over strong scaling's, median over the seeds in which one of them reached the target. ∞: only "
        "the other missed it. p: two-sided sign test, and corrected for the number of rows by Holm's method.",
        intervals_explained(results),
        *results.clock.notes,
        *_capped(results, results.config.scaling),
    )
    title = results.clock.titled("Table VIII. Strong scaling against the others, seed by seed")
    return Table("table_8", title, columns, tuple(rows), notes) if rows else None


def runs_csv(results: Results) -> str:
    """Returns CSV with a row for each computed run and each failed process. A missing value is empty.

    The column `growth` has the first epoch and the global batch of each later stage: `6:64 11:128`.
    """
    metrics = list(dict.fromkeys(name for run in results.runs for name in run.record.best_metrics))
    columns = ([f"best_{metric}" for metric in metrics] if name == "best_NAME" else [name] for name in RUNS_COLUMNS)
    names = list(itertools.chain.from_iterable(columns))
    rows = {record.key: asdict(record) | {"projected": False} for record in results.failed}
    for run in results.runs:
        record, known = run.record, math.isfinite(run.time_s)
        rows[run.key] = (
            {name: getattr(record, name, None) for name in names}
            | record.clocks
            | {f"best_{name}": value for name, value in record.best_metrics.items()}
            | {"mode": results.config.mode, "outcome": run.outcome, "path": run.path}
            | {"growth": " ".join(f"{first}:{batch}" for first, batch in record.growth)}
            | {"steps": record.steps, "time_to_target_s": run.time_s if known else None}
            | {"projected": known and results.clock.kind == "projected"}
        )
    return csv_text((rows[key] | key._asdict() for key in run_keys(results.config) if key in rows), names)


def _shared(results: Results) -> tuple[str, ...]:
    """Returns the note on shared strong runs, in virtual mode."""
    return (SHARED_NOTE,) if results.config.mode == "virtual" and "strong" in results.config.scaling else ()


def _notes(results: Results, scaling: Sequence[str]) -> tuple[str, ...]:
    return (EFFICIENCY_NOTE, *results.clock.notes, *_capped(results, scaling))


def _capped(results: Results, scaling: Sequence[str]) -> tuple[str, ...]:
    return outcomes.capped_notes(run for run in results.runs if run.key.scaling in scaling)


def _devices(runs: Sequence[Run], count: int) -> str:
    """Returns a number of devices, marked if the batch of its runs is capped."""
    return f"{count}{outcomes.capped_mark(runs)}"


def _percents(found: Efficiency) -> tuple[str, str]:
    """Returns an efficiency and its interval, without the interval if there is no efficiency."""
    interval = None if math.isnan(found.percent) else found.interval
    return tables.percent(found.percent), _interval(interval, tables.percent)


def _interval(interval: Interval | None, number: Callable[[float], str]) -> str:
    """Returns an interval as text, or a dash if both bounds are infinite."""
    return tables.interval_text(None if interval and math.isinf(interval.low) else interval, number)
