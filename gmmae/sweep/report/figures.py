"""The two figures of a report of trained runs."""

import math
from pathlib import Path

import numpy as np

from gmmae.plotting import canvas, comparison, document, loss_curves
from gmmae.plotting.comparison import Measured
from gmmae.plotting.loss_curves import LossCurve
from gmmae.plotting.tables import literal
from gmmae.sweep.report.cells import Results


def shown(figure: canvas.Figure, name: str, text: str, folder: Path, file: str) -> str:
    """Saves a figure below the folder of a report, and returns its Markdown with the text as the caption."""
    return document.figure(name, literal(f"{name}. {text}"), *canvas.save_both(figure, folder / "figures" / file), folder)


def time_to_target(results: Results, folder: Path) -> list[str]:
    """Draws the time to the target by number of devices, a line for each strategy, if any is known."""
    series = []
    for scaling in results.config.scaling:
        cells = [cell for cell in results.cells.values() if cell.scaling == scaling and not math.isnan(cell.time_s.value)]
        if cells:
            numbers = zip(*((cell.devices, *cell.time_s, cell.reached, cell.seeds) for cell in cells), strict=True)
            series.append(Measured(max(cell.label for cell in cells), *numbers))
    stop, source = results.config.run.stop, results.source
    if not series or stop.target is None:
        return []
    title = source.titled(f"Time to the target validation {stop.monitor} of {stop.target:g}")
    label = "projected time to target (s)" if source.kind == "projected" else "time to target (s)"
    text = f"{title}: medians over seeds, with their intervals. Dashed: T1 / n."
    if not all(run.reached for run in results.runs):
        text += " A miss counts as infinite: a missing point is a median run that missed. Numbers above count the others."
    drawn = comparison.time_to_target(series, title=title, y_label=label)
    return [shown(drawn, "Figure 1", text, folder, "time_to_target")]


def losses(results: Results, folder: Path, name: str) -> str:
    """Draws the losses of each strategy's median run on the most devices, or says why there are none."""
    runs = {(cell.devices, cell.label): run for cell in results.cells.values() if (run := cell.median_run)}
    if not runs:
        return "No run has left a history."
    devices, source = max(n for n, _ in runs), results.source
    curves = []
    for (n, label), run in runs.items():
        if n == devices:
            rows = [(row.epoch, row.train_loss, row.val_loss) for row in run.history]
            x, train, validation = np.array(rows, float).T
            curves.append(LossCurve(label, x if source.kind == "unknown" else np.array(run.elapsed_s), train, validation))
    title = source.titled(f"Losses, n = {devices}")
    label = {"projected": "projected time (s)", "measured": "time (s)", "unknown": "epoch"}[source.kind]
    drawn = loss_curves.losses_by_devices(curves, title=title, target=results.config.run.stop.target, x_label=label)
    return shown(drawn, name, f"{title}: of each strategy the run of the median time.", folder, "losses")
