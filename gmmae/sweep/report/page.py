"""Writes the report of a sweep, finished or not: one page, two CSV files and TensorBoard."""

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from gmmae.data.grouped import Estimate
from gmmae.plotting import document, tables
from gmmae.plotting.tables import literal
from gmmae.scaling import cost
from gmmae.scaling.cost import Cluster
from gmmae.sweep import step_times
from gmmae.sweep.grid import SweepConfig, run_keys
from gmmae.sweep.report import cells, csv_files, figures, outcome, statistics, tensorboard, throughput
from gmmae.sweep.report.cells import CAPPED, Cell, Results
from gmmae.sweep.report.statistics import EXACT_RUNS, LEVEL, MIN_RUNS
from gmmae.sweep.runs import TIMED_OUT
from gmmae.system.errors import InputError
from gmmae.system.files import ANYTHING, whole_folder, write_text

MODES = {
    "virtual": "virtual: one device computes the batch of n devices exactly, and times on n devices are projected",
    "measured": "measured: each run ran on its number of devices",
    "throughput": "throughput: step times only, nothing is trained to a target",
}

SIGNIFICANCE_LEVEL = 0.05
"""Of a sign test's p that is corrected for the number of comparisons."""


def write(config: SweepConfig, root: Path, clusters: Sequence[Cluster], plan: Path | None = None) -> list[Path]:
    """Writes `report` in the sweep's folder, and TensorBoard logs under `tb`; the plan is by default one in the folder.

    The page is about the first cluster that virtual runs can be projected to. Returns the HTML page, the Markdown page, and the
    TensorBoard folder if any run has a history.
    """
    if plan is not None and config.mode == "throughput":
        raise InputError(f"--plan needs a sweep that trains to a target; got {root}, which has step times only: leave it out")
    by_cluster = cells.read(config, root, clusters)
    found, parts, folds = by_cluster[0], [], {}
    place, done, total = found.folder.report, len(found.runs) + len(found.failed), len(run_keys(config))
    with whole_folder(place, "FOLDER", ANYTHING, waits=True) as folder:
        if config.mode == "throughput":
            parts += throughput.parts(found, folder)
        else:
            parts.append(headline(found))
            parts += [f"**{done} of {total} runs are computed.** The report covers these."] * (done < total)
            write_text(folder / "runs.csv", csv_files.runs_csv(found))
            write_text(folder / "cells.csv", csv_files.cells_csv(by_cluster))
        if found.runs:
            drawn = figures.time_to_target(found, folder)
            parts += [*drawn, cell_table(found)]
            folds["Losses"] = figures.losses(found, folder, f"Figure {len(drawn) + 1}")
            projected = [one for one in by_cluster if one.source.kind == "projected"]
            if len(projected) > 1:
                columns, *rows = ["scaling", "devices"], *([scaling, str(n)] for scaling, n in found.cells)
                for one in projected:
                    columns += [f"{one.source.cluster} (s)", *cost.spent_texts(one.source.priced, 0.0)]
                    for row, cell in zip(rows, one.cells.values(), strict=True):
                        row += [cell.time_s.text(tables.seconds), *one.spent(cell).values()]
                title = "Table 2. Time to the target on other clusters, projected"
                folds["Other clusters"] = tables.table(columns, rows, title)
            if plan or found.folder.plan.exists():
                name = f"Table {len(folds) + 1}"
                folds["Prediction and outcome"] = outcome.comparison(by_cluster, plan or found.folder.plan, name)
        texts = cautions(found)
        parts += ["\n".join(f"- {text}" for text in texts)] if texts else []
        about = {
            f"{of.device_kind}; {', '.join(f'{name} {version}' for name, version in of.versions.items())}; {of.git_commit}"
            for of in (*(run.record for run in found.runs), *found.timings)
        }
        sources = dict.fromkeys(one.source.note for one in by_cluster if one.source.note)
        notes = [*sources, f"Mode {MODES[config.mode]}.", *sorted(about)]
        folds["Times, devices and versions"] = "\n\n".join(map(literal, notes))
        parts += [document.folded(name, text) for name, text in folds.items()]
        title = found.source.titled(f"Scaling strategies compared: {found.folder.root.resolve().name}")
        document.write(title, "\n\n".join(parts), folder / "report.md", folder / "report.html")
    shown = tensorboard.write(found)
    return [place / "report.html", place / "report.md", *([shown] if shown else [])]


def headline(results: Results) -> str:
    """The fastest strategies whose median run reached the target, on the fewest devices, and how they compare with the next."""
    stop, source = results.config.run.stop, results.source
    if not results.runs or stop.target is None:
        reason = "(`run.stop.target` is none), so there is no time to the target and no fastest strategy."
        return f"**No target was set** {reason}" if results.runs else "No run is computed yet."
    if source.kind == "unknown":
        return f"**Which strategy is the fastest is unknown.** {literal(source.note)}"
    known = (cell for cell in results.cells.values() if math.isfinite(cell.time_s.value))
    timed = sorted(known, key=lambda cell: (cell.time_s.value, cell.devices))
    if not timed:
        return f"**No strategy's median run reached the target** validation {literal(stop.monitor)} of {stop.target:g}."
    best = timed[0]
    tied = [cell for cell in timed if (cell.time_s.value, cell.devices) == (best.time_s.value, best.devices)]
    one_device = results.cells.get((best.scaling, 1), best).time_s.value / best.time_s.value
    faster, more = tables.ratio(one_device), tables.ratio(best.devices / one_device)
    faster = f", {faster} times as fast as one device for {more} times the device time" if 1 < one_device < math.inf else ""
    labels = literal(" and ".join(cell.label for cell in tied))
    text = f"**Fastest: {labels} on {_devices(best)}, {best.time_s.text(tables.seconds)} s to the target{faster}** "
    text += f"(reached by {best.reached} of {best.seeds} seeds; {literal(source.short or source.kind)})."
    second = next((cell for cell in timed if cell.scaling not in [one.scaling for one in tied]), None)
    if second is None:
        return text
    text += f" Next: {literal(second.label)} on {_devices(second)}, {second.time_s.text(tables.seconds)} s"
    pairs, compared = statistics.paired(best.times, second.times), math.comb(len(timed), 2)
    if not math.isnan(pairs.p):
        # The data have chosen these two among all pairs of cells, so p has Holm's factor of the smallest one.
        p = min(1.0, compared * pairs.p)
        verdict = "significant" if p < SIGNIFICANCE_LEVEL else "not significant"
        text += f", slower in {pairs.slower} of {pairs.seeds} seeds ({verdict}: sign test, p = {p:.2g} by Holm's correction "
        text += f"for {compared} pairs of cells)"
    return f"{text}."


