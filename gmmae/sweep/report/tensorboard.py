"""The runs of a sweep as TensorBoard logs, from their records and histories."""

import math
import time
from collections import defaultdict
from dataclasses import replace
from operator import attrgetter
from pathlib import Path

from gmmae.sweep.report.cells import Results
from gmmae.system.files import ANYTHING, whole_folder
from gmmae.system.tensorboardx import SummaryWriter
from gmmae.training.run_logger import RESULTS, TIMES, TensorBoard, training_s

NO_TIMES = {tag: name for tag, name in RESULTS.items() if name != "time_to_target_s"}
KINDS = {
    "measured": (TIMES, RESULTS, training_s),
    "projected": (
        {"time/projected_s": "total_s"},
        {"result/projected_time_to_target_s": "time_to_target_s", **NO_TIMES},
        attrgetter("total_s"),
    ),
    "unknown": ({}, NO_TIMES, None),
}
"""Tags of the times of an epoch, tags of the outcome, and the clock of the events, by the kind of times."""


def write(results: Results) -> Path | None:
    """Writes `tb/<strategy>/n<NN>/seed<S>` for each run with a history. Returns `tb`, or None if there is none.

    Numbers of devices have leading zeros, because TensorBoard sorts alphabetically. `tb/compare` has a chart for each number of
    devices, with a log of each strategy's median run.
    """
    runs = [run for run in results.runs if run.history]
    if not runs:
        return None
    kind, stop, place = results.source.kind, results.config.run.stop, results.folder.tensorboard
    ending, digits = "_projected" * (kind == "projected"), max(2, len(str(max(results.config.devices))))
    times, tags, clock = KINDS[kind]
    with whole_folder(place, "FOLDER", ANYTHING, waits=True) as folder:
        for run in runs:
            (scaling, n, seed), record = run.key, run.record
            parameters = {
                "Strategy": scaling,
                "Devices": n,
                "Batch": record.global_batch,
                "Learning rate": record.learning_rate,
                "Seed": seed,
                "outcome": run.outcome,
            }
            log = folder / scaling / f"n{n:0{digits}}" / f"seed{seed}{ending}"
            board = TensorBoard(log, parameters, metric=record.monitor, times=times, results=tags, clock=clock)
            for row, elapsed_s in zip(run.history, run.elapsed_s, strict=True):
                board.row(row._replace(total_s=elapsed_s) if kind == "projected" else row)
            board.result(replace(record, time_to_target_s=run.time_s if run.reached else None))
            board.close()
        lines: dict[str, dict[str, list[tuple[int, float, float]]]] = defaultdict(dict, target={})  # steps, seconds, values
        for (scaling, n), cell in results.cells.items():
            if run := cell.median_run:
                tag = f"compare/n{n:0{digits}}_{stop.monitor}"
                rows = enumerate(zip(run.elapsed_s, run.history, strict=True), start=1)
                points = [(step, at, row.value(stop.monitor)) for step, (at, row) in rows]
                # The axis "Relative" starts at a line's first event, so each line begins with NaN at time 0.
                lines[scaling + ending][tag] = [(0, 0.0, math.nan), *points]
                if stop.target is not None:
                    steps, times_s, _ = zip(points[-1], *lines["target"].get(tag, ()), strict=True)
                    lines["target"][tag] = [(0, 0.0, stop.target), (max(steps), max(times_s), stop.target)]
        start = time.time()
        for log, by_tag in lines.items() if kind != "unknown" else ():  # TensorBoard draws all lines of a tag in one chart
            with SummaryWriter(str(folder / "compare" / log)) as writer:
                for tag, points in by_tag.items():
                    for step, at_s, value in points:
                        writer.add_scalar(tag, value, step, start + at_s)
    return place
