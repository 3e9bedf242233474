"""The figures of a report of trained runs, the paper's Fig. 1 to 5. A missing figure becomes its reason."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gmmae.plotting import canvas, comparison, loss_curves, tables
from gmmae.plotting.comparison import Measured
from gmmae.plotting.document import Block, Figure, Paragraph
from gmmae.plotting.loss_curves import LossCurve
from gmmae.scaling.strategies import STRATEGIES
from gmmae.sweep.report import outcomes
from gmmae.sweep.report.efficiency import Interval
from gmmae.sweep.report.outcomes import devices_text, intervals_explained, listed
from gmmae.sweep.report.results import Results, Run
from gmmae.training.figures import read_snapshots
from gmmae.workloads import registry

PAPER_WARMUP_DEVICES = 8
"""The number of devices in the paper's Fig. 3."""


def samples(results: Results, folder: Path) -> Block:
    """Returns Fig. 1: samples as the workload draws them, from the run with snapshots on the fewest devices."""
    draw = getattr(registry.load(results.config.run.workload), "draw", None)
    if draw is None:
        return Paragraph("Fig. 1 is left out: the workload draws no picture.")
    scaling = results.config.scaling[0]
    for run in (run for n in results.counts for run in results.group(scaling, n)):
        snapshots = read_snapshots(results.folder.run(run.path).snapshots, run.record.epochs)
        if snapshots:
            title = f"{STRATEGIES[scaling].label} on {devices_text([run.key.devices])}, seed {run.key.seed}"
            png, svg = (draw(snapshots, folder, title, ending) for ending in ("png", "svg"))
            epochs = listed(snapshot.epoch for snapshot in snapshots)
            text = f"Fig. 1. Validation samples and their reconstructions after {epochs} epochs. The loss is that of all "
            return Figure("Fig. 1", f"{text}validation samples. {title}.", png, svg)
    return Paragraph(f"Fig. 1 is left out: no run of the strategy {scaling} has left snapshots.")


def time_to_target(results: Results, folder: Path) -> Block:
    """Returns Fig. 2: the time to the target by devices and strategy."""
    series = [found for scaling in results.config.scaling if (found := _series(results, scaling))]
    stop = results.config.run.stop
    if not series or stop.target is None:
        return Paragraph("Fig. 2 is left out: there are no times to the target.")
    title = f"Time to the target validation {stop.monitor}"
    y_label = _time_label(results, "time to target")
    drawn = comparison.time_to_target(series, title=results.clock.titled(title), y_label=y_label)
    text = f"Fig. 2. {title}. The target is {stop.target:g}. {_batches(results)} Points are medians over seeds. "
    if not all(run.reached for run in results.runs):
        text += (
            "A miss counts as infinite, so a missing point is a median run that missed the target. Numbers above the axes "
            "count the seeds that reached it. "
        )
    text += f"{intervals_explained(results)} Dashed: T1 / n."
    return Figure("Fig. 2", _captioned(results, text, results.runs), *canvas.save_both(drawn, folder / "figure_2"))


def _batches(results: Results) -> str:
    optim = results.config.run.optim
    fixed = [STRATEGIES[scaling].label for scaling in results.config.scaling if not STRATEGIES[scaling].grows(optim)]
    if not fixed:
        return "The global batch grows with the devices."
    return f"{listed(fixed)} keeps the global batch. With other strategies it grows with the devices."


def _series(results: Results, scaling: str) -> Measured | None:
    found = [(n, summary) for n in results.counts if (summary := results.seconds(scaling, n))]
    if not found:
        return None
    intervals = [summary.interval or Interval(math.nan, math.nan) for _, summary in found]
    return Measured(
        STRATEGIES[scaling].label + outcomes.capped_mark(run for run in results.runs if run.key.scaling == scaling),
        tuple(n for n, _ in found),
        tuple(summary.median for _, summary in found),
        tuple(interval.low for interval in intervals),
        tuple(interval.high for interval in intervals),
        tuple(summary.reached for _, summary in found),
        tuple(summary.runs for _, summary in found),
    )


