"""Writes the runs of a sweep as TensorBoard logs, from their records and histories."""

import math
from dataclasses import replace
from operator import attrgetter
from pathlib import Path

from gmmae.sweep.report.results import Results, Run
from gmmae.system.files import ANYTHING, whole_folder
from gmmae.training.records import Epoch
from gmmae.training.tensorboard import RESULTS, TIMES, Point, TensorBoard, training_s, write_charts

PROJECTED_TIMES = {"time/projected_s": "total_s"}
PROJECTED_RESULTS = {"result/projected_time_to_target_s": "time_to_target_s"} | {
    tag: name for tag, name in RESULTS.items() if name != "time_to_target_s"
}
NO_RESULT_TIMES = {tag: name for tag, name in RESULTS.items() if name != "time_to_target_s"}
COMPARED = "compare"
"""The folder of the charts that compare strategies, and the category of their tags. Each strategy is a log of its own there."""


def write(results: Results) -> Path | None:
    """Writes `tb/<strategy>/n<NN>/seed<S>` for each run with a history. Returns `tb`, or None if there is none.

    Numbers of devices have leading zeros, because TensorBoard sorts alphabetically. Its axis "Relative" shows the time to a
    loss, starting at the end of the first epoch. If times are projected, the names of tags and logs say so. `tb/compare` has
    a chart of all strategies for each number of devices.

    Raises:
      InputError: the folder cannot be written, or a history cannot be read.
    """
    histories = [(run, history) for run in results.runs if (history := results.history(run))]
    if not histories:
        return None
    digits = max(2, len(str(results.counts[-1])))
    with whole_folder(results.folder.tensorboard, "FOLDER", ANYTHING, waits=True) as folder:
        for run, history in histories:
            seed = f"seed{run.key.seed}" + ("_projected" if results.clock.kind == "projected" else "")
            _write_run(results, run, history, folder / run.key.scaling / f"n{run.key.devices:0{digits}}" / seed)
        if results.clock.kind != "unknown":
            _write_charts(results, folder / COMPARED, digits)
    return results.folder.tensorboard


def _write_run(results: Results, run: Run, history: list[Epoch], folder: Path) -> None:
    kind = results.clock.kind
    times = {"measured": TIMES, "projected": PROJECTED_TIMES, "unknown": {}}[kind]
    tags = {"measured": RESULTS, "projected": PROJECTED_RESULTS, "unknown": NO_RESULT_TIMES}[kind]
    clock = {"measured": training_s, "projected": attrgetter("total_s"), "unknown": None}[kind]
    board = TensorBoard(folder, _parameters(results, run), metric=run.record.monitor, times=times, results=tags, clock=clock)
    for row in history:
        board.row(row._replace(total_s=results.elapsed_s(run, row)) if kind == "projected" else row)
    board.result(replace(run.record, time_to_target_s=run.time_s if run.reached else None))
    board.close()


def _parameters(results: Results, run: Run) -> dict[str, object]:
    record = run.record
    return {
        "scaling": run.key.scaling,
        "devices": run.key.devices,
        "seed": run.key.seed,
        "global_batch": record.global_batch,
        "device_batch": record.device_batch,
        "learning_rate": record.learning_rate,
        "mode": results.config.mode,
        "outcome": run.outcome,
    }


def _write_charts(results: Results, folder: Path, digits: int) -> None:
    """Writes a chart for each number of devices, with a line for each strategy and one for the target."""
    stop, ending = results.config.run.stop, "_projected" if results.clock.kind == "projected" else ""
    tags = {n: f"{COMPARED}/n{n:0{digits}}_{stop.monitor}" for n in results.counts}
    lines: dict[str, dict[str, list[Point]]] = {}
    ends: dict[int, float] = {}
    for scaling in results.config.scaling:
        for n in results.counts:
            if run := _middle(results, scaling, n):
                history = results.history(run)
                points = [Point(results.elapsed_s(run, row), row.value(stop.monitor)) for row in history]
                # The axis "Relative" starts at a line's first event, so each line begins with NaN at time 0.
                lines.setdefault(f"{scaling}{ending}", {})[tags[n]] = [Point(0.0, math.nan), *points]
                ends[n] = max(ends.get(n, 0.0), points[-1].time_s)
    target = stop.target
    lines["target"] = (
        {} if target is None else {tags[n]: [Point(0.0, target), Point(end_s, target)] for n, end_s in ends.items()}
    )
    write_charts(folder, lines)


def _middle(results: Results, scaling: str, devices: int) -> Run | None:
    """Returns the run of the median time among those with a history, or the slower of the two middle ones."""
    runs = [run for run in results.group(scaling, devices) if results.history(run)]
    return sorted(runs, key=lambda run: run.time_s)[len(runs) // 2] if runs else None