def _devices(cell: Cell) -> str:
    return f"{cell.devices} device{'s' * (cell.devices > 1)}"


def cell_table(results: Results) -> str:
    """The table of the cells, with what its numbers mean below it."""
    rows = []
    for cell in results.cells.values():
        kinds = Counter(run.outcome.replace("_", " ") for run in cell.runs if not run.reached)
        kinds["stopped by the time limit"] = cell.seeds - len(cell.runs)
        rows.append(
            {
                "scaling": cell.scaling,
                "n": f"{cell.devices}{cell.mark}",
                "reached": f"{cell.reached} of {cell.seeds}",
                "epochs": cell.epochs.text(lambda value: f"{value:g}" if math.isfinite(value) else "not reached"),
                "time (s)": cell.time_s.text(tables.seconds),
                **results.spent(cell),
                "efficiency (%)": cell.efficiency.text(tables.percent),
                "ratio": cell.ratio.text(tables.ratio),
                "p": Estimate(cell.p_holm).text("{:.3g}".format),
                "batch": cell.batch or "–",
                "rate": Estimate(cell.learning_rate).text("{:g}".format),
                "missed": ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()) if count) or "–",
            }
        )
    few = min((len(cell.times) for cell in results.cells.values() if len(cell.times) >= MIN_RUNS), default=EXACT_RUNS)
    coverage = f" from {EXACT_RUNS} seeds on. The range of {few} holds the median with {100 - 200 * 0.5**few:.3g} %"
    notes = [
        "In brackets, where the seeds differ: the range of the epochs, and exact intervals of the medians over seeds, with "
        f"{100 * LEVEL:g} % probability at least{coverage * (few < EXACT_RUNS)}. –: unknown.",
        "Efficiency: T1 / (n Tn) · 100 %, of median times T. A miss counts as an infinite time, a crashed process not at all. "
        "Diverged: NaN or infinity in a loss. Collapsed: the loss no longer changes. Stalled: it no longer improves.",
        "Ratio: the time over that of strong scaling, median over the seeds in which one of the two reached the target. p: "
        "two-sided sign test by seed, corrected for the number of rows by Holm's method.",
    ]
    if results.config.mode == "virtual" and "strong" in results.config.scaling:
        notes.append(
            "Strong scaling takes the same epochs on any number of devices: one run of a seed is computed for all, so its "
            "efficiency does not vary between seeds."
        )
    for record in (run.record for run in results.runs if run.record.clipped):
        batch = max(record.global_batch, record.largest_batch)
        times = f"{batch / record.batch_size:.4g} times the base batch"
        notes.append(f"{CAPPED} Batch capped at {batch} of {record.train_samples} training samples, {times}.")
    title = results.source.titled("Table 1. Time to the target by strategy and number of devices n")
    return tables.table(list(rows[0]), [list(row.values()) for row in rows], title, list(dict.fromkeys(notes)))


def cautions(results: Results) -> list[str]:
    """Cautions on few seeds, seen validation samples and step times, and the failed processes."""
    texts, seeds = [], max((cell.seeds for cell in results.cells.values()), default=EXACT_RUNS)
    if seeds < EXACT_RUNS:
        number = "one seed is an example, not a comparison" if seeds == 1 else f"{seeds} seeds are few"
        texts.append(f"**Caution**: {number}. {100 * LEVEL:g} % intervals and p < {SIGNIFICANCE_LEVEL} need {EXACT_RUNS}.")
    texts += [literal(note) for note in results.runs[0].record.seen_notes] if results.runs else []
    spread = step_times.spread(results.timings[0].train) if results.source.kind == "projected" else 0.0
    if round(spread, 3) > step_times.MAX_SPREAD:
        texts.append(
            f"**Caution**: the step times scatter, with quartiles up to {100 * spread:.0f} % from their medians. So may all "
            "projected times. On an idle machine remove the folder `step_times` and repeat the sweep: its runs are kept."
        )
    if named := [f"{failure.key.name} ({failure.outcome}: {failure.message})" for failure in results.failed]:
        limited = "leaves its cell without a time" if results.config.mode == "virtual" else "counts as an infinite time"
        stopped = f", and one over the time limit {limited}" * any(failure.outcome == TIMED_OUT for failure in results.failed)
        texts.append(f"**Failed processes**. A crashed one counts nowhere{stopped}: {literal('; '.join(named))}")
    failed = [f"{n.devices} devices, {what}: {why}" for n in results.timings for what, why in n.failed.items()]
    texts += [f"**Failed measurements** of step times: {literal('; '.join(failed))}"] if failed else []
    return texts