def warmup(results: Results, folder: Path) -> Block:
    """Returns Fig. 3: a run with warmup, preferably on the paper's 8 devices."""
    run = _warmup_run(results)
    if run is None:
        return Paragraph("Fig. 3 is left out: no run of the linear rule with warmup has left a history.")
    course, epochs = _course(results, run), results.config.run.optim.scaling_warmup_epochs
    on = f"on {devices_text([run.key.devices])}{outcomes.capped_mark([run])}, seed {run.key.seed}"
    ending = "reached the target" if run.reached else f"ended as {run.outcome.replace('_', ' ')}"
    text = (
        f"Fig. 3. Losses under the linear rule with {epochs} epochs of warmup {on}. The learning rate goes from "
        f"{results.config.run.optim.learning_rate:g} to {run.record.learning_rate:g}. The run {ending} after "
        f"{run.record.epochs} epochs, at a validation loss of {tables.loss(float(course.val_loss[-1]))}."
    )
    if run.path != run.key.name:
        text += f" Computed as `{run.path}`."
    title = results.clock.titled(f"Linear rule with warmup {on}")
    target = results.config.run.stop.target_loss
    if run.epoch is None:
        drawn = loss_curves.losses_by_devices([course], title=title, target=target, x_label="epoch")
    else:
        text += f" The panel on the right enlarges the first {epochs} epochs of a longer run." if epochs else ""
        label = _time_label(results, "time")
        drawn = loss_curves.warmup_curve(
            course, title=title, target=target, first_epochs=epochs, epoch_s=run.epoch.total_s, x_label=label
        )
    return Figure("Fig. 3", _captioned(results, text, [run]), *canvas.save_both(drawn, folder / "figure_3"))


def _warmup_run(results: Results) -> Run | None:
    """Returns the run on 8 devices, else the smallest that missed the target, else the largest."""
    runs = [run for n in results.counts for run in results.group("linear-warmup", n) if results.history(run)]
    papers = [run for run in runs if run.key.devices == PAPER_WARMUP_DEVICES]
    missed = [run for run in runs if not run.reached]
    return (papers or missed or sorted(runs, key=lambda run: -run.key.devices) or [None])[0]


def losses(results: Results, scaling: str, number: int, folder: Path) -> Block:
    """Returns Fig. 4 or 5: the losses of a strategy by devices, for the first seed with a history."""
    name, of = f"Fig. {number}", f"{STRATEGIES[scaling].label[0].lower()}{STRATEGIES[scaling].label[1:]}"
    found = [run for n in results.counts for run in results.group(scaling, n) if results.history(run)]
    if not found:
        return Paragraph(f"{name} is left out: no run of {of} has left a history.")
    seeds = [seed for seed in results.config.seeds if any(run.key.seed == seed for run in found)]
    runs = [run for run in found if run.key.seed == seeds[0]]
    title = f"Losses under {of}, seed {seeds[0]}"
    drawn = loss_curves.losses_by_devices(
        [_course(results, run) for run in runs],
        title=results.clock.titled(title),
        target=results.config.run.stop.target_loss,
        x_label="epoch" if results.clock.kind == "unknown" else _time_label(results, "time"),
    )
    text = f"{name}. {title}: on {listed(run.key.devices for run in runs)} devices, against time on a logarithmic axis."
    if results.clock.kind == "unknown":
        text = text.replace("against time", "against epochs")
    if len(runs) > 1 and len({run.path for run in runs}) == 1:
        text += " One optimisation path, computed once per seed. The curves differ in time only."
    elif STRATEGIES[scaling].grows(results.config.run.optim):
        text += " The global batch grows with the devices, so an epoch has fewer steps."
    return Figure(name, _captioned(results, text, runs), *canvas.save_both(drawn, folder / f"figure_{number}"))


def _course(results: Results, run: Run) -> LossCurve:
    history = results.history(run)
    elapsed = [float(row.epoch) if run.epoch is None else results.elapsed_s(run, row) for row in history]
    train, validation = (np.array([getattr(row, name) for row in history]) for name in ("train_loss", "val_loss"))
    return LossCurve(devices_text([run.key.devices]) + outcomes.capped_mark([run]), np.array(elapsed), train, validation)


def _captioned(results: Results, text: str, runs: Sequence[Run]) -> str:
    return results.clock.captioned(" ".join([text.strip(), *outcomes.capped_notes(runs)]))


def _time_label(results: Results, what: str) -> str:
    return f"projected {what} (s)" if results.clock.kind == "projected" else f"{what} (s)"
